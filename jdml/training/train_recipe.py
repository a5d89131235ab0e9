"""From a recipe to a run: network, objective, optimizer, sampler, initialization and callbacks are made of values."""

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jdml import adapt, metrics
from jdml._optional_imports import is_pointer
from jdml.data import Dataset, ImageBatches, ImageFiles
from jdml.distributed import class_shards
from jdml.models.adapters import as_model
from jdml.models.embedding import Preprocess, default_preprocess
from jdml.models.finetuning import Frozen, WithLora, frozen_part
from jdml.recipes import Recipe, RecipeError
from jdml.recipes.network import build_custom_model
from jdml.recipes.recipe import check_positives
from jdml.training.alternation import make_callback
from jdml.training.callbacks import EMA, AnyCallback, LossScale, SkipNonfinite, StatefulCallback
from jdml.training.initialization import (
    InitialState,
    State,
    dense_head,
    init_head_from_pca,
    init_proxies_from_samples,
)
from jdml.training.loop import fit
from jdml.training.run_config import (
    Devices,
    Embedder,
    Evaluate,
    Evaluation,
    FitResult,
    RunConfig,
    as_config,
)
from jdml.training.step import Start, TrainState

MONITOR = "MAP@R"


class Parts(TypedDict, total=False):
    """Parts that replace the recipe's."""

    model: Any
    objective: Any
    optimizer: Any
    sampler: Any
    evaluation: Evaluate | Evaluation | None
    state: State | None
    preprocess: Preprocess


def train(
    recipe: Recipe,
    train: Dataset,
    *,
    validation: Dataset | None = None,
    run: str | Path | RunConfig | None = None,
    seed: int = 0,
    devices: jax.sharding.Mesh | Devices | None = None,
    callbacks: Sequence[AnyCallback] = (),
    progress: bool = True,
    **parts: Unpack[Parts],
) -> FitResult:
    """Train a method by its recipe: :func:`jdml.training.fit` with the parts that the recipe describes.

    Args:
        recipe: the settings; from :func:`jdml.recipes.recipe`, or made of values.
        train: images and labels. With proxies labels are 0, 1, … without gaps: a class without a row has a proxy, too,
            and a warning.
        validation: held-out images. Their MAP@R after each epoch chooses the best parameters, and ends problems of CCP.
        run: as of :func:`jdml.training.fit`. ``config.json`` holds the recipe next to its ``config``.
        seed: of parameters, batches, miners, pools and the start.
        devices: as of :func:`jdml.training.fit`. Proxies are partitioned where the devices divide the classes.
        callbacks: as of :func:`jdml.training.fit`, in addition to those of the recipe. :class:`EMA`,
            :class:`SkipNonfinite` and :class:`LossScale` replace the recipe's, a :class:`StatefulCallback` the method's
            (for CCP :class:`AlternatingProblems`).
        progress: show a progress bar.
        **parts: what replaces the recipe's ``model``, ``objective``, ``optimizer``, ``sampler``, ``state``,
            ``preprocess`` and ``evaluation``, see :func:`jdml.training.fit`. ``sampler`` may be a function of ``train``
            and the recipe's sampler. ``pooling``, ``remat`` and ``freeze_batch_norm`` do not apply to a ``model``. An
            ``evaluation`` without a ``function`` is retrieval in ``validation``. A ``state``, or the second function of
            :func:`pretrained`, replaces the recipe's initialization.

    Returns:
        The :class:`jdml.training.FitResult`.

    Raises:
        TypeError: a part of another name or kind.
        ValueError: settings that do not fit the data, batches in which a pair loss finds no two rows of one class, CCP
            without ``validation``, or a ``monitor`` without an evaluation.

    Example:
        >>> import jdml
        >>> digits = jdml.data.load("digits").relabel("parity")
        >>> easy = jdml.recipes.recipe("eps", "digits")
        >>> easy = easy.replace(network={"dim": 8}, batch={"size": 32, "steps": 2})
        >>> train(easy, digits, progress=False).embedder(digits.images[:3]).shape
        (3, 8)
    """
    for name in parts.keys() - Parts.__annotations__.keys():
        raise TypeError(f"parts must be some of {', '.join(Parts.__annotations__)}, got {name}")
    config, device_config = as_config(RunConfig, run), as_config(Devices, devices)
    preprocess, state = parts.get("preprocess", default_preprocess), parts.get("state")
    model = parts.get("model")
    if model is None:
        load = state.load if isinstance(state, InitialState) else None
        model = make_network(recipe, train, seed=seed, preprocess=preprocess, pretrained=load)
    model = with_finetuning(recipe, model, train, preprocess)
    network = frozen_part(as_model(model))[0]
    objective: Any = parts.get("objective")
    batches: Any = parts.get("sampler")
    if not hasattr(batches, "__next__"):
        if objective is None:
            check_positives(recipe.batch, recipe.loss, train.labels)
        sampler = recipe.batch.build(train.labels, seed, getattr(train, "views", {}))
        batches = sampler if batches is None else batches(train, sampler)
    per_epoch = max(1, len(train) // getattr(batches, "batch_size", recipe.batch.rows))
    steps = recipe.batch.num_steps(per_epoch)
    if objective is None:
        objective, optimizer = parts_of_step(recipe, train.num_classes, per_epoch, steps)
    else:
        optimizer = make_optimizer(recipe, roles_of(objective), per_epoch, steps)
    views = model.cached_views if isinstance(model, Frozen) else None
    if parts.get("sampler") is None and isinstance(train.images, ImageFiles) and views is None:
        batches = ImageBatches(train, batches, seed=seed)
    evaluation = _evaluation(recipe, parts.get("evaluation"), validation, per_epoch)
    of_method: list[Any] = []
    if not any(isinstance(callback, StatefulCallback) for callback in callbacks):
        augment = getattr(batches, "augment", True) if views is None else views > 1
        common: Any = {"seed": seed, "preprocess": preprocess, "augment": augment}
        parts_of_method = recipe.loss.method, recipe, network, train, evaluation.monitor
        made = make_callback(*parts_of_method, **common)
        of_method = [] if made is None else [made]
    check_head(recipe, network, train, preprocess)
    start = _start(recipe, objective, model=network, train=train, seed=seed, preprocess=preprocess)
    if state is None:
        state = start
    elif isinstance(state, InitialState) and state.then is None:
        state = dataclasses.replace(state, then=start)
    if device_config.shard is None and device_config.mesh is not None:
        shard = class_shards(device_config.mesh, objective)
        device_config = dataclasses.replace(device_config, shard=shard)
    return fit(
        model,
        objective,
        parts.get("optimizer") or optimizer,
        train,
        batches,
        steps=steps,
        seed=seed,
        state=state,
        run=dataclasses.replace(
            config,
            config={**(config.config or {}), "recipe": recipe.to_json()},
            normalize=config.normalize or recipe.loss.normalization,
        ),
        evaluation=evaluation,
        callbacks=[*_step_callbacks(recipe), *callbacks, *of_method],
        devices=device_config,
        preprocess=preprocess,
        progress=progress,
    )


def _step_callbacks(recipe: Recipe) -> Iterator[Any]:
    """Yield the callbacks of a recipe that are part of the step."""
    if recipe.evaluation.ema is not None:
        yield EMA(recipe.evaluation.ema)
    if recipe.batch.skip_nonfinite is not None:
        yield SkipNonfinite(recipe.batch.skip_nonfinite)
    if recipe.network.dtype == "float16":
        yield LossScale()


def _evaluation(
    recipe: Recipe, own: Any, validation: Dataset | None, steps_per_epoch: int
) -> Evaluation:
    """Return the evaluation of a run: the given settings, and the recipe's for the others."""
    asked, evaluation = recipe.evaluation, as_config(Evaluation, own)
    every = evaluation.every if own is evaluation else asked.every or steps_per_epoch
    function, monitor = evaluation.function, evaluation.monitor or asked.monitor

    def retrieval(embedder: Embedder) -> Mapping[str, float]:
        assert validation is not None
        x = normalized(recipe, embedder(validation.images))
        return metrics.evaluate_retrieval(x, jnp.asarray(validation.labels), recall_at=(1,))

    if function is None and validation is not None:
        function, monitor = retrieval, monitor or MONITOR
    return Evaluation(function, every, monitor, evaluation.patience or asked.patience)


def make_network(
    recipe: Recipe,
    train: Dataset,
    *,
    seed: int = 0,
    preprocess: Preprocess = default_preprocess,
    pretrained: Any = None,
    **own: Any,
) -> Any:
    """Make the network of a recipe."""
    network, fixed = recipe.network, recipe.finetune.freeze_batch_norm
    if is_pointer(network.resolve(train.images)):
        return build_custom_model(network, train, preprocess, freeze_batch_norm=fixed, seed=seed)
    frozen = True if fixed else None if recipe.finetune.freezes else False
    return network.build(train.images, freeze_batch_norm=frozen, pretrained=pretrained, **own)


def make_optimizer(
    recipe: Recipe, roles: tuple[str, ...], steps_per_epoch: int, steps: int | None = None
) -> Any:
    """Make the optimizer of a recipe, see :meth:`jdml.recipes.OptimizerConfig.build`."""
    return recipe.optimizer.build(
        roles,
        steps=recipe.batch.num_steps(steps_per_epoch) if steps is None else steps,
        steps_per_epoch=steps_per_epoch,
        loss=recipe.loss,
        network=recipe.network,
        finetune=recipe.finetune,
    )


def with_finetuning(
    recipe: Recipe,
    model: Any,
    train: Dataset,
    preprocess: Preprocess,
    *,
    cache_folder: str | Path | None = None,
) -> Any:
    """Add the LoRA factors of a recipe to a network, and freeze its parts, unless it has the one or is the other."""
    tune, inner = recipe.finetune, model.base if isinstance(model, Frozen) else model
    if tune.lora is not None and not isinstance(inner, WithLora):
        paths = tune.lora_pattern(recipe.network)
        return WithLora(model, tune.lora, paths, alpha=tune.lora_alpha)
    if isinstance(model, Frozen) or (tune.freeze is None and tune.last_blocks is None):
        return model
    params = param_shapes(model, train, preprocess)
    names = dict.fromkeys(path.split("/")[0] for path in adapt.named_leaves(params))
    pattern = str(tune.frozen_pattern(recipe.network, names))
    views = tune.cached_views if tune.caches_features else None
    return Frozen(model, pattern, cached_views=views, cache_folder=cache_folder)


def check_head(recipe: Recipe, model: Any, train: Dataset, preprocess: Preprocess) -> None:
    """Refuse a head that cannot be initialized from principal axes, before any work."""
    try:
        if recipe.network.head_init != "random":
            dense_head(param_shapes(model, train, preprocess))
    except ValueError as error:
        names = f"{{head_init}} principal, {{dim}} {recipe.network.dim}"
        raise RecipeError(f"{names}: {error}") from error


def param_shapes(model: Any, train: Dataset, preprocess: Preprocess) -> Any:
    """Return the shapes of a network's parameters."""
    image = jax.ShapeDtypeStruct((1, *train.images.shape[1:]), train.images.dtype)
    images = jax.eval_shape(preprocess, image)
    init = functools.partial(as_model(model).init, train=False)
    return jax.eval_shape(init, jax.random.key(0), images)["params"]


def normalized(recipe: Recipe, embeddings: np.ndarray | jax.Array) -> jax.Array:
    """Normalize embeddings as the recipe's loss does."""
    normalize = recipe.loss.normalization
    vectors = jnp.asarray(embeddings)
    return vectors if normalize is None else normalize(vectors)


def parts_of_step(
    recipe: Recipe, classes: int, steps_per_epoch: int, steps: int
) -> tuple[Any, Any]:
    """Return objective and optimizer, the same objects for folds of the same size, which share a compiled step."""
    # A copy, as a recipe's mappings are mutable.
    return _parts_of_step(copy.deepcopy(recipe), classes, steps_per_epoch, steps)


@functools.lru_cache(maxsize=8)
def _parts_of_step(
    recipe: Recipe, classes: int, steps_per_epoch: int, steps: int
) -> tuple[Any, Any]:
    objective = recipe.loss.build(classes, recipe.network.dim, dtype=recipe.network.dtype)
    return objective, make_optimizer(recipe, roles_of(objective), steps_per_epoch, steps)


def roles_of(objective: Any) -> tuple[str, ...]:
    """Return the names of an objective's parameters."""
    return tuple(jax.eval_shape(objective.init, jax.random.key(0)))


def _start(recipe: Recipe, objective: Any, **settings: Any) -> Start | None:
    """Return the initialization of head and proxies, if the recipe has one."""
    head = recipe.network.head_init == "principal"
    proxies = recipe.loss.proxies.init == "samples" and "proxies" in roles_of(objective)
    start = functools.partial(_initialize, head=head, proxies=proxies, **settings)
    return start if head or proxies else None


def _initialize(state: TrainState, *, head: bool, proxies: bool, **settings: Any) -> TrainState:
    """Initialize the head, and then the proxies, whose samples the new head embeds."""
    state = init_head_from_pca(state, **settings) if head else state
    return init_proxies_from_samples(state, **settings) if proxies else state
