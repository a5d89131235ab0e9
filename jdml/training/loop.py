"""The training loop: steps, evaluations, early stopping, log lines and checkpoints, all scheduled by step."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from jdml.losses.comparison import Normalize
from jdml.objectives import Objective
from jdml.ops import checks
from jdml.registry.extras import progress_bar
from jdml.registry.places import check_local
from jdml.training import door
from jdml.training.begin import Beginning, open_run
from jdml.training.fit_result import Evaluate, FitResult
from jdml.training.hooks import Hook
from jdml.training.kept import FEATURES, Keep, make_feed
from jdml.training.lora import WithLora
from jdml.training.loss_scale import LEFT_OUT, with_loss_scale
from jdml.training.models import AnyModel, Model, as_model
from jdml.training.network_check import check_network
from jdml.training.optimizing import (
    check_average,
    check_descends,
    check_moves,
    check_optimizer_works,
    tell_narrow,
    with_average,
)
from jdml.training.placement import Placement, together, writes
from jdml.training.preprocess import Preprocess, standard
from jdml.training.process import Termination
from jdml.training.run_in_progress import Run
from jdml.training.schedule import Schedule
from jdml.training.spec import Sampler, StepSpec, TrainSet
from jdml.training.step import Pretrained, Start, TrainState


def fit(
    model: AnyModel,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    train: TrainSet,
    sampler: Sampler | Iterator[np.ndarray],
    *,
    steps: int,
    seed: int = 0,
    state: TrainState | None = None,
    pretrained: Pretrained | None = None,
    start: Start | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 100,
    monitor: str | None = None,
    patience: int | None = None,
    hook: Hook | None = None,
    out_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    log_every: int = 50,
    resume: bool = True,
    longer: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    config: Mapping[str, Any] | None = None,
    preprocess: Preprocess = standard,
    normalize: Normalize | None = None,
    mesh: jax.sharding.Mesh | None = None,
    shard: Mapping[str, jax.sharding.PartitionSpec] | None = None,
    micro_batch: int | None = None,
    skip_nonfinite: int | None = None,
    ema: float | None = None,
    freeze: str | None = None,
    kept_views: int | None = None,
    features: str | Path | None = None,
    loss_scale: bool = False,
    async_saves: bool = False,
    tell: Callable[[str], None] | None = None,
) -> FitResult:
    """Train a model with any objective.

    Args:
        model: from images to embeddings ``[B, D]``: a Linen module; an NNX or an Equinox module, which stays as it is:
            its parameters are those to begin with, and what was learned is in the result; an Equinox module and its
            state; or functions ``(init, apply)``, ``init(key, images) -> params``, ``apply(params, images)``. Its flag
            for training may be called ``train``, ``training``, ``is_training``, ``deterministic``,
            ``use_running_average``, ``inference`` or ``eval``.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation`` over ``{"model": …, **objective roles}``. One that wants the
            loss (``optax.contrib.reduce_on_plateau``, ``momo``, ``optax.polyak_sgd``) gets the step's as ``value=``;
            ``optax.contrib.schedule_free`` is evaluated and saved with its evaluation parameters. With
            ``optax.MultiSteps(…, k)`` a step here is one batch: ``steps``, ``evaluate_every`` and the log count
            batches, of which k make an update; schedules within it count updates, as does its ``gradient_step``.
        train: a data set with ``images [N, H, W, C]`` and ``labels [N]``, such as a :class:`jdml.data.Dataset`. Images
            may be whatever the model takes, with rows first: features ``[N, D]``, tokens, dictionaries of such.
        sampler: an iterator of index arrays ``[B]`` into ``train``, with ``get_state()`` and ``set_state()``; or
            :class:`jdml.data.ImageBatches` of ``train``. Then the history tells ``bad_images``, how many different
            files were skipped, and the log ``input_wait``, the share of the time that was spent waiting for batches.
        steps: gradient steps in all; 0 evaluates and keeps the start, from which more steps may go on.
        seed: of the initial parameters and of all random numbers in the steps (not of the sampler).
        state: start from this state instead of a fresh one.
        pretrained: what a fresh state's variables become, see :func:`create_state`.
        start: from a fresh state, the model and ``train`` to the state to begin with, of the same shapes, such as
            :func:`start_on_samples`; ``preprocess`` is given to it by name. Not called where a run goes on.
        evaluate: called with an :class:`Embedder`; returns metrics by name.
        evaluate_every: steps between evaluations; there is one after the last step, too.
        monitor: the evaluation metric, larger is better, whose best parameters are kept.
        patience: stop after so many evaluations without improvement of ``monitor``.
        hook: what may change the state after an evaluation, or end the run.
        out_dir: the run's folder: ``config.json``, ``log.jsonl``, ``checkpoints/``; ``model.safetensors``, the best
            parameters (without ``monitor`` the last), and what they scored in ``metrics.json``: see
            :func:`jdml.training.load`. None writes nothing.
        checkpoint_every: steps between checkpoints; by default ``evaluate_every``.
        log_every: steps between log records (evaluations and checkpoints also make one).
        resume: go on from the folder's last checkpoint; False refuses a folder that has one.
        longer: also go on where the folder's run had fewer steps, and was otherwise the same; not with a hook.
        progress: show a progress bar.
        tensorboard: also write TensorBoard event files (needs tensorboardX).
        config: JSON-able description of the run, compared with the folder's on resume.
        preprocess: what stands between stored images and the model; by default uint8 becomes 0…1.
        normalize: what retrieval does to embeddings, such as :func:`jdml.sphere`: not done here, but told in the
            folder, so that :func:`jdml.training.load` does it.
        mesh: the devices that train; its first axis carries the batch. None: one device. Batches, random numbers and
            results are those of one device, to rounding; a batch that does not divide is filled up with places that
            count for nothing. Axes may be of any kind.
        shard: what is partitioned, by role: ``{"proxies": P("data")}`` for classes. Optimizer state goes with it; all
            else is the same on every device.
        micro_batch: rows that go through the network at a time, twice each: the loss sees the whole batch, and the
            gradient is that of the whole batch, with the activations of so many rows. Dropout draws by the turn.
        skip_nonfinite: leave out a step whose loss or gradient is not finite, as if it had not been, and tell in the
            log how many were ``skipped``; so many of them in a row still stop the run. None: the first one does.
        ema: keep an average of the parameters after each step, in which a step counts this many times what the
            next one does, such as 0.999: evaluations, ``best``, ``model.safetensors`` and the embedder have the
            average, with the latest running statistics; ``state`` goes on with the parameters themselves. Not with a
            hook.
        freeze: pattern of the paths of the model's parameters that stay as they are, with their running statistics
            (:func:`jdml.adapt.matching`), such as ``"block[0-8]|patches"``, or ``"(?!head/).*"``, all but the head. No
            gradient is computed of them, and the optimizer sees and keeps nothing of them. A model's batch norm in
            frozen parts must use its running statistics in training, too (``freeze_batch_norm=True``).
        kept_views: compute what of a network comes before anything that learns (``freeze="(?!head/).*"``: all but its
            head, of whatever library it is) of each image once, and train on that: 1, of images as in evaluation; of
            image files also more augmented views, of which each step draws one. What learns must be without dropout and
            batch norm. None: images go through the network at each step.
        features: folder in which these are kept for other runs; by default ``features/`` in ``out_dir``. Without both
            they are kept in memory, above 1 GiB in a temporary file.
        loss_scale: for a model that computes in float16: multiply the loss before it is differentiated, from 2**15 on
            twice as much after 2000 steps, half as much after one whose gradient is not finite and is left out (as with
            ``skip_nonfinite``, by default 40 in a row). The scale is saved, and the loss told as it is.
        async_saves: write checkpoints while training goes on; a copy of the state is kept meanwhile.
        tell: called before the first step with a line, such as ``print``: how many of the network's parameters learn,
            and how much memory they, the optimizer and a step take.

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
        FloatingPointError: naming the step, when a loss or a gradient is not finite, or ``skip_nonfinite`` in a row are
            not; nothing of it is saved.
        Preempted: SIGTERM came, and a last checkpoint was saved (with ``out_dir``, in the main thread).
        KeyboardInterrupt: Ctrl-C came, and a last checkpoint was saved, too; a second one ends at once.
        RuntimeError: another process of this run has ended.

    Implementation notes:
        Log records, evaluations and checkpoints depend on the step alone. A run that is killed anywhere and started
        again repeats the steps since its last checkpoint and ends with the same bits as an unbroken run on the
        same machine, on any number of devices and processes with the same numbers to rounding. Data up to 1 GiB lie on
        the device, whole on each. The host waits for the device only at log records.

        Several processes (:func:`jdml.training.initialize`) make the same call; each decodes its own rows of image
        files, evaluation embeds on all devices, and the first process writes: ``out_dir`` is a folder that all see.
    """
    check_local("out_dir", out_dir)
    schedule = Schedule(
        steps, evaluate_every, log_every, checkpoint_every or evaluate_every, monitor, patience
    )
    door.check_evaluation(evaluate, monitor, hook)
    network = as_model(model)
    door.check_parts(objective, optimizer, train)
    door.check_values(train.images, preprocess)
    batches = door.as_sampler(sampler, len(train.labels), saved=out_dir is not None)
    begin = Beginning(seed, state, pretrained, start)
    if checks.check_flag("loss_scale", loss_scale) and skip_nonfinite is None:
        skip_nonfinite = LEFT_OUT
    checks.optional(checks.count)("skip_nonfinite", skip_nonfinite)
    check_average(ema, hook)
    check_optimizer_works(optimizer, objective, averaged=ema is not None)
    spec = StepSpec(
        network,
        objective,
        _wrapped(optimizer, ema, loss_scale=loss_scale),
        preprocess,
        placement=Placement.on(mesh, shard),
        micro_batch=micro_batch,
        skip_nonfinite=skip_nonfinite is not None,
        freeze=_frozen(network, freeze),
    )
    feed = make_feed(spec, train, batches, _keep(kept_views, features, out_dir, seed))
    feed.tell = tell if writes() else None
    if state is None:
        bare = network.base if isinstance(network, WithLora) else network
        check_network(bare, preprocess, feed.sample)
    folder = None
    if out_dir is not None:
        folder = open_run(
            out_dir,
            _described(config, hook),
            {"seed": seed, **asdict(schedule), **_chosen(spec, kept_views)},
            spec,
            train,
            begin,
            normalize=normalize,
            resume=resume,
            growing=longer if hook is None else None,
            asynchronous=async_saves,
        )
    going_on = folder is not None and folder.begun
    state = begin.make(spec, train, feed.sample, going_on=going_on)
    door.check_proxies(state.params, train.labels)
    feed.check(state)
    check_descends(spec.optimizer, spec.split(state.params)[0])
    tell_narrow(state.params)
    run = Run(
        feed,
        schedule,
        state,
        folder,
        evaluate=evaluate,
        hook=hook,
        tensorboard=tensorboard,
        skip_nonfinite=skip_nonfinite,
    )
    with together(), run:
        given = begin.state is not None and not going_on and int(begin.state.step) > 0
        if run.grown or given:
            check_moves(spec.optimizer, run.state, spec.split(run.state.params)[0], steps)
        _take_steps(run, shown=progress and writes())
    return run.result()


def _wrapped(
    optimizer: optax.GradientTransformation, ema: float | None, *, loss_scale: bool
) -> optax.GradientTransformation:
    """An optimizer with what goes around its steps: an average of the parameters, a scale of the loss."""
    if ema is not None:
        optimizer = with_average(optimizer, float(ema))
    return with_loss_scale(optimizer) if loss_scale else optimizer


def _frozen(network: Model, freeze: str | None) -> str | None:
    """The pattern of what stays: what low-rank changes are of, too."""
    if not isinstance(network, WithLora):
        return freeze
    return network.frozen if freeze is None else f"{network.frozen}|{freeze}"


def _described(config: Mapping[str, Any] | None, hook: Hook | None) -> dict[str, Any]:
    """What a caller says of a run, and its hook."""
    told = dict(hook.config) if hook is not None and hook.config else {}
    return {**(config or {}), **({"hook": told} if told else {})}


def _chosen(spec: StepSpec, kept_views: int | None) -> dict[str, Any]:
    """The settings that a run's folder names only where they are chosen."""
    asked = {
        "skip_nonfinite": spec.skip_nonfinite or None,
        "freeze": spec.freeze,
        "kept_views": kept_views,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _keep(
    views: int | None, features: str | Path | None, out_dir: str | Path | None, seed: int
) -> Keep | None:
    """What of a network's features is kept, and in which folder: by default the run's, if it has one."""
    if views is None:
        if features is not None:
            raise ValueError("features is a folder for kept features: give kept_views, too")
        return None
    if features is None and out_dir:
        features = Path(out_dir) / FEATURES
    return Keep(views, None if features is None else Path(features), seed)


def _take_steps(run: Run, *, shown: bool) -> None:
    """Step until the run has stopped, with a pause where its schedule has one."""
    schedule, ending = run.schedule, Termination(watched=run.folder is not None)
    with ending, progress_bar(shown, total=schedule.steps, initial=run.done.step) as bar:
        if run.feed.tell is not None:
            run.feed.tell = partial(_tell_above, bar, run.feed.tell)
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


def _tell_above(bar: Any, tell: Callable[[str], None], line: str) -> None:
    """Tell a line where the progress bar was, which is drawn again below."""
    bar.clear()
    tell(line)
