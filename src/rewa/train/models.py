"""The networks of the recipes, without torchvision: ResNets under its layer names, so that its weights load, and small ones."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewa.names import nearest
from rewa.train.fast_net import fastnet

__all__ = [
    "GPT",
    "MODELS",
    "BasicBlock",
    "BlurConv2d",
    "Bottleneck",
    "DecoderBlock",
    "ResNet",
    "build",
    "cnn",
    "gpt",
    "lenet",
    "mlp",
    "resnet18",
    "resnet20",
    "resnet50",
]

STEMS = {"imagenet": (7, 2), "small": (3, 1), "small-stride2": (3, 2)}  # kernel size and stride of the first convolution


class BlurConv2d(nn.Conv2d):
    r"""A convolution whose input is blurred by the 3x3 binomial filter :math:`(1, 2, 1)^\top (1, 2, 1) / 16` (zero padding).

    A subclass, and the filter is no part of the state, so that weights go by the same names with and without the blur.

    References:
        Zhang, "Making Convolutional Networks Shift-Invariant Again", ICML 2019.
    """

    blur: Tensor

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, *, padding: int, bias: bool) -> None:
        super().__init__(inputs, outputs, size, stride, padding=padding, bias=bias)
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("blur", torch.outer(line, line).repeat(inputs, 1, 1, 1), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Blur, then convolve.

        Args:
            input: Images, (batch, channels, height, width).
        """
        return super().forward(F.conv2d(input, self.blur, padding=1, groups=self.in_channels))


def _conv(inputs: int, outputs: int, size: int, stride: int = 1, *, blurpool: bool) -> nn.Conv2d:
    """A convolution without bias; blurred where FFCV's ResNet-50 recipe does so: stride above 1, 16 or more input channels."""
    kind = BlurConv2d if blurpool and stride > 1 and inputs >= 16 else nn.Conv2d
    return kind(inputs, outputs, size, stride, padding=size // 2, bias=False)


def _downsample(inputs: int, outputs: int, stride: int, blurpool: bool) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride, blurpool=blurpool), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to the input."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, *, blurpool: bool) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride, blurpool=blurpool)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, blurpool=blurpool)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(inputs, width, stride, blurpool)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output.

        Args:
            x: Its input.
        """
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to the input; the stride is at the 3x3, as in torchvision."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, *, blurpool: bool) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 1, blurpool=blurpool)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride, blurpool=blurpool)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, 4 * width, 1, blurpool=blurpool)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _downsample(inputs, 4 * width, stride, blurpool)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output.

        Args:
            x: Its input.
        """
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A residual network with torchvision's names and initialisation.

    Args:
        block: :class:`BasicBlock` or :class:`Bottleneck`.
        depths: Blocks in each stage; the width doubles and the image halves from one to the next.
        classes: Number of classes.
        width: Channels of the first stage.
        stem: ``"imagenet"`` (7x7 with stride 2, then a pool), ``"small"`` (3x3), or ``"small-stride2"`` (3x3 with stride 2).
        channels: Channels of the images.
        blurpool: Whether convolutions with a stride blur first, see :class:`BlurConv2d`.

    References:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        classes: int,
        *,
        width: int = 64,
        stem: str = "imagenet",
        channels: int = 3,
        blurpool: bool = False,
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"Invalid stem: {stem!r} (allowed: {', '.join(STEMS)})")
        self.conv1 = _conv(channels, width, *STEMS[stem], blurpool=blurpool)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if stem == "imagenet" else nn.Identity()
        inputs = width
        self.stages = [f"layer{stage + 1}" for stage in range(len(depths))]
        for stage, name in enumerate(self.stages):
            blocks: list[nn.Module] = []
            for index in range(depths[stage]):
                blocks.append(block(inputs, width << stage, 2 if stage and index == 0 else 1, blurpool=blurpool))
                inputs = (width << stage) * block.expansion
            self.add_module(name, nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes).

        Args:
            x: Images, (batch, channels, height, width).
        """
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def resnet18(
    classes: int = 1000, *, width: int = 64, stem: str = "imagenet", channels: int = 3, blurpool: bool = False
) -> ResNet:
    """ResNet-18; with ``width=32, stem="small-stride2"`` it has 2.8 million parameters and suits a CPU.

    Args:
        classes: Number of classes.
        width: Channels of the first stage.
        stem: The first layers, see :class:`ResNet`.
        channels: Channels of the images.
        blurpool: Whether convolutions with a stride blur first.
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, width=width, stem=stem, channels=channels, blurpool=blurpool)


def resnet20(classes: int = 10, *, width: int = 16, stem: str = "small", channels: int = 3) -> ResNet:
    """ResNet-20 for small images, with 1x1 convolutions where the width changes (option B of He et al.).

    Args:
        classes: Number of classes.
        width: Channels of the first stage.
        stem: The first layers, see :class:`ResNet`.
        channels: Channels of the images.
    """
    return ResNet(BasicBlock, (3, 3, 3), classes, width=width, stem=stem, channels=channels)


def resnet50(
    classes: int = 1000, *, width: int = 64, stem: str = "imagenet", channels: int = 3, blurpool: bool = False
) -> ResNet:
    """ResNet-50.

    Args:
        classes: Number of classes.
        width: Channels of the first stage's narrow convolutions.
        stem: The first layers, see :class:`ResNet`.
        channels: Channels of the images.
        blurpool: Whether convolutions with a stride blur first, as in FFCV's ImageNet recipe (Leclerc et al., CVPR 2023).
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, width=width, stem=stem, channels=channels, blurpool=blurpool)


def cnn(classes: int = 10, *, channels: int = 1, size: int = 8) -> nn.Sequential:
    """Three convolutions with batch norm and a linear layer: 25,744 weights for scikit-learn's digits.

    Args:
        classes: Number of classes.
        channels: Channels of the images.
        size: Their side.
    """

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    side = -(-size // 4)  # halved twice, rounded up
    layers = [*block(channels, 16, stride=1), *block(16, 32, stride=2), *block(32, 64, stride=2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * side**2, classes))


def lenet(classes: int = 10, *, channels: int = 1, size: int = 28) -> nn.Sequential:
    """The Caffe version of LeNet-5 that the pruning literature uses (Han et al., NeurIPS 2015): 430,500 weights.

    Args:
        classes: Number of classes.
        channels: Channels of the images.
        size: Their side, at least 16.
    """
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"images of {size} x {size} are too small for lenet (allowed: 16 and more)")
    return nn.Sequential(
        *(nn.Conv2d(channels, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(50 * side**2, 500), nn.ReLU(), nn.Linear(500, classes)),
    )


def mlp(inputs: int, classes: int, *, hidden: Sequence[int] = (300, 100)) -> nn.Sequential:
    """Linear layers with ReLU between them; with 784 inputs and 10 classes it is LeNet-300-100.

    Args:
        inputs: Number of inputs; images are flattened.
        classes: Number of classes.
        hidden: Neurons of each hidden layer.
    """
    widths = [inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


class DecoderBlock(nn.Module):
    """Causal attention and a feed-forward net, each on the normed input and added to it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feedforward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output.

        Args:
            x: Its input, (batch, time, width).
        """
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        fed: Tensor = self.drop(self.feedforward(self.norm2(x)))
        return x + fed


class GPT(nn.Module):
    """A decoder-only transformer with norms before the layers, as GPT-2 (Radford et al., 2019).

    The head is not tied to the token embedding, so that it can become sparse without it.

    Args:
        vocabulary: Number of tokens.
        context: The longest input.
        layers: Number of blocks.
        heads: Attention heads in each; they share the width evenly.
        width: Size of a token's representation.
        dropout: Share of activations dropped in training.
    """

    def __init__(
        self, vocabulary: int, *, context: int = 128, layers: int = 4, heads: int = 4, width: int = 128, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width} cannot be shared by heads={heads}: it must be a multiple of it")
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, param in self.named_parameters():
            if param.dim() > 1:
                # The sum of all residual branches keeps its scale whatever their number is.
                adds_up = name.endswith(("out.weight", "feedforward.2.weight"))
                nn.init.normal_(param, std=0.02 / math.sqrt(2 * layers) if adds_up else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(param)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each position, (batch, time, vocabulary).

        Args:
            tokens: Numbers of the tokens, (batch, time).
        """
        time = tokens.shape[1]
        if time > self.context:
            raise ValueError(f"{time} tokens are more than the model's context of {self.context}")
        # Through the embedding's forward: there FSDP puts its weight together.
        x = self.drop(self.tokens(tokens) + self.positions(torch.arange(time, device=tokens.device)))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def gpt(vocabulary: int, *, context: int = 128, layers: int = 4, heads: int = 4, width: int = 128, dropout: float = 0.0) -> GPT:
    """A small :class:`GPT`.

    Args:
        vocabulary: Number of tokens.
        context: The longest input.
        layers: Number of blocks.
        heads: Attention heads in each.
        width: Size of a token's representation.
        dropout: Share of activations dropped in training.
    """
    return GPT(vocabulary, context=context, layers=layers, heads=heads, width=width, dropout=dropout)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "fastnet": fastnet,
    "gpt": gpt,
    "lenet": lenet,
    "mlp": mlp,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet50": resnet50,
}


def build(name: str, *, classes: int, inputs: tuple[int, ...], **options: Any) -> nn.Module:
    """A model by its name, of the sizes that the data has.

    Args:
        name: A name in :data:`MODELS`.
        classes: Number of classes, or of tokens.
        inputs: Shape of one example: (channels, height, width) or (time,).
        options: Arguments of the model that do not follow from the data.

    Example:
        >>> build("mlp", classes=10, inputs=(1, 8, 8), hidden=(32,))
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=64, out_features=32, bias=True)
          (2): ReLU()
          (3): Linear(in_features=32, out_features=10, bias=True)
        )
    """
    if name not in MODELS:
        raise ValueError(nearest("model", name, MODELS))
    wanted = list(inspect.signature(MODELS[name]).parameters)
    if ("channels" in wanted and len(inputs) != 3) or ("context" in wanted) != (len(inputs) == 1):
        needs = "text, (time,)" if "context" in wanted else "images, (channels, height, width)"
        raise ValueError(f"{name} takes {needs}, not examples of shape {inputs}: choose another model for this data")
    if "size" in wanted and inputs[1] != inputs[2]:
        raise ValueError(f"{name} takes square images, not {inputs[1]} x {inputs[2]}: set resize=")
    given = {"classes": classes, "vocabulary": classes, "inputs": math.prod(inputs)}
    given |= {"context": inputs[0], "channels": inputs[0], "size": inputs[-1]}
    own = [key for key in wanted if key not in given]
    for option in options:
        if option not in own:
            raise ValueError(nearest(f"option of {name}", option, own))
    return MODELS[name](**{key: given[key] for key in wanted if key in given}, **options)
