"""The initial state of a run: pretrained parameters, proxies from samples, a head from principal axes."""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jdml import adapt
from jdml._paths import check_local, expand_user
from jdml.data import BadImageError, Dataset, without_bad_images
from jdml.data.dataset import TrainSet
from jdml.distributed import Tree
from jdml.models.adapters import HEAD, AnyModel, as_model, embed_in_training
from jdml.models.embedding import Preprocess, default_preprocess
from jdml.models.feature_split import FeatureSplit
from jdml.ops import checks, sphere
from jdml.runs.identity import fingerprint, qualified_name
from jdml.runs.model_metadata import fit_variables
from jdml.runs.run_files import MODEL, read_model
from jdml.training.batch_source import check_train
from jdml.training.run_config import Embedder
from jdml.training.step import Pretrained, Start, StepConfig, TrainState, fresh_state

ROWS, IMAGES = 512, 1024
"""The most images in a batch that proxies are drawn from, and that a head is fitted to."""
_log = logging.getLogger("jdml.training")


@dataclass(frozen=True)
class InitialState:
    """The beginning of a run: a given state, or a fresh one and the functions that change it."""

    load: Pretrained | None = None
    then: Start | None = None
    run: Path | None = None  # the model file whose head and proxies are kept, if they have the size
    state: TrainState | None = None

    @classmethod
    def of(cls, state: "State | None") -> "InitialState":
        """Return what ``fit(state=)`` means."""
        if isinstance(state, InitialState):
            return state
        if isinstance(state, TrainState):
            return cls(state=state)
        checks.check_function("state", state)
        return cls(then=state)

    @property
    def identity(self) -> str | None:
        """The digest of this beginning; None for a fresh state."""
        start: Any = self.then
        plain: dict[str, Any] = {}
        if isinstance(start, functools.partial):  # counts without its data set
            start, keywords = start.func, start.keywords.items()
            plain = {k: v for k, v in keywords if isinstance(v, int | float | str)}
        parts = (self.state, self.load, start and [qualified_name(start), plain])
        return None if all(part is None for part in parts) else fingerprint(parts)

    def make(self, spec: StepConfig, sample: Tree, seed: int, *, resumed: bool) -> TrainState:
        """Make the state before the first step; of a resumed run, arrays of its structure."""
        if self.state is not None:
            return self.state
        fresh = fresh_state(spec, sample, seed=seed, pretrained=self.load)
        if resumed:
            return fresh
        state = fresh if self.then is None else self.then(fresh)
        state = state if self.run is None else _keep_head_and_proxies(self.run, state)
        name = "state must be a function that returns parameters of the same shapes"
        adapt.check_same_arrays(name, fresh.params, state.params)
        return state._replace(step=fresh.step)


State = TrainState | Start | InitialState
"""The ``state`` of ``fit``, if it is not None."""


def pretrained(load: Pretrained | str | Path, then: Start | None = None) -> InitialState:
    """Begin a run with pretrained parameters: ``fit(state=pretrained(load))``.

    Args:
        load: from the model's fresh variables ``{"params", "batch_stats"}`` to those to begin with, or some of them,
            such as :func:`jdml.models.load_weights` of a file. Or the folder of a run, or a ``.safetensors`` file of
            ``jdml export``: its parameters, of a network of the same shape; a head, proxies and what else the objective
            learns only if they have the same size, else they begin anew, as the log says.
        then: from the state with these, whose optimizer and objective are fresh, to the one to begin with, such as
            ``functools.partial(init_proxies_from_samples, model=model, train=train)``.

    Returns:
        A ``state`` for ``fit`` and ``train``. The optimizer and the step are fresh: nothing is resumed.

    Raises:
        FileNotFoundError: no such file.
    """
    if not isinstance(load, str | Path):
        return InitialState(load, then)
    check_local("load", load)
    path = expand_user(load)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"load must be a run with parameters, {file} does not exist")
    return InitialState(functools.partial(_load_run, file), then, file)


def _load_run(path: Path, variables: Mapping[str, Tree]) -> Tree:
    """Put a run's parameters and statistics into a network's variables; a head of another size stays as it is."""
    arrays, own, head = read_model(path)[0], adapt.named_leaves(variables), f"params/{HEAD}"
    stored, fresh = _shapes(arrays, head), _shapes(own, head)
    if stored != fresh:
        _log.warning("%s: its head has another size, the head begins anew", path)
        arrays = {name: array for name, array in arrays.items() if name not in stored}
        arrays |= {name: own[name] for name in fresh}
    stored_arrays = fit_variables(variables, arrays, path)
    return jax.tree.map(lambda own, x: jnp.asarray(x, own.dtype), variables, stored_arrays)


def _keep_head_and_proxies(path: Path, state: TrainState) -> TrainState:
    """Return a state with a run's head, proxies and other parameters of its objective that have the size of its own."""
    objective = {role: part for role, part in state.params.items() if role != "model"}
    tree = {"params": state.params["model"], "objective": objective}
    stored, own = read_model(path)[0], adapt.named_leaves(tree)
    arrays: dict[str, np.ndarray] = {}
    for group in (f"params/{HEAD}", *(f"objective/{role}" for role in objective)):
        shapes = _shapes(own, group)
        if shapes == _shapes(stored, group):
            arrays |= {name: stored[name] for name in shapes}
        elif group.startswith("objective"):
            name = group.partition("/")[2]
            _log.warning("%s: its %s have another size, or none: they begin anew", path, name)
    tree = _with_arrays(tree, arrays)
    return state._replace(params={"model": tree["params"], **tree["objective"]})


def _with_arrays(tree: Tree, arrays: Mapping[str, Any]) -> Tree:
    """Return a tree with other arrays at some of its paths, in the types of its own."""
    own = adapt.named_leaves(tree).items()
    leaves = [jnp.asarray(arrays[p], leaf.dtype) if p in arrays else leaf for p, leaf in own]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _shapes(arrays: Mapping[str, Any], group: str) -> dict[str, tuple[int, ...]]:
    return {n: np.shape(a) for n, a in arrays.items() if f"{n}/".startswith(f"{group}/")}


def init_proxies_from_samples(
    state: TrainState,
    model: AnyModel,
    train: TrainSet,
    *,
    seed: int = 0,
    preprocess: Preprocess = default_preprocess,
) -> TrainState:
    """Initialize proxies with samples of their class, as the fresh network embeds them.

    Random proxies lie at right angles to each other and to the data. Where what attracts them fades with distance, as
    in PFML, those of a class may then move each other more than the data move them.

    Args:
        state: before the first step, of :func:`jdml.training.create_state`, with ``proxies [C, K, D]``.
        model: the model of the state.
        train: the data set that is trained on.
        seed: of the draw of K samples of each class; a class of fewer has some of them twice.
        preprocess: as in training.

    Returns:
        The state with other proxies, of length 1. A run begins with it by
        ``fit(state=functools.partial(init_proxies_from_samples, model=model, train=train))``.

    Raises:
        TypeError: no model, no data set, a seed that is no integer.
        ValueError: a seed below 0, no proxies among the parameters, a class without a sample.

    Implementation notes:
        Up to 512 images make a batch of the network, whose batch normalization sees them as in training. If a drawn
        file is damaged, all files are checked and the draw is repeated among the others.

    Example:
        >>> import optax, jdml
        >>> from jdml.training import create_state
        >>> digits = jdml.data.load("digits").relabel("parity")
        >>> model = jdml.models.create("eps", dim=2)
        >>> objective = jdml.objectives.proxy(jdml.potential_field_loss, 2, 2, proxies_per_class=3)
        >>> state = create_state(model, objective, optax.adam(1e-3), digits.images, seed=0)
        >>> init_proxies_from_samples(state, model, digits).params["proxies"].shape
        (2, 3, 2)
    """
    checks.uint32("seed", seed)
    check_train(train)
    network, proxies = as_model(model), state.params.get("proxies")
    if proxies is None:
        raise ValueError(f"the objective has no proxies: its parameters are {sorted(state.params)}")
    classes, per_class, dim = proxies.shape
    rng = np.random.default_rng(seed)
    samples = draw_by_class(rng, np.asarray(train.labels), classes, per_class)
    rows = np.stack([np.resize(of_class, per_class) for of_class in samples])

    @jax.jit
    def embedded(images: Tree, key: jax.Array) -> jax.Array:
        params, batch_stats = state.params["model"], state.batch_stats
        return embed_in_training(network, params, batch_stats, preprocess(images), key)[0]

    order = rng.permutation(rows.size)
    points = np.empty((rows.size, dim), np.float32)
    for turn, part in enumerate(np.array_split(order, -(-rows.size // ROWS))):
        try:
            images = _rows_of(train.images, rows.flat[part])
        except BadImageError:
            whole = without_bad_images(cast(Dataset, train))
            return init_proxies_from_samples(state, model, whole, seed=seed, preprocess=preprocess)
        points[part] = embedded(images, jax.random.fold_in(jax.random.key(seed), turn))
    started = sphere(jnp.asarray(points, proxies.dtype)).reshape(proxies.shape)
    return state._replace(params={**state.params, "proxies": started})


def draw_by_class(
    rng: np.random.Generator, labels: np.ndarray, classes: int, most: int
) -> list[np.ndarray]:
    """Return the rows of some samples of each class, in random order."""
    rows = [rng.permutation(np.flatnonzero(labels == number))[:most] for number in range(classes)]
    for number, of_class in enumerate(rows):
        if not len(of_class):
            raise ValueError(f"class {number} has no sample to choose from")
    return rows


def _rows_of(images: Tree, rows: np.ndarray) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf[rows]), images)


def init_head_from_pca(
    state: TrainState,
    model: AnyModel,
    train: TrainSet,
    *,
    seed: int = 0,
    preprocess: Preprocess = default_preprocess,
) -> TrainState:
    """Initialize the embedding head with the principal directions of a pretrained network's features.

    A random head mixes directions that the network already separates. With features ``x [N, C]`` of some training
    images the kernel becomes the ``D`` eigenvectors of ``xᵀx`` with the largest eigenvalues, the bias 0: of all linear
    heads the one whose embeddings keep most of the features' inner products.

    Args:
        state: before the first step, of :func:`jdml.training.create_state`.
        model: the model of the state, whose ``head`` is one dense layer on pooled features ``[B, C]``, ``C ≥ D``.
        train: the data set that is trained on.
        seed: of the draw of images, at most 1,024, which are embedded as in evaluation.
        preprocess: as in training.

    Returns:
        The state with another head. A run begins with it by
        ``fit(state=functools.partial(init_head_from_pca, model=model, train=train))``; that of a recipe by
        ``NetworkConfig(head_init="principal")``.

    Raises:
        TypeError: no model, no data set, a seed that is no integer.
        ValueError: a seed below 0, no images, a network without such a head, or fewer features than dimensions.

    Implementation notes:
        Directions through the origin, not the mean: embeddings are compared by angles from there. Computed in float64
        on the host. If a drawn file is damaged, all files are checked and the draw is repeated among the others.

    Example:
        >>> import optax, jdml
        >>> from jdml.training import create_state
        >>> digits = jdml.data.load("digits")
        >>> model = jdml.models.create("small", dim=4)
        >>> objective = jdml.objectives.pair(jdml.circle_loss)
        >>> state = create_state(model, objective, optax.adam(1e-3), digits.images, seed=0)
        >>> head = init_head_from_pca(state, model, digits).params["model"]["head"]["embedding"]
        >>> np.round(head["kernel"].T @ head["kernel"], 3).tolist() == np.eye(4).tolist()
        True
    """
    checks.uint32("seed", seed)
    check_train(train)
    network, params = as_model(model), state.params["model"]
    layer, (width, dim) = dense_head(params)
    rows = np.random.default_rng(seed).permutation(len(train.labels))[:IMAGES]
    try:
        drawn = _rows_of(train.images, np.sort(rows))
    except BadImageError:
        whole = without_bad_images(cast(Dataset, train))
        return init_head_from_pca(state, model, whole, seed=seed, preprocess=preprocess)
    variables = {"params": params, "batch_stats": state.batch_stats}
    sample = jax.eval_shape(preprocess, jax.tree.map(lambda leaf: leaf[:1], drawn))
    split = FeatureSplit(network, layer, variables, sample)
    features = Embedder(split, state, preprocess)(drawn)
    if features.shape[1] != width or not np.isfinite(features).all():
        shape = list(features.shape)
        raise ValueError(f"train must have finite features [N, {width}], got some of {shape}")
    x = features.astype(np.float64)
    directions = np.linalg.eigh(x.T @ x)[1][:, : -dim - 1 : -1]
    arrays = {f"{layer}/kernel": directions, f"{layer}/bias": np.zeros(dim)}
    started = _with_arrays(params, arrays)
    return state._replace(params={**state.params, "model": started})


def dense_head(params: Tree) -> tuple[str, tuple[int, int]]:
    """Return the path of the head's one dense layer, and its kernel's shape ``(C, D)``."""
    shapes = {path: leaf.shape for path, leaf in adapt.named_leaves(params).items()}
    of_head = {p: s for p, s in shapes.items() if p.split("/")[0] == HEAD and len(s) > 1}
    path, shape = next(iter(of_head.items()), ("", (0, 0)))
    if len(of_head) != 1 or not path.endswith("/kernel") or len(shape) != 2 or shape[0] < shape[1]:
        raise ValueError(
            f"a head from principal axes is one dense layer called {HEAD} with a kernel [C, D], C >= D, the network "
            f"has {of_head or 'none'} among {', '.join(sorted(params))}"
        )
    return path.removesuffix("/kernel"), shape
