"""The training loop: steps, evaluations, early stopping, log lines and checkpoints, all scheduled by step."""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from jdml._optional_imports import progress_bar
from jdml.data.dataset import TrainSet
from jdml.data.samplers import Sampler
from jdml.distributed import Placement, is_main_process, peer_failure_context
from jdml.models.adapters import AnyModel, Model, as_model
from jdml.models.finetuning import Frozen, WithLora, frozen_part
from jdml.models.network_check import check_network
from jdml.models.preprocess import Preprocess, standard
from jdml.objectives import Objective
from jdml.runs.preemption import Termination
from jdml.training import validation
from jdml.training.callbacks import AnyCallback, Callbacks
from jdml.training.ema import warn_low_precision_params, with_ema
from jdml.training.feature_cache import FEATURES, Keep, make_feed
from jdml.training.run_config import Devices, Evaluate, Evaluation, FitResult, RunConfig
from jdml.training.run_setup import Beginning, State, open_run
from jdml.training.schedule import Schedule
from jdml.training.step_config import StepConfig, with_loss_scale
from jdml.training.trainer import Run

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
    preprocess: Preprocess = standard,
    progress: bool = True,
) -> FitResult:
    """Train a model with any objective.

    Args:
        model: from images to embeddings ``[B, D]``: a Linen module; an NNX or an Equinox module, which stays as it is:
            its parameters are those to begin with, and what was learned is in the result; an Equinox module and its
            state; or functions ``(init, apply)``, ``init(key, images) -> params``, ``apply(params, images)``. Its flag
            for training may be called ``train``, ``training``, ``is_training``, ``deterministic``,
            ``use_running_average``, ``inference`` or ``eval``. Or any of these in :class:`Frozen` or
            :class:`WithLora`.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation`` over ``{"model": …, **objective roles}``. One that wants the
            loss (``optax.contrib.reduce_on_plateau``, ``momo``, ``optax.polyak_sgd``) gets the step's as ``value=``;
            ``optax.contrib.schedule_free`` is evaluated and saved with its evaluation parameters. With
            ``optax.MultiSteps(…, k)`` a step here is one batch: ``steps``, evaluations and the log count batches, of
            which k make an update; schedules within it count updates, as does its ``gradient_step``.
        train: a data set with ``images [N, H, W, C]`` and ``labels [N]``, such as a :class:`jdml.data.Dataset`. Images
            may be whatever the model takes, with rows first: features ``[N, D]``, tokens, dictionaries of such.
        sampler: an iterator of index arrays ``[B]`` into ``train``, with ``get_state()`` and ``set_state()``; or
            :class:`jdml.data.ImageBatches` of ``train``. Then the history has ``bad_images``, how many different
            files were skipped, and the log ``input_wait``, the share of the time that was spent waiting for batches.
        steps: gradient steps in all; 0 evaluates and keeps the start, from which a run may be resumed with more.
        seed: of the initial parameters and of all random numbers in the steps (not of the sampler).
        state: where to begin: a :class:`TrainState`; a function from the fresh state to one of the same shapes, such as
            ``functools.partial(start_on_samples, model=model, train=train)``, not called where a run is resumed; or
            :func:`pretrained`. None: a fresh state.
        run: the run's folder, or a :class:`RunConfig`. None writes nothing.
        evaluation: called with an :class:`Embedder`, returns metrics by name, every 100 steps; or an
            :class:`Evaluation`.
        callbacks: called after some of the steps, see :class:`Callback` and :func:`every`; :class:`StatefulCallback`;
            and :class:`EMA`, :class:`SkipNonfinite`, :class:`LossScale`.
        devices: the mesh of devices that train, or :class:`Devices`. None: one device.
        preprocess: what stands between stored images and the model; by default uint8 becomes 0…1.
        progress: show a progress bar.

    Returns:
        A :class:`FitResult`. A finished run that is started again returns its result again.

    Raises:
        TypeError: before any work: a model, objective, optimizer, train set or sampler of another kind, saying what to
            write instead.
        ValueError: before any work: settings that contradict each other, a folder of another run (naming the fields, or
            which of objective, optimizer, model and data is another), a checkpoint that cannot be read, fewer proxies
            than classes; roles that are not there or cannot be divided; batch normalization that is trained, with
            ``micro_batch`` or a batch that does not divide among the devices. After 50 steps: batches without two rows
            of one class, or of one class alone, from which nothing was learned.
        FloatingPointError: naming the step, when a loss or a gradient is not finite, or as many in a row as
            :class:`SkipNonfinite` allows are not; nothing of it is saved.
        Preempted: SIGTERM came, and a last checkpoint was saved (with a folder, in the main thread).
        KeyboardInterrupt: Ctrl-C came, and a last checkpoint was saved, too; a second one ends at once.
        RuntimeError: another process of this run has ended.

    Implementation notes:
        Log records, evaluations and checkpoints depend on the step alone. A run that is killed anywhere and started
        again repeats the steps since its last checkpoint and ends with the same bits as an unbroken run on the
        same machine, on any number of devices and processes with the same numbers to rounding. Data up to 1 GiB lie on
        the device, whole on each. The host waits for the device only at log records.

        Where ``logging.getLogger("jdml.training")`` is enabled for INFO, it tells before the first step how many of
        the network's parameters learn, and how much memory they, the optimizer and a step take.

        Several processes (:func:`jdml.training.initialize`) make the same call; each decodes its own rows of image
        files, evaluation embeds on all devices, and the first process writes: all must see the run's folder.
    """
    config, evaluated = RunConfig.of(run), Evaluation.of(evaluation)
    placed, acting = Devices.of(devices), Callbacks.of(callbacks)
    if evaluated.monitor is not None and evaluated.function is None:
        raise ValueError(f"monitor is {evaluated.monitor!r}, but there is no evaluation function")
    schedule = Schedule(
        steps,
        evaluated.every,
        config.log_every,
        config.checkpoint_every or evaluated.every,
        evaluated.monitor,
        evaluated.patience,
        acting.steps,
    )
    given = as_model(model)
    network, frozen = frozen_part(given)
    validation.check_objective(objective)
    validation.check_optimizer(optimizer)
    validation.check_train(train)
    validation.check_range(train.images, preprocess)
    batches = validation.as_sampler(sampler, len(train.labels), saved=config.folder is not None)
    begin = Beginning.of(state, seed)
    spec = StepConfig(
        network,
        objective,
        _wrapped(optimizer, acting),
        preprocess,
        placement=Placement.on(placed.mesh, placed.shard),
        micro_batch=placed.micro_batch,
        skip_nonfinite=acting.skip_limit is not None,
        freeze=frozen,
    )
    keep = _keep(given, config, seed)
    feed = make_feed(spec, train, batches, keep)
    if begin.state is None:
        bare = network.base if isinstance(network, WithLora) else network
        check_network(bare, preprocess, feed.sample)
    folder = None
    if config.folder is not None:
        settings = {"seed": seed, **schedule.config, **_chosen(spec, keep)}
        folder = open_run(config, settings, spec, train, begin, acting)
    resumed = folder is not None and folder.begun
    first = begin.make(spec, feed.sample, resumed=resumed)
    validation.check_proxies(first.params, train.labels)
    feed.check(first)
    warn_low_precision_params(first.params)
    current = Run(feed, schedule, first, folder, evaluate=evaluated.function, callbacks=acting)
    with peer_failure_context(), current:
        if folder is not None:
            folder.accept()
        _take_steps(current, shown=progress and is_main_process())
    return current.result()


def _wrapped(
    optimizer: optax.GradientTransformation, callbacks: Callbacks
) -> optax.GradientTransformation:
    """An optimizer with what goes around its steps: an average of the parameters, a scale of the loss."""
    if callbacks.decay is not None:
        optimizer = with_ema(optimizer, callbacks.decay)
    return with_loss_scale(optimizer) if callbacks.loss_scale else optimizer


def _chosen(spec: StepConfig, keep: Keep | None) -> dict[str, Any]:
    """The settings that a run's folder names only where they are chosen."""
    asked = {
        "skip_nonfinite": spec.skip_nonfinite or None,
        "freeze": spec.freeze,
        "cached_views": keep and keep.views,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _keep(model: Model, config: RunConfig, seed: int) -> Keep | None:
    """What of a network's features is cached, and in which folder: by default the run's, if it has one."""
    if not isinstance(model, Frozen) or model.cached_views is None:
        return None
    folder = model.cache_folder
    if folder is None and config.folder is not None:
        folder = Path(config.folder) / FEATURES
    return Keep(model.cached_views, None if folder is None else Path(folder), seed)


def _take_steps(run: Run, *, shown: bool) -> None:
    """Step until the run has stopped, with a pause where its schedule has one."""
    schedule, ending = run.schedule, Termination(watched=run.folder is not None)
    with ending, progress_bar(shown, total=schedule.steps, initial=run.done.step) as bar:
        if is_main_process() and _log.isEnabledFor(logging.INFO):
            run.feed.tell = partial(_tell_above, bar)
        if schedule.steps == 0 and run.done.stopped is None:
            run.pause()
        compiling = shown and run.done.stopped is None
        if compiling:
            bar.set_description("compiling")
        while run.done.stopped is None:
            run.take(*run.feed.step(run.state))
            if compiling or run.feed.placement.in_turn:
                jax.block_until_ready(run.pending)
            if compiling:
                bar.set_description()
                compiling = False
            bar.update()
            if schedule.pauses(run.done.step):
                run.pause()
                bar.set_postfix(run.summary())
            if ending.asked(run.done.step) and run.done.stopped is None:
                run.save()
                raise ending.end(run.done.step)


def _tell_above(bar: Any, line: str) -> None:
    """Log a line where the progress bar was, which is drawn again below."""
    bar.clear()
    _log.info("%s", line)
