"""From a recipe to a run: objective, optimizer, sampler, start and callbacks are made of plain values, here alone."""

import copy
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jdml import adapt, metrics
from jdml._import_path import is_pointer
from jdml.data import Dataset, ImageBatches, ImageFiles
from jdml.distributed import class_shards
from jdml.models.adapters import as_model
from jdml.models.finetuning import Frozen, WithLora, frozen_part
from jdml.models.preprocess import Preprocess, standard
from jdml.recipes import Recipe, RecipeError
from jdml.recipes.default_recipe import check_positives
from jdml.recipes.network import build_custom_model
from jdml.training.alternation import make_callback
from jdml.training.callbacks import (
    EMA,
    AnyCallback,
    Callbacks,
    LossScale,
    SkipNonfinite,
    StatefulCallback,
)
from jdml.training.initialization import dense_head, start_head, start_on_samples
from jdml.training.loop import fit
from jdml.training.run_config import Devices, Embedder, Evaluate, Evaluation, FitResult, RunConfig
from jdml.training.run_setup import FromPretrained, State, pretrained
from jdml.training.step import Start, TrainState
from jdml.training.validation import check_train, warn_missing_classes

MONITOR = "MAP@R"

_log = logging.getLogger(__name__)


class Parts(TypedDict, total=False):
    """Parts of one's own, each in the place of the recipe's."""

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

    A part of one's own, which no plain value describes, is an argument and takes the place of the recipe's.

    Args:
        recipe: how; from :func:`jdml.recipes.recipe`, or made of values.
        train: the images and labels that train, labelled 0, 1, … without gaps where there are proxies: a class
            without a row has one, too, which is warned of.
        validation: held-out images. They are scored by MAP@R after each epoch, the best parameters are kept, and they
            tell when a problem of CCP ends.
        run: the run's folder, or a :class:`RunConfig`, as of :func:`jdml.training.fit`. ``config.json`` holds the
            recipe next to its ``config``.
        seed: of parameters, batches, miners, pools and the start.
        devices: as of :func:`jdml.training.fit`. Proxies are partitioned where the devices divide the classes.
        callbacks: as of :func:`jdml.training.fit`, next to those of the recipe. :class:`EMA`, :class:`SkipNonfinite`
            and :class:`LossScale` take the place of the recipe's, a :class:`StatefulCallback` that of the method's (for
            CCP :class:`AlternatingProblems`).
        progress: show a progress bar.
        **parts: ``model``, ``objective``, ``optimizer``, ``sampler``, ``state``, ``preprocess``: see
            :func:`jdml.training.fit`; ``sampler`` may be a function of ``train`` and the recipe's sampler. What the
            recipe says of its own network (``pooling``, ``remat``, ``freeze_batch_norm``) is not done to a ``model``; a
            warning says where it is otherwise. ``evaluation``: a function, called as the recipe's ``evaluation`` says,
            or an :class:`Evaluation`; without its ``function`` it is retrieval in ``validation``. A ``state``, or what
            :func:`pretrained` does after loading, takes the place of the recipe's start.

    Returns:
        The :class:`jdml.training.FitResult`.

    Raises:
        TypeError: no recipe, no data set, a part of another name or kind.
        ValueError: settings that do not fit the data, batches in which a pair loss finds no two rows of one class, or
            CCP without ``validation``, a ``monitor`` where nothing is evaluated.

    Example:
        >>> import jdml
        >>> digits = jdml.data.load("digits").relabel("parity")
        >>> easy = jdml.recipes.recipe("eps", "digits")
        >>> easy = easy.replace(network={"dim": 8}, batch={"size": 32, "steps": 2})
        >>> train(easy, digits, progress=False).embedder(digits.images[:3]).shape
        (3, 8)
    """
    _check_asked(recipe, train, validation, parts)
    config, placed = RunConfig.of(run), Devices.of(devices)
    preprocess, state = parts.get("preprocess", standard), parts.get("state")
    model = parts.get("model")
    if model is None:
        load = state.load if isinstance(state, FromPretrained) else None
        model = make_network(recipe, train, seed=seed, preprocess=preprocess, pretrained=load)
    else:
        _tell_shape(recipe, model)
    model = frozen(recipe, adapted(recipe, model), train, preprocess)
    network = frozen_part(as_model(model))[0]
    objective, own = parts.get("objective"), parts.get("sampler")
    drawn_by_recipe = own is None or (callable(own) and not hasattr(own, "__next__"))
    if objective is None:
        _check_classes(recipe, train.labels, drawn=drawn_by_recipe)
    batches: Any = own
    if drawn_by_recipe:
        batches = recipe.batch.build(train.labels, seed, getattr(train, "views", {}))
        batches = batches if own is None else own(train, batches)
    per_epoch = max(1, len(train) // getattr(batches, "batch_size", recipe.batch.rows))
    steps = recipe.batch.num_steps(per_epoch)
    if objective is None:
        objective, optimizer = parts_of_step(recipe, train.num_classes, per_epoch, steps)
    else:
        optimizer = make_optimizer(recipe, roles_of(objective), per_epoch, steps)
    caches = isinstance(model, Frozen) and model.cached_views is not None
    from_files = isinstance(train.images, ImageFiles) and not caches
    if own is None and from_files:
        batches = ImageBatches(train, batches, seed=seed)
    evaluation = _evaluation(recipe, parts.get("evaluation"), validation, per_epoch)
    Callbacks.of(callbacks)
    kinds = {type(callback) for callback in callbacks}
    added: list[Any] = [callback for callback in _declared(recipe) if type(callback) not in kinds]
    if not any(map(_is_stateful, callbacks)):
        of_method = make_callback(
            recipe.loss.method,
            recipe,
            network,
            train,
            evaluation.monitor,
            seed=seed,
            preprocess=preprocess,
            augment=_augments(model, batches),
        )
        added += [] if of_method is None else [of_method]
    check_head(recipe, network, train, preprocess)
    start = _start(recipe, objective, model=network, train=train, seed=seed, preprocess=preprocess)
    if state is None:
        state = start
    elif isinstance(state, FromPretrained) and state.then is None:
        state = pretrained(state.load, start)
    if placed.shard is None and placed.mesh is not None:
        placed = dataclasses.replace(placed, shard=class_shards(placed.mesh, objective))
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
        callbacks=(*callbacks, *added),
        devices=placed,
        preprocess=preprocess,
        progress=progress,
    )


def _check_asked(recipe: Any, train: Any, validation: Any, parts: Mapping[str, Any]) -> None:
    """Refuse what is no recipe, no data set or no part, and a metric that nothing tells."""
    for name in parts.keys() - Parts.__annotations__.keys():
        raise TypeError(
            f"train() got an unexpected keyword argument {name!r}: its parts are {', '.join(Parts.__annotations__)}"
        )
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a jdml.recipes.Recipe, got a {type(recipe).__name__}")
    check_train(train)
    if validation is not None and not (
        hasattr(validation, "images") and hasattr(validation, "labels")
    ):
        raise TypeError(
            f"validation must be a data set with images and labels, got a {type(validation).__name__}"
        )
    asked = Evaluation.of(parts.get("evaluation"))
    if asked.function is None and validation is None:
        for name in ("monitor", "patience"):
            value = getattr(asked, name) or getattr(recipe.evaluation, name)
            if value is not None:
                raise ValueError(
                    f"{name} is {value!r}, but there is neither validation nor an evaluation function"
                )


def _is_stateful(callback: Any) -> bool:
    return isinstance(callback, StatefulCallback)


def _declared(recipe: Recipe) -> list[Any]:
    """The callbacks of a recipe that are part of the step."""
    ema, limit = recipe.evaluation.ema, recipe.batch.skip_nonfinite
    declared: list[Any] = [] if ema is None else [EMA(ema)]
    declared += [] if limit is None else [SkipNonfinite(limit)]
    return [*declared, LossScale()] if recipe.network.dtype == "float16" else declared


def _evaluation(
    recipe: Recipe, own: Any, validation: Dataset | None, steps_per_epoch: int
) -> Evaluation:
    """Return how a run is evaluated: as is given, and by the recipe otherwise."""
    asked, evaluation = recipe.evaluation, Evaluation.of(own)
    if not isinstance(own, Evaluation):
        evaluation = dataclasses.replace(evaluation, every=asked.every or steps_per_epoch)
    if evaluation.function is not None or validation is not None:
        evaluation = dataclasses.replace(
            evaluation,
            monitor=evaluation.monitor or asked.monitor,
            patience=evaluation.patience or asked.patience,
        )
    if evaluation.function is None and validation is not None:
        monitor = evaluation.monitor or MONITOR
        function = retrieval_in(validation, recipe)
        evaluation = dataclasses.replace(evaluation, function=function, monitor=monitor)
    return evaluation


def _augments(model: Any, batches: Any) -> bool:
    """Whether image files are augmented in training: of cached features only where there are several views."""
    views = model.cached_views if isinstance(model, Frozen) else None
    return getattr(batches, "augment", True) if views is None else views > 1


def _tell_shape(recipe: Recipe, model: Any) -> None:
    """Tell what the recipe says of its network, and the one that takes its place is not: nothing does it."""
    bare = model
    while isinstance(bare, WithLora | Frozen):
        bare = bare.base
    made_with = (getattr(bare, "factory", None) or {}).get("settings", {})
    asked = {
        "pooling": recipe.network.pooling,
        "freeze_batch_norm": recipe.finetune.freeze_batch_norm or None,
        "remat": recipe.network.remat or None,
    }
    for name, wanted in asked.items():
        own = getattr(bare, name, None)
        if wanted not in (None, own) and name not in made_with:
            _log.warning("%s is %r in the recipe, %r in model, which stays so", name, wanted, own)


def _check_classes(recipe: Recipe, labels: Any, *, drawn: bool) -> None:
    """Refuse classes of which the recipe's batches have no pair, and tell those that no row has."""
    if drawn:
        check_positives(recipe.batch, recipe.loss, labels)
    if recipe.loss.has_proxies:
        warn_missing_classes(labels)


def make_network(
    recipe: Recipe,
    train: Dataset,
    *,
    seed: int = 0,
    preprocess: Preprocess = standard,
    pretrained: Any = None,
    **own: Any,
) -> Any:
    """Make the network of a recipe."""
    name = recipe.network.resolve(train.images)
    if is_pointer(name):
        fixed = recipe.finetune.freeze_batch_norm
        made = build_custom_model(
            recipe.network, name, train, preprocess, freeze_batch_norm=fixed, seed=seed
        )
        return adapted(recipe, made)
    frozen = (
        True if recipe.finetune.freeze_batch_norm else None if recipe.finetune.freezes else False
    )
    network = recipe.network.build(
        train.images, freeze_batch_norm=frozen, pretrained=pretrained, **own
    )
    return adapted(recipe, network)


def adapted(recipe: Recipe, model: Any) -> Any:
    """Give a network the low-rank changes of a recipe; the network itself where there are none, or it has them."""
    inner, tune = model.base if isinstance(model, Frozen) else model, recipe.finetune
    if tune.lora is None or isinstance(inner, WithLora):
        return model
    return WithLora(model, tune.lora, tune.lora_pattern(recipe.network), alpha=tune.lora_alpha)


def make_objective(recipe: Recipe, num_classes: int, **own: Any) -> Any:
    """Make the objective of a recipe, see :meth:`jdml.recipes.LossConfig.build`."""
    network = recipe.network
    return recipe.loss.build(num_classes, network.dim, dtype=network.dtype, **own)


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


def frozen(
    recipe: Recipe,
    model: Any,
    train: Dataset,
    preprocess: Preprocess = standard,
    *,
    cache_folder: str | Path | None = None,
) -> Any:
    """Freeze what a recipe freezes of a network; the network itself where that is nothing, or it is frozen already."""
    pattern = None if isinstance(model, Frozen) else pattern_of(recipe, model, train, preprocess)
    if pattern is None:
        return model
    views = recipe.finetune.cached_views if recipe.finetune.caches_features else None
    return Frozen(model, pattern, cached_views=views, cache_folder=cache_folder)


def pattern_of(
    recipe: Recipe, model: Any, train: Dataset, preprocess: Preprocess = standard
) -> str | None:
    """Tell which parameters of a network stay, by their paths."""
    if recipe.finetune.freeze is None and recipe.finetune.last_blocks is None:
        return None
    params = _shapes(model, train, preprocess)
    names = dict.fromkeys(path.split("/")[0] for path in adapt.paths(params))
    return recipe.finetune.frozen_pattern(recipe.network, names)


def check_head(
    recipe: Recipe, model: Any, train: Dataset, preprocess: Preprocess = standard
) -> None:
    """Refuse a head that cannot begin on principal directions, before any work."""
    if recipe.network.head_init == "random":
        return
    try:
        dense_head(_shapes(model, train, preprocess))
    except ValueError as error:
        raise RecipeError(
            f"{{head_init}} principal, {{dim}} {recipe.network.dim}: {error}"
        ) from error


def _shapes(model: Any, train: Dataset, preprocess: Preprocess) -> Any:
    """The network's parameters, as far as their shapes."""
    images = jax.eval_shape(
        preprocess, jax.ShapeDtypeStruct((1, *train.images.shape[1:]), train.images.dtype)
    )
    init = functools.partial(as_model(model).init, train=False)
    return jax.eval_shape(init, jax.random.key(0), images)["params"]


def retrieval_in(validation: Dataset, recipe: Recipe) -> Evaluate:
    """Score held-out rows by their labels: the metrics of retrieval where the loss lives."""

    def evaluate(embedder: Embedder) -> Mapping[str, float]:
        x = normalized(recipe, embedder(validation.images))
        return metrics.evaluate_retrieval(x, jnp.asarray(validation.labels), recall_at=(1,))

    return evaluate


def normalized(recipe: Recipe, embeddings: np.ndarray | jax.Array) -> jax.Array:
    """Embeddings as retrieval compares them."""
    normalize = recipe.loss.normalization
    vectors = jnp.asarray(embeddings)
    return vectors if normalize is None else normalize(vectors)


def parts_of_step(
    recipe: Recipe, classes: int, steps_per_epoch: int, steps: int
) -> tuple[Any, Any]:
    """Objective and optimizer, the same objects for folds of the same size, which then share a compiled step."""
    return _parts_of_step(copy.deepcopy(recipe), classes, steps_per_epoch, steps)


@functools.lru_cache(maxsize=8)
def _parts_of_step(
    recipe: Recipe, classes: int, steps_per_epoch: int, steps: int
) -> tuple[Any, Any]:
    """The same, of a copy that nobody writes into: a recipe's mappings are dictionaries."""
    objective = make_objective(recipe, classes)
    return objective, make_optimizer(recipe, roles_of(objective), steps_per_epoch, steps)


def roles_of(objective: Any) -> tuple[str, ...]:
    """The names of what an objective learns."""
    return tuple(jax.eval_shape(objective.init, jax.random.key(0)))


def _start(recipe: Recipe, objective: Any, **settings: Any) -> Start | None:
    """Where the head begins, and proxies; None where network and objective draw all, or there are none."""
    starts: list[Any] = []
    if recipe.network.head_init == "principal":
        starts.append(functools.partial(start_head, **settings))
    if recipe.loss.proxies.init == "samples" and "proxies" in roles_of(objective):
        starts.append(functools.partial(start_on_samples, **settings))
    return functools.partial(_started, tuple(starts)) if starts else None


def _started(starts: Any, state: TrainState) -> TrainState:
    """What begins is begun one after the other: proxies on samples as the new head embeds them."""
    return functools.reduce(lambda s, start: start(s), starts, state)
