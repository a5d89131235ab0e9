"""The training loop: steps, evaluations, early stopping, log lines and checkpoints, all scheduled by step."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.training import door
from jdml.training.feed import ImageFeed, RowFeed, make_feed
from jdml.training.hooks import Hook
from jdml.training.log import Log
from jdml.training.models import as_model
from jdml.training.result import Embedder, Evaluate, FitResult, Record
from jdml.training.runs import MODEL, open_run
from jdml.training.step import Preprocess, Pretrained, TrainState, create_state, standard
from jdml.training.stopping import Best, improve


@dataclass(frozen=True)
class _Schedule:
    """When things happen: functions of the step alone, so that a resumed run does the same."""

    steps: int
    evaluate_every: int
    log_every: int
    checkpoint_every: int
    monitor: str | None
    patience: int | None

    def __post_init__(self) -> None:
        for name in ("steps", "evaluate_every", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1 evaluation, got {self.patience}")
        if self.patience is not None and self.monitor is None:
            raise ValueError("patience needs monitor, the name of the metric to watch")

    def evaluates(self, step: int) -> bool:
        return step % self.evaluate_every == 0 or step == self.steps

    def saves(self, step: int) -> bool:
        return step % self.checkpoint_every == 0 or step == self.steps

    def pauses(self, step: int) -> bool:
        """Whether the host looks at the device's numbers after this step."""
        return step % self.log_every == 0 or self.evaluates(step) or self.saves(step)


@dataclass
class Progress:
    """The loop's own state: JSON-able, saved beside the train state."""

    step: int = 0
    history: list[Record] = field(default_factory=list)
    best: Best = field(default_factory=Best)
    stopped: str | None = None


def fit(
    model: Any,
    objective: Any,
    optimizer: Any,
    train: Any,
    sampler: Any,
    *,
    steps: int,
    seed: int = 0,
    state: TrainState | None = None,
    pretrained: Pretrained | None = None,
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
    normalize: Callable[[Any], Any] | None = None,
) -> FitResult:
    """Train a model with any objective.

    Args:
        model: a Linen module ``(images, *, train) -> embeddings [B, D]``, with or without ``train``; or an NNX module,
            which stays as it is: its parameters are those to begin with, and what was learned is in the result.
        objective: a :class:`jdml.objectives.Objective`.
        optimizer: an ``optax.GradientTransformation`` over ``{"model": …, **objective roles}``.
        train: a data set with ``images [N, H, W, C]`` and ``labels [N]``, such as a :class:`jdml.data.Dataset`. Images
            may be whatever the model takes, with rows first: features ``[N, D]``, tokens, dictionaries of such.
        sampler: an iterator of index arrays ``[B]`` into ``train``, with ``get_state()`` and ``set_state()``; or
            :class:`jdml.data.ImageBatches` of ``train``. Then the history tells ``bad_images``, how many different
            files were skipped, and the log ``input_wait``, the share of the time that was spent waiting for batches.
        steps: gradient steps in all.
        seed: of the initial parameters and of all random numbers in the steps (not of the sampler).
        state: start from this state instead of a fresh one.
        pretrained: what a fresh state's variables become, see :func:`create_state`.
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

    Returns:
        A :class:`FitResult`. A finished run that is started again returns its result again.

    Raises:
        TypeError: before any work: a model, objective, optimizer, train set or sampler of another kind, saying what to
            write instead.
        ValueError: before any work: settings that contradict each other, a folder of another run (naming the fields, or
            which of objective, optimizer, model and data is another), a checkpoint that cannot be read, fewer proxies
            than classes.
        FloatingPointError: naming the step, when a loss or a gradient is not finite; nothing of it is saved.

    Implementation notes:
        Log records, evaluations and checkpoints depend on the step alone. A run that is killed anywhere and started
        again repeats the steps since its last checkpoint and ends with the same bits as an unbroken run on the
        same machine. Data up to 1 GiB lie on the device. The host waits for the device only at log records.
    """
    from tqdm.auto import tqdm

    schedule = _Schedule(
        steps, evaluate_every, log_every, checkpoint_every or evaluate_every, monitor, patience
    )
    if state is not None and pretrained is not None:
        raise ValueError("state and pretrained both say what to begin with: give one of them")
    if monitor is not None and evaluate is None:
        raise ValueError(f"monitor is {monitor!r} but there is no evaluate function")
    if hook is not None and evaluate is None:
        raise ValueError("hook acts after evaluations, but there is no evaluate function")
    model = as_model(model)
    door.check_objective(objective)
    door.check_optimizer(optimizer)
    door.check_train(train)
    door.check_sampler(sampler, len(train.labels), saved=out_dir is not None)
    parts = (model, objective, optimizer)
    folder = None
    if out_dir is not None:
        begin = state if state is not None else pretrained
        folder = open_run(
            out_dir,
            {**(config or {}), **({} if hook is None else hook.config)},
            {"seed": seed, **asdict(schedule)},
            parts,
            train,
            begin,
            (preprocess, normalize),
            resume=resume,
            growing=longer and hook is None,
        )
    feed = make_feed(parts, preprocess, train, sampler)
    if state is None:
        state = create_state(
            *parts, feed.sample, seed=seed, preprocess=preprocess, pretrained=pretrained
        )
    door.check_proxies(state.params, train.labels)
    run = _Run(
        model, schedule, evaluate, hook, preprocess, sampler, feed, state, folder, tensorboard
    )
    with run, tqdm(total=steps, initial=run.done.step, disable=not progress) as bar:
        compiling = progress and run.done.stopped is None
        if compiling:
            bar.set_description("compiling")
        while run.done.stopped is None:
            run.take(*feed.step(run.state))
            if compiling:
                jax.block_until_ready(run.pending)
                bar.set_description()
                compiling = False
            bar.update()
            if schedule.pauses(run.done.step):
                run.pause()
                bar.set_postfix(run.summary())
    return run.result()


class _Run:
    """A run in progress: the train state, the loop's progress, and where both are written."""

    def __init__(
        self,
        model: Any,
        schedule: _Schedule,
        evaluate: Evaluate | None,
        hook: Hook | None,
        preprocess: Preprocess,
        sampler: Any,
        feed: RowFeed | ImageFeed,
        state: TrainState,
        folder: Any,
        tensorboard: bool,
    ) -> None:
        self.model, self.schedule, self.evaluate, self.hook = model, schedule, evaluate, hook
        self.preprocess, self.sampler, self.feed = preprocess, sampler, feed
        self.folder = folder
        self.state: TrainState = _copy(state)
        self.carried: Any = () if hook is None else hook.template(self.state)
        self.done = Progress()
        self.best = None if schedule.monitor is None else self._weights()
        self.pending: list[dict[str, jax.Array]] = []
        self.watched: dict[str, float] = {}
        self.waiting: Mapping[str, float] = {}
        self.scores: Record = {}
        if not self._restore() and hook is not None:
            self.carried, self.state = hook.start(self.state)
            self.best = None if schedule.monitor is None else self._weights()
        if folder is not None and self.done.stopped is not None:
            self._save_model()
        path = None if folder is None else folder.path
        self.log = Log(path, after_step=self.done.step, tensorboard=tensorboard)

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.feed.close()
        self.log.close()
        if self.folder is not None:
            self.folder.close()

    def take(self, state: TrainState, metrics: dict[str, jax.Array]) -> None:
        """Take one step's outcome, without waiting for it."""
        self.state = state
        self.pending.append(metrics)
        self.done.step += 1

    def pause(self) -> None:
        """Look at what was computed: check, evaluate, remember the best, write."""
        step = self.done.step
        record: Record = {"step": step, **self._collect(), **self.feed.seen()}
        self.waiting = self.feed.waiting()
        if self.evaluate is not None and self.schedule.evaluates(step):
            self.scores = self._evaluate()
            record |= self.scores
        if step == self.schedule.steps and self.done.stopped is None:
            self.done.stopped = "steps"
        if self.folder is not None and self.done.stopped is not None:
            record["model"] = MODEL
        self.done.history.append(record)
        if self.schedule.saves(step) or self.done.stopped is not None:
            self._save()
        self.log.write({**record, **self.waiting})

    def summary(self) -> Mapping[str, float | int | str]:
        """Return what the progress bar shows: the last loss, the last watched metric, the waiting for images."""
        return {"loss": self.done.history[-1]["loss"], **self.watched, **self.waiting}

    def result(self) -> FitResult:
        monitored = self.best is not None
        params, batch_stats = self.best if self.best is not None else self._weights()
        state = self.state._replace(params=params, batch_stats=batch_stats)
        return FitResult(
            state=self.state,
            history=self.done.history,
            best=self.done.best if monitored else None,
            best_params=params,
            best_batch_stats=batch_stats,
            stopped=str(self.done.stopped),
            embedder=Embedder(self.model, state, self.preprocess),
        )

    def _weights(self) -> tuple[Any, Any]:
        return _copy((self.state.params, self.state.batch_stats))

    def _collect(self) -> Record:
        """Average the metrics of the steps since the last pause; refuse a loss or gradient that is not finite."""
        if not self.pending:
            return {}
        values = jax.device_get(self.pending)
        self.pending = []
        for name in ("loss", "grad_norm"):
            seen = np.array([metrics[name] for metrics in values], np.float64)
            if not np.isfinite(seen).all():
                first = int(np.argmin(np.isfinite(seen)))
                step = self.done.step - len(seen) + 1 + first
                raise FloatingPointError(f"the {name} is {seen[first]} at step {step}")
        return {name: float(np.mean([m[name] for m in values])) for name in sorted(values[0])}

    def _evaluate(self) -> Record:
        assert self.evaluate is not None
        embedder = Embedder(self.model, self.state, self.preprocess)
        metrics = {name: float(value) for name, value in self.evaluate(embedder).items()}
        record: Record = {**metrics}
        monitor = self.schedule.monitor
        self.watched = dict(list(metrics.items())[:1])
        if monitor is not None:
            if monitor not in metrics:
                raise ValueError(f"monitor {monitor!r} is not among the metrics {sorted(metrics)}")
            self.watched = {monitor: metrics[monitor]}
            self.done.best, improved = improve(self.done.best, metrics[monitor], self.done.step)
            if improved:
                self.best = self._weights()
            patience = self.schedule.patience
            if patience is not None and self.done.best.stale >= patience:
                self.done.stopped = "patience"
        if self.hook is None:
            return record
        result = self.hook.after_evaluation(self.carried, self.state, metrics)
        self.carried = result.carried
        if self.done.stopped is None and self.done.step < self.schedule.steps:
            self.state = result.state  # after the last step there is nothing to prepare
            self.done.stopped = "hook" if result.ended else None
        return {**record, **result.seen}

    def _tree(self) -> dict[str, Any]:
        tree = {"state": self.state, "best": self.best if self.best is not None else ()}
        return tree if self.hook is None else {**tree, "hook": self.carried}

    def _save(self) -> None:
        if self.folder is not None:
            progress = {**asdict(self.done), "sampler": self.sampler.get_state()}
            progress["best"] = list(self.done.best)
            self.folder.save(self.done.step, self._tree(), progress)
            self._save_model()
            if self.done.stopped is not None and self.scores:
                self.folder.save_metrics({"step": self._chosen(), **self._scored()})

    def _save_model(self) -> None:
        """Write the parameters that are the run's result so far, unless they are there."""
        if self.folder.has_model(self._chosen()):
            return
        params, batch_stats = self.state.params, self.state.batch_stats
        if self.best is not None and self.done.best.step > 0:
            params, batch_stats = self.best
        objective = {role: value for role, value in params.items() if role != "model"}
        variables = {"params": params["model"], "batch_stats": batch_stats, "objective": objective}
        self.folder.save_model(variables, self._chosen(), self._scored())

    def _chosen(self) -> int:
        """The step whose parameters are the run's result so far; before any evaluation the present one."""
        evaluated = self.best is not None and self.done.best.step > 0
        return self.done.best.step if evaluated else self.done.step

    def _scored(self) -> Record:
        """What was measured at that step, and nothing that belongs to steps before it."""
        records = {record["step"]: record for record in self.done.history}
        chosen = records.get(self._chosen(), {})
        return {name: chosen[name] for name in self.scores if name in chosen}

    def _restore(self) -> bool:
        """Go on from the folder's last checkpoint, if there is one."""
        found = None if self.folder is None else self.folder.restore(self._tree())
        if found is None:
            return False
        tree, progress = found
        self.state, self.carried = tree["state"], tree.get("hook", ())
        self.best = None if self.schedule.monitor is None else tree["best"]
        self.sampler.set_state(progress.pop("sampler"))
        self.done = Progress(**{**progress, "best": Best(*progress["best"])})
        if self.done.stopped == "steps" and self.done.step < self.schedule.steps:
            self.done.stopped = None  # more steps than there were
        return True


def _copy(tree: Any) -> Any:
    """Copy every array, so that donating one tree never invalidates another."""
    return jax.tree.map(jnp.copy, tree)
