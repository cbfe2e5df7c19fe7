"""A residual network that learns small images in a few epochs: whitened patches and three stages.

References:
    Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024, arXiv:2404.00498: the stages and the scaled
    logits. Page, "How to Train Your ResNet", 2018: whitening by fixed filters.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewa.train.narrow_conv import narrow_conv
from rewa.train.norm_gelu import norm_gelu

__all__ = ["FastNet", "Stage", "Whitening", "fastnet"]

PATCH = 2  # side of what is whitened
LEAST = 5e-4  # added to the variance of every direction, so that noise is not blown up
SCALE = 1 / 9  # of the logits
STAGES = (3, 8, 16)  # channels, as multiples of the width


class Whitening(nn.Module):
    r"""Fixed filters that make 2x2 patches p white, each with both signs: :math:`\pm v_i^\top p / \sqrt{\lambda_i + 0.0005}`.

    Here :math:`\lambda_i, v_i` are eigenvalues and eigenvectors of the second moments of patches. Filters are no parameters:
    they are not trained, and no method makes them sparse.

    Args:
        channels: Channels of the images.
    """

    filters: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        size = channels * PATCH**2
        eye = torch.eye(size).view(size, channels, PATCH, PATCH)
        self.register_buffer("filters", torch.cat([eye, -eye]))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Take the filters of some images.

        Args:
            images: Normalised, (count, channels, height, width).
        """
        patches = F.unfold(images, PATCH).transpose(1, 2).flatten(0, 1).double()
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (directions / (variances + LEAST).sqrt()).T.flip(0).view(-1, *self.filters.shape[1:])
        self.filters.copy_(torch.cat([filters, -filters]))

    def forward(self, x: Tensor) -> Tensor:
        """Whitened patches, twice as many channels as a patch has values.

        Args:
            x: Images, (batch, channels, height, width).
        """
        return F.conv2d(x, self.filters)


class Stage(nn.Module):
    """A 3x3 convolution and a pool, then a second convolution that is added to what came out of the first.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output, half as high and wide.

        Args:
            x: Its input.
        """
        x = norm_gelu(narrow_conv(self.conv1, x), self.bn1, pool=True)
        return norm_gelu(narrow_conv(self.conv2, x), self.bn2, residual=x)


class FastNet(nn.Module):
    """Whitened patches, three stages, the largest value of each channel, and a linear layer.

    Args:
        classes: Number of classes.
        width: A sixteenth of the channels of the last stage.
        channels: Channels of the images.
    """

    def __init__(self, classes: int, *, width: int = 16, channels: int = 3) -> None:
        super().__init__()
        self.whitening = Whitening(channels)
        widths = [len(self.whitening.filters), *(times * width for times in STAGES)]
        self.stages = nn.Sequential(*(Stage(*pair) for pair in itertools.pairwise(widths)))
        self.fc = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes).

        Args:
            x: Images, (batch, channels, height, width), 9 pixels high and wide or more.
        """
        x = self.stages(F.gelu(self.whitening(x)))
        logits: Tensor = self.fc(x.amax((2, 3))) * SCALE
        return logits


def fastnet(classes: int = 10, *, width: int = 16, channels: int = 3) -> FastNet:
    """A network of 1.1 million weights that learns CIFAR-10 in minutes on a CPU.

    Args:
        classes: Number of classes.
        width: A sixteenth of the channels of the last stage.
        channels: Channels of the images.
    """
    return FastNet(classes, width=width, channels=channels)
