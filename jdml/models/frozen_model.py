"""A network some of whose parameters are frozen, and whose features before all that learns may be cached."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jdml import adapt
from jdml._paths import check_local
from jdml.models.adapters import AnyModel, as_model, unwrapped
from jdml.models.base_adapter import ModelAdapter
from jdml.ops import checks


class Frozen(ModelAdapter):
    """A network some of whose parameters are frozen, with their running statistics.

    :func:`jdml.training.fit` takes it as any network. No gradient is computed of frozen parameters, and the optimizer
    sees and keeps nothing of them. Batch norm in frozen parts must use its running statistics in training, too
    (``freeze_batch_norm=True``).

    Args:
        model: whatever :func:`fit` takes.
        pattern: of the paths of the parameters that are frozen (:func:`jdml.adapt.matching`), such as
            ``"block[0-8]|patches"``, or ``"(?!head/).*"``, all but the head.
        cached_views: compute the features before all that learns of each image once, and train on these: 1, of images
            as in evaluation; of image files also more augmented views, of which each step draws one. What learns must
            be one layer of a Linen network, or the head of :class:`jdml.models.WithHead`, and the network the same in
            training and evaluation. None: images go through the network at each step.
        cache_folder: folder of these features, which other runs then read; None: ``features/`` in the run's folder. A
            run without a folder keeps them in memory, above 1 GiB in a temporary file.

    Raises:
        TypeError: no model, no pattern, a number that is no integer.
        ValueError: no regular expression, a number below 1, a ``cache_folder`` without ``cached_views``, a model that
            is frozen already; in :func:`jdml.training.fit`: a pattern that names nothing, or all that learns.

    Example:
        >>> import jdml
        >>> Frozen(jdml.models.create("resnet50", dim=64, freeze_batch_norm=True), "(?!head/).*")
        Frozen(ResNet)
    """

    def __init__(
        self,
        model: AnyModel,
        pattern: str,
        *,
        cached_views: int | None = None,
        cache_folder: str | Path | None = None,
    ) -> None:
        check_not_frozen(model)
        adapt.matching({}, pattern)
        checks.optional(checks.count)("cached_views", cached_views)
        check_local("cache_folder", cache_folder)
        if cache_folder is not None and cached_views is None:
            raise ValueError("cache_folder is of cached features: give cached_views, too")
        self.base = as_model(model)
        self.pattern, self.cached_views, self.cache_folder = pattern, cached_views, cache_folder
        self.holds_parameters = getattr(self.base, "holds_parameters", False)
        self.factory = getattr(self.base, "factory", {})
        super().__init__(unwrapped(self.base), (self.base, pattern, cached_views))

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Make the network's fresh variables."""
        return self.base.init(key, images, train=train)

    def apply(self, variables: Mapping[str, Any], images: Any, /, **settings: Any) -> Any:
        """Embed."""
        return self.base.apply(variables, images, **settings)


def check_not_frozen(model: object) -> None:
    """Refuse a network that is wrapped already: freezing is the outermost."""
    if isinstance(model, Frozen):
        raise ValueError(
            "model must not be Frozen where it is wrapped: write one Frozen(…) around all, with one pattern"
        )
