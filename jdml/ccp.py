"""Chance-constrained programming (CCP): proxies by greedy k-center, and alternating problems as a state machine.

CCP solves one proxy problem after the other. Each ends when validation no longer improves; the next one starts from the
best solution, with its weights as the anchor (:func:`jdml.optim.set_anchor`) and with new proxies that cover what the
old ones left uncovered (:func:`select_proxies`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.metrics import covering_radius
from jdml.metrics.chance import greedy_covering_radii
from jdml.ops import checks
from jdml.ops.numerics import accumulate_in

__all__ = [
    "AlternatingProjections",
    "AlternationState",
    "Decision",
    "covering_radius",
    "greedy_covering_radii",
    "greedy_k_center",
    "select_proxies",
]


@ops.public(k=checks.count)
def greedy_k_center(
    pool: Array,
    centers: Array,
    k: int,
    *,
    where: Array | None = None,
    centers_where: Array | None = None,
) -> Array:
    """Pick from a pool, one after the other, the point farthest from all centres and from those already picked.

    Formula:
        ``q = argmax_{u ∈ pool∖r} min_{v ∈ centers ∪ r} ‖u − v‖``, added to r until it holds k of them.

    Args:
        pool: ``[N, D]``, in the space that the loss measures.
        centers: ``[M, D]``, what already covers; M may be 0.
        k: how many to pick.
        where: ``[N]`` bool, the points that may be picked.
        centers_where: ``[M]`` bool, the centres that count.

    Returns:
        ``[k]`` int32 indices into the pool, in the order in which they were picked.

    Raises:
        ValueError: an empty pool.

    Implementation notes:
        No point is picked twice while another may be; then they are repeated in the order in which they were picked.
        Ties go to the lowest index, and so does the first pick without a centre. ``O((M + k) N D)``.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, Algorithm 2.

    Example:
        >>> import jax.numpy as jnp
        >>> greedy_k_center(jnp.array([[0.0], [1.0], [5.0], [9.0]]), jnp.array([[0.0]]), 3)
        Array([3, 2, 1], dtype=int32)
    """
    checks.check_embeddings("pool", pool)
    checks.check_embeddings("centers", centers, dim=pool.shape[1], like="pool")
    size = len(pool)
    if size == 0:
        raise ValueError("pool must hold at least one point, got none")
    checks.check_mask("where", where, (size,))
    checks.check_mask("centers_where", centers_where, (len(centers),))
    dtype = accumulate_in(pool, centers)
    free = jnp.ones(size, bool) if where is None else where
    points = jnp.where(free[:, None], pool, 0).astype(dtype)
    covered = centers if centers_where is None else jnp.where(centers_where[:, None], centers, 0)
    covered = covered.astype(dtype)
    checks.require(jnp.broadcast_to(free.any(), (1,)), "where must keep at least one point")
    checks.require(jnp.isfinite(points).all(-1), "pool[{row}] is not finite")
    checks.require(jnp.isfinite(covered).all(-1), "centers[{row}] is not finite")
    counted = jnp.ones(len(centers), bool) if centers_where is None else centers_where

    def cover(nearest: Array, center: tuple[Array, Array]) -> tuple[Array, None]:
        vector, counts = center
        closer = jnp.minimum(nearest, ops.safe_norm(points - vector[None])[:, 0])
        return jnp.where(counts, closer, nearest), None

    nearest, _ = jax.lax.scan(cover, jnp.full(size, jnp.inf, dtype), (covered, counted))

    def pick(carried: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        nearest, left = carried
        chosen = jnp.argmax(jnp.where(left, nearest, -1.0)).astype(jnp.int32)
        to_chosen = ops.safe_norm(points - points[chosen][None])[:, 0]
        return (jnp.minimum(nearest, to_chosen), left.at[chosen].set(False)), chosen

    _, picked = jax.lax.scan(pick, (nearest, free), length=k)
    return picked[jnp.arange(k) % jnp.clip(free.sum(), 1, k)]


@ops.public(k=checks.count)
def select_proxies(
    pool: Array,
    proxies: Array,
    k: int,
    *,
    where: Array | None = None,
    proxies_where: Array | None = None,
) -> Array:
    """Choose new proxies for every class: from its pool, those that :func:`greedy_k_center` adds to its old proxies.

    Args:
        pool: ``[C, b, D]``, embeddings of b samples of each class.
        proxies: ``[C, K, D]``, the old proxies.
        k: how many new ones each class gets.
        where: ``[C, b]`` bool, the samples there are: classes with fewer than b.
        proxies_where: ``[C, K]`` bool, the old proxies that count; all False where there are none yet.

    Returns:
        ``[C, k, D]``, in the pool's type. A class without a sample keeps its old proxies, repeated where k exceeds K.

    Paper settings:
        k = 8 of b = 12 (CUB, Cars196), 4 of 7 (SOP, In-shop), 4 of 16 (MNIST). With b = k they are random samples.

    Example:
        >>> import jax.numpy as jnp
        >>> pool = jnp.array([[[0.0], [1.0], [5.0]], [[2.0], [2.5], [2.1]]])
        >>> select_proxies(pool, jnp.array([[[0.0]], [[2.0]]]), 1)[..., 0]
        Array([[5. ],
               [2.5]], dtype=float32)
    """
    if jnp.ndim(pool) != 3:
        raise ValueError(f"pool must have shape [C, b, D], got {list(jnp.shape(pool))}")
    classes, size, dim = pool.shape
    if jnp.ndim(proxies) != 3 or proxies.shape[::2] != (classes, dim) or proxies.size == 0:
        shape = list(jnp.shape(proxies))
        raise ValueError(f"proxies must have shape [{classes}, K, {dim}], as pool has, got {shape}")
    free = jnp.ones((classes, size), bool) if where is None else where
    old = jnp.ones(proxies.shape[:2], bool) if proxies_where is None else proxies_where

    def of_class(points: Array, centers: Array, free: Array, old: Array) -> Array:
        picked = points[greedy_k_center(points, centers, k, where=free, centers_where=old)]
        return jnp.where(
            free.any(), picked, centers[jnp.arange(k) % len(centers)].astype(points.dtype)
        )

    return jax.vmap(of_class)(pool, proxies, free, old)


class AlternationState(NamedTuple):
    """The state of :class:`AlternatingProjections`: scalars only, saved with a checkpoint.

    Attributes:
        problem: number of the current problem, from 0.
        best: the best metric in this problem.
        waited: evaluations since then.
        run_best: the best metric of the run.
        run_waited: evaluations since then.
        ended: whether the run is over.
    """

    problem: Array
    best: Array
    waited: Array
    run_best: Array
    run_waited: Array
    ended: Array


class Decision(NamedTuple):
    """The consequences of an evaluation, as bool scalars.

    Attributes:
        improved: the best of this problem: keep parameters and proxies.
        run_improved: the best of the run: keep the model.
        end_problem: restore the problem's best, anchor the weights there, choose new proxies.
        end_run: stop.
    """

    improved: Array
    run_improved: Array
    end_problem: Array
    end_run: Array


class AlternatingProjections(NamedTuple):
    """When a proxy problem ends and the next one begins: a pure state machine over validation metrics.

    ==========================================  ======================================  ==========================
    an evaluation that                          changes                                 decides
    ==========================================  ======================================  ==========================
    beats the problem's best by ``tolerance``   best ← metric, waited ← 0               improved
    does not, waited + 1 < patience             waited ← waited + 1                     –
    does not, waited + 1 = patience             problem + 1, best ← −∞, waited ← 0      end_problem
    beats the run's best by ``tolerance``       run_best ← metric, run_waited ← 0       run_improved (besides those)
    does not, run_waited + 1 = run_patience     ended                                   end_run, and no end_problem
    comes after the end                         nothing                                 end_run
    ==========================================  ======================================  ==========================

    A NaN metric is no improvement.

    Attributes:
        patience: evaluations without improvement that end a problem.
        run_patience: evaluations without improvement that end the run.
        tolerance: by how much a metric must beat the best.

    Paper settings:
        patience 3, 60 evaluations for the run, one evaluation every 25 (CUB, Cars196) or 250 steps.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, Algorithm 1.

    Example:
        >>> machine = AlternatingProjections(patience=2)
        >>> state, ends = machine.init(), []
        >>> for metric in (0.5, 0.6, 0.6, 0.4, 0.3):
        ...     state, decision = machine.update(state, metric)
        ...     ends.append(bool(decision.end_problem))
        >>> ends, int(state.problem)
        ([False, False, False, True, False], 1)
    """

    patience: int = 3
    run_patience: int = 60
    tolerance: float = 1e-5

    def init(self) -> AlternationState:
        """Make the state before the first evaluation.

        Returns:
            The state.

        Raises:
            TypeError: a patience that is not a whole number.
            ValueError: a patience below 1, a negative tolerance.
        """
        checks.count("patience", self.patience)
        checks.count("run_patience", self.run_patience)
        checks.non_negative("tolerance", self.tolerance)
        zero, lowest = jnp.zeros((), jnp.int32), jnp.asarray(-jnp.inf, jnp.float32)
        return AlternationState(zero, lowest, zero, lowest, zero, jnp.zeros((), bool))

    def update(
        self, state: AlternationState, metric: float | Array
    ) -> tuple[AlternationState, Decision]:
        """Take one evaluation into account.

        Args:
            state: the state so far.
            metric: the validation metric, larger is better.

        Returns:
            The new state, and what to do.
        """
        metric = jnp.asarray(metric, jnp.float32)
        going = ~state.ended
        improved = going & (metric > state.best + self.tolerance)
        run_improved = going & (metric > state.run_best + self.tolerance)
        waited = jnp.where(improved, 0, state.waited + 1)
        run_waited = jnp.where(run_improved, 0, state.run_waited + 1)
        end_run = state.ended | (run_waited >= self.run_patience)
        end_problem = going & ~end_run & (waited >= self.patience)
        best = jnp.where(improved, metric, state.best)
        new = AlternationState(
            state.problem + end_problem,
            jnp.where(end_problem, -jnp.inf, best),
            jnp.where(end_problem, 0, waited),
            jnp.where(run_improved, metric, state.run_best),
            run_waited,
            end_run,
        )
        result = jax.tree.map(lambda n, old: jnp.where(going, n, old), new, state)
        return result, Decision(improved, run_improved, end_problem, end_run)
