"""The training loop: steps, evaluations, early stopping, log lines and checkpoints, all scheduled by step."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from jdml.data.dataset import TrainSet
from jdml.data.samplers import Sampler
from jdml.distributed import Placement, is_main_process, peer_failure_context
from jdml.models.adapters import AnyModel, as_model, check_network, unwrap
from jdml.models.embedding import Preprocess, default_preprocess
from jdml.models.finetuning import WithLora, frozen_part
from jdml.objectives import Objective
from jdml.ops import checks
from jdml.runs.checkpoint import RunFolder
from jdml.runs.identity import data_fingerprint, fingerprint
from jdml.runs.model_metadata import describe, trained_view, versions
from jdml.training.batch_source import check_arguments, check_proxies
from jdml.training.callbacks import AnyCallback, Callbacks
from jdml.training.feature_cache import make_batch_source
from jdml.training.initialization import InitialState, State
from jdml.training.optimizer_wrappers import with_ema, with_loss_scale
from jdml.training.run_config import (
    Devices,
    Evaluate,
    Evaluation,
    FitResult,
    RunConfig,
    Schedule,
    as_config,
)
from jdml.training.step import StepConfig
from jdml.training.trainer import Trainer

NARROW = {"bfloat16", "float16"}
"""Types in which small updates of parameters are lost."""

_log = logging.getLogger("jdml.training")


def fit(
    model: AnyModel,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    train: TrainSet,
    sampler: Sampler | Iterator[np.ndarray],
    *,
    steps: int,
    seed: int = 0,
    state: State | None = None,
    run: str | Path | RunConfig | None = None,
    evaluation: Evaluate | Evaluation | None = None,
    callbacks: Sequence[AnyCallback] = (),
    devices: jax.sharding.Mesh | Devices | None = None,
    preprocess: Preprocess = default_preprocess,
    progress: bool = True,
) -> FitResult:
    """Train a model with any objective.

    Args:
        model: from images to embeddings ``[B, D]``: a Linen module; an NNX or an Equinox module, whose parameters are
            the initial ones and do not change; a pair ``(init, apply)``, see :func:`jdml.models.as_model`; or one of
            these in :class:`Frozen` or :class:`WithLora`.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation`` over ``{"model": …, **objective roles}``. One that wants the
            loss (``optax.contrib.reduce_on_plateau``, ``momo``, ``optax.polyak_sgd``) gets the step's as ``value=``;
            ``optax.contrib.schedule_free`` is evaluated and saved with its evaluation parameters. With
            ``optax.MultiSteps(…, k)`` ``steps``, evaluations and the log count batches, schedules within it updates.
        train: a data set with ``images [N, H, W, C]`` and ``labels [N]``, such as a :class:`jdml.data.Dataset`. Images
            may be whatever the model takes, with rows first: features ``[N, D]``, tokens, dictionaries of such.
        sampler: an iterator of index arrays ``[B]`` into ``train``, with ``get_state()`` and ``set_state()``; or
            :class:`jdml.data.ImageBatches` of ``train``. Then the history has ``bad_images``, the number of different
            files that were skipped, and the log ``input_wait``, the share of the time spent waiting for batches.
        steps: gradient steps in all; 0 evaluates and saves the initial state, from which a run may be resumed.
        seed: of the initial parameters and of all random numbers in the steps (not of the sampler).
        state: the initial state; or a function from the fresh state to one of the same shapes, such as
            ``functools.partial(init_proxies_from_samples, model=model, train=train)``; or :func:`pretrained`.
        run: the run's folder, or a :class:`RunConfig`. None writes nothing.
        evaluation: called with an :class:`Embedder`, returns metrics by name, every 100 steps; or an
            :class:`Evaluation`.
        callbacks: see :class:`Callback`, :func:`every` and :class:`StatefulCallback`; and :class:`EMA`,
            :class:`SkipNonfinite`, :class:`LossScale`.
        devices: the mesh of devices that train, or :class:`Devices`. None: one device.
        preprocess: applied to stored images before the model; by default uint8 becomes 0…1.
        progress: show a progress bar.

    Returns:
        A :class:`FitResult`. A finished run that is started again returns its result again.

    Raises:
        TypeError: before any work: a model, objective, optimizer, train set, sampler or state of another kind.
        ValueError: before any work: settings that contradict each other, a folder of another run (naming the fields, or
            which of objective, optimizer, model and data differs) or of one in progress, a checkpoint that cannot be
            read, fewer proxies than classes; roles that do not exist or cannot be divided; batch normalization that is
            trained, with ``micro_batch`` or a batch that does not divide among the devices. After 50 steps: batches
            without two rows of one class, or of one class alone, from which nothing was learned.
        FloatingPointError: a loss or a gradient is not finite, naming the step, or as many in a row as
            :class:`SkipNonfinite` allows; nothing of it is saved.
        Preempted: SIGTERM came, and a last checkpoint was saved (with a folder, in the main thread).
        KeyboardInterrupt: the same of Ctrl-C; a second one ends at once.
        RuntimeError: another process of this run has ended.

    Implementation notes:
        A run that is killed anywhere and started again repeats the steps since its last checkpoint and ends with the
        same bits as an unbroken run on the same machine, on any number of devices and processes with the same numbers
        to rounding. Data up to 1 GiB lie on the device, whole on each. The host waits for the device only at log
        records. ``logging.getLogger("jdml.training")`` has, for INFO, how many of the network's parameters learn, and
        the memory of parameters, optimizer and a step.

        Several processes (:func:`jdml.training.initialize`) make the same call; each decodes its own rows of image
        files, evaluation embeds on all devices, and the first process writes: all must see the run's folder.
    """
    config, device_config = as_config(RunConfig, run), as_config(Devices, devices)
    declared, evaluated = Callbacks(callbacks), as_config(Evaluation, evaluation)
    schedule = Schedule(steps, evaluated, config, declared.steps)
    whole_model = as_model(model)
    network, freeze = frozen_part(whole_model)
    parts = objective, optimizer, train, sampler, preprocess
    check_arguments(*parts, saved=config.folder is not None)
    checks.uint32("seed", seed)
    initial = InitialState.of(state)
    if declared.decay is not None:
        optimizer = with_ema(optimizer, declared.decay)
    spec = StepConfig(
        network,
        objective,
        with_loss_scale(optimizer) if declared.loss_scale else optimizer,
        preprocess,
        placement=Placement.on(device_config.mesh, device_config.shard),
        micro_batch=device_config.micro_batch,
        skip_nonfinite=declared.skip_limit is not None,
        freeze=freeze,
    )
    source = make_batch_source(spec, train, sampler, whole_model, config.folder, seed)
    if initial.state is None:
        bare = network.base if isinstance(network, WithLora) else network
        check_network(bare, preprocess, source.sample)
    with peer_failure_context(), contextlib.ExitStack() as stack:
        folder = None
        if config.folder is not None:
            views = getattr(whole_model, "cached_views", None)
            settings = {"seed": seed, "freeze": freeze, "cached_views": views}
            description = _describe_run(schedule, settings, spec, train, initial, declared)
            folder = RunFolder(
                config.folder,
                description,
                resume=config.resume,
                growing=None if declared.stateful else config.allow_more_steps,
                asynchronous=config.async_checkpoints,
            )
            stack.callback(folder.close)
        resumed = folder is not None and folder.latest is not None
        first = initial.make(spec, source.sample, seed, resumed=resumed)
        check_proxies(first.params, train.labels)
        for dtype in {str(x.dtype) for x in jax.tree.leaves(first.params)} & NARROW:
            _log.warning(
                "parameters are %s: small updates of them are lost; keep them in float32 (param_dtype) and compute in "
                "%s (dtype)",
                *(dtype, dtype),
            )
        source.check(first)
        stack.callback(source.close)
        trainer = Trainer(source, schedule, first, folder, declared)
        stack.callback(trainer.log.close)
        trainer.run(shown=progress and is_main_process())
    return trainer.result()


def _describe_run(
    schedule: Schedule,
    settings: Mapping[str, Any],
    spec: StepConfig,
    train: TrainSet,
    initial: InitialState,
    callbacks: Callbacks,
) -> dict[str, Any]:
    """Return what ``config.json`` has of a run: a run with another one does not resume it."""
    run, evaluation, config = schedule.run, schedule.evaluation, dict(schedule.run.config or {})
    lora = spec.model.settings if isinstance(spec.model, WithLora) else None
    provenance = config.get("provenance", {})
    if isinstance(provenance, Mapping):
        provenance = {"labels": trained_view(train), **provenance}
    return {
        **config,
        **({"callbacks": callbacks.config} if callbacks.config else {}),
        "provenance": provenance,
        "fit": {
            **settings,
            "steps": schedule.steps,
            "evaluate_every": evaluation.every,
            "log_every": run.log_every,
            "checkpoint_every": run.checkpoint_every or evaluation.every,
            "monitor": evaluation.monitor,
            "patience": evaluation.patience,
            "skip_nonfinite": spec.skip_nonfinite,
        },
        "fingerprint": {
            "data": data_fingerprint(train),
            # The shapes of a model's arrays are compared with the checkpoint's.
            "model": fingerprint(unwrap(spec.model), lora, spec.preprocess),
            "objective": fingerprint(spec.objective),
            "optimizer": fingerprint(spec.optimizer),
            "start": initial.identity,
        },
        "embedding": describe(spec.model, spec.preprocess, run.normalize, train),
        "versions": versions(),
    }
