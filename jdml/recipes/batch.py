"""The batches of a recipe: how they are drawn, and how many."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

import numpy as np

from jdml.data import ClassBatchSampler, EpochSampler, RandomBatchSampler
from jdml.ops.checks import non_negative, one_of, positive, unit_interval
from jdml.recipes.config import Config, RecipeError


@dataclasses.dataclass(frozen=True)
class BatchConfig(Config):
    """How batches are drawn, of ``size`` random rows or of ``classes`` × ``samples_per_class``, and how many steps."""

    size: Annotated[int | None, positive] = None
    """Rows of a batch, drawn at random. None: 128."""
    classes: Annotated[int | None, positive] = None
    """Classes in a batch, instead of random rows."""
    samples_per_class: Annotated[int | None, positive] = None
    """Samples of each of these classes."""
    on_small_class: Literal["pad", "refuse"] = "pad"
    """Whether a class with too few samples leaves rows of the batch empty (pad) or is an error (refuse)."""
    group_by: str | None = None
    """A coarser labelling; all classes of a batch come from one of its groups."""
    class_sampling_power: Annotated[float | None, unit_interval] = None
    """Draw each class with probability proportional to its size to this power. None: use each sample once an epoch."""
    epochs: Annotated[int, positive] = 100
    """Passes over the training rows, where ``steps`` is None."""
    steps: Annotated[int | None, non_negative] = None
    """Training steps; 0 evaluates the initial network."""
    skip_nonfinite: Annotated[int | None, positive] = None
    """Skip steps with a non-finite loss or gradient; this many in a row end the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.classes is None) != (self.samples_per_class is None):
            raise RecipeError(
                f"{{classes}} and {{samples_per_class}} go together, got {self.classes} and {self.samples_per_class}"
            )
        if self.size is not None and self.classes is not None:
            raise RecipeError(f"{{size}} or {{classes}} must be given, got {self.size} and {self}")
        for name in ("group_by", "class_sampling_power"):
            if getattr(self, name) is not None and self.classes is None:
                raise RecipeError(
                    f"{{{name}}} needs {{classes}} and {{samples_per_class}}, got {self.rows} random rows"
                )

    def __str__(self) -> str:
        """Return the shape of a batch: ``"8x4"``, or ``"64"`` for random rows."""
        return f"{self.classes}x{self.samples_per_class}" if self.classes else str(self.rows)

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        if self.classes is not None and self.samples_per_class is not None:
            return self.classes * self.samples_per_class
        return 128 if self.size is None else self.size

    def replace(self, **changes: Any) -> Self:
        """Return a copy; ``size`` takes the place of ``classes`` and the reverse, ``epochs`` that of ``steps``."""
        if changes.get("size") is not None:
            changes = {"classes": None, "samples_per_class": None, **changes}
        elif changes.get("classes") is not None:
            changes = {"size": None, **changes}
        if "epochs" in changes:
            changes = {"steps": None, **changes}
        return super().replace(**changes)

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return the steps of a run."""
        return self.epochs * steps_per_epoch if self.steps is None else self.steps

    def build(
        self,
        labels: np.ndarray,
        seed: int = 0,
        views: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> EpochSampler:
        """Make the sampler that draws the batches.

        Args:
            labels: ``[N]``, of the training images.
            seed: of the draw.
            views: other labels of the same images, which ``group_by`` names.

        Returns:
            The sampler.

        Raises:
            ValueError: fewer classes than a batch needs, or an unknown view.

        Example:
            >>> batch = BatchConfig(classes=2, samples_per_class=3)
            >>> len(next(batch.build(np.repeat(np.arange(4), 5))))
            6
        """
        if self.group_by is not None:
            known = sorted(views) or ["the data set's views, of which it has none"]
            one_of("group_by", self.group_by, known)
        if self.classes is None or self.samples_per_class is None:
            return RandomBatchSampler(len(labels), min(self.rows, len(labels)), seed=seed)
        return ClassBatchSampler(
            labels,
            self.classes,
            self.samples_per_class,
            seed=seed,
            on_small_class=self.on_small_class,
            groups=None if self.group_by is None else views[self.group_by],
            class_weight_power=self.class_sampling_power,
        )

    def fit_to_data(self, labels: np.ndarray) -> tuple[Self, list[str]]:
        """Shrink a batch to the rows, classes and samples that there are, and pad small classes; say what changed."""
        sizes, notes = np.unique(labels, return_counts=True)[1], list[str]()
        if self.classes is None or self.samples_per_class is None:
            batch = self.replace(size=min(self.rows, len(labels)))
        else:
            classes = min(self.classes, len(sizes))
            samples = min(self.samples_per_class, int(sizes.max()))
            batch = self.replace(classes=classes, samples_per_class=samples)
        if str(batch) != str(self):
            rows = f"{len(labels):,} images of {len(sizes):,} classes train"
            notes.append(f"batches are {batch}, not {self}: {rows}")
        samples = batch.samples_per_class or 1
        if few := int((sizes < samples).sum()):
            batch = batch.replace(on_small_class="pad")
            notes.append(
                f"{few:,} of {len(sizes):,} classes have fewer than {samples} images: "
                "their places in a batch stay empty"
            )
        return batch, notes

    def expected_positive_pairs(self, labels: np.ndarray) -> float:
        """Return the expected number of pairs of one class in a batch.

        Example:
            >>> BatchConfig(classes=2, samples_per_class=3).expected_positive_pairs(np.repeat(np.arange(4), 6))
            6.0
        """
        sizes = np.unique(labels, return_counts=True)[1].astype(float)
        if self.classes is None or self.samples_per_class is None:
            rows = min(self.rows, len(labels))
            of_one_class = (sizes * (sizes - 1)).sum() / max(1, len(labels) * (len(labels) - 1))
            return float(rows * (rows - 1) / 2 * of_one_class)
        samples, power = self.samples_per_class, self.class_sampling_power
        per_class = np.minimum(sizes, samples)
        drawn = np.ceil(sizes / samples) if power is None else sizes**power
        return float(self.classes * np.average(per_class * (per_class - 1) / 2, weights=drawn))
