"""LoRA: a network whose kernels learn low-rank changes alone, merged where it is used and where it is saved."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from jdml import adapt
from jdml.distributed import Tree
from jdml.models.adapters import AnyModel, Model, as_model, unwrapped
from jdml.models.base_adapter import ModelAdapter
from jdml.models.frozen_model import Frozen, check_not_frozen
from jdml.ops import checks

FACTORS = "lora"
"""What the factors are called beside the network's own parameters."""


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
