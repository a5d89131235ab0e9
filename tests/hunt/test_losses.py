"""Every loss on generated batches: finite, masked = removed, in any order, as the oracle, in blocks, on meshes."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hunt import ways
from hunt.counting import CASES, hunted
from hunt.drawn import PLAIN, SPOILED, Case, cases
from hunt.kept import LOSSES
from hunt.ways import WAYS, Way, restated, run
from losses.registry import REGISTRY

Side = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
"""What is compared, as a function of the vectors."""

IN_FLOAT32 = {
    *("plain", "in blocks", "against references", "as given", "in the ball", "drawn", "[C, D]"),
    "eight each",
}
ANY_ORDER = {"plain", "total", "as given", "in the ball", "[C, D]", "eight each"}


def norms(way: Way, vectors: np.ndarray) -> np.ndarray:
    """By what a gradient is to be multiplied: that by a vector to be normalized is the larger the shorter that is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return lengths if "normalize" not in way.settings else np.maximum(lengths, 1.0)


def near(left: list[np.ndarray], right: list[np.ndarray], allowed: list[float]) -> bool:
    pairs = zip(left, right, allowed, strict=True)
    return all(np.max(np.abs(a - b), initial=0.0) <= most for a, b, most in pairs)


def assert_same(left: Side, right: Side, points: Mapping[str, Any], what: str, eps: float) -> None:
    """Assert equality to `eps`, or to what rounding of the vectors makes of the one or the other, if that is more."""
    one, other = left(points), right(points)
    allowed = [eps * max(1.0, float(np.max(np.abs(a), initial=0.0))) for a in one]
    if near(one, other, allowed):
        return
    draw = np.random.default_rng(0)
    for _ in range(4):
        shaken = {
            n: v
            + 1e-6 * eps * np.linalg.norm(v, axis=-1, keepdims=True) * draw.normal(size=v.shape)
            for n, v in points.items()
        }
        for side, at in ((left, one), (right, other)):
            moved = side(shaken)
            allowed = [
                max(most, 20.0 * np.max(np.abs(a - b), initial=0.0))
                for most, a, b in zip(allowed, moved, at, strict=True)
            ]
    assert near(one, other, allowed), f"{what}: {one}, not {other} (allowed {allowed})"


def check(name: str, case: Case, *, exact: bool = True) -> None:
    """Try all that must hold of a loss for this case; or, not ``exact``, what is quick to try: that it is finite."""
    way = WAYS[REGISTRY[name].kind][case.way]
    points, told = ways.points(name, case, way), ways.told(case, way)
    numbers, moderate = ways.numbers(name, case)
    if case.way in IN_FLOAT32 or way.narrow is not None:
        check_finite(name, case, points, told, numbers)
    if way.narrow is None and exact:
        check_equal(name, case, points, told, numbers)
        if moderate and ways.has_oracle(name, case):
            if not way.vague or set(case.rows) == {"plain"}:
                check_oracle(name, case, points, told, numbers)


def check_finite(name: str, case: Case, points: Any, told: Any, numbers: Any) -> None:
    """In float32 or less: finite, nothing of what is hidden, and in ordinary batches what float64 gives."""
    way = WAYS[REGISTRY[name].kind][case.way]
    dtype = way.narrow or jnp.float32
    value, gradients = run(name, case.way, points, told, numbers, dtype)
    assert np.isfinite(value), f"the loss is {value}"
    for of, gradient in gradients.items():
        assert np.isfinite(gradient).all(), f"the gradient by {of} is {gradient}"
    hidden = ~case.valid
    if not case.valid.any():
        assert value == 0, f"no row is valid, the loss is {value}"
    if hidden.any():
        draw = np.random.default_rng(case.seed)
        spoiled = {n: v.copy() for n, v in points.items()}
        spoiled["embeddings"][hidden] = draw.choice(SPOILED, spoiled["embeddings"][hidden].shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # beyond float16
            again = run(name, case.way, spoiled, told, numbers, dtype)
        assert again[0] == value, f"hidden rows count: {again[0]}, not {value}"
        for of in gradients:
            np.testing.assert_array_equal(again[1][of], gradients[of], f"hidden rows, by {of}")
        assert not again[1]["embeddings"][hidden].any(), "hidden rows have a gradient"
    if way.narrow is not None:
        rounded = {n: v.astype(dtype).astype(np.float64) for n, v in points.items()}
        wide = run(name, "plain", rounded, told, numbers, jnp.float32)[0]
        assert abs(value - wide) <= 1e-5 * max(1.0, abs(wide)), f"{value}, in float32 {wide}"


def check_equal(name: str, case: Case, points: Any, told: Any, numbers: Any) -> None:
    """In float64: the same in any order, and as in the way that this one is like."""
    way = WAYS[REGISTRY[name].kind][case.way]
    valid = case.valid

    def side(by: str, order: np.ndarray | None, told: Any, rows: np.ndarray | None) -> Side:
        def compared(points: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            points = dict(points)
            scales = {n: norms(way, v) for n, v in points.items()}
            x = points["embeddings"]
            points["embeddings"] = x[order] if order is not None else x if rows is None else x[rows]
            value, gradients = run(name, by, points, told, numbers, jnp.float64)
            back = gradients["embeddings"]
            if order is not None or rows is not None:
                back = np.zeros_like(x)
                back[order if rows is None else rows] = gradients["embeddings"]
            gradients["embeddings"] = back
            return [np.array(value), *(gradients[n] * scales[n] for n in points)]

        return compared

    own = side(case.way, None, told, valid if way.removed else None)
    if way.like is not None and not (way.vague and set(case.rows) != {"plain"}):
        other_way = WAYS[REGISTRY[name].kind][way.like]
        if other_way.per_class == 0:

            def flat(points: Mapping[str, np.ndarray]) -> list[np.ndarray]:
                proxies = points["proxies"]
                found = other({**points, "proxies": proxies[:, 0]})
                return [*found[:-1], found[-1].reshape(proxies.shape)]

            other = side(way.like, None, told, None)
            assert_same(own, flat, points, f"like {way.like}", 1e-6)
        else:
            other = side(way.like, None, ways.told(case, other_way), None)
            assert_same(own, other, points, f"like {way.like}", 1e-6)
    if case.way in ANY_ORDER:
        order = np.random.default_rng(case.seed).permutation(len(valid))
        moved = side(case.way, order, {n: v[order] for n, v in told.items()}, None)
        assert_same(own, moved, points, "in another order", 1e-6)
    if case.way in IN_FLOAT32 and case.ordinary and abs(case.number) == 0 and not way.vague:
        double = run(name, case.way, points, told, numbers, jnp.float64)[0]
        single = run(name, case.way, points, told, numbers, jnp.float32)[0]
        if abs(single - double) > 1e-4 * max(1.0, abs(double)):
            at = [
                lambda p, t=t: [np.array(run(name, case.way, p, told, numbers, t)[0])]
                for t in (jnp.float64, jnp.float32)
            ]
            assert_same(*at, points, "in float32 and float64", 1e-3)


def check_oracle(name: str, case: Case, points: Any, told: Any, numbers: Any) -> None:
    """In float64: the oracle's value, and a gradient that is its slope."""
    spec = REGISTRY[name]
    way = WAYS[spec.kind][case.way]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")

        def of_oracle(at: Mapping[str, np.ndarray]) -> float:
            return restated(name, way, at, told, numbers)

        try:
            expected = of_oracle(points)
        except (ArithmeticError, ValueError):  # beyond what Python's floats hold
            return
        if not abs(expected) < 1e150:  # a potential that steep is flat
            return
        value, gradients = run(name, case.way, points, told, numbers, jnp.float64)
        if abs(value - expected) > 1e-6 * max(1.0, abs(expected)):
            assert_same(
                lambda p: [np.array(run(name, case.way, p, told, numbers, jnp.float64)[0])],
                lambda p: [np.array(of_oracle(p))],
                points,
                "as the oracle",
                1e-6,
            )
        if "gradients" in spec.skip:
            return
        draw, step = np.random.default_rng(case.seed), 1e-6
        along = {
            n: draw.normal(size=v.shape) * np.linalg.norm(v, axis=-1, keepdims=True)
            for n, v in points.items()
        }
        along["embeddings"][~case.valid] = 0.0
        slope = sum(float(np.sum(gradients[n] * along[n])) for n in points)
        ahead, behind = (
            (of_oracle({n: v + s * step * along[n] for n, v in points.items()}) - expected)
            / (s * step)
            for s in (1, -1)
        )
        size = max(1.0, abs(slope), abs(expected))
        if np.isfinite(ahead - behind) and abs(ahead - behind) <= 1e-4 * size:  # no kink
            middle = (ahead + behind) / 2
            assert abs(slope - middle) <= 1e-3 * size, f"a gradient of {slope}, not {middle}"


def of_kind(kind: str) -> list[str]:
    return [name for name, spec in REGISTRY.items() if spec.kind == kind]


@pytest.mark.parametrize("name", of_kind("pair"))
@hunted(cases(tuple(WAYS["pair"]) if CASES else ("plain",), "pair"), share=20, part=0.38 / 16)
def test_pair_losses(name: str, case: Case) -> None:
    check(name, case)


@pytest.mark.parametrize("name", of_kind("proxy"))
@hunted(cases(tuple(WAYS["proxy"]) if CASES else ("plain",), "proxy"), share=20, part=0.34 / 14)
def test_proxy_losses(name: str, case: Case) -> None:
    if case.way in ways.ways(name):
        check(name, case)


@pytest.mark.parametrize("name", REGISTRY)
def test_at_every_edge(name: str) -> None:
    """Finite however sharp or soft, also where rows are copies of each other, opposite, and zero."""
    for number in range(1, ways.edges(name) + 1):
        for rows in (PLAIN, ("copy", "copy", "plain", "opposite", "copy", "zero")):
            check(name, Case(rows=rows, number=number), exact=False)


@pytest.mark.parametrize(("name", "case"), LOSSES)
def test_what_once_failed(name: str, case: Case) -> None:
    check(name, case)
