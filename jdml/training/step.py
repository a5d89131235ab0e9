"""The train step: its state, its configuration, and one gradient step for any objective."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jdml import adapt
from jdml.data.dataset import check_channels
from jdml.distributed import HERE, Placement, Tree
from jdml.models.adapters import AnyModel, Model, as_model, embed_in_training, unwrap
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import Preprocess, default_preprocess
from jdml.models.finetuning import WithLora, frozen_part, keep_frozen_stats, split_frozen
from jdml.models.weights import weights_settings
from jdml.objectives import Objective
from jdml.objectives.base import Metrics
from jdml.ops import checks
from jdml.training.optimizer_wrappers import LossScaleState, passing_loss

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

    def __repr__(self) -> str:
        """Return the step and the number of parameters by role, in one line."""
        sizes = {role: optax.tree.size(part) for role, part in self.params.items()}
        return f"TrainState(step={self.step}, parameters={sizes})"


@dataclass(frozen=True)
class StepConfig:
    """All that a step is compiled from; hashable: the same parts give the same compiled step."""

    model: Model
    objective: Objective
    optimizer: optax.GradientTransformation
    preprocess: Preprocess = default_preprocess
    placement: Placement = HERE
    micro_batch: int | None = None
    skip_nonfinite: bool = False
    freeze: str | None = None

    def split(self, params: Mapping[str, Tree]) -> tuple[Tree, Tree]:
        """Split parameters by role in those that learn and those that are frozen, hidden from each other."""
        return split_frozen(params, self.freeze)


Start = Callable[[TrainState], TrainState]
"""From a fresh state to the state to begin with."""


def create_state(
    model: AnyModel,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    sample_images: Tree,
    *,
    seed: int,
    preprocess: Preprocess = default_preprocess,
    pretrained: Pretrained | None = None,
) -> TrainState:
    """Initialize the model, the objective's parameters, the optimizer and the objective's memory.

    Args:
        model: whatever :func:`fit` takes, from images to embeddings ``[B, D]``.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation`` over ``{"model": …, **objective roles}``.
        sample_images: images ``[B, H, W, C]``, or whatever else the model takes, with rows first; only the first row's
            shape and type are used.
        seed: the run's seed; the same seed gives the same state.
        preprocess: what stands between stored images and the model (see :func:`make_train_step`).
        pretrained: from the model's fresh variables ``{"params", "batch_stats"}`` to those to begin with, such as
            :func:`jdml.models.load_weights` of a file.

    Returns:
        The state before the first step. The optimizer has no state of parameters that are frozen
        (:class:`jdml.training.Frozen`).

    Raises:
        ValueError: images ``[B, C, H, W]``, a seed of more than 32 bits, a frozen pattern that names no parameter,
            ``pretrained`` that returns other parameters.
    """
    checks.uint32("seed", seed)
    check_channels("sample_images", sample_images)
    network, freeze = frozen_part(as_model(model))
    spec = StepConfig(network, objective, optimizer, preprocess, freeze=freeze)
    return fresh_state(spec, sample_images, seed=seed, pretrained=pretrained)


def fresh_state(
    spec: StepConfig, sample_images: Tree, *, seed: int, pretrained: Pretrained | None
) -> TrainState:
    """Initialize what :func:`create_state` does, from the parts of a step."""
    model, objective = spec.model, spec.objective
    model_key, objective_key, run_key = jax.random.split(jax.random.key(seed), 3)
    first = spec.preprocess(jax.tree.map(lambda rows: jnp.asarray(rows[:1]), sample_images))
    if isinstance(model, ModelAdapter) and model.holds_parameters:
        own = jax.tree.map(jnp.copy, model.init(model_key, first))
    else:
        own = _init(model, model_key, first)
    variables = fresh = {"params": {}, "batch_stats": {}, **own}
    if pretrained is not None:
        _warn_other_settings(model, pretrained)
        load = model.around(pretrained) if isinstance(model, WithLora) else pretrained
        variables = {**fresh, **load(fresh)}
        if variables.keys() != fresh.keys():
            raise ValueError(f"pretrained must return some of {[*fresh]}, got {[*variables]}")
        message = "pretrained must return parameters of the same shapes"
        adapt.check_same_arrays(message, fresh["params"], variables["params"], types=False)
    params = {"model": variables["params"], **objective.init(objective_key)}
    adapt.check_pattern("pattern", spec.freeze, params["model"])
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=variables["batch_stats"],
        opt_state=_quick_jit(spec.optimizer.init)(spec.split(params)[0]),
        objective_state=objective.init_state(),
        key=run_key,
    )


def _warn_other_settings(model: AnyModel, pretrained: Any) -> None:
    """Warn where a file of weights is of a network with other settings: shapes fit, features differ."""
    module = unwrap(model)
    for name, value in weights_settings(pretrained).items():
        own = getattr(module, name, value)
        if own != value:
            _log.warning(
                "pretrained weights are of a network with %s=%r, the model has %r: "
                "create(…, **jdml.models.weights_settings(pretrained))",
                *(name, value, own),
            )


# For programs that run once: LLVM's lowest level gives the same bits as the highest, and compiles in half of the time.
_quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})


@partial(_quick_jit, static_argnames=("model",))
def _init(model: Model, key: jax.Array, images: Tree) -> Variables:
    return model.init(key, images, train=False)


def in_turns(function: Callable[[Tree, jax.Array], Tree], rows: Tree, size: int) -> Tree:
    """Return ``function(rows, 0)``, computed for ``size`` rows at a time, and again for its gradient (GradCache)."""
    number = len(jax.tree.leaves(rows)[0])
    turns = -(-number // size)
    if turns == 1:
        return function(rows, jnp.zeros((), jnp.int32))

    def cut(part: jax.Array) -> jax.Array:
        # Turn t takes the rows t, t + T, t + 2T, …: of a mesh each device has a share of every turn.
        # Repeat a row: at others, such as 0, a network may have no derivative.
        more = turns * size - number
        part = jnp.pad(part, [(0, more)] + [(0, 0)] * (part.ndim - 1), mode="edge")
        return part.reshape(size, turns, *part.shape[1:]).swapaxes(0, 1)

    def joined(part: jax.Array) -> jax.Array:
        return part.swapaxes(0, 1).reshape(-1, *part.shape[2:])[:number]

    again = jax.checkpoint(lambda part: function(*part), prevent_cse=False)
    parts = jax.lax.map(again, (jax.tree.map(cut, rows), jnp.arange(turns)))
    return jax.tree.map(joined, parts)


@lru_cache(maxsize=16)
def compiled(spec: StepConfig, *, donate: bool, indexed: bool) -> Step:
    """Jit a step, ``indexed``: of rows of a data set; the same parts give the same function, as for another seed."""
    objective, optimizer = spec.objective, passing_loss(spec.optimizer)

    def step(
        state: TrainState,
        images: Tree,
        labels: jax.Array,
        where: jax.Array | None = None,
        ids: jax.Array | None = None,
    ) -> tuple[TrainState, Metrics]:
        learning, frozen = spec.split(state.params)
        model_key, loss_key = jax.random.split(jax.random.fold_in(state.key, state.step))

        def with_ids(function: Callable[..., Any]) -> dict[str, Any]:
            """Pass the ids of the samples to a function that has such an argument."""
            return {} if ids is None else checks.accepted_settings(function, {"ids": ids})

        def loss_of(learning: Tree) -> tuple[jax.Array, tuple[jax.Array, Tree, Metrics]]:
            params = adapt.joined(learning, frozen)
            embed = partial(embed_in_training, spec.model, params.pop("model"), state.batch_stats)

            def turn(images: Tree, number: jax.Array) -> Tree:
                return embed(spec.preprocess(images), jax.random.fold_in(model_key, number))[0]

            if spec.micro_batch is None:
                embeddings, stats = embed(spec.preprocess(images), model_key)
            else:
                embeddings, stats = in_turns(turn, images, spec.micro_batch), state.batch_stats
            value, metrics = objective.loss(
                params,
                embeddings,
                labels,
                key=loss_key,
                where=where,
                state=state.objective_state,
                **with_ids(objective.loss),
            )
            return value, (embeddings, stats, metrics)

        opt_state, dynamic = state.opt_state, None
        if isinstance(opt_state, LossScaleState):
            gradient = opt_state.dynamic.value_and_grad(loss_of, has_aux=True)
            dynamic, _, value, grads = gradient(learning)
        else:
            value, grads = jax.value_and_grad(loss_of, has_aux=True)(learning)
        loss, (embeddings, batch_stats, metrics) = value
        updates, opt_state = optimizer.update(grads, opt_state, learning, value=loss)
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
                **with_ids(objective.update_state),
            ),
            key=state.key,
        )
        norm = optax.tree.norm(grads)
        if spec.skip_nonfinite:
            # The norm, not each entry: Adam squares gradients, and an infinite moment would end learning in silence.
            done = jnp.isfinite(loss) & jnp.isfinite(norm)
            unchanged = state._replace(step=after.step)
            after = jax.tree.map(partial(jnp.where, done), after, unchanged)
        if dynamic is not None:
            after = after._replace(opt_state=after.opt_state._replace(dynamic=dynamic))
        return spec.placement.keep(after), {**metrics, "loss": loss, "grad_norm": norm}

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


def make_train_step(
    model: AnyModel,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    preprocess: Preprocess = default_preprocess,
    donate: bool = False,
    placement: Placement = HERE,
    micro_batch: int | None = None,
    skip_nonfinite: bool = False,
) -> Step:
    """Build the jitted train step ``step(state, images, labels, where=None, ids=None) -> (state, metrics)``.

    Args:
        model: whatever :func:`fit` takes, from images to embeddings ``[B, D]``.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation``.
        preprocess: applied to the batch inside the step; by default uint8 images become floats 0…1.
        donate: let the step reuse the memory of the state, which is then gone for the caller.
        placement: where the state lies.
        micro_batch: rows that go through the network at a time; None: all.
        skip_nonfinite: whether a step whose loss or gradient norm is not finite changes only the number of steps.

    Returns:
        The step. ``images [B, H, W, C]``, ``labels [B]`` ints, ``where [B]`` bool (rows that count for
        the loss and the memory) or None, ``ids [B]`` ints (which samples these are: a memory leaves out their older
        copies) or None; ``jit`` cuts integers to 32 bits. ``metrics`` holds the objective's own scalars, ``"loss"`` and
        ``"grad_norm"`` (of all roles together, before the optimizer).

    Implementation notes:
        Batch normalization sees every row, also those that ``where`` excludes. Random numbers of step ``t`` come from
        ``fold_in(state.key, t)``, so that a restored state continues exactly. The same model, objective and optimizer
        objects give the same compiled step.
    """
    network, freeze = frozen_part(as_model(model))
    settings = (preprocess, placement, micro_batch, skip_nonfinite, freeze)
    spec = StepConfig(network, objective, optimizer, *settings)
    return compiled(spec, donate=donate, indexed=False)
