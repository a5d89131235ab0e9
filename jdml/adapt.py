"""Adapt a network that knows much already: which parameters learn, how fast by depth, and in how many numbers.

Parameters are named by their paths, names joined by ``/`` such as ``block0/attention/query/kernel``, and paths by
patterns. All here are functions of a pytree of parameters, whoever's network it is.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import unflatten_dict
from jax import Array
from jax.tree_util import DictKey, GetAttrKey, KeyPath

from jdml._paths import natural_key
from jdml.ops import checks

__all__ = ["joined", "lora_factors", "lora_merged", "matching", "scale_by_path", "split"]

Tree = Any
HIDDEN = optax.MaskedNode()
"""Stands in a tree where a parameter is left out: JAX sees no array there, as within ``optax.masked``."""


def path_names(path: KeyPath) -> tuple[str, ...]:
    """Return the names of a leaf's path, without the ``value`` in which each variable of NNX ends."""
    # A variable is in a dictionary; what a module of Equinox calls so is in a module.
    if len(path) > 1 and path[-1] == GetAttrKey("value") and not isinstance(path[-2], GetAttrKey):
        path = path[:-1]
    return tuple(jax.tree_util.keystr((part,), simple=True) for part in path)


def path_text(path: KeyPath) -> str:
    """Return a leaf's path, such as ``"head/bias"``."""
    return "/".join(path_names(path))


def named_leaves(tree: Tree) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths."""
    return {path_text(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def describe_arrays(tree: Tree, *, types: bool = True) -> dict[str, str]:
    """Describe every array by its path: ``{"params/proxies": "float32[2, 1, 3]"}``."""
    leaves = named_leaves(tree).items()
    return {name: f"{jnp.result_type(x) if types else ''}{list(np.shape(x))}" for name, x in leaves}


def check_same_arrays(message: str, before: Tree, after: Tree, *, types: bool = True) -> None:
    """Refuse arrays of other paths, types or shapes."""
    old, new = (describe_arrays(tree, types=types) for tree in (before, after))
    differing = {name for name, _ in old.items() ^ new.items()}
    if differing:
        name = min(differing)
        there, now = (arrays.get(name, "absent") for arrays in (old, new))
        raise ValueError(f"{message}: {name} is {there} there, {now} now")


def matching(params: Tree, pattern: str | None) -> Tree:
    """Mark the parameters that a pattern of paths names.

    Args:
        params: a pytree of arrays.
        pattern: a regular expression of a whole path, or of its first names: ``"block0"`` is all of this block and
            nothing of ``block01``; ``"block[0-8]|patches"``, ``".*/attention"``, ``"(?!head/).*"`` (all but the head).
            None names nothing.

    Returns:
        A pytree of booleans.

    Raises:
        TypeError: no text.
        ValueError: no regular expression.

    Example:
        >>> matching({"block1": {"bias": 0}, "block10": 0, "head": 0}, "block1|head")
        {'block1': {'bias': True}, 'block10': False, 'head': True}
    """
    if pattern is None:
        return jax.tree.map(lambda _: False, params)
    whole = _whole(pattern)
    return jax.tree_util.tree_map_with_path(
        lambda path, _: whole.fullmatch(path_text(path)) is not None, params
    )


def check_pattern(name: str, pattern: Any, params: Tree) -> None:
    """Refuse a pattern, unless it is None, that names none of the parameters."""
    if pattern is None or any(jax.tree.leaves(matching(params, pattern))):
        return
    known = list(named_leaves(params))
    raise ValueError(
        f"{name} must be a pattern of parameters' paths, {pattern!r} names none of {len(known)}: "
        f"{', '.join(known[:: -(-len(known) // 4)])}, …"
    )


def _whole(pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a text, got a {type(pattern).__name__}")
    try:
        return re.compile(f"(?:{pattern})(?:/.*)?")
    except re.error as error:
        raise ValueError(
            f"pattern must be a regular expression, got {pattern!r}: {error}"
        ) from error


def split(params: Tree, marked: Tree) -> tuple[Tree, Tree]:
    """Split parameters in two trees, in each of which the other's are hidden.

    Args:
        params: a pytree of arrays.
        marked: a pytree of booleans, see :func:`matching`.

    Returns:
        Those that are not marked, and those that are. What differentiates, or makes an optimizer's state, of the first
        does it for these alone.

    Example:
        >>> rest, frozen = split({"body": 1, "head": 2}, {"body": True, "head": False})
        >>> jax.tree.leaves(rest), jax.tree.leaves(frozen), joined(rest, frozen)
        ([2], [1], {'body': 1, 'head': 2})
    """
    rest = jax.tree.map(lambda leaf, mark: HIDDEN if mark else leaf, params, marked)
    return rest, jax.tree.map(lambda leaf, mark: leaf if mark else HIDDEN, params, marked)


def joined(first: Tree, second: Tree) -> Tree:
    """Undo :func:`split`.

    Args:
        first: a tree, parts of which are hidden.
        second: the tree with these parts.

    Returns:
        The whole tree.

    Example:
        >>> joined({"body": HIDDEN, "head": 2}, {"body": 1, "head": HIDDEN})
        {'body': 1, 'head': 2}
    """
    return jax.tree.map(
        lambda one, other: other if _is_hidden(one) else one, first, second, is_leaf=_is_hidden
    )


def _is_hidden(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


# Depth.


def depths(names: Iterable[str], before: str, blocks: str) -> dict[str, int]:
    """Return the depth of each part: 0 before the blocks, 1 … L for the L blocks, L + 1 after them."""
    names = list(names)
    of_block = {name: match[0] for name in names if (match := re.match(blocks, name))}
    order = ["", *sorted(set(of_block.values()), key=natural_key)]
    depth = dict.fromkeys(names, len(order))
    depth |= {name: 0 for name in names if re.fullmatch(before, name)}
    return depth | {name: order.index(block) for name, block in of_block.items()}


def _scale(factors: Callable[[Tree], Tree], role: str | None) -> optax.GradientTransformation:
    """Multiply the updates of a role, or all, by a tree of factors that is a function of their paths."""

    def update(updates: Tree, _: Any) -> Tree:
        own = updates if role is None else updates[role]
        scaled = jax.tree.map(operator.mul, own, factors(own))
        return scaled if role is None else {**updates, role: scaled}

    return optax.stateless(update)


def scale_by_depth(decay: float, before: str, blocks: str) -> optax.GradientTransformation:
    """Multiply the model's updates by ``decay^(L + 1 − l)`` at the depth l, as BEiT and timm do."""

    def factors(parts: Tree) -> Tree:
        depth = depths(parts, before, blocks)
        if len(set(depth.values()) - {0}) < 2:
            raise ValueError(
                f"blocks must be a pattern of the model's parts, {blocks!r} names none of {', '.join(parts)}"
            )
        last = max(depth.values())
        return {
            name: jax.tree.map(lambda _, n=name: decay ** (last - depth[n]), part)
            for name, part in parts.items()
        }

    return _scale(factors, "model")


def scale_by_path(
    factors: Mapping[str, float], role: str | None = "model"
) -> optax.GradientTransformation:
    """Scale the updates of some parameters: learning rates by regular expression of paths.

    Args:
        factors: from a pattern of paths (:func:`matching`) to the factor of what it names; the first that names a
            parameter counts, and what none names keeps its learning rate.
        role: of the parameters which the model's are; None: they are all parameters.

    Returns:
        The transformation: after the optimizer's rule, so that it scales the learning rate.

    Raises:
        TypeError: a pattern that is no text.
        ValueError: no regular expression; on ``init``: a pattern that names no parameter.

    Example:
        >>> tx = scale_by_path({"head": 10.0, ".*/bias": 0.0}, role=None)
        >>> params = {"conv": {"bias": jnp.ones(1), "kernel": jnp.ones(1)}, "head": jnp.ones(1)}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> print(updates["conv"]["bias"], updates["conv"]["kernel"], updates["head"])
        [0.] [1.] [10.]
    """
    patterns = [(_whole(pattern), factor) for pattern, factor in factors.items()]

    def init(params: Tree) -> optax.EmptyState:
        for pattern in factors:
            check_pattern("lr_multipliers", pattern, params if role is None else params[role])
        return optax.EmptyState()

    def factor_of(path: KeyPath, _: Array) -> float:
        name = path_text(path)
        return next((factor for pattern, factor in patterns if pattern.fullmatch(name)), 1.0)

    of_tree = functools.partial(jax.tree_util.tree_map_with_path, factor_of)
    return optax.GradientTransformation(init, _scale(of_tree, role).update)


# LoRA.


def lora_factors(key: Array, params: Tree, rank: int, pattern: str) -> dict[str, Any]:
    """Draw the factors of low-rank changes of some parameters: A at random, B = 0, so that nothing is changed yet.

    Args:
        key: a random key.
        params: nested dictionaries of arrays.
        rank: r, the width between both factors.
        pattern: of the paths of the parameters, arrays of two axes or more (others are left out).

    Returns:
        Nested dictionaries as the parameters', with ``{"a": [in, r], "b": [r, out]}`` in the place of each.

    Raises:
        TypeError: parameters that are no dictionary.
        ValueError: a pattern that names none, a rank below 1.

    Implementation notes:
        The axes of an array are cut in two where ``in + out`` is smallest: attention's between channels and heads. A
        is uniform with the variance ``1/(3 in)``, as in the program of the paper.

    Reference:
        Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*.

    Example:
        >>> factors = lora_factors(jax.random.key(0), {"query": {"kernel": jnp.ones((8, 2, 4))}}, 3, "query")
        >>> jax.tree.map(jnp.shape, factors)
        {'query': {'kernel': {'a': (8, 3), 'b': (3, 8)}}}
    """
    checks.count("rank", rank)
    check_pattern("pattern", pattern, params)
    marked = split(params, matching(params, pattern))[1]
    leaves = jax.tree_util.tree_leaves_with_path(marked)
    wide = [(path, np.shape(leaf)) for path, leaf in leaves if np.ndim(leaf) > 1]
    if not wide:
        raise ValueError(f"pattern must name kernels, {pattern!r} names vectors alone")
    factors = {}
    for (path, shape), own in zip(wide, jax.random.split(key, len(wide)), strict=True):
        if not all(isinstance(part, DictKey) for part in path):
            raise TypeError("params must be nested dictionaries, got others within them")
        cuts = [(math.prod(shape[:n]), math.prod(shape[n:])) for n in range(1, len(shape))]
        into, out = min(cuts, key=sum)
        bound = 1 / math.sqrt(into)
        names = [part.key for part in path]
        factors[*names, "a"] = jax.random.uniform(own, (into, rank), jnp.float32, -bound, bound)
        factors[*names, "b"] = jnp.zeros((rank, out), jnp.float32)
    return dict(unflatten_dict(factors))


def lora_merged(params: Tree, factors: Mapping[str, Any], scale: float) -> Tree:
    """Add low-rank changes to parameters.

    Formula:
        ``W + s A B``, s = α / r.

    Args:
        params: nested dictionaries of arrays.
        factors: of :func:`lora_factors`.
        scale: s.

    Returns:
        The parameters, of the types that they had.

    Example:
        >>> params = {"kernel": jnp.zeros((2, 2))}
        >>> factors = {"kernel": {"a": jnp.array([[1.0], [2.0]]), "b": jnp.array([[3.0, 4.0]])}}
        >>> print(lora_merged(params, factors, 0.5)["kernel"])
        [[1.5 2. ]
         [3.  4. ]]
    """

    def merged(part: Any, own: Any) -> Any:
        if not isinstance(part, Mapping):
            change = jnp.matmul(own["a"], own["b"], precision=jax.lax.Precision.HIGHEST)
            return (part + scale * change.reshape(np.shape(part))).astype(part.dtype)
        return {name: merged(p, own[name]) if name in own else p for name, p in part.items()}

    return merged(params, factors)
