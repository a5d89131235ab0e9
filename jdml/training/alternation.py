"""CCP in the training loop: what happens to weights, anchor and proxies between two problems."""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import optim
from jdml.ccp import AlternatingProjections, AlternationState, covering_radius, select_proxies
from jdml.data import BadImageError, ImageFiles
from jdml.data.dataset import TrainSet
from jdml.distributed import Tree, gather_to_host
from jdml.losses.comparison import Normalize
from jdml.metrics.chance_constraints import mean_distance
from jdml.models.adapters import Model
from jdml.models.embedding import embed
from jdml.models.preprocess import Preprocess, standard
from jdml.ops import ball, checks
from jdml.recipes import CCPConfig, Recipe
from jdml.training.callbacks import CallbackResult, StatefulCallback, Stop
from jdml.training.step import TrainState

_log = logging.getLogger(__name__)
First = Literal["random", "covering", "origin", "unchanged"]


class Alternation(NamedTuple):
    """What :class:`AlternatingProblems` carries through a run, saved with its checkpoints.

    Attributes:
        machine: where in which problem the run is.
        params: the parameters of all roles at the best evaluation of this problem.
        batch_stats: the model's running statistics there.
        before: the proxies that the last problem that ended had found, ``[C, K, D]``; zeros before that.
        chosen: those that the next one began with.
    """

    machine: AlternationState
    params: dict[str, Tree]
    batch_stats: Tree
    before: Array
    chosen: Array


@dataclass(frozen=True)
class AlternatingProblems(StatefulCallback):
    """CCP's alternating projections as a callback of :func:`jdml.training.fit`.

    A problem ends when the monitored metric no longer improves. Then the model and the proxies go back to their best
    in this problem, the weights are anchored there (:func:`jdml.optim.set_anchor`), and every class gets new proxies:
    those of ``pool_size`` of its samples that the old ones cover worst. The first problem begins with random samples
    as proxies, anchored at the weights of the start. The optimizer's moments go on. The log tells the number of the
    problem, and at its end ``covering_radius``, how far the worst of a class's pool is from its nearest old proxy,
    mean over classes; and ``covering_ratio``, that radius in units of the mean distance between the means of two
    classes' pools: the radius alone says nothing of how well classes are covered.

    Attributes:
        model: the model that is trained.
        train: the data set that is trained on.
        pool_size: b, samples per class among which the new proxies are chosen; all of a smaller class. Below the number
            of proxies K it means b · K samples: with 1 new proxies are random samples, as with K.
        monitor: the evaluation metric, larger is better; the first evaluation tells if there is none of that name.
        machine: when a problem and when the run ends.
        anchor_first: whether the first problem is anchored, too, at the parameters that training begins with, as the
            paper's algorithm has it; False, as in the released program: nothing is anchored before there is a solution.
        first: the first problem's proxies: ``"random"`` samples; ``"covering"``, chosen from a pool beside K random
            samples, as the paper's algorithm has it read line by line; ``"origin"``, chosen from a pool beside 0, as in
            the released program, so that the longest embedding is the first; ``"unchanged"``, those of the state that
            training begins with: to go on from a run that had no problems.
        restore: whether the model goes back to its best when a problem ends, as the paper's algorithm has it; False
            goes on from where it is, anchored at the best, with pools embedded as it is, as the released program does.
        normalize: of pool and proxies before they are compared, as in the loss.
        seed: of the samples in the pools.
        preprocess: as in training.
        augment: whether image files of a pool are augmented; False reads them as in evaluation.

    Raises:
        TypeError: a ``machine``, ``normalize`` or ``seed`` of another kind; before any step: a pool size that is no
            integer, a ``monitor`` that is no name, a flag that is no boolean.
        ValueError: a seed out of range; a class without a whole image; before any step: a pool without a sample,
            another ``first``, a class without samples, no proxies among the parameters, no
            :func:`jdml.optim.add_anchored_weights` in the optimizer.

    Implementation notes:
        Pools depend on the seed and the number of the problem alone; image files are augmented as in training, where
        they are, and embedded as in evaluation. Where one of a pool is damaged, all files are looked through, once,
        those that are damaged are named in the log, and it is drawn again among the whole ones, as by
        ``start_on_samples``; of several processes the one that meets it ends with its name. Nothing is compiled again
        between problems. Give :func:`~jdml.training.fit` the same ``monitor``, so that the best of the whole run is
        kept. What an objective remembers between steps (a cross-batch memory) is not taken back with the weights.

    Paper settings:
        b = 12 and K = 8 (CUB, Cars196), 7 and 4 (SOP, In-shop), 16 and 4 (MNIST); anchored with λ = 2e-4. Algorithm 1:
        ``restore`` and ``anchor_first``, beginning with its random ρ* (``first="random"``, as the recipe's preset
        ``paper`` reads it), or with what its first line makes of them (``first="covering"``). Released:
        ``restore=False``, ``first="origin"``.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, Algorithm 1.
    """

    model: Model
    train: TrainSet
    pool_size: int
    monitor: str
    machine: AlternatingProjections = AlternatingProjections()
    restore: bool = True
    anchor_first: bool = True
    first: First = "random"
    normalize: Normalize | None = ball
    seed: int = 0
    preprocess: Preprocess = standard
    augment: bool = True

    def __post_init__(self) -> None:
        """Refuse what is asked for its state before the first problem."""
        checks.uint32("seed", self.seed)
        if not isinstance(self.machine, AlternatingProjections):
            raise TypeError(
                f"machine must be AlternatingProjections, got a {type(self.machine).__name__}"
            )
        if self.normalize is not None and not callable(self.normalize):
            raise TypeError(f"normalize must be a function or None, got {self.normalize!r}")

    @property
    def config(self) -> dict[str, Any]:
        """What a run's folder remembers of it."""
        settings = {
            "pool_size": int(self.pool_size),
            "monitor": self.monitor,
            "restore": self.restore,
            "anchor_first": self.anchor_first,
            "first": self.first,
            "normalize": getattr(self.normalize, "__name__", str(self.normalize)),
            "seed": int(self.seed),
        }
        if not self.augment:
            settings["augment"] = False
        return {**settings, **self.machine._asdict()}

    def template(self, state: TrainState, /) -> Alternation:
        """Give what is carried, for its structure alone."""
        nothing = (
            jnp.zeros_like(state.params["proxies"]) if "proxies" in state.params else jnp.zeros(0)
        )
        return self._remember(self.machine.init(), state, nothing, nothing)

    def start(self, state: TrainState, /) -> tuple[Alternation, TrainState]:
        """Choose the first problem's proxies."""
        checks.count("pool_size", self.pool_size)
        checks.check_flag("restore", self.restore)
        checks.check_flag("anchor_first", self.anchor_first)
        checks.check_flag("augment", self.augment)
        if not isinstance(self.monitor, str):
            raise TypeError(
                f"monitor must be the name of an evaluation metric, got {self.monitor!r}"
            )
        proxies = state.params.get("proxies")
        if proxies is None:
            raise ValueError(
                f"the objective has no proxies to choose: its parameters are {sorted(state.params)}"
            )
        if self.first not in get_args(First):
            raise ValueError(
                f"first must be one of {', '.join(get_args(First))}, got {self.first!r}"
            )
        classes = len(proxies)
        labels = np.asarray(self.train.labels)
        counts = np.bincount(labels[labels >= 0], minlength=classes)
        if not counts[:classes].all():
            raise ValueError(
                f"class {int(np.argmin(counts[:classes]))} has no sample to choose from"
            )
        # An optimizer without an anchor shows now.
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
        if self.monitor not in metrics:
            raise ValueError(f"monitor {self.monitor!r} is not among the metrics {sorted(metrics)}")
        problem = int(carried.machine.problem)
        machine, decision = self.machine.update(carried.machine, metrics[self.monitor])
        carried = carried._replace(machine=machine)
        if decision.improved:
            carried = self._remember(machine, state, carried.before, carried.chosen)
        seen: dict[str, float | int] = {"problem": problem}
        if decision.end_problem:
            before = jnp.copy(carried.params["proxies"])  # the step takes the state's buffers
            state, radius, ratio = self._next_problem(carried, state)
            carried = self._remember(machine, state, before, jnp.copy(state.params["proxies"]))
            seen |= {"covering_radius": radius, "covering_ratio": ratio}
        return CallbackResult(carried, state, seen, Stop() if decision.end_run else None)

    def _remember(
        self, machine: AlternationState, state: TrainState, before: Array, chosen: Array
    ) -> Alternation:
        params, batch_stats = jax.tree.map(jnp.copy, (state.params, state.batch_stats))
        return Alternation(machine, params, batch_stats, before, chosen)

    def _first_proxies(self, state: TrainState) -> Array:
        proxies = gather_to_host(state.params["proxies"])
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
        """The state that the next problem begins with, and how the old proxies cover the pool of the new ones."""
        opt_state = optim.set_anchor(state.opt_state, best.params)
        if self.restore:
            state = state._replace(params=best.params, batch_stats=best.batch_stats)
        centres = self._normalized(gather_to_host(best.params["proxies"]))
        points, there = self._pool(state, (int(best.machine.problem),))
        radius, ratio = _covering(points, centres, there)
        chosen = select_proxies(points, centres, centres.shape[1], where=there)
        state = state._replace(params={**state.params, "proxies": chosen}, opt_state=opt_state)
        return state, float(radius), float(ratio)

    def _normalized(self, vectors: Array) -> Array:
        normalized: Array = vectors if self.normalize is None else self.normalize(vectors)
        return normalized

    def _pool(
        self, state: TrainState, number: tuple[int, ...], size: int | None = None
    ) -> tuple[Array, Array]:
        """``[C, b, D]`` samples of each class as the model embeds them, and which of them are there."""
        proxies = state.params["proxies"]
        classes, per_class, dim = proxies.shape
        if size is None:
            size = self.pool_size if self.pool_size >= per_class else self.pool_size * per_class
        indices, there = self._rows(np.asarray(self.train.labels), classes, size, number)
        try:
            vectors = self._embedded(state, indices[there], number)
        except BadImageError:
            # Found again wherever one is drawn, so that a run that goes on draws the same.
            if jax.process_count() > 1:
                raise
            indices, there = self._rows(self._labels_of_whole, classes, size, number)
            vectors = self._embedded(state, indices[there], number)
        pool = np.zeros((*indices.shape, dim), np.float32)
        pool[there] = vectors
        return self._normalized(jnp.asarray(pool, proxies.dtype)), jnp.asarray(there)

    @functools.cached_property
    def _labels_of_whole(self) -> np.ndarray:
        """The labels, those of damaged files −1."""
        labels, problems = np.array(self.train.labels, np.int64), self.train.images.problems()
        for problem in problems.values():
            _log.warning("not chosen from: %s", problem)
        labels[list(problems)] = -1
        return labels

    def _embedded(self, state: TrainState, rows: np.ndarray, number: tuple[int, ...]) -> np.ndarray:
        """``[n, D]``, rows of the data set as the model embeds them."""
        return embed(
            self.model,
            state.params["model"],
            state.batch_stats,
            self._images(rows, number),
            preprocess=self.preprocess,
        )

    def _images(self, rows: np.ndarray, number: tuple[int, ...]) -> Tree:
        images = self.train.images
        if isinstance(images, ImageFiles):
            seed = (self.seed, *number)
            return _Augmented(images, rows, seed) if self.augment else images.select(rows)
        return jax.tree.map(lambda leaf: np.asarray(leaf[rows]), images)

    def _rows(
        self, labels: np.ndarray, classes: int, size: int, number: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """``[C, b]`` indices of random samples of each class, and which of them are there."""
        rng = np.random.default_rng([self.seed, *number])
        indices = np.zeros((classes, size), np.int64)
        there = np.zeros(indices.shape, bool)
        for of_class in range(classes):
            chosen = rng.permutation(np.flatnonzero(labels == of_class))[:size]
            if not len(chosen):
                raise ValueError(f"class {of_class} has no whole image to choose from")
            indices[of_class, : len(chosen)] = chosen
            there[of_class, : len(chosen)] = True
        return indices, there


class _Augmented:
    """Image files as in training, decoded when they are asked for: of several processes each asks for its own."""

    def __init__(self, images: ImageFiles, rows: np.ndarray, seed: tuple[int, ...]) -> None:
        self.images, self.rows, self.seed = images, rows, seed
        self.shape = (len(rows), *images.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> np.ndarray:
        return self.images.augmented(self.rows[part], seed=self.seed)


@jax.jit
def _covering(points: Array, centres: Array, there: Array) -> tuple[Array, Array]:
    """How far the worst of a class's points is from its nearest centre, mean over classes; the same by distance."""

    def of_class(points: Array, centres: Array, there: Array) -> tuple[Array, Array]:
        radius = covering_radius(points, centres, where=there)
        return radius, jnp.mean(points, axis=0, where=there[:, None])

    radii, means = jax.vmap(of_class)(points, centres, there)
    radius, between = jnp.mean(radii), mean_distance(means)
    return radius, jnp.where(between > 0, radius / jnp.where(between > 0, between, 1.0), jnp.inf)


@functools.singledispatch
def make_callback(
    method: Any,
    recipe: Recipe,
    model: Any,
    train: TrainSet,
    monitor: str | None,
    *,
    seed: int = 0,
    preprocess: Preprocess = standard,
    augment: bool = True,
) -> StatefulCallback | None:
    """Make what a recipe's method does between the steps; None where it does nothing."""
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
        raise ValueError(
            "validation is needed by ccp: held-out rows, which tell when a problem ends (or evaluation, with a monitor)"
        )
    return AlternatingProblems(
        model=model,
        train=train,
        pool_size=method.pool_size,
        monitor=monitor,
        machine=AlternatingProjections(
            patience=method.patience,
            run_patience=method.run_patience,
            tolerance=method.tolerance,
        ),
        restore=method.restore,
        anchor_first=method.anchor_first,
        first=method.initial_proxies,
        normalize=recipe.loss.normalization,
        **settings,
    )
