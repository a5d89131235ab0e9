"""Where a run begins: proxies on samples of their class, the embedding head on what the network already tells apart."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jdml import adapt
from jdml.data import BadImageError, Dataset, without_bad_images
from jdml.data.dataset import TrainSet
from jdml.distributed import Tree
from jdml.models.adapters import AnyModel, Model, as_model, embed_in_training
from jdml.models.embedding import embed
from jdml.models.feature_split import Backbone, FeatureSplit
from jdml.models.preprocess import Preprocess, standard
from jdml.ops import checks, sphere
from jdml.recipes.network import HEAD
from jdml.training.step import TrainState
from jdml.training.validation import check_train

ROWS = 512
"""At most so many images go through the network at a time."""
LOOKED_AT = 1024
"""Images whose features tell the directions that a head begins on."""


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
        The state with other proxies, of length 1. A run begins with it by
        ``fit(state=functools.partial(start_on_samples, model=model, train=train))``.

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
    network = _checked(state, model, train, seed, preprocess)
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


def _checked(state: Any, model: Any, train: Any, seed: Any, preprocess: Any) -> Model:
    """Refuse what no run begins with; the model as training takes it."""
    checks.uint32("seed", seed)
    checks.check_function("preprocess", preprocess)
    if not isinstance(state, TrainState):
        raise TypeError(f"state must be a TrainState, got a {type(state).__name__}")
    network = as_model(model)
    check_train(train)
    return network


def _rows(rng: np.random.Generator, labels: np.ndarray, classes: int, per_class: int) -> np.ndarray:
    """``[C, K]`` rows of each class, different ones as far as there are."""
    rows = np.empty((classes, per_class), np.int64)
    for of_class in range(classes):
        there = rng.permutation(np.flatnonzero(labels == of_class))
        if not len(there):
            raise ValueError(f"class {of_class} has no sample to begin on")
        rows[of_class] = np.resize(there, per_class)
    return rows


def start_head(
    state: TrainState,
    model: AnyModel,
    train: TrainSet,
    *,
    seed: int = 0,
    preprocess: Preprocess = standard,
    images: int = LOOKED_AT,
) -> TrainState:
    """Let the embedding head begin on the principal directions of what a pretrained network gives it.

    A random head mixes what the network tells apart already. With features ``x [N, C]`` of some training images the
    kernel becomes the ``D`` eigenvectors of ``xᵀx`` with the largest eigenvalues, the bias 0: of all linear heads the
    one whose embeddings keep most of the features' inner products.

    Args:
        state: before the first step, of :func:`jdml.training.create_state`.
        model: the model of the state, whose ``head`` is one dense layer on pooled features ``[B, C]``, ``C ≥ D``.
        train: the data set that is trained on.
        seed: of the draw of images.
        preprocess: as in training.
        images: how many of them are looked at, as in evaluation; all, where there are fewer.

    Returns:
        The state with another head. A run begins with it by
        ``fit(state=functools.partial(start_head, model=model, train=train))``; that of a recipe by
        ``NetworkConfig(head_init="principal")``.

    Raises:
        TypeError: no state, no model, no data set, a seed that is no integer, a preprocess that cannot be called.
        ValueError: a seed below 0, no images, a network without such a head, or fewer features than dimensions.

    Implementation notes:
        Directions through the origin, not the mean: embeddings are compared by angles from there. Computed in float64
        on the host; of a damaged file among the drawn ones all files are looked through, and it is drawn again.

    Example:
        >>> import optax, jdml
        >>> from jdml.training import create_state
        >>> digits = jdml.data.load("digits")
        >>> model = jdml.models.create("small", dim=4)
        >>> objective = jdml.objectives.pair(jdml.circle_loss)
        >>> state = create_state(model, objective, optax.adam(1e-3), digits.images, seed=0)
        >>> head = start_head(state, model, digits).params["model"]["head"]["embedding"]
        >>> np.round(head["kernel"].T @ head["kernel"], 3).tolist() == np.eye(4).tolist()
        True
    """
    checks.count("images", images)
    network = _checked(state, model, train, seed, preprocess)
    params = state.params["model"]
    layer, (of, dim) = dense_head(params)
    rows = np.random.default_rng(seed).permutation(len(train.labels))[:images]
    try:
        drawn = jax.tree.map(lambda leaf: np.asarray(leaf[np.sort(rows)]), train.images)
    except BadImageError:
        whole = without_bad_images(cast(Dataset, train))
        return start_head(state, model, whole, seed=seed, preprocess=preprocess, images=images)
    variables = {"params": params, "batch_stats": state.batch_stats}
    sample = jax.eval_shape(preprocess, jax.tree.map(lambda leaf: leaf[:1], drawn))
    split = FeatureSplit(network, layer, variables, sample)
    features = embed(Backbone(split), params, state.batch_stats, drawn, preprocess=preprocess)
    if features.shape[1] != of:
        raise ValueError(
            "a head that begins on principal directions takes an image's features as they are, got "
            f"{features.shape[1]} features, and a kernel {[of, dim]}"
        )
    if not np.isfinite(features).all():
        bad = np.sort(rows)[~np.isfinite(features).all(1)]
        raise ValueError(
            "a head that begins on principal directions needs finite features, the network's are not of "
            f"{len(bad)} of {len(features)} images, such as {bad[0]} of train"
        )
    x = features.astype(np.float64)
    directions = np.linalg.eigh(x.T @ x)[1][:, : -dim - 1 : -1]
    begun = {f"{layer}/kernel": directions, f"{layer}/bias": np.zeros(dim)}

    def begin(path: Any, leaf: jax.Array) -> jax.Array:
        own = begun.get("/".join(adapt.path_texts(path)))
        return leaf if own is None else jnp.asarray(own, leaf.dtype)

    started = jax.tree_util.tree_map_with_path(begin, params)
    return state._replace(params={**state.params, "model": started})


def dense_head(params: Tree) -> tuple[str, tuple[int, int]]:
    """Give the path of the head's one dense layer, and its kernel's shape ``(C, D)``."""
    of_head: dict[str, Any] = {
        path: leaf.shape
        for path, leaf in zip(adapt.paths(params), jax.tree.leaves(params), strict=True)
        if path.split("/")[0] == HEAD and len(leaf.shape) > 1
    }
    path, shape = next(iter(of_head.items()), ("", None))
    if shape is None or len(of_head) != 1 or not path.endswith("/kernel") or len(shape) != 2:
        raise ValueError(
            f"a head that begins on principal directions is one dense layer called {HEAD} with a kernel [C, D], the "
            f"network has {', '.join(of_head) or 'none'} among {', '.join(sorted(params))}"
        )
    if shape[0] < shape[1]:
        raise ValueError(
            f"a head that begins on principal directions has no more dimensions than features, got {shape[1]} of "
            f"{shape[0]}"
        )
    return path.removesuffix("/kernel"), shape
