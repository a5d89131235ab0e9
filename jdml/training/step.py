"""The train step: state, one gradient step for any objective, and embedding a whole set."""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdml import adapt
from jdml.data.dataset import check_channels
from jdml.distributed import HERE, Placement, Tree
from jdml.models.adapters import AnyModel, Model, as_model, embed_in_training, unwrapped
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import Preprocess, standard
from jdml.models.finetuning import WithLora, frozen_part, keep_frozen_stats
from jdml.models.weights import weights_settings
from jdml.objectives import Objective
from jdml.objectives.base import Metrics
from jdml.ops import checks
from jdml.training.ema import update
from jdml.training.step_config import StepConfig, in_turns, value_and_grad

_log = logging.getLogger(__name__)
Variables = dict[str, Tree]
"""A model's ``{"params", "batch_stats"}``."""
Pretrained = Callable[[Variables], Mapping[str, Tree]]
"""From a model's fresh variables to those to begin with."""
Step = Callable[..., tuple["TrainState", Metrics]]
"""``step(state, images, labels, where=None, ids=None) -> (state, metrics)``."""


class TrainState(NamedTuple):
    """Everything that a training step reads and writes, as one pytree.

    Attributes:
        step: number of steps done, an int32 scalar.
        params: what is learned, by role: ``{"model": …}`` and the objective's own roles (``"proxies"``, …).
        batch_stats: the model's running statistics (``{}`` where it has none).
        opt_state: the optimizer's state.
        objective_state: what the objective remembers between steps (a cross-batch memory; ``()`` where nothing).
        key: the run's typed random key. It never changes: step ``t`` uses ``fold_in(key, t)``.
    """

    step: jax.Array
    params: dict[str, Tree]
    batch_stats: Tree
    opt_state: Tree
    objective_state: Tree
    key: jax.Array


Start = Callable[[TrainState], TrainState]
"""From a fresh state to the state to begin with."""


def create_state(
    model: AnyModel,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    sample_images: Tree,
    *,
    seed: int,
    preprocess: Preprocess = standard,
    pretrained: Pretrained | None = None,
) -> TrainState:
    """Initialize the model, the objective's parameters, the optimizer and the objective's memory.

    Args:
        model: whatever :func:`fit` takes, from images to embeddings ``[B, D]``.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation`` over ``{"model": …, **objective roles}``.
        sample_images: images ``[B, H, W, C]`` of the data set, or whatever else the model takes, with rows first; only
            the first row's shape and type are used.
        seed: the run's seed; the same seed gives the same state.
        preprocess: what stands between stored images and the model (see :func:`make_train_step`).
        pretrained: from the model's fresh variables ``{"params", "batch_stats"}`` to those to begin with, such as
            :func:`jdml.models.load_weights` of a file.

    Returns:
        The state before the first step. The optimizer has no state of parameters that are frozen
        (:class:`jdml.training.Frozen`).

    Raises:
        ValueError: if the objective calls one of its parameters ``"model"``, images are ``[B, C, H, W]``, or the seed
            has more than 32 bits, or a frozen model's pattern names no parameter.
    """
    network, freeze = frozen_part(as_model(model))
    return fresh_state(
        StepConfig(network, objective, optimizer, preprocess, freeze=freeze),
        sample_images,
        seed=seed,
        pretrained=pretrained,
    )


def fresh_state(
    spec: StepConfig, sample_images: Tree, *, seed: int, pretrained: Pretrained | None
) -> TrainState:
    """Initialize what :func:`create_state` does, of the parts of a step."""
    model, objective = spec.model, spec.objective
    checks.uint32("seed", seed)
    check_channels("sample_images", sample_images)
    model_key, objective_key, run_key = jax.random.split(jax.random.key(seed), 3)
    first = spec.preprocess(jax.tree.map(lambda rows: jnp.asarray(rows[:1]), sample_images))
    variables: Variables = {
        "params": {},
        "batch_stats": {},
        **_fresh(model, model_key, first),
    }
    if pretrained is not None:
        _tell_settings(model, pretrained)
        given = model.around(pretrained) if isinstance(model, WithLora) else pretrained
        begun = given(variables)
        _check_pretrained(begun, variables)
        variables = {**variables, **begun}
    objective_params = dict(objective.init(objective_key))
    if "model" in objective_params:
        raise ValueError('the objective must not name a parameter "model": that is the model\'s')
    params = {"model": variables["params"], **objective_params}
    adapt.check_pattern("pattern", spec.freeze, params["model"])
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=variables["batch_stats"],
        opt_state=_quick_jit(spec.optimizer.init)(spec.split(params)[0]),
        objective_state=objective.init_state(),
        key=run_key,
    )


def arrays_by_path(params: Tree) -> dict[str, str]:
    """Type and shape of each array."""
    return {
        jax.tree_util.keystr(path): f"{jnp.result_type(leaf)}{list(np.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def _tell_settings(model: AnyModel, pretrained: Any) -> None:
    """Tell what a file of weights says of its network and the model has not: shapes fit, features are others."""
    module = unwrapped(model.base if isinstance(model, WithLora) else model)
    for name, said in weights_settings(pretrained).items():
        own = getattr(module, name, said)
        if own != said:
            _log.warning(
                "pretrained weights are of a network with %s=%r, the model has %r: "
                "create(…, **jdml.models.weights_settings(pretrained))",
                *(name, said, own),
            )


def _check_pretrained(begun: Any, fresh: Variables) -> None:
    """Refuse what ``pretrained`` returned, where the network has no such part or parameter."""
    if not isinstance(begun, Mapping) or not begun.keys() <= fresh.keys():
        got = ", ".join(map(str, begun)) if isinstance(begun, Mapping) else type(begun).__name__
        raise ValueError(
            f"pretrained must return a dictionary of {', '.join(fresh)}, or of some of them, got {got}"
        )
    has, had = (arrays_by_path(some["params"]) for some in ({**fresh, **begun}, fresh))
    for name in (*had, *has):
        shapes = [some.get(name, "none").rpartition("[")[2] for some in (had, has)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"pretrained must return the network's own parameters: params{name} is {had.get(name, 'not there')}, "
                f"got {has.get(name, 'none')}"
            )


# For programs that run once: LLVM's lowest level gives the same bits as the highest, and compiles in half of the time.
_quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})


def _fresh(model: Model, key: jax.Array, images: Tree) -> Variables:
    """Variables to begin with: those that a module holds, or as it makes them."""
    if isinstance(model, ModelAdapter) and model.holds_parameters:
        return jax.tree.map(jnp.copy, model.init(key, images))
    return _init(model, key, images)


@partial(_quick_jit, static_argnames=("model",))
def _init(model: Model, key: jax.Array, images: Tree) -> Variables:
    fresh: Variables = model.init(key, images, train=False)
    return fresh


def _pure_loss(spec: StepConfig) -> Callable:
    """Build ``(learning, frozen, state, …) -> loss, (embeddings, batch_stats, metrics)``, parameters in two parts."""

    def at_once(params: Tree, batch_stats: Tree, images: Tree, key: jax.Array) -> tuple[Tree, Tree]:
        return embed_in_training(spec.model, params, batch_stats, spec.preprocess(images), key)

    def embedded(
        params: Tree, batch_stats: Tree, images: Tree, key: jax.Array
    ) -> tuple[Tree, Tree]:
        if spec.micro_batch is None:
            return at_once(params, batch_stats, images, key)

        def turn(images: Tree, number: jax.Array) -> Tree:
            return at_once(params, batch_stats, images, jax.random.fold_in(key, number))[0]

        return in_turns(turn, images, spec.micro_batch), batch_stats

    def loss(
        learning: Mapping[str, Tree],
        frozen: Mapping[str, Tree],
        state: TrainState,
        images: Tree,
        labels: jax.Array,
        where: jax.Array | None,
        ids: jax.Array | None,
    ) -> tuple[jax.Array, tuple[jax.Array, Tree, Metrics]]:
        params = adapt.joined(learning, frozen)
        model_key, loss_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        embeddings, batch_stats = embedded(params["model"], state.batch_stats, images, model_key)
        value, metrics = spec.objective.loss(
            {role: value for role, value in params.items() if role != "model"},
            embeddings,
            labels,
            key=loss_key,
            where=where,
            state=state.objective_state,
            **_told_ids(spec.objective.loss, ids),
        )
        return value, (embeddings, batch_stats, metrics)

    return loss


def _told_ids(function: Callable[..., Any], ids: jax.Array | None) -> dict[str, Any]:
    """Which samples a batch has, as a keyword of a function of an objective that asks for it by name."""
    return {} if ids is None else checks.taken_settings(function, {"ids": ids})


def _pure_step(spec: StepConfig) -> Step:
    """Build the step as a pure, unjitted function ``(state, images, labels, where, ids)``."""
    objective = spec.objective
    loss_of = _pure_loss(spec)

    def step(
        state: TrainState,
        images: Tree,
        labels: jax.Array,
        where: jax.Array | None = None,
        ids: jax.Array | None = None,
    ) -> tuple[TrainState, Metrics]:
        learning, frozen = spec.split(state.params)
        gradient = value_and_grad(loss_of, state.opt_state)
        (loss, (embeddings, batch_stats, metrics)), grads, dynamic = gradient(
            learning, frozen, state, images, labels, where, ids
        )
        updates, opt_state = update(spec.optimizer, grads, state.opt_state, learning, loss)
        after = TrainState(
            step=state.step + 1,
            params=adapt.joined(optax.apply_updates(learning, updates), frozen),
            batch_stats=keep_frozen_stats(batch_stats, state.batch_stats, spec.freeze),
            opt_state=opt_state,
            objective_state=objective.update_state(
                state.objective_state,
                jax.lax.stop_gradient(embeddings),
                labels,
                where=where,
                **_told_ids(objective.update_state, ids),
            ),
            key=state.key,
        )
        norm = optax.tree.norm(grads)
        if spec.skip_nonfinite:
            # The norm, not each entry: Adam squares what it is given, and an infinite moment ends learning unseen.
            done = jnp.isfinite(loss) & jnp.isfinite(norm)
            stays = state._replace(step=after.step)
            after = jax.tree.map(partial(jnp.where, done), after, stays)
        if dynamic is not None:
            after = after._replace(opt_state=after.opt_state._replace(dynamic=dynamic))
        return spec.placement.keep(after), {**metrics, "loss": loss, "grad_norm": norm}

    return step


def make_train_step(
    model: AnyModel,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    preprocess: Preprocess = standard,
    donate: bool = False,
    placement: Placement = HERE,
    micro_batch: int | None = None,
    skip_nonfinite: bool = False,
) -> Step:
    """Build the jitted train step ``step(state, images, labels, where=None, ids=None) -> (state, metrics)``.

    One step serves every method: embed, mine and measure (the objective), differentiate, update.

    Args:
        model: whatever :func:`fit` takes, from images to embeddings ``[B, D]``.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation``.
        preprocess: applied to the batch inside the step; by default uint8 images become floats 0…1.
        donate: let the step reuse the memory of the state it is given, which is then gone for the caller.
        placement: where the state lies, and stays.
        micro_batch: rows that go through the network at a time; None: all.
        skip_nonfinite: whether a step of which loss or gradient norm is not finite leaves all but the number of steps
            as it was.

    Returns:
        The step. ``images [B, H, W, C]``, ``labels [B]`` ints, ``where [B]`` bool (rows that count for
        the loss and the memory) or None, ``ids [B]`` ints (which samples these are: a memory leaves out their older
        copies) or None; ``jit`` cuts integers to 32 bits. ``metrics`` holds the objective's own scalars, ``"loss"`` and
        ``"grad_norm"`` (of all roles together, before the optimizer).

    Implementation notes:
        Batch normalization sees every row, also those that ``where`` excludes. Random numbers of step ``t`` come from
        ``fold_in(state.key, t)``, so that a restored state goes on exactly. The same model, objective and optimizer
        objects give the same compiled step again.
    """
    network, freeze = frozen_part(as_model(model))
    settings = (preprocess, placement, micro_batch, skip_nonfinite, freeze)
    spec = StepConfig(network, objective, optimizer, *settings)
    return compiled(spec, donate=donate, indexed=False)


def make_indexed_step(
    model: AnyModel,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    preprocess: Preprocess = standard,
    donate: bool = False,
    placement: Placement = HERE,
    micro_batch: int | None = None,
    skip_nonfinite: bool = False,
) -> Step:
    """Build :func:`make_train_step`'s step over a data set that lies on the device.

    Args:
        model: see :func:`make_train_step`.
        objective: see :func:`make_train_step`.
        optimizer: see :func:`make_train_step`.
        preprocess: see :func:`make_train_step`.
        donate: see :func:`make_train_step`.
        placement: see :func:`make_train_step`.
        micro_batch: see :func:`make_train_step`.
        skip_nonfinite: see :func:`make_train_step`.

    Returns:
        ``step(state, images [N, H, W, C], labels [N], indices [B], where=None)``, which returns
        ``(state, metrics)``: the batch is gathered inside the compiled step, so that the host sends
        B integers per step. The indices are the samples' ids.
    """
    network, freeze = frozen_part(as_model(model))
    settings = (preprocess, placement, micro_batch, skip_nonfinite, freeze)
    spec = StepConfig(network, objective, optimizer, *settings)
    return compiled(spec, donate=donate, indexed=True)


@lru_cache(maxsize=16)
def compiled(spec: StepConfig, *, donate: bool, indexed: bool) -> Step:
    """Jit a step; the same parts give the same function, so that other seeds compile nothing."""
    step = _pure_step(spec)

    def indexed_step(
        state: TrainState,
        images: Tree,
        labels: jax.Array,
        indices: jax.Array,
        where: jax.Array | None = None,
    ) -> tuple[TrainState, Metrics]:
        batch = jax.tree.map(lambda rows: rows[indices], images)
        return step(state, batch, labels[indices], where, indices)

    return jax.jit(indexed_step if indexed else step, donate_argnums=(0,) if donate else ())
