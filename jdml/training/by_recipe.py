"""From a recipe to a run: objective, optimizer, sampler, start and hook are made of plain values, here alone."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jdml import adapt, metrics
from jdml.data import Dataset, ImageBatches, ImageFiles
from jdml.recipes import Recipe, RecipeError
from jdml.recipes.batch import check_positives
from jdml.registry.places import check_local
from jdml.registry.pointers import is_pointer
from jdml.training.door import check_train, tell_gaps
from jdml.training.factory import make_own
from jdml.training.fit_result import Embedder, Evaluate, FitResult
from jdml.training.alternation import make_hook
from jdml.training.hooks import Hook
from jdml.training.loop import fit
from jdml.training.lora import WithLora
from jdml.training.models import as_model
from jdml.training.placement import class_shards
from jdml.training.preprocess import Preprocess, standard
from jdml.training.start import dense_head, start_head, start_on_samples
from jdml.training.step import Pretrained, TrainState

MONITOR = "MAP@R"

_log = logging.getLogger(__name__)


class RunSettings(TypedDict, total=False):
    """Settings of :func:`jdml.training.fit` that :func:`train` hands on: what is kept and told, and where it runs."""

    state: TrainState | None
    checkpoint_every: int | None
    log_every: int
    resume: bool
    longer: bool
    progress: bool
    tensorboard: bool
    micro_batch: int | None
    ema: float | None
    freeze: str | None
    kept_views: int | None
    features: str | Path | None
    tell: Callable[[str], None] | None
    async_saves: bool


def train(
    recipe: Recipe,
    train: Dataset,
    *,
    validation: Dataset | None = None,
    out_dir: str | Path | None = None,
    seed: int = 0,
    mesh: jax.sharding.Mesh | None = None,
    steps: int | None = None,
    model: Any = None,
    objective: Any = None,
    optimizer: Any = None,
    sampler: Any = None,
    hook: Hook | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    monitor: str | None = None,
    patience: int | None = None,
    preprocess: Preprocess = standard,
    pretrained: Pretrained | None = None,
    config: Mapping[str, Any] | None = None,
    **settings: Unpack[RunSettings],
) -> FitResult:
    """Train a method by its recipe: :func:`jdml.training.fit` with the parts that the recipe describes.

    A part of one's own, which no plain value describes, is an argument and takes the place of the recipe's.

    Args:
        recipe: how; from :func:`jdml.recipes.recipe`, or made of values.
        train: the images and labels that train, labelled 0, 1, … without gaps where there are proxies: a class
            without a row has one, too, which is told.
        validation: held-out images. They are scored by MAP@R on the way, the best parameters are kept, and they tell
            when a problem of CCP ends.
        out_dir: the run's folder, whose ``config.json`` holds the recipe; None writes nothing.
        seed: of parameters, batches, miners, pools and the start.
        mesh: the devices that train; proxies are partitioned where these divide the classes.
        steps: of this run, in the place of the recipe's steps or epochs.
        model: a network in the place of the recipe's. What the recipe says of its own (``pooling``, ``remat``,
            ``freeze_batch_norm``) is not done to it; the log tells where it is otherwise.
        objective: an objective in the place of the recipe's.
        optimizer: a transformation in the place of the recipe's.
        sampler: what draws the batches, in the place of the recipe's.
        hook: in the place of CCP's.
        evaluate: in the place of the retrieval in ``validation``.
        evaluate_every: steps between evaluations; by default an epoch.
        monitor: the metric whose best parameters are kept; by default MAP@R where there is ``validation``.
        patience: evaluations without improvement that end the run.
        preprocess: what stands between stored images and the model.
        pretrained: what the fresh variables of the model become.
        config: JSON-able, kept beside the recipe: what else the run must agree with to go on.
        **settings: of :func:`jdml.training.fit`.

    Returns:
        The :class:`jdml.training.FitResult`.

    Raises:
        TypeError: no recipe, no data set, or a part of another kind.
        ValueError: settings that do not fit the data, batches in which a pair loss finds no two rows of one class, or
            CCP without ``validation``, a ``monitor`` where nothing is evaluated.

    Example:
        >>> import dataclasses, jdml
        >>> digits = jdml.data.load("digits").relabel("parity")
        >>> easy = jdml.recipes.recipe("eps", "digits")
        >>> easy = easy.replace(network={"dim": 8}, batch={"size": 32, "steps": 2})
        >>> train(easy, digits, progress=False).embedder(digits.images[:3]).shape
        (3, 8)
    """
    _check_asked(recipe, train, validation, monitor, watched=evaluate is not None)
    check_local("out_dir", out_dir)
    if steps is not None:
        recipe = recipe.replace(batch={"steps": steps})
    if model is None:
        model = make_network(recipe, train, seed=seed, preprocess=preprocess, pretrained=pretrained)
    else:
        _tell_shape(recipe, model)
    model = adapted(recipe, model)
    if objective is None:
        _check_classes(recipe, train.labels, drawn=sampler is None)
    batches = sampler
    if batches is None:
        batches = recipe.batch.build(train.labels, seed, getattr(train, "views", {}))
    per_epoch = max(1, len(train) // getattr(batches, "batch_size", recipe.batch.rows))
    steps = recipe.batch.num_steps(per_epoch)
    if objective is None:
        objective, of_recipe = parts_of_step(recipe, train.num_classes, per_epoch, steps)
    else:
        of_recipe = make_optimizer(recipe, roles_of(objective), per_epoch, steps)
    if sampler is None and isinstance(train.images, ImageFiles) and not recipe.finetune.caches_features:
        batches = ImageBatches(train, batches, seed=seed)
    if evaluate is None and validation is not None:
        evaluate, monitor = retrieval_in(validation, recipe), monitor or MONITOR
    if hook is None:
        augment = _augments(recipe, batches)
        hook = make_hook(
            recipe.loss.method,
            recipe,
            model,
            train,
            monitor,
            seed=seed,
            preprocess=preprocess,
            augment=augment,
        )
    settings.setdefault("log_every", max(1, min(per_epoch, 50)))
    settings.setdefault("ema", recipe.evaluation.ema)
    if recipe.finetune.caches_features:
        settings.setdefault("kept_views", recipe.finetune.cached_views)
    settings.setdefault("freeze", pattern_of(recipe, model, train, preprocess))
    check_head(recipe, model, train, preprocess)
    return fit(
        model,
        objective,
        of_recipe if optimizer is None else optimizer,
        train,
        batches,
        steps=steps,
        seed=seed,
        pretrained=pretrained,
        start=_start(recipe, objective, seed),
        evaluate=evaluate,
        evaluate_every=per_epoch if evaluate_every is None else evaluate_every,
        monitor=monitor if evaluate is not None else None,
        patience=patience,
        hook=hook,
        out_dir=out_dir,
        config={"recipe": recipe.to_json(), **(config or {})},
        preprocess=preprocess,
        normalize=recipe.loss.normalization,
        mesh=mesh,
        shard=class_shards(mesh, objective),
        skip_nonfinite=recipe.batch.skip_nonfinite,
        loss_scale=recipe.network.dtype == "float16",
        **settings,
    )


def _check_asked(
    recipe: Any, train: Any, validation: Any, monitor: str | None, *, watched: bool
) -> None:
    """Refuse what is no recipe or no data set, and a metric that nothing tells."""
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a jdml.recipes.Recipe, got a {type(recipe).__name__}")
    check_train(train)
    if validation is not None and not (
        hasattr(validation, "images") and hasattr(validation, "labels")
    ):
        raise TypeError(
            f"validation must be a data set with images and labels, got a {type(validation).__name__}"
        )
    if monitor is not None and not watched and validation is None:
        raise ValueError(f"monitor is {monitor!r}, but there is neither validation nor evaluate")


def _augments(recipe: Recipe, batches: Any) -> bool:
    """Whether image files are augmented in training: those of kept features only where there are several views."""
    tune = recipe.finetune
    return tune.cached_views > 1 if tune.caches_features else getattr(batches, "augment", True)


def _tell_shape(recipe: Recipe, model: Any) -> None:
    """Tell what the recipe says of its network, and the one that takes its place is not: nothing does it."""
    bare = model.base if isinstance(model, WithLora) else model
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
        tell_gaps(labels)


def make_network(
    recipe: Recipe,
    train: Dataset,
    *,
    seed: int = 0,
    preprocess: Preprocess = standard,
    pretrained: Any = None,
    **own: Any,
) -> Any:
    """Make the network of a recipe.

    Args:
        recipe: the recipe.
        train: whose images it is for, where the recipe names none.
        seed: of parameters that a factory draws.
        preprocess: what stands between stored images and a factory's network.
        pretrained: what its fresh variables become. What a file of weights says of one of the library's networks
            (:func:`jdml.models.weights_settings`), it is made with; another network's file is left to
            :func:`jdml.models.load_weights`, which refuses it.
        **own: more attributes of one of the library's networks, before those of the file.

    Returns:
        The Linen module, or what a factory makes (:func:`jdml.training.factory.make_own`), with the low-rank changes of
        the recipe.

    Raises:
        ValueError: a pooling, or batch norm to freeze, that the network does not have.
    """
    name = recipe.network.resolve(train.images)
    if is_pointer(name):
        return adapted(recipe, make_own(recipe, name, train, seed, preprocess))
    frozen = True if recipe.finetune.freeze_batch_norm else None if recipe.finetune.freezes else False
    network = recipe.network.build(
        train.images, freeze_batch_norm=frozen, pretrained=pretrained, **own
    )
    return adapted(recipe, network)


def adapted(recipe: Recipe, model: Any) -> Any:
    """Give a network the low-rank changes of a recipe; the network itself where there are none, or it has them."""
    tune = recipe.finetune
    if tune.lora is None or isinstance(model, WithLora):
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


def pattern_of(
    recipe: Recipe, model: Any, train: Dataset, preprocess: Preprocess = standard
) -> str | None:
    """Tell which parameters of a network stay, by their paths.

    Args:
        recipe: the recipe.
        model: its network, or one's own.
        train: whose images it takes.
        preprocess: what stands between stored images and the model.

    Returns:
        What ``fit`` takes as ``freeze``.
    """
    if recipe.finetune.freeze is None and recipe.finetune.last_blocks is None:
        return None
    params = _shapes(model, train, preprocess)
    names = dict.fromkeys(path.split("/")[0] for path in adapt.paths(params))
    return recipe.finetune.frozen_pattern(recipe.network, names)


def check_head(
    recipe: Recipe, model: Any, train: Dataset, preprocess: Preprocess = standard
) -> None:
    """Refuse a head that cannot begin on principal directions, before any work.

    Args:
        recipe: the recipe.
        model: its network, or one's own.
        train: whose images it takes.
        preprocess: what stands between stored images and the model.

    Raises:
        ValueError: a network without a dense layer for a head, or a wider embedding than it has features.
    """
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
    return _parts_of_step(dataclasses.replace(recipe), classes, steps_per_epoch, steps)


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


def _start(recipe: Recipe, objective: Any, seed: int) -> Any:
    """Where the head begins, and proxies; None where network and objective draw all, or there are none."""
    starts: list[Any] = []
    if recipe.network.head_init == "principal":
        starts.append(functools.partial(start_head, seed=seed))
    if recipe.loss.proxies.init == "samples" and "proxies" in roles_of(objective):
        starts.append(functools.partial(start_on_samples, seed=seed))
    return (
        functools.partial(_started, tuple(starts)) if len(starts) > 1 else next(iter(starts), None)
    )


def _started(starts: Any, state: TrainState, model: Any, train: Any, **settings: Any) -> TrainState:
    """What begins is begun one after the other: proxies on samples as the new head embeds them."""
    return functools.reduce(lambda s, start: start(s, model, train, **settings), starts, state)
