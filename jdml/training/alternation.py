"""CCP in the training loop: changes of weights, anchor and proxies between two problems."""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.multihost_utils import process_allgather

from jdml import optim
from jdml.ccp import AlternatingProjections, AlternationState, covering_radius, select_proxies
from jdml.data import BadImageError, ImageFiles
from jdml.data.dataset import TrainSet
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.metrics.chance import mean_distance
from jdml.models.adapters import Model
from jdml.models.embedding import Preprocess, default_preprocess
from jdml.ops import ball, checks
from jdml.recipes import CCPConfig, Recipe
from jdml.runs.inference import ReadRows
from jdml.training.callbacks import CallbackResult, StatefulCallback, Stop
from jdml.training.initialization import draw_by_class
from jdml.training.run_config import Embedder
from jdml.training.step import TrainState

_log = logging.getLogger(__name__)
First = Literal["random", "covering", "origin", "unchanged"]


class Alternation(NamedTuple):
    """The state of :class:`AlternatingProblems`, saved with checkpoints.

    Attributes:
        machine: where in which problem the run is.
        params: the parameters of all roles at the best evaluation of this problem.
        batch_stats: the model's running statistics there.
        before: the final proxies of the last problem, ``[C, K, D]``; zeros in the first.
        chosen: the initial proxies of this problem.
    """

    machine: AlternationState
    params: dict[str, Tree]
    batch_stats: Tree
    before: Array
    chosen: Array


@dataclass(frozen=True)
class AlternatingProblems(StatefulCallback):
    """CCP's alternating projections as a callback of :func:`jdml.training.fit`.

    A problem ends when the monitored metric no longer improves. Then the model and the proxies return to their best in
    this problem, the weights are anchored there (:func:`jdml.optim.set_anchor`), and every class gets new proxies:
    those of ``pool_size`` of its samples that the old ones cover worst. The optimizer's moments continue. The log has
    the number of the problem and, at its end, ``covering_radius``, the largest distance of a class's pool from its
    nearest old proxy, mean over classes, and ``covering_ratio``, that radius in units of the mean distance between the
    means of two classes' pools.

    Attributes:
        model: the model that is trained.
        train: the data set that is trained on.
        pool_size: b, samples per class among which the new proxies are chosen; below the number of proxies K it means
            b · K samples.
        monitor: the evaluation metric, larger is better.
        machine: the end of a problem and of the run.
        anchor_first: whether the first problem is anchored, too, at the initial parameters.
        first: the first problem's proxies: ``"random"`` samples; ``"covering"``, chosen from a pool given K random
            samples; ``"origin"``, chosen from a pool given 0, so that the longest embedding is the first;
            ``"unchanged"``, those of the initial state, to continue from a run without problems.
        restore: whether the model returns to its best when a problem ends; False continues from where it is, anchored
            at the best, with pools embedded as it is.
        normalize: of pool and proxies before they are compared, as in the loss.
        seed: of the samples in the pools.
        preprocess: as in training.
        augment: whether image files of a pool are augmented; False reads them as in evaluation.

    Raises:
        TypeError: before any step: a seed or pool size that is no integer.
        KeyError: no proxies among the parameters; no such metric.
        ValueError: before any step: a seed out of range, an empty pool, another ``first``, a class without samples, no
            :func:`jdml.optim.add_anchored_weights` in the optimizer; a class whose images are all damaged.

    Implementation notes:
        Pools depend on the seed and the number of the problem alone, and are embedded as in evaluation. If a file of
        one is damaged, all are checked, once, and the draw is repeated among the others; of several processes the one
        that meets it ends with its name. Nothing is compiled again between problems. Give :func:`~jdml.training.fit`
        the same ``monitor``, so that it saves the best of the whole run. The state of an objective (a cross-batch
        memory) does not return with the weights.

    Paper settings:
        b = 12 and K = 8 (CUB, Cars196), 7 and 4 (SOP, In-shop), 16 and 4 (MNIST); anchored with λ = 2e-4. Algorithm 1:
        ``restore`` and ``anchor_first``, with ``first="random"`` (the recipe's preset ``paper``) or, by its first line,
        ``"covering"``. Released: neither of the two, ``first="origin"``.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, Algorithm 1.
    """

    model: Model
    train: TrainSet
    pool_size: int
    monitor: str
    machine: AlternatingProjections = AlternatingProjections()
    restore: bool = CCPConfig.restore
    anchor_first: bool = CCPConfig.anchor_first
    first: First = CCPConfig.initial_proxies
    normalize: Normalize | None = ball
    seed: int = 0
    preprocess: Preprocess = default_preprocess
    augment: bool = True

    def __post_init__(self) -> None:
        checks.uint32("seed", self.seed)
        checks.count("pool_size", self.pool_size)
        checks.one_of("first", self.first, get_args(First))

    @property
    def config(self) -> dict[str, Any]:
        """Settings, compared with the run folder's."""
        names = ("pool_size", "monitor", "restore", "anchor_first", "first", "seed", "augment")
        normalize = getattr(self.normalize, "__name__", str(self.normalize))
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "normalize": normalize, **self.machine._asdict()}

    def template(self, state: TrainState, /) -> Alternation:
        """Return arrays of the structure that is carried."""
        nothing = jnp.zeros_like(state.params["proxies"])
        return self._remember(self.machine.init(), state, nothing, nothing)

    def start(self, state: TrainState, /) -> tuple[Alternation, TrainState]:
        """Choose the first problem's proxies."""
        proxies = state.params["proxies"]
        # A class without samples and an optimizer without an anchor are refused now.
        draw_by_class(np.random.default_rng(0), np.asarray(self.train.labels), len(proxies), 1)
        anchored = optim.set_anchor(state.opt_state, state.params)
        if self.anchor_first:
            state = state._replace(opt_state=anchored)
        chosen = proxies if self.first == "unchanged" else self._first_proxies(state)
        state = state._replace(params={**state.params, "proxies": chosen})
        chosen = jnp.copy(chosen)
        return self._remember(self.machine.init(), state, jnp.zeros_like(chosen), chosen), state

    def update(
        self, carried: Alternation, step: int, state: TrainState, metrics: Mapping[str, float], /
    ) -> CallbackResult:
        """Take an evaluation into account; between two problems, change the state."""
        problem = int(carried.machine.problem)
        machine, decision = self.machine.update(carried.machine, metrics[self.monitor])
        carried = carried._replace(machine=machine)
        if decision.improved:
            carried = self._remember(machine, state, carried.before, carried.chosen)
        measured: dict[str, float | int] = {"problem": problem}
        if decision.end_problem:
            before = jnp.copy(carried.params["proxies"])  # the step takes the state's buffers
            state, radius, ratio = self._next_problem(carried, state)
            carried = self._remember(machine, state, before, jnp.copy(state.params["proxies"]))
            measured |= {"covering_radius": radius, "covering_ratio": ratio}
        return CallbackResult(carried, state, measured, Stop() if decision.end_run else None)

    def _remember(
        self, machine: AlternationState, state: TrainState, before: Array, chosen: Array
    ) -> Alternation:
        params, batch_stats = jax.tree.map(jnp.copy, (state.params, state.batch_stats))
        return Alternation(machine, params, batch_stats, before, chosen)

    def _first_proxies(self, state: TrainState) -> Array:
        proxies = process_allgather(state.params["proxies"], tiled=True)
        per_class = proxies.shape[1]
        centres, old = proxies, jnp.zeros(proxies.shape[:2], bool)
        if self.first == "origin":
            centres, old = jnp.zeros_like(proxies), jnp.ones_like(old)
        elif self.first == "covering":
            centres, old = self._pool(state, (0, 1), per_class)
        size = per_class if self.first == "random" else None
        points, there = self._pool(state, (0,), size)
        return select_proxies(points, centres, per_class, where=there, proxies_where=old)

    def _next_problem(
        self, best: Alternation, state: TrainState
    ) -> tuple[TrainState, float, float]:
        """Return the next problem's initial state, and how the old proxies cover the pool of the new ones."""
        opt_state = optim.set_anchor(state.opt_state, best.params)
        if self.restore:
            state = state._replace(params=best.params, batch_stats=best.batch_stats)
        centres = self._normalized(process_allgather(best.params["proxies"], tiled=True))
        points, there = self._pool(state, (int(best.machine.problem),))
        radius, ratio = _covering(points, centres, there)
        chosen = select_proxies(points, centres, centres.shape[1], where=there)
        state = state._replace(params={**state.params, "proxies": chosen}, opt_state=opt_state)
        return state, float(radius), float(ratio)

    def _normalized(self, vectors: np.ndarray) -> Array:
        points = jnp.asarray(vectors)
        return points if self.normalize is None else jnp.asarray(self.normalize(points))

    def _pool(
        self, state: TrainState, number: tuple[int, ...], size: int | None = None
    ) -> tuple[Array, Array]:
        """Return embeddings ``[C, b, D]`` of samples of each class, and a mask of those that exist."""
        proxies = state.params["proxies"]
        classes, per_class, dim = proxies.shape
        usual = self.pool_size if self.pool_size >= per_class else self.pool_size * per_class
        most = usual if size is None else size

        def draw(labels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
            rng = np.random.default_rng([self.seed, *number])
            samples = draw_by_class(rng, labels, classes, most)
            return samples, self._embedded(state, np.concatenate(samples), number)

        try:
            samples, vectors = draw(np.asarray(self.train.labels))
        except BadImageError:
            # Repeated wherever one is drawn, so that a resumed run draws the same.
            if jax.process_count() > 1:
                raise
            samples, vectors = draw(self._labels_of_whole)
        there = np.arange(most) < np.array([[len(rows)] for rows in samples])
        pool = np.zeros((*there.shape, dim), np.float32)
        pool[there] = vectors
        return self._normalized(pool.astype(proxies.dtype)), jnp.asarray(there)

    @functools.cached_property
    def _labels_of_whole(self) -> np.ndarray:
        """Return the labels, −1 for damaged files."""
        labels, problems = np.array(self.train.labels, np.int64), self.train.images.problems()
        for problem in problems.values():
            _log.warning("ignored: %s", problem)
        labels[list(problems)] = -1
        return labels

    def _embedded(self, state: TrainState, rows: np.ndarray, number: tuple[int, ...]) -> np.ndarray:
        """Return embeddings ``[n, D]`` of rows of the data set."""
        images: Any = self.train.images
        if not isinstance(images, ImageFiles):
            images = jax.tree.map(lambda leaf: np.asarray(leaf[rows]), images)
        elif self.augment:
            seed, files = (self.seed, *number), images  # of several processes each reads its own
            shape = (len(rows), *images.shape[1:])
            images = ReadRows(shape, lambda part: files.augmented(rows[part], seed=seed))
        else:
            images = images.select(rows)
        return Embedder(self.model, state, self.preprocess)(images)


@jax.jit
def _covering(points: Array, centres: Array, there: Array) -> tuple[Array, Array]:
    """Return the classes' mean covering radius, and its ratio to the mean distance of their means."""

    def of_class(points: Array, centres: Array, there: Array) -> tuple[Array, Array]:
        radius = covering_radius(points, centres, where=there)
        return radius, jnp.mean(points, axis=0, where=there[:, None])

    radii, means = jax.vmap(of_class)(points, centres, there)
    radius, between = jnp.mean(radii), mean_distance(means)
    return radius, jnp.where(between > 0, radius / jnp.where(between > 0, between, 1.0), jnp.inf)


@functools.singledispatch
def make_callback(
    method: Any, recipe: Recipe, model: Any, train: TrainSet, monitor: str | None, **settings: Any
) -> StatefulCallback | None:
    """Make the callback of a recipe's method, if it has one; settings are ``seed``, ``preprocess``, ``augment``."""
    return None


@make_callback.register
def _(
    method: CCPConfig,
    recipe: Recipe,
    model: Any,
    train: TrainSet,
    monitor: str | None,
    **settings: Any,
) -> AlternatingProblems:
    if monitor is None:
        raise ValueError("validation is needed by ccp: held-out rows, whose scores end a problem")
    machine = AlternatingProjections(method.patience, method.run_patience, method.tolerance)
    return AlternatingProblems(
        model,
        train,
        method.pool_size,
        monitor,
        machine,
        restore=method.restore,
        anchor_first=method.anchor_first,
        first=method.initial_proxies,
        normalize=recipe.loss.normalization,
        **settings,
    )
