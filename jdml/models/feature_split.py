"""A network cut where what learns begins: what comes before it is computed once, and a step takes what follows.

Its program is cut, whatever library it is of. Before the cut lies all that comes of images and of parameters that stay;
what an operation takes of it beside parameters that learn crosses the cut: *features*, rows of numbers.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from jdml import adapt
from jdml.distributed import Tree
from jdml.models.adapters import Model, embed_in_training
from jdml.models.base_adapter import ModelAdapter
from jdml.models.freezing import moving_statistics

IMAGES, STAYS, LEARNS = 1, 2, 4
"""What a value of a program comes of; several are added."""
CALLS = ("jit", "pjit")
"""Operations that are a program themselves, which is cut within."""
DRAWS = ("random_bits", "rng_bit_generator", "rng_uniform", "threefry2x32")
"""Operations that draw random numbers; one that makes a key of another draws none."""
ROWS = 1009
"""So many images a program is traced for, a number that is told from any other."""
ELSE = "without cached_views (0 in a recipe) images go through the network at each step"


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """A value of a program: what it comes of, its array (None beyond the cut), whether it has crossed."""

    of: int
    array: Any = None
    crossed: bool = False


class Side:
    """One side of the cut, whose operations are computed, and what was met on the way.

    Args:
        features: after the cut: what has crossed it, one by one; None before it.
    """

    def __init__(self, features: list[jax.Array] | None = None) -> None:
        self._given = None if features is None else iter(features)
        self.features: list[Any] = []
        self.shapes: list[tuple[tuple[int, ...], Any]] = []
        self.worked = False
        """Whether any of the features comes of parameters."""
        self.learning: list[tuple[str, ...]] = []
        """The operations after the cut, in words."""
        self.bare: list[str] = []
        """Those of them that take the images as they are."""
        self.draws = False
        """Whether any operation draws random numbers, such as a dropout's."""

    def run(self, program: ClosedJaxpr, inputs: list[Value]) -> list[Value]:
        """Go through a program; the values that it gives."""
        jaxpr = program.jaxpr
        values = dict(zip(jaxpr.invars, inputs, strict=True))
        values |= {at: Value(0, x) for at, x in zip(jaxpr.constvars, program.consts, strict=True)}

        def value(at: Any) -> Value:
            return Value(0, at.val) if isinstance(at, Literal) else values[at]

        self.draws |= _draws(jaxpr)
        for operation in jaxpr.eqns:
            taken = [value(at) for at in operation.invars]
            if operation.primitive.name in CALLS:
                made = self.run(operation.params["jaxpr"], taken)
            else:
                of = functools.reduce(operator.or_, (x.of for x in taken), 0)
                if of & LEARNS:
                    self._meet(operation, taken)
                made = [Value(of, x) for x in _computed(jaxpr, operation, taken)]
            values.update(zip(operation.outvars, made, strict=True))
        return [value(at) for at in jaxpr.outvars]

    def _meet(self, operation: Any, taken: list[Value]) -> None:
        """What of images an operation that learns takes crosses the cut, once."""
        of = (*operation.invars, *operation.outvars)
        told = (str(at.val if isinstance(at, Literal) else at.aval) for at in of)
        self.learning.append((operation.primitive.name, *told))
        for at, x in zip(operation.invars, taken, strict=True):
            if x.of & IMAGES and not x.of & LEARNS and not x.crossed:
                x.crossed = True
                self.worked |= bool(x.of & STAYS)
                self.bare += [] if x.of & STAYS else [operation.primitive.name]
                self.shapes.append((at.aval.shape, at.aval.dtype))
                if self._given is not None:
                    x.array = next(self._given)
                self.features.append(x.array)


def _computed(jaxpr: Any, operation: Any, taken: list[Value]) -> list[Any]:
    """What one operation of a program gives, as far as what it takes is known."""
    if any(x.array is None for x in taken):
        return [None] * len(operation.outvars)
    pairs = zip(operation.invars, taken, strict=True)
    arrays: dict[Any, Any] = {at: x.array for at, x in pairs if not isinstance(at, Literal)}
    parts = {"constvars": [], "invars": list(arrays), "outvars": operation.outvars}
    alone = ClosedJaxpr(jaxpr.replace(**parts, eqns=[operation]), ())
    return list(jaxpr_as_fun(alone)(*arrays.values()))


class Cut:
    """Where a network is cut.

    Args:
        model: the network.
        freeze: pattern of the paths of its parameters that stay.
        variables: its variables, or their shapes.
        inputs: one row as it takes it, or its shape.
        trained: whether it is trained from the cut on, which must then be the same as in evaluation.

    Raises:
        ValueError: what learns begins at the images, mixes rows before it, or is another in training.
    """

    def __init__(
        self,
        model: Model,
        freeze: str | None,
        variables: Mapping[str, Tree],
        inputs: Tree,
        *,
        trained: bool = True,
    ) -> None:
        self.model, self.freeze = model, freeze
        rows, kind = jax.tree.flatten(inputs)
        self._row = kind, tuple((x.shape[1:], jnp.result_type(x)) for x in rows)
        evaluated = self._met(variables, train=False)
        if trained:
            self._check_worked(evaluated)
        if any(shape[:1] != (ROWS,) for shape, _ in evaluated.shapes):
            raise ValueError(
                f"{'cached_views' if trained else 'the head'}: what learns must take of each image numbers of its own "
                f"[B, …], takes {[list(shape) for shape, _ in evaluated.shapes]} of {ROWS} images"
                f"{'; ' + ELSE if trained else ''}"
            )
        self.shapes = [(shape[1:], dtype) for shape, dtype in evaluated.shapes]
        if trained:
            self._check_training(variables, evaluated, inputs)

    def _check_worked(self, evaluated: Side) -> None:
        """Refuse features that nothing has been computed of."""
        if not evaluated.worked:
            raise ValueError(
                "cached_views: what learns takes the images themselves (in JAX's "
                f"{', '.join(dict.fromkeys(evaluated.bare))}), so that nothing can be computed once: freeze more, such "
                f"as '(?!head/).*'; {ELSE}"
            )

    def _check_training(self, variables: Mapping[str, Tree], evaluated: Side, inputs: Tree) -> None:
        """Refuse a network that is another in training: from the cut on, by what it draws, or in its statistics."""
        params, stats = variables["params"], variables.get("batch_stats", {})
        met = self._met(variables, train=True)
        alike = met.learning == evaluated.learning and met.shapes == evaluated.shapes
        moves = moving_statistics(self.model, params, stats, inputs)
        if not alike or met.draws or moves:
            raise ValueError(
                "cached_views: what learns must be the same in training and evaluation, without dropout or batch norm; "
                f"{ELSE}"
            )

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that programs of the cut depend on."""
        return self.model, self.freeze, self._row

    def _met(self, variables: Mapping[str, Tree], *, train: bool) -> Side:
        """What is met in a program, of which nothing is computed."""
        side, (kind, rows) = Side(), self._row
        shapes = [jax.ShapeDtypeStruct((ROWS, *shape), dtype) for shape, dtype in rows]
        images = jax.tree.unflatten(kind, shapes)
        jax.eval_shape(lambda: self.run(side, variables, images, known=(), train=train))
        return side

    def run(
        self,
        side: Side,
        variables: Mapping[str, Tree],
        images: Tree,
        *,
        known: tuple[int, ...],
        train: bool = False,
    ) -> Any:
        """Compute a side of the network's program.

        Args:
            side: which.
            variables: the network's.
            images: as the network takes them, or of their shapes and types.
            known: which of images, parameters that stay, and parameters that learn are known.
            train: whether the program is the one in training.

        Returns:
            The embeddings, None before the cut.
        """
        params, stats = variables["params"], variables.get("batch_stats", {})
        learning, staying = adapt.split(params, adapt.matching(params, self.freeze))

        def embedded(learning: Tree, staying: Tree, images: Tree) -> Any:
            whole, state = adapt.joined(learning, staying[0]), staying[1]
            if train:
                return embed_in_training(self.model, whole, state, images, jax.random.key(0))[0]
            return self.model.apply({"params": whole, "batch_stats": state}, images, train=False)

        parts = {LEARNS: learning, STAYS: (staying, stats), IMAGES: images}
        program = jax.make_jaxpr(embedded)(*parts.values())
        inputs = [
            Value(of, leaf if of in known else None)
            for of, part in parts.items()
            for leaf in jax.tree.leaves(part)
        ]
        (embeddings,) = side.run(program, inputs)
        return embeddings.array

    def packed(self, features: list[jax.Array]) -> jax.Array:
        """Features as one row of numbers ``[B, F]`` an image."""
        return jnp.concatenate([x.astype(jnp.float32).reshape(len(x), -1) for x in features], 1)

    def unpacked(self, rows: jax.Array) -> list[jax.Array]:
        """Undo :meth:`packed`."""
        features, start = [], 0
        for shape, dtype in self.shapes:
            end = start + math.prod(shape)
            features.append(rows[:, start:end].reshape(len(rows), *shape).astype(dtype))
            start = end
        return features

    def images_like(self, rows: jax.Array) -> Tree:
        """Images of which nothing is known but that they are as many, and lie as the rows do."""
        kind, shapes = self._row
        each = [
            jnp.broadcast_to(rows[:, 0].reshape(-1, *[1] * len(shape)), (len(rows), *shape))
            for shape, _ in shapes
        ]
        typed = [x.astype(dtype) for x, (_, dtype) in zip(each, shapes, strict=True)]
        return jax.tree.unflatten(kind, typed)


class Before(ModelAdapter):
    """A network as far as the cut: of images to features.

    Args:
        cut: where.
    """

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut.model, cut.identity)
        self._cut = cut

    def apply(self, variables: Any, images: Any, /, **_: Any) -> Any:
        """The features ``[B, F]``."""
        side = Side()
        self._cut.run(side, variables, images, known=(IMAGES, STAYS))
        return self._cut.packed(side.features)


class OnFeatures(ModelAdapter):
    """A network from the cut on, with the parameters of the whole network.

    Args:
        cut: where.
    """

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut.model, cut.identity)
        self._cut = cut

    def apply(self, variables: Any, features: Any, /, **settings: Any) -> Any:
        """Embeddings of one view ``[B, views, F]`` of each row: in training drawn, else the first."""
        views = features.shape[1]
        drawn = jnp.zeros(len(features), jnp.int32)
        if settings.get("train") and views > 1:
            drawn = jax.random.randint(settings["rngs"]["dropout"], drawn.shape, 0, views)
        x = jax.vmap(lambda row, view: row[view])(features, drawn)
        side = Side(self._cut.unpacked(x))
        images = self._cut.images_like(x)
        embeddings = self._cut.run(side, variables, images, known=(STAYS, LEARNS))
        embeddings = embeddings.astype(jnp.float32)
        stats = {"batch_stats": variables.get("batch_stats", {})}
        return (embeddings, stats) if settings.get("mutable") else embeddings


def _draws(program: Any) -> bool:
    """Whether a program draws random numbers, in whatever it calls."""
    for operation in program.eqns:
        if operation.primitive.name in DRAWS:
            return True
        several = (x if isinstance(x, tuple | list) else [x] for x in operation.params.values())
        inner = (getattr(part, "jaxpr", part) for each in several for part in each)
        if any(hasattr(part, "eqns") and _draws(part) for part in inner):
            return True
    return False
