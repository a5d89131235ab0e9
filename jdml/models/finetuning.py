"""Fine-tuning: networks some of whose parameters are frozen, or learn low-rank changes (LoRA) alone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jdml import adapt
from jdml._paths import check_local
from jdml.distributed import Tree
from jdml.models.adapters import AnyModel, Model, Object, as_model, traced
from jdml.ops import checks

FACTORS = "lora"
"""The name of the factors next to the network's own parameters."""


class Frozen(Object):
    """A network some of whose parameters are frozen, with their running statistics.

    Frozen parameters have no gradient and no optimizer state. Batch norm in frozen parts must use its running
    statistics in training, too (``freeze_batch_norm=True``).

    Args:
        model: whatever :func:`fit` takes.
        pattern: of the paths of the parameters that are frozen (:func:`jdml.adapt.matching`), such as
            ``"block[0-8]|patches"``, or ``"(?!head/).*"``, all but the head.
        cached_views: compute the features of each image once, before the only layer that learns, and train on these: 1
            for images as in evaluation; for image files also more augmented views, of which each step draws one. That
            layer must be of a Linen network, or the head of :class:`jdml.models.WithHead`, and the network the same in
            training and evaluation. None: images go through the network at each step.
        cache_folder: folder of these features, which other runs then read; None: ``features/`` in the run's folder. A
            run without a folder keeps them in memory, above 1 GiB in a temporary file.

    Raises:
        TypeError: no model, no pattern, a number that is no integer.
        ValueError: no regular expression, a number below 1, a model that is frozen already; in
            :func:`jdml.training.fit`: a pattern that names nothing, or all parameters.

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
        self.pattern, self.cached_views, self.cache_folder = pattern, cached_views, cache_folder
        base = as_model(model)
        super().__init__(base, (base, pattern, cached_views))


def check_not_frozen(model: object) -> None:
    """Refuse a network that is frozen already: freezing is the outermost."""
    if isinstance(model, Frozen):
        raise ValueError("model must not be Frozen: write one Frozen(…) around all, one pattern")


class WithLora(Object):
    """A network some of whose arrays learn ``W + (α / r) A B``, while W and all other parameters are frozen.

    Its parameters are the network's and the factors, ``"lora"``; a run's ``model.safetensors`` has them merged, so that
    :func:`jdml.training.load`, ``jdml embed``, ``search`` and ``export`` see the network alone.

    Args:
        model: whatever :func:`fit` takes whose parameters are nested dictionaries.
        rank: r.
        paths: pattern of the paths of the arrays that change (:func:`jdml.adapt.matching`), such as
            ``"block[0-9]+/.*kernel"``; vectors are left out.
        alpha: α; by default r, a scale of 1.
        also: pattern of parameters that learn without factors.

    Raises:
        TypeError: no model, no pattern, no number.
        ValueError: a rank below 1, α not positive, a model that is :class:`Frozen`; on ``init``: a pattern that names
            nothing.

    Implementation notes:
        B = 0 at the start, so that the first embeddings are the network's own. Each step merges the factors: ``r``
        multiplications and additions per parameter of W, and W's memory once more.

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
        self.scale = 1.0 if alpha is None else float(alpha) / rank
        self.settings = (rank, paths, self.scale, also)
        base = as_model(model)
        super().__init__(base, (base, *self.settings))

    @property
    def frozen(self) -> str:
        """The pattern of what is frozen."""
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
        params = self.merged(variables["params"])
        return self.base.apply({**variables, "params": params}, images, **settings)

    def merged(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the network's own parameters, with the factors merged."""
        own = {name: part for name, part in params.items() if name != FACTORS}
        return adapt.lora_merged(own, params[FACTORS], self.scale)

    def around(self, pretrained: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Let ``pretrained``, which knows the network alone, begin a network with factors."""

        def begin(variables: Mapping[str, Any]) -> dict[str, Any]:
            params = dict(variables["params"])
            factors = params.pop(FACTORS)
            loaded = pretrained({**variables, "params": params})
            return {**loaded, "params": {**loaded.get("params", params), FACTORS: factors}}

        return begin


def frozen_part(model: Model) -> tuple[Model, str | None]:
    """Return a network without :class:`Frozen`, and the pattern of all that is frozen."""
    base, patterns = (model.base, [model.pattern]) if isinstance(model, Frozen) else (model, [])
    if isinstance(base, WithLora):
        patterns = [base.frozen, *patterns]
    return base, "|".join(patterns) or None


def split_frozen(params: Mapping[str, Tree], freeze: str | None) -> tuple[Tree, Tree]:
    """Split parameters by role into those that learn and those of the model that are frozen."""
    marks = {role: adapt.matching(part, None) for role, part in params.items()}
    return adapt.split(params, {**marks, "model": adapt.matching(params["model"], freeze)})


def keep_frozen_stats(batch_stats: Tree, before: Tree, freeze: str | None) -> Tree:
    """Return the running statistics after a step, those of frozen parts as before."""
    marks = adapt.matching(before, freeze)
    return jax.tree.map(lambda new, old, frozen: old if frozen else new, batch_stats, before, marks)


def check_freeze(
    freeze: str, model: Model, params: Mapping[str, Tree], batch_stats: Tree, inputs: Tree
) -> None:
    """Refuse to freeze all parameters, or parts whose running statistics change with each batch."""
    adapt.check_pattern("pattern", freeze, params["model"])
    if not jax.tree.leaves(split_frozen(params, freeze)[0]):
        raise ValueError(f"pattern must leave something to learn, {freeze!r} freezes all")
    variables = {"params": params["model"], "batch_stats": batch_stats}
    moving = traced(model, variables, inputs, True)[1]
    # Equinox's state does not name the layers of its statistics.
    moving += [f"{norm}/mean" for norm in getattr(model, "norms", ()) if moving]
    frozen = adapt.matching(dict.fromkeys(moving, True), freeze)
    changed = [path for path in moving if frozen[path]]
    if changed:
        raise ValueError(
            f"pattern: the running statistics of {len(changed)} frozen parts change in training, {changed[0]} first: "
            "freeze batch norm in the model (freeze_batch_norm=True)"
        )
