"""The ways in which a loss is called: each one program of a loss, for all cases; and the loss as its oracle has it."""

import functools
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hunt.drawn import LENGTHS, B, C, Case, R
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from losses.registry import REGISTRY, loss

import jdml
from jdml.mining import chain, easy_positive, hard_negative, random_positive, semi_hard_negative
from jdml.ops import checks
from oracles import mining as mining_oracles

Tree = Any


def _eps_hard(distances: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Any:
    easy, negative = mining_oracles.easy_positive(distances, positive, negative)
    return mining_oracles.hard_negative(distances, easy, negative)


@dataclass(frozen=True)
class Way:
    """How a loss is called.

    Attributes:
        settings: its keywords.
        oracle: the oracle's, by which they are said there; None where it has no such words.
        like: the way that must give the same.
        references: whether the batch is compared with others.
        masked: whether pairs are told by a mask.
        per_class: K of the proxies; 0: `[C, D]`.
        narrow: the type of the vectors, where it is of 16 bits.
        mesh: the kind of a mesh's axes, where two devices share the batch.
        removed: whether rows that are not valid are left out.
        vague: whether ties are decided by rounding, so that only batches without them can be compared.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    oracle: Mapping[str, Any] | None = field(default_factory=dict)
    like: str | None = None
    references: bool = False
    masked: bool = False
    per_class: int = 2
    narrow: Any = None
    mesh: AxisType | None = None
    removed: bool = False
    vague: bool = False


_DRAWN = {
    "mine": chain(random_positive(), semi_hard_negative()),
    "key": jax.random.key(3, impl="rbg"),
}
_BOTH = {
    "plain": Way(),
    "total": Way({"reduce_fn": jdml.total}, {"reduce": "total"}),
    "terms": Way({"reduce_fn": None}, {"reduce": "none"}, like="total"),
    "as given": Way({"normalize": None}, {"normalize": None}),
    "in the ball": Way({"normalize": jdml.ball}, {"normalize": "ball"}),
    "bfloat16": Way(narrow=jnp.bfloat16),
    "float16": Way(narrow=jnp.float16),
    "Auto": Way(oracle=None, like="plain", mesh=AxisType.Auto),
    "Explicit": Way(oracle=None, like="plain", mesh=AxisType.Explicit),
    "removed": Way(oracle=None, like="plain", removed=True),
}
WAYS: Mapping[str, Mapping[str, Way]] = {
    "pair": _BOTH
    | {
        "in blocks": Way({"anchor_block": 4}, None, like="plain"),
        "by a mask": Way(like="plain", masked=True),
        "against references": Way(references=True),
        "references in blocks": Way(
            {"anchor_block": 4}, None, like="against references", references=True
        ),
        "mined": Way(
            {"mine": chain(easy_positive(), hard_negative())}, {"mine": _eps_hard}, vague=True
        ),
        "drawn": Way(_DRAWN, None, vague=True),
        "drawn in blocks": Way(_DRAWN | {"anchor_block": 4}, None, like="drawn", vague=True),
    },
    "proxy": _BOTH
    | {
        "in blocks": Way({"class_block": 2}, None, like="plain"),
        "[C, D]": Way(per_class=0),
        "one each": Way(per_class=1, like="[C, D]"),
        "eight each": Way(per_class=8),
    },
}
NO_BLOCKS = {name for name, spec in REGISTRY.items() if "K" in spec.shape}
NO_ORACLE = {
    (
        "lifted_structure_loss",
        "against references",
    ),  # these do not tell the negatives of a positive
    ("arcface_loss", "as given"),  # a product beyond 1 is no cosine
    ("subcenter_arcface_loss", "as given"),
}


def has_oracle(name: str, case: Case) -> bool:
    """Whether the oracle has a word on a case: of no variance, as the loss has it, is an anchor that is that short."""
    way = WAYS[REGISTRY[name].kind][case.way]
    short = case.way in ("as given", "in the ball") and {"tiny", "subnormal"} & set(case.rows)
    if way.oracle is None or (name, case.way) in NO_ORACLE:
        return False
    if (
        name.startswith("proxy_nca")
        and case.way == "as given"
        and "huge" in case.rows + case.others
    ):
        return False  # squares of 1e30, of whose difference no digit is left
    return not (name == "snr_contrastive_loss" and short)


def ways(name: str) -> tuple[str, ...]:
    """The ways that a loss has."""
    names = WAYS[REGISTRY[name].kind]
    return tuple(way for way in names if not (way == "in blocks" and name in NO_BLOCKS))


# Hyper-parameters: traced, each at its registered value or at one of its edges.

_SIZES = (1e-3, 0.1, 1.0, 10.0, 1e3, 1e-12, 1e-30, 1e-38, 1e9, 1e20, 3e38)
_SIGNED = (0.0, *(sign * size for size in _SIZES for sign in (1, -1)))
_ANGLES = (0.0, 1e-6, 0.5, 1.5, 3.0, math.pi)
EDGES = {
    checks.positive: _SIZES,
    checks.optional(checks.positive): _SIZES,
    checks.non_negative: (0.0, *_SIZES),
    checks.optional(checks.non_negative): (0.0, *_SIZES),
    checks.finite: _SIGNED,
    checks.finite_per_class: _SIGNED,
    checks.angle: _ANGLES,
    checks.angle_per_class: _ANGLES,
}


@functools.cache
def _registered(name: str) -> dict[str, float]:
    parameters = inspect.signature(loss(name)).parameters.values()
    numbers = {p.name: p.default for p in parameters if isinstance(p.default, float)}
    return numbers | {n: v for n, v in REGISTRY[name].settings.items() if isinstance(v, float)}


@functools.cache
def _edges(name: str) -> dict[str, tuple[float, ...]]:
    constraints = inspect.getclosurevars(loss(name)).nonlocals["constraints"]
    told = _registered(name)
    return {n: EDGES[c] for n, c in constraints.items() if c in EDGES and n in told}


def edges(name: str) -> int:
    """How many values of `Case.number` there are for a loss, beside 0."""
    return len(_edges(name)) * max(map(len, _edges(name).values()), default=0)


def numbers(name: str, case: Case) -> tuple[dict[str, float], bool]:
    """The hyper-parameters of a case, and whether they are of a size that oracles can be asked about."""
    told = dict(_registered(name))
    edges = list(_edges(name).items())
    if case.number == 0 or not edges:
        return told, True
    turn, which = divmod(case.number - 1, len(edges))
    key, values = edges[which]
    told[key] = values[turn % len(values)]
    return told, told[key] == 0 or 1e-3 <= abs(told[key]) <= 1e3


# Arrays of a case, and the loss of them.


def points(name: str, case: Case, way: Way) -> dict[str, np.ndarray]:
    """What has a gradient."""
    given = way.settings.get("normalize", jdml.sphere) is None
    # Slopes by vectors that short are 1e20 times as steep: of sharp losses they are no floats.
    moderate = numbers(name, case)[1]
    tiny = 1e-20 if moderate else 1e-6
    huge = (1e15 if moderate else 1e3) if given else 1e30
    if numbers(name, case)[0].get("tau", 0.0) > 1e9:
        huge = 1e15  # a regularizer's slope times the length is to be a float
    lengths = LENGTHS | {"huge": huge, "tiny": tiny}
    made = {"embeddings": case.vectors(case.rows, 0, lengths)}
    if way.references:
        made["references"] = case.vectors(case.others, 16, lengths)
    if REGISTRY[name].kind == "proxy":
        kinds = (case.others * C * 8)[: C * max(1, way.per_class)]
        made["proxies"] = case.vectors(kinds, 16, lengths)
        if way.per_class:
            made["proxies"] = made["proxies"].reshape(C, way.per_class, -1)
    if way.narrow is not None:
        most = float(jnp.finfo(way.narrow).max)
        made = {n: np.clip(v, -most, most) for n, v in made.items()}
    return made


def told(case: Case, way: Way) -> dict[str, np.ndarray]:
    """What has none."""
    labels = np.array(case.labels, np.int32)
    made = {"labels": labels, "where": np.array(case.where), "weights": np.array(case.weights)}
    if way.masked:
        del made["labels"]
        made["where"] = case.valid
        made["positive"] = labels[:, None] == labels[None, :]
    if way.references:
        draw = np.random.default_rng(case.seed)
        made["reference_labels"] = np.array(case.other_labels, np.int32)
        made["reference_where"] = draw.random(R) < 0.8
        made["ids"] = draw.integers(-1, 6, B).astype(np.int32)
        made["reference_ids"] = draw.integers(-1, 6, R).astype(np.int32)
    if way.removed:
        made = {n: v[case.valid] for n, v in made.items()}
    return made


def _arguments(
    points: Mapping[str, Any], told: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """What a loss, or its oracle, takes by position and by name."""
    more = dict(told)
    arrays = [points["embeddings"], more.pop("labels", None)]
    if "proxies" in points:
        arrays.append(points["proxies"])
    elif "references" in points:
        more["references"] = points["references"]
    return arrays, more


@functools.lru_cache(maxsize=32)
def program(name: str, way: str) -> Any:
    """Value and gradients, compiled once for a loss and a way (and once for a type and a size)."""
    spec = REGISTRY[name]
    settings = dict(WAYS[spec.kind][way].settings)
    settings |= {n: v for n, v in spec.settings.items() if not isinstance(v, float)}

    def value(points: dict[str, Any], told: dict[str, Any], numbers: dict[str, Any]) -> Any:
        arrays, more = _arguments(points, told)
        return loss(name)(*arrays, **more, **numbers, **settings).sum()

    return jax.jit(jax.value_and_grad(value))


@functools.cache
def _shardings(kind: AxisType) -> tuple[NamedSharding, NamedSharding]:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,), devices=jax.devices()[:2])
    return NamedSharding(mesh, P("data")), NamedSharding(mesh, P())


def run(
    name: str,
    way: str,
    points: Mapping[str, np.ndarray],
    told: Mapping[str, np.ndarray],
    numbers: Mapping[str, float],
    dtype: Any,
) -> tuple[float, dict[str, np.ndarray]]:
    """Value and gradients in float64, computed with vectors of a type."""
    wide = np.float64 if dtype == jnp.float64 else np.float32
    with jax.enable_x64(wide == np.float64):
        moved = {n: np.asarray(v).astype(dtype) for n, v in points.items()}
        told = {n: v.astype(wide) if n == "weights" else v for n, v in told.items()}
        mesh = WAYS[REGISTRY[name].kind][way].mesh
        if mesh is not None:
            rows, whole = _shardings(mesh)
            told = jax.device_put(told, rows)
            moved = {
                n: jax.device_put(v, whole if n == "proxies" else rows) for n, v in moved.items()
            }
        value, gradients = program(name, way)(moved, told, {n: wide(v) for n, v in numbers.items()})
        assert value.dtype == wide, f"the loss of {jnp.dtype(dtype)} is {value.dtype}"
        return float(value), {n: np.asarray(g, np.float64) for n, g in gradients.items()}


def restated(
    name: str,
    way: Way,
    points: Mapping[str, np.ndarray],
    told: Mapping[str, np.ndarray],
    numbers: Mapping[str, float],
) -> float:
    """The oracle's sum."""
    spec = REGISTRY[name]
    assert way.oracle is not None
    known = inspect.signature(spec.oracle).parameters
    arrays, more = _arguments(points, told)
    mine = {n: v for n, v in (spec.settings | numbers).items() if n in known}
    return float(np.sum(spec.oracle(*arrays, **more, **way.oracle, **mine)))
