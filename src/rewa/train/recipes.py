"""What is trained on what, and how: frozen recipes, and the one way to change them, ``key=value``."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rewa.methods.method import Method, Plan
from rewa.names import nearest
from rewa.schedules import learning_rates

__all__ = ["RECIPES", "Recipe", "override", "recipe", "setting_names"]

# Settings that came later: runs that were recorded without them had their defaults, and stay comparable.
LATER = ("flips", "nesterov", "shift")
COMPRESSIONS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 150, 200, 300, 500)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run without its method: ``dataclasses.replace`` makes a variant, ``--set key=value`` on the command line.

    Every method trains for ``epochs`` epochs in all. None means that the model, the data or the machine decides.
    """

    name: str
    line: str  # for `rewa list`

    data: str
    validation: int | None = None  # examples held out of the training data to choose on
    augment: bool = False  # random crops and flips
    shift: int | None = None  # pixels that crops move images by, at most
    flips: str | None = None  # "random", or "alternating": each image is mirrored in every second epoch
    resize: int | None = None  # side of the images, where they are not taken as they are
    image_size: int | None = None  # of image folders: side at the start
    last_image_size: int | None = None  # and at the end
    resize_from: float = 65 / 88  # the side grows between these shares of the run
    resize_to: float = 76 / 88
    evaluation_size: int | None = None
    workers: int | None = None  # processes that decode images

    model: str
    width: int | None = None
    stem: str | None = None
    blurpool: bool | None = None
    hidden: tuple[int, ...] | None = None
    context: int | None = None
    layers: int | None = None
    heads: int | None = None
    dropout: float | None = None

    epochs: int
    batch_size: int  # of all processes together
    accumulate: int = 1  # parts of a batch that are run one after the other
    optimizer: str = "sgd"
    lr: float
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 5e-4  # of weights, for the methods that do not shrink them by themselves
    schedule: str = "cosine"
    warmup: float = 0.0  # share of the epochs in which the rate rises
    label_smoothing: float = 0.0
    clip_norm: float | None = None

    metric: str = "accuracy"  # or "loss": what is compared
    compressions: tuple[float, ...] = COMPRESSIONS  # where the model is measured in the end
    max_drop: float = 1.0  # of the metric, on validation data: what the final cut may cost
    recalibrate: int = 2000  # training examples, as augmented, that batch norms are estimated from again after a cut
    finetune_epochs: int | None = None  # last epochs, with the zeros kept; None: as the method's own protocol has it
    finetune_lr: float = 0.1  # as a share of lr, falling to zero

    precision: str = "auto"  # or "float32", "bfloat16", "float16"
    channels_last: bool | None = None
    threads: int | None = None
    parallel: str = "ddp"  # or "fsdp", for more than one process
    sync_batchnorm: bool = True  # statistics of the whole batch, not of each process's part

    def __post_init__(self) -> None:
        self._check_numbers()
        choices = {
            "optimizer": ("sgd", "adamw"),
            "schedule": ("constant", "cosine", "linear"),
            "metric": ("accuracy", "loss"),
            "precision": ("auto", "float32", "bfloat16", "float16"),
            "parallel": ("ddp", "fsdp"),
        }
        for key, allowed in choices.items():
            if getattr(self, key) not in allowed:
                raise ValueError(f"Invalid {key}: {getattr(self, key)!r} (allowed: {', '.join(allowed)})")
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size={self.batch_size} cannot be run in accumulate={self.accumulate} equal parts")
        if self.finetune_epochs is not None and not 0 <= self.finetune_epochs < self.epochs:
            raise ValueError(
                f"Invalid finetune_epochs: {self.finetune_epochs} (allowed: 0 to {self.epochs - 1}, less than epochs)"
            )
        if not 0 <= self.warmup < 1:
            raise ValueError(f"Invalid warmup: {self.warmup} (allowed: from 0 to below 1, a share of the epochs)")
        self._check_image_sizes()

    def _check_numbers(self) -> None:
        """What a number or each number of a list may be; None is left to the model, the data or the machine."""
        positive = "epochs batch_size accumulate lr validation resize image_size evaluation_size width hidden context layers "
        positive += "heads clip_norm recalibrate threads"
        rules: dict[str, tuple[str, Callable[[float], bool]]] = {
            positive: ("a number > 0", lambda x: x > 0),
            "workers weight_decay max_drop finetune_lr": ("a number >= 0", lambda x: x >= 0),
            "dropout momentum betas label_smoothing": ("from 0 to below 1", lambda x: 0 <= x < 1),
            "compressions": ("one or more numbers >= 1", lambda x: x >= 1),
        }
        for keys, (allowed, holds) in rules.items():
            for key in keys.split():
                value = getattr(self, key)
                numbers = value if isinstance(value, tuple) else () if value is None else (value,)
                if not all(math.isfinite(number) and holds(number) for number in numbers):
                    raise ValueError(f"Invalid {key}: {value} (allowed: {allowed})")
        if not self.compressions:
            raise ValueError("Invalid compressions: () (allowed: one or more numbers >= 1)")

    def _check_image_sizes(self) -> None:
        if not 0 <= self.resize_from <= self.resize_to <= 1:
            raise ValueError(
                f"Invalid resize_from and resize_to: {self.resize_from}, {self.resize_to} "
                "(allowed: 0 <= resize_from <= resize_to <= 1, shares of the run)"
            )
        if self.last_image_size is None:
            return
        sizes = self.image_size, self.last_image_size
        if not all(size is not None and size >= 32 and size % 32 == 0 for size in sizes):
            raise ValueError(
                f"Invalid image_size and last_image_size: {sizes[0]}, {sizes[1]} (allowed: multiples of 32, since images "
                "grow in steps of 32; or last_image_size=none for one size)"
            )

    def finetuned(self, method: Method) -> int:
        """Of all epochs, how many the masked fine-tune takes.

        Args:
            method: The method; it has a say where the recipe has none.
        """
        if self.finetune_epochs is not None:
            return self.finetune_epochs
        share = method.finetune_share
        return min(self.epochs - 1, max(1, round(share * self.epochs))) if share else 0

    def plan(self, steps_per_epoch: int, *, finetune: int = 0) -> Plan:
        """The run as a method sees it.

        Args:
            steps_per_epoch: Steps in an epoch.
            finetune: Epochs at the end that are not the method's.
        """
        steps = (self.epochs - finetune) * steps_per_epoch
        warmup = min(steps - 1, round(self.warmup * self.epochs * steps_per_epoch))
        return self._plan(learning_rates(self.lr, steps, schedule=self.schedule, warmup=warmup), steps_per_epoch)

    def finetune_plan(self, steps_per_epoch: int, epochs: int) -> Plan:
        """The masked fine-tune.

        Args:
            steps_per_epoch: Steps in an epoch.
            epochs: How many.
        """
        rates = learning_rates(self.finetune_lr * self.lr, epochs * steps_per_epoch, schedule="linear")
        return self._plan(rates, steps_per_epoch)

    def _plan(self, rates: list[float], steps_per_epoch: int) -> Plan:
        return Plan(
            learning_rates=tuple(rates),
            steps_per_epoch=steps_per_epoch,
            optimizer=self.optimizer,
            momentum=self.momentum,
            nesterov=self.nesterov,
            betas=self.betas,
            weight_decay=self.weight_decay,
        )

    def image_size_at(self, epoch: int) -> int | None:
        """Side of the training images, which grows in steps of 32 from ``image_size`` to ``last_image_size``.

        Args:
            epoch: Counted from 0.

        Example:
            >>> imagenet = RECIPES["imagenet-resnet50"]
            >>> [imagenet.image_size_at(epoch) for epoch in (0, 65, 70, 76, 87)]
            [160, 160, 160, 192, 192]
        """
        if self.image_size is None or self.last_image_size is None:
            return self.image_size
        first, last = self.resize_from * self.epochs, self.resize_to * self.epochs
        share = min(1.0, max(0.0, (epoch - first) / max(last - first, 1e-9)))
        return round((self.image_size + share * (self.last_image_size - self.image_size)) / 32) * 32

    def settings(self) -> dict[str, Any]:
        """Plain values, as records hold them: those that recipes have had from the start, and others that were given."""
        defaults = {one.name: one.default for one in dataclasses.fields(self) if one.name in LATER}
        found = dataclasses.asdict(self)
        return {key: value for key, value in found.items() if key not in defaults or value != defaults[key]}


_ALL = (
    Recipe(
        name="digits",
        line="scikit-learn's 8x8 digits, a small convolutional network: seconds, nothing to download",
        data="digits",
        model="cnn",
        epochs=20,
        batch_size=64,
        lr=0.1,
        warmup=0.1,
        precision="float32",
        threads=1,  # threads would only wait for each other
    ),
    Recipe(
        name="fashion-mnist",
        line="Fashion-MNIST, LeNet-300-100 of the pruning literature: half a minute on a core",
        data="fashion-mnist",
        model="mlp",
        epochs=15,
        batch_size=128,
        lr=0.05,
        warmup=0.1,
        compressions=(1, 2, 5, 10, 15, 20, 30, 50, 70, 100, 150, 200),
        threads=1,  # threads would only wait for each other
    ),
    Recipe(
        name="cifar10-resnet18",
        line="the paper's CIFAR-10 protocol: ResNet-18, images at 224, 100 epochs; a GPU, by estimate 40 minutes a run",
        data="cifar10",
        model="resnet18",
        augment=True,
        resize=224,
        epochs=100,
        batch_size=256,
        lr=0.256,
        momentum=0.875,
        weight_decay=1e-4,
        warmup=5 / 100,
        label_smoothing=0.1,
    ),
    Recipe(
        name="cifar10-cpu",
        line="CIFAR-10 on a CPU: ResNet-18 of width 16 with a stride-2 stem, 0.7 million weights; 11 minutes on an AVX2 core",
        data="cifar10",
        model="resnet18",
        width=16,
        stem="small-stride2",
        augment=True,
        epochs=12,
        batch_size=256,
        lr=0.256,
        momentum=0.875,
        weight_decay=1.5e-3,  # of 5e-4, 1.4e-3 and 2.8e-3 the second was best for gmp, on validation images
        warmup=1 / 12,
        label_smoothing=0.1,
        compressions=(1, 2, 5, 10, 15, 20, 30, 50, 70, 100, 150, 200),
        channels_last=True,  # a fifth faster in float32 too
    ),
    Recipe(
        name="cifar10-fast",
        line="CIFAR-10 in minutes on a CPU: a residual network of whitened patches, 1.1 million weights",
        data="cifar10",
        model="fastnet",
        width=16,
        augment=True,
        shift=2,
        flips="alternating",
        epochs=19,
        batch_size=352,  # larger batches have buffers that no process keeps
        lr=0.7,
        momentum=0.85,
        nesterov=True,
        weight_decay=1.5e-3,
        schedule="linear",
        warmup=0.2,
        label_smoothing=0.2,
        compressions=(1, 5, 10, 20, 50, 100),
        recalibrate=5000,  # with 2,000 images the norms of an uncut network are 0.2 points worse than its running averages
        channels_last=True,
    ),
    Recipe(
        name="imagenet-resnet50",
        line="ImageNet folder, ResNet-50 with the settings of FFCV's 88-epoch recipe; 8 GPUs",
        data="imagenet",
        model="resnet50",
        blurpool=True,
        augment=True,
        image_size=160,
        last_image_size=192,
        evaluation_size=256,
        epochs=88,
        batch_size=512,
        lr=1.0,
        momentum=0.9,
        weight_decay=1e-4,
        schedule="linear",
        warmup=2 / 88,
        label_smoothing=0.1,
        sync_batchnorm=False,
        recalibrate=10000,
    ),
    Recipe(
        name="shakespeare-gpt",
        line="tiny Shakespeare by characters, a GPT of four layers, AdamW",
        data="shakespeare",
        model="gpt",
        context=128,
        layers=4,
        heads=4,
        width=128,
        epochs=5,
        batch_size=32,
        optimizer="adamw",
        lr=1e-3,
        weight_decay=0.1,
        warmup=0.1,
        clip_norm=1.0,
        metric="loss",
        max_drop=0.05,
        compressions=(1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50),
    ),
)
RECIPES = {one.name: one for one in _ALL}


def recipe(name: str) -> Recipe:
    """A recipe by its name.

    Args:
        name: The name, as ``rewa list`` shows it.
    """
    if name not in RECIPES:
        raise ValueError(nearest("recipe", name, RECIPES))
    return RECIPES[name]


def setting_names(recipe: Recipe, method: Method) -> list[str]:
    """What :func:`override` can change.

    Args:
        recipe: The recipe.
        method: The method.
    """
    return list({**_types(recipe), **method.options()})


def override(recipe: Recipe, method: Method, changes: Iterable[str]) -> tuple[Recipe, Method]:
    """Change settings of a recipe, of its method or of the methods inside that, by ``key=value``, typed as annotated.

    Args:
        recipe: The recipe.
        method: The method.
        changes: Such as ``"epochs=5"``, ``"K=3"`` or ``"hidden=300,100"``; ``none`` unsets what may be None. Where a method
            wraps another that has a setting of the same name, ``"on.begin=0.3"`` is the other's.

    Example:
        >>> from rewa.methods.rewa import ReWA
        >>> changed, method = override(RECIPES["digits"], ReWA(), ["epochs=5", "K=3"])
        >>> changed.epochs, method.K
        (5, 3.0)
    """
    of_recipe = _types(recipe)
    kinds = {**method.options(), **of_recipe}
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        key = key.strip()
        if not equals:
            raise ValueError(f"{change!r} is not key=value")
        if key not in kinds:
            raise ValueError(nearest("setting", key, kinds))
        values[key] = _parse(key, text.strip(), kinds[key])
    changed = dataclasses.replace(recipe, **{key: value for key, value in values.items() if key in of_recipe})
    return changed, method.changed({key: value for key, value in values.items() if key not in of_recipe})


def _types(recipe: Recipe) -> dict[str, Any]:
    """The recipe's settings and their types."""
    hints = typing.get_type_hints(Recipe)
    return {field.name: hints[field.name] for field in dataclasses.fields(recipe) if field.name not in ("name", "line")}


def _parse(key: str, text: str, kind: Any) -> Any:
    """A value of the annotated type from its text."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if text.lower() == "none" and type(None) in options:
        return None
    kind = next(option for option in options if option is not type(None))
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            inner, rest = typing.get_args(kind)[0], typing.get_args(kind)[1:]
            parts = tuple(inner(part) for part in text.replace("(", "").replace(")", "").split(",") if part.strip())
            if Ellipsis not in rest and len(parts) != len(rest) + 1:
                raise ValueError
            value: Any = parts
        else:
            value = kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"{key}={text}: this setting is {_word(kind)}") from None
    numbers = value if isinstance(value, tuple) else (value,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise ValueError(f"{key}={text}: this setting is {'finite numbers' if isinstance(value, tuple) else 'a finite number'}")
    return value


def _word(kind: Any) -> str:
    words: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return words.get(kind, f"a list such as 1,2 ({kind})")
