"""Fine-tuning: networks some of whose parameters are frozen, or learn low-rank changes (LoRA) alone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jdml import adapt
from jdml._paths import check_local
from jdml.distributed import Tree
from jdml.models.adapters import AnyModel, Model, as_model, embed_in_training, unwrapped
from jdml.models.base_adapter import ModelAdapter
from jdml.ops import checks

FACTORS = "lora"
"""What the factors are called beside the network's own parameters."""


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


class WithLora(ModelAdapter):
    """A network some of whose arrays learn ``W + (α / r) A B``, while W and all else stay.

    :func:`jdml.training.fit` takes it as any network, and freezes what does not learn. Its parameters are the network's
    with the factors beside them, ``"lora"``; a run's ``model.safetensors`` has them merged, so that
    :func:`jdml.training.load`, ``jdml embed``, ``search`` and ``export`` see the network alone.

    Args:
        model: whatever :func:`fit` takes whose parameters are nested dictionaries.
        rank: r.
        paths: pattern of the paths of the arrays that change (:func:`jdml.adapt.matching`), such as
            ``"block[0-9]+/.*kernel"``; vectors are left out.
        alpha: α; by default r, a scale of 1.
        also: pattern of what learns as it is.

    Raises:
        TypeError: no model, no pattern, no number.
        ValueError: a rank below 1, α not positive, a model that is :class:`Frozen`; on ``init``: a pattern that names
            nothing.

    Implementation notes:
        B = 0 at the start, so that the first embeddings are the network's own. Merged anew in each step, which costs
        ``r`` multiplications and additions for each parameter of W, and W's memory once more while a step lasts.

    Reference:
        Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*.

    Example:
        >>> import jax.numpy as jnp, jdml
        >>> vit = jdml.models.create("vit_s16", dim=64, depth=2)
        >>> adapted = WithLora(vit, 4, "block[0-9]+/.*kernel")
        >>> images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
        >>> params = jax.eval_shape(adapted.init, jax.random.key(0), images)["params"]
        >>> sum(leaf.size for leaf in jax.tree.leaves(params["lora"]))
        55296
    """

    def __init__(
        self,
        model: AnyModel,
        rank: int,
        paths: str,
        *,
        alpha: float | None = None,
        also: str = "head",
    ) -> None:
        check_not_frozen(model)
        checks.count("rank", rank)
        checks.optional(checks.positive)("alpha", alpha)
        for pattern in (paths, also):
            adapt.matching({}, pattern)
        self.base = as_model(model)
        self.scale = 1.0 if alpha is None else float(alpha) / rank
        self.settings = (rank, paths, self.scale, also)
        self.holds_parameters = getattr(self.base, "holds_parameters", False)
        self.factory = getattr(self.base, "factory", {})
        super().__init__(unwrapped(self.base), (self.base, *self.settings))

    @property
    def frozen(self) -> str:
        """The pattern of what stays."""
        return f"(?!(?:{FACTORS}|{self.settings[-1]})(?:/|$)).*"

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Make the network's fresh variables, and fresh factors."""
        variables = self.base.init(key, images, train=train)
        rank, paths, *_ = self.settings
        own = jax.random.fold_in(key, 1)
        factors = adapt.lora_factors(own, variables["params"], rank, paths)
        return {**variables, "params": {**variables["params"], FACTORS: factors}}

    def apply(self, variables: Any, images: Any, /, **settings: Any) -> Any:
        """Embed with merged parameters."""
        merged = {**variables, "params": self.merged(variables["params"])}
        return self.base.apply(merged, images, **settings)

    def merged(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Give the network's own parameters, with the factors in them."""
        return merged(params, self.scale)

    def around(self, pretrained: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Tell what becomes of fresh variables where ``pretrained`` knows the network alone."""

        def begin(variables: Mapping[str, Any]) -> dict[str, Any]:
            params, factors = _apart(variables["params"])
            given = pretrained({**variables, "params": params})
            return {**given, "params": {**given.get("params", params), FACTORS: factors}}

        return begin


def merged(params: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """A network's own parameters, with the factors beside them in them."""
    own, factors = _apart(params)
    return adapt.lora_merged(own, factors, scale)


def frozen_part(model: Model) -> tuple[Model, str | None]:
    """A network without :class:`Frozen`, and the pattern of all that is frozen: what low-rank changes are of, too."""
    base, patterns = (model.base, [model.pattern]) if isinstance(model, Frozen) else (model, [])
    if isinstance(base, WithLora):
        patterns = [base.frozen, *patterns]
    return base, "|".join(patterns) or None


def as_saved(model: Any, params: Tree) -> Tree:
    """What a run's file has of a model's parameters."""
    return model.merged(params) if isinstance(model, WithLora) else params


def _apart(params: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    own = dict(params)
    factors = own.pop(FACTORS)
    return own, factors


def split_frozen(params: Mapping[str, Tree], freeze: str | None) -> tuple[Tree, Tree]:
    """Split parameters by role in those that learn and those of the model that stay, hidden from each other."""
    stay = {role: adapt.matching(part, None) for role, part in params.items()}
    return adapt.split(params, {**stay, "model": adapt.matching(params["model"], freeze)})


def with_frozen(batch_stats: Tree, before: Tree, freeze: str | None) -> Tree:
    """Running statistics after a step, those of frozen parts as before."""
    stay = adapt.matching(before, freeze)
    return jax.tree.map(lambda new, old, stays: old if stays else new, batch_stats, before, stay)


def check_freeze(
    freeze: str, model: Model, params: Mapping[str, Tree], batch_stats: Tree, inputs: Tree
) -> None:
    """Refuse to freeze all that learns, or what goes on to change with each batch."""
    adapt.check_pattern("pattern", freeze, params["model"])
    if not jax.tree.leaves(split_frozen(params, freeze)[0]):
        raise ValueError(
            f"pattern must leave something to learn, {freeze!r} freezes all parameters"
        )
    stay = jax.tree.leaves(adapt.matching(batch_stats, freeze))
    stays = dict(zip(adapt.paths(batch_stats), stay, strict=True))
    moving = moving_statistics(model, params["model"], batch_stats, inputs)
    changed: list[Any] = [path for path in moving if stays[path]]
    if moving and not changed:
        means = {f"{part}/mean": part for part in getattr(model, "norms", ())}
        marks = adapt.matching(means, freeze)
        changed = [part for mean, part in means.items() if marks[mean]]
    if changed:
        raise ValueError(
            f"pattern: the running statistics of {len(changed)} frozen parts change in training, {changed[0]} first, "
            "and with them what they compute: freeze batch norm in the model (freeze_batch_norm=True)"
        )


def moving_statistics(model: Model, params: Tree, batch_stats: Tree, inputs: Tree) -> list[str]:
    """Name the running statistics that a batch changes in training."""

    def statistics(stats: Tree, params: Tree, rows: Tree) -> Tree:
        return embed_in_training(model, params, stats, rows, jax.random.key(0))[1]

    traced = jax.make_jaxpr(statistics)(batch_stats, params, inputs).jaxpr
    leaves = jax.tree.leaves(batch_stats)
    before = traced.invars[: len(leaves)]
    rows = zip(adapt.paths(batch_stats), leaves, before, traced.outvars, strict=True)
    return [
        path
        for path, leaf, was, after in rows
        if after is not was and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
