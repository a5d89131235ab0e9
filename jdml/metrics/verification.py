"""Are two of one class? Errors at thresholds of the distance, over all pairs; and whether a query is known at all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array

from jdml.metrics import relevance
from jdml.metrics.array_conversion import accepts_any_array
from jdml.metrics.gallery_search import prepare, ranked
from jdml.metrics.pairwise_distances import Curve, PairDistances
from jdml.metrics.relevance import Relevance, RetrievalTask
from jdml.ops import checks

FAR = (1e-1, 1e-2, 1e-3)
"""Rates of false accepts, unless others are given."""


@accepts_any_array()
def verification(
    queries: Array,
    labels: Array,
    gallery: Any = None,
    gallery_labels: Array | None = None,
    *,
    far: Sequence[float] = FAR,
    self_index: Any = None,
    ignore: Any = None,
    roc: bool = False,
) -> dict[str, Any]:
    """Measure verification: are two of one class, decided by a threshold of their distance, over all pairs.

    Formula:
        ``FAR(t)``, ``TAR(t)``: the shares of the pairs of two classes, and of one, with ``‖q − g‖ ≤ t``. AUC is the
        area below TAR over FAR, ties counted half; EER the error where ``FAR = 1 − TAR``, between the points in a
        straight line; ``TAR@FAR=f`` and ``threshold@FAR=f`` belong to the largest t with ``FAR(t) ≤ f``.

    Args:
        queries: ``[Q, D]`` floating; by Euclidean distance of the vectors as given.
        labels: ``[Q]`` integers, or class names; rows with a negative label take no part.
        gallery: ``[N, D]``, on one device, on a mesh or on disk (``numpy.memmap``). Default: the queries, each
            unordered pair once.
        gallery_labels: ``[N]``, likewise.
        far: the false accept rates f that are asked for.
        self_index: ``[Q]``, the gallery's row that a query is itself, no pair; −1: none.
        ignore: pairs that do not count, as for :func:`jdml.metrics.evaluate_retrieval`.
        roc: also ``"ROC"``: FAR, TAR and threshold ``[K]`` of every point.

    Returns:
        ``"AUC"``, ``"EER"``, and for each f ``"TAR@FAR=f"``, ``"threshold@FAR=f"`` (midway to the next distance; 0, or
        −1 where wrong pairs are 0 apart, if nothing may be accepted) and ``"interval@FAR=f"``, in which that
        threshold lies in 95 of 100 samples of as many classes; ``"right"`` and ``"wrong"``, the numbers of pairs.

    Raises:
        ValueError: f outside 0…1, a row that is not finite, no pair of one class or of two.

    Implementation notes:
        Up to 2²² pairs exactly: distances from differences, in float64. More are counted in 2¹⁷ steps from one power
        of two to the next, from matrix products in float32: a threshold is known to a hundred-thousandth of itself, and
        distances that differ by less tie; those below a thousandth of what most are apart are known to that, or count
        as 0. Memory does not grow with the pairs. Pairs that share a class are not independent: the interval takes
        classes for what was drawn, and reads the threshold off at ``f ± 1.96`` standard errors of FAR. With three
        classes it says little. A host function: call it outside ``jit``.

    Reference:
        Grother & Ngan, *Face Recognition Vendor Test*, NIST IR 8009 (rates); Woodruff, *Confidence Intervals for
        Medians and Other Position Measures* (1952).

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[0.0], [1.0], [5.0], [6.5]])
        >>> scores = verification(x, jnp.array([0, 0, 1, 1]), far=(0.25,))
        >>> scores["AUC"], scores["TAR@FAR=0.25"], scores["threshold@FAR=0.25"]
        (1.0, 1.0, 4.5)
    """
    task, truth, mask = _task(
        "verification", queries, labels, gallery, gallery_labels, self_index, ignore
    )
    _check_rates(far)
    distances = PairDistances(task, truth, mask)
    curve = distances.curve()
    for name, counts in (("one class", curve.right), ("two classes", curve.wrong)):
        if not len(counts) or not counts[-1]:
            raise ValueError(f"labels must have a pair of {name} among the rows that take part")
    false, true = (np.append(0, counts) / counts[-1] for counts in (curve.wrong, curve.right))
    scores: dict[str, Any] = {"AUC": float(np.trapezoid(true, false))}
    scores["EER"] = float(np.interp(0, false - (1 - true), false))
    places = [curve.place(rate) for rate in far]
    errors = distances.errors([curve.threshold(place) for place in places]) if places else ()
    for rate, place, error in zip(far, places, errors, strict=True):
        reach = 1.959964 * error  # 95 % lie within on either side
        bounds = (curve.place(min(max(rate + e, 0.0), 1.0)) for e in (-reach, reach))
        scores[f"TAR@FAR={rate:g}"] = float(true[place + 1])
        scores[f"threshold@FAR={rate:g}"] = curve.threshold(place)
        scores[f"interval@FAR={rate:g}"] = tuple(curve.threshold(bound) for bound in bounds)
    scores |= {"right": int(curve.right[-1]), "wrong": int(curve.wrong[-1])}
    if roc:
        scores["ROC"] = false, true, np.append(curve.threshold(-1), curve.distances)
    return scores


@accepts_any_array()
def open_set(
    queries: Array,
    labels: Array,
    gallery: Any,
    gallery_labels: Array,
    *,
    far: Sequence[float] = FAR,
    self_index: Any = None,
    ignore: Any = None,
) -> dict[str, Any]:
    """Measure identification of queries of which some have no class in the gallery and must be rejected.

    Formula:
        A query is answered by its nearest row where that is at most t away. FAR(t): the share of the queries without a
        class in the gallery that are answered; DIR(t): the share of the others whose answer is there and right.
        ``DIR@FAR=f`` and ``threshold@FAR=f`` belong to the largest t with ``FAR(t) ≤ f``.

    Args:
        queries: ``[Q, D]`` floating, compared as given.
        labels: ``[Q]`` integers, or class names; a negative one is of no class of the gallery.
        gallery: ``[N, D]``, on one device, on a mesh or on disk.
        gallery_labels: ``[N]``, likewise.
        far: the rates f of false answers that are asked for.
        self_index: ``[Q]``, the gallery's row that a query is itself, and no answer; −1: none.
        ignore: pairs that do not count, as for :func:`jdml.metrics.evaluate_retrieval`.

    Returns:
        For each f ``"DIR@FAR=f"`` and ``"threshold@FAR=f"``; ``"R@1"`` of the known queries, without a threshold;
        ``"known"`` and ``"unknown"``, how many there are.

    Raises:
        ValueError: f outside 0…1, a row that is not finite, no known or no unknown query.

    Implementation notes:
        The nearest row as :func:`jdml.metrics.evaluate_retrieval` finds it, its distance from differences. A host
        function.

    Reference:
        Phillips, Grother & Micheals, *Evaluation Methods in Face Recognition* (Handbook of Face Recognition, ch. 21).

    Example:
        >>> import jax.numpy as jnp
        >>> gallery, known = jnp.array([[0.0], [5.0]]), jnp.array([0, 1])
        >>> scores = open_set(jnp.array([[0.2], [3.5], [9.0]]), jnp.array([0, 1, 7]), gallery, known, far=(0.0,))
        >>> scores["R@1"], scores["DIR@FAR=0"], scores["threshold@FAR=0"]
        (1.0, 1.0, 2.75)
    """
    task, truth, mask = _task(
        "open_set", queries, labels, gallery, gallery_labels, self_index, ignore
    )
    _check_rates(far)
    known = truth.num_relevant > 0
    for name, some in (("known", known), ("unknown", ~known)):
        if not some.any():
            each = "no" if name == "known" else "a"
            raise ValueError(f"labels: no query is {name}, each has {each} right answer")
    distances, right = _nearest(task, truth, mask)
    order = np.unique(distances[np.isfinite(distances)])
    counts = (
        np.searchsorted(np.sort(distances[some]), order, "right")
        for some in (known & right, ~known)
    )
    curve = Curve(order, *counts)
    scores: dict[str, Any] = {"R@1": float(right[known].mean())}
    for rate in far:
        place = curve.place(rate, int((~known).sum()))
        scores[f"DIR@FAR={rate:g}"] = float(curve.right[place] / known.sum()) if place >= 0 else 0.0
        scores[f"threshold@FAR={rate:g}"] = curve.threshold(place)
    return scores | {"known": int(known.sum()), "unknown": int((~known).sum())}


@accepts_any_array()
def rejection_threshold(gallery: Any, gallery_labels: Any, *, far: float = 0.01) -> float:
    """Choose the distance beyond which an answer is none, from a labelled gallery alone.

    Formula:
        the largest t with ``‖g − g'‖ ≤ t`` for at most a share ``far`` of the rows g, where g' is the nearest row of
        another class: what a query finds whose class is not in the gallery.

    Args:
        gallery: ``[N, D]`` floating.
        gallery_labels: ``[N]`` integers, or class names, of two classes at least; rows with a negative label ask
            nothing, but are found, as of another class.
        far: how many of the queries of no class may be answered.

    Returns:
        The distance; −1 where even equal vectors are too many.

    Raises:
        ValueError: fewer than two classes, ``far`` outside 0…1.

    Implementation notes:
        Assumes that classes to come are as far from those of the gallery as these are from each other. Where there are
        queries of no class, :func:`open_set` measures it.

    Example:
        >>> import jax.numpy as jnp
        >>> rejection_threshold(jnp.array([[0.0], [1.0], [5.0], [8.0]]), jnp.array([0, 0, 1, 2]), far=0.5)
        3.5
    """
    checks.check_concrete("rejection_threshold", gallery, gallery_labels)
    checks.check_embeddings("gallery", gallery)
    checks.unit_interval("far", far)
    vectors = checks.as_finite("gallery", gallery)
    arguments = vectors, gallery_labels, None, None, None, (np.zeros(len(vectors), int),) * 2
    task, truth, mask = _task("rejection_threshold", *arguments, labels="gallery_labels")
    if truth.query_classes.max(initial=-1) < 1:
        raise ValueError("gallery_labels must be of two classes at least")
    distances = np.sort(_nearest(task, truth, mask)[0][truth.query_classes >= 0])
    refused = int(far * len(distances) * (1 + 1e-12))  # the first of them
    if refused == len(distances):
        return float(distances[-1])
    nearer = distances[distances < distances[refused]]
    if not nearer.size:  # just below it, also when float32 is compared
        below = np.nextafter(np.float32(distances[refused]), np.float32(0))
        return float(below) if distances[refused] > 0 else -1.0
    return float(nearer[-1] + distances[refused]) / 2


def _check_rates(far: Sequence[float]) -> None:
    if np.ndim(far) != 1:
        raise TypeError(f"far must be a sequence of numbers in [0, 1], got {far!r}")
    for turn, rate in enumerate(far):
        checks.unit_interval(f"far[{turn}]", rate)


def _task(
    function: str, *arguments: Any, labels: str = "labels"
) -> tuple[RetrievalTask, Relevance, relevance.IgnoreMask]:
    """The checked arguments of a function, and what is right."""
    task = relevance.task(function, (labels, "gallery_labels"), *arguments)
    if len(task.levels) > 1:
        raise ValueError(
            f"{labels} of {function} must have shape [Q], got {len(task.levels)} levels"
        )
    return task, *task.levels[0]


def _nearest(
    task: RetrievalTask, truth: Relevance, mask: relevance.IgnoreMask
) -> tuple[np.ndarray, np.ndarray]:
    """Each query's distance to its nearest row, infinite where nothing may answer; and whether that is right."""
    search = prepare(task.queries, task.gallery, task.own).among(mask)
    nearest = np.concatenate([np.asarray(rows)[:, 0] for _, rows, _ in ranked(search, 1)])
    nearest = nearest[: len(task.queries)]  # without padding
    out = mask.excludes(nearest)
    if task.own is not None:
        out = out | (task.own == nearest)
    there = relevance.rows_of(task.gallery, nearest).astype(np.float64)
    distances = np.linalg.norm(np.asarray(task.queries, np.float64) - there, axis=1)
    right = (
        ~out & (truth.query_classes >= 0) & (truth.gallery_classes[nearest] == truth.query_classes)
    )
    return np.where(out, np.inf, distances), right
