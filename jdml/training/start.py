"""Where proxies begin: on the sphere at random, as an objective draws them, or on samples."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jdml.data import BadImageError, Dataset, without_bad_images
from jdml.ops import checks, sphere
from jdml.training.door import check_train
from jdml.training.models import AnyModel, as_model, embed_in_training
from jdml.training.placement import Tree
from jdml.training.preprocess import Preprocess, standard
from jdml.training.spec import TrainSet
from jdml.training.step import TrainState

ROWS = 512
"""At most so many images go through the network at a time."""


def start_on_samples(
    state: TrainState,
    model: AnyModel,
    train: TrainSet,
    *,
    seed: int = 0,
    preprocess: Preprocess = standard,
    rows_at_a_time: int = ROWS,
) -> TrainState:
    """Let proxies begin on samples of their class, as the fresh network embeds them.

    Random proxies lie at right angles to each other and to the data. Where what attracts them fades with distance, as
    in PFML, those of a class may then move each other more than the data move them.

    Args:
        state: before the first step, of :func:`jdml.training.create_state`, with ``proxies [C, K, D]``.
        model: the model of the state.
        train: the data set that is trained on.
        seed: of the draw: K different samples of each class; a class of fewer has some of them twice. Where one of them
            is a damaged file, all files are looked through and it is drawn again among the whole ones.
        preprocess: as in training.
        rows_at_a_time: how many images make a batch of the network, whose batch normalization sees them as in training.

    Returns:
        The state with other proxies, of length 1. ``fit(start=start_on_samples)`` begins with it.

    Raises:
        TypeError: no state, no model, no data set, a seed that is no integer, a preprocess that cannot be called.
        ValueError: a seed below 0, no proxies among the parameters, a class without a sample, a size below 1.

    Example:
        >>> import optax, jdml
        >>> from jdml.training import create_state
        >>> digits = jdml.data.load("digits").relabel("parity")
        >>> model = jdml.models.create("eps", dim=2)
        >>> objective = jdml.objectives.proxy(jdml.potential_field_loss, 2, 2, proxies_per_class=3)
        >>> state = create_state(model, objective, optax.adam(1e-3), digits.images, seed=0)
        >>> start_on_samples(state, model, digits).params["proxies"].shape
        (2, 3, 2)
    """
    checks.count("rows_at_a_time", rows_at_a_time)
    checks.seed("seed", seed)
    checks.check_function("preprocess", preprocess)
    if not isinstance(state, TrainState):
        raise TypeError(f"state must be a TrainState, got a {type(state).__name__}")
    network = as_model(model)
    check_train(train)
    proxies = state.params.get("proxies")
    if proxies is None:
        raise ValueError(f"the objective has no proxies: its parameters are {sorted(state.params)}")
    classes, per_class, dim = proxies.shape
    rng = np.random.default_rng(seed)
    rows = _rows(rng, np.asarray(train.labels), classes, per_class)

    @jax.jit
    def embedded(images: Tree, key: jax.Array) -> jax.Array:
        params, batch_stats = state.params["model"], state.batch_stats
        return embed_in_training(network, params, batch_stats, preprocess(images), key)[0]

    order = rng.permutation(rows.size)
    points = np.empty((rows.size, dim), np.float32)
    for turn, part in enumerate(np.array_split(order, -(-rows.size // rows_at_a_time))):
        chosen = rows.flat[part]
        try:
            images = jax.tree.map(
                lambda leaf, chosen=chosen: np.asarray(leaf[chosen]), train.images
            )
        except BadImageError:
            settings: Any = {"preprocess": preprocess, "rows_at_a_time": rows_at_a_time}
            whole = without_bad_images(cast(Dataset, train))
            return start_on_samples(state, model, whole, seed=seed, **settings)
        points[part] = embedded(images, jax.random.fold_in(jax.random.key(seed), turn))
    started = sphere(jnp.asarray(points, proxies.dtype)).reshape(proxies.shape)
    return state._replace(params={**state.params, "proxies": started})


def _rows(rng: np.random.Generator, labels: np.ndarray, classes: int, per_class: int) -> np.ndarray:
    """``[C, K]`` rows of each class, different ones as far as there are."""
    rows = np.empty((classes, per_class), np.int64)
    for of_class in range(classes):
        there = rng.permutation(np.flatnonzero(labels == of_class))
        if not len(there):
            raise ValueError(f"class {of_class} has no sample to begin on")
        rows[of_class] = np.resize(there, per_class)
    return rows
