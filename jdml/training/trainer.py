"""A run in progress: what is computed is checked, evaluated, remembered and written."""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jdml.distributed import Tree, broadcast_metrics, gather_to_host, is_main_process
from jdml.models.finetuning import as_saved
from jdml.objectives.base import Metrics
from jdml.runs.checkpoint import RunFolder
from jdml.runs.run_files import MODEL, Log
from jdml.training.batch_source import Feed
from jdml.training.callbacks import Callbacks, StatefulCallback, Stop, replaced
from jdml.training.ema import evaluation_params
from jdml.training.run_config import Evaluate, FitResult
from jdml.training.schedule import Best, Progress, Record, Schedule, improve
from jdml.training.step import TrainState

PATIENCE = 50
"""First steps in which a run that does not learn at all, for its batches have no two rows of one class, is stopped."""

_log = logging.getLogger(__name__)


class Run:
    """A run in progress: the train state, the loop's progress, and where both are written."""

    def __init__(
        self,
        feed: Feed,
        schedule: Schedule,
        state: TrainState,
        folder: RunFolder | None,
        *,
        evaluate: Evaluate | None,
        callbacks: Callbacks,
    ) -> None:
        self.feed, self.schedule, self.folder = feed, schedule, folder
        self.evaluate, self.callbacks = evaluate, callbacks
        self.place = feed.placement.place
        self.state: TrainState = self.place(_copy(state))
        self.carried: dict[str, Tree] = {
            name: self.place(callback.template(self.state))
            for name, callback in callbacks.stateful.items()
        }
        self.done = Progress()
        self.best = None if schedule.monitor is None else self._weights()
        self.pending: list[Metrics] = []
        self.watched: dict[str, float] = {}
        self.waiting: Mapping[str, float] = {}
        self.idle = 0
        if jax.tree.leaves(state.objective_state):
            self.feed.lacking = []  # a memory has positives and negatives, too
        if self._restore():
            self._save_result()  # as far as a process that was killed had not come
        else:
            for name, callback in callbacks.stateful.items():
                self.carried[name], self.state = self.place(callback.start(self.state))
            self.best = None if schedule.monitor is None else self._weights()
        path = folder.path if folder is not None and is_main_process() else None
        self.log = Log(path, after_step=self.done.step)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.feed.close()
        self.log.close()
        if self.folder is not None:
            self.folder.close()

    def take(self, state: TrainState, metrics: Metrics) -> None:
        """Take one step's outcome, without waiting for it."""
        self.state = state
        self.pending.append(metrics)
        self.done.step += 1

    def pause(self) -> None:
        """Look at what was computed: check, evaluate, remember the best, call back, write."""
        step = self.done.step
        record: Record = {"step": step, **self._collect(), **self.feed.seen()}
        self.waiting = self.feed.waiting()
        if self.schedule.evaluates(step):
            self._score(record)
        running = self.done.stopped is None
        self._call_back(record)
        if running and self.done.stopped is not None and not self.schedule.evaluates(step):
            self._score(record)
        if step == self.schedule.steps and self.done.stopped is None:
            self.done.stopped = "steps"
        if self.folder is not None and self.done.stopped is not None:
            record["model"] = MODEL
        self.done.history.append(record)
        # Before the checkpoint: a run that goes on from it finds no line after its step, and would not write this one.
        self.log.write({**record, **self.waiting})
        if self.schedule.saves(step) or self.done.stopped is not None:
            self.save()

    def _score(self, record: Record) -> None:
        """Evaluate, where the run has an evaluation, and add its scores to a record."""
        if self.evaluate is None:
            return
        scores = self._evaluate()
        for name in sorted(scores.keys() & {*record, "model", "skipped"}):
            raise ValueError(
                f"evaluation must not call a metric {name!r}, which the log has of training: call it otherwise"
            )
        self.done.scored = list(scores)
        record |= scores

    def summary(self) -> Mapping[str, float | int | str]:
        """Return what the progress bar shows: the last loss, the last watched metric, the waiting for images.

        Where all steps were left out there is no loss: how many were.
        """
        last = self.done.history[-1]
        shown = "skipped" if math.isnan(float(last["loss"])) else "loss"
        return {shown: last[shown], **self.watched, **self.waiting}

    def result(self) -> FitResult:
        """Return what the run leaves."""
        found = self._found()
        if self.best is not None and found is None and self.done.scored:
            _log.warning(
                "monitor %r was never a number: the last parameters are the result, and none the best",
                self.schedule.monitor,
            )
        params, batch_stats = found or self._weights()
        state = self.state._replace(params=params, batch_stats=batch_stats)
        return FitResult(
            state=self.state,
            history=self.done.history,
            best=self.done.best if found else None,
            best_params=params,
            best_batch_stats=batch_stats,
            stopped=str(self.done.stopped),
            embedder=Feed.embedder(self.feed, state),
        )

    def _weights(self) -> tuple[dict[str, Tree], Tree]:
        params, batch_stats = _copy((self._evaluated(self.state).params, self.state.batch_stats))
        return params, batch_stats

    def _evaluated(self, state: TrainState) -> TrainState:
        """The state with the parameters that are evaluated and saved."""
        return state._replace(params=evaluation_params(state.params, state.opt_state))

    def _collect(self) -> Record:
        """Average the metrics of the steps since the last pause; refuse or count those that are not finite."""
        if not self.pending:
            return {}
        values = jax.device_get(self.pending)
        self.pending = []
        self._check_idle(values)
        kept = []
        for step, metrics in enumerate(values, self.done.step - len(values) + 1):
            wrong = [name for name in ("loss", "grad_norm") if not np.isfinite(metrics[name])]
            self.done.skipped_in_a_row = self.done.skipped_in_a_row + 1 if wrong else 0
            if not wrong:
                kept.append(metrics)
            elif self.done.skipped_in_a_row >= (self.callbacks.skip_limit or 1):
                row = self.done.skipped_in_a_row
                after = f", as in the {row - 1} before it" if row > 1 else ""
                value = metrics[wrong[0]]
                raise FloatingPointError(f"the {wrong[0]} is {value} at step {step}{after}")
        means = {
            name: float(np.mean([m[name] for m in kept])) if kept else math.nan
            for name in sorted(values[0])
        }
        counted = {"skipped": len(values) - len(kept)} if self.callbacks.skip_limit else {}
        return {**means, **counted}

    def _check_idle(self, values: list[Metrics]) -> None:
        """Stop where nothing is learned: no step so far had a gradient, and no batch positives, or negatives."""
        if not self.feed.lacking or any(metrics["grad_norm"] != 0 for metrics in values):
            self.feed.lacking = []  # it learns: nothing is looked at any more
            return
        self.idle += len(values)
        if self.idle >= min(PATIENCE, self.schedule.steps):
            raise ValueError(
                f"sampler must yield batches with {self.feed.lacking[0]}: none of the first {self.idle} had any, and "
                "the gradient was 0 in all of them; write jdml.data.ClassBatchSampler(labels, 16, 4)"
            )

    def _evaluate(self) -> Record:
        assert self.evaluate is not None
        scores = self.evaluate(self.feed.embedder(self._evaluated(self.state)))
        if not isinstance(scores, Mapping):
            raise TypeError(
                f"evaluation must return a dictionary of numbers by name, got a {type(scores).__name__}"
            )
        metrics = broadcast_metrics(
            {str(name): _number(name, value) for name, value in scores.items()}
        )
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
        return record

    def _call_back(self, record: Record) -> None:
        """Call the callbacks that are due, each once; all of them where one ends the run."""
        waiting = dict(self.callbacks.called)
        while due := [name for name, callback in waiting.items() if self._is_due(callback)]:
            for name in due:
                self._call(name, waiting.pop(name), record)

    def _is_due(self, callback: Any) -> bool:
        step, every = self.done.step, getattr(callback, "every", None)
        if step == self.schedule.steps or self.done.stopped is not None:
            return True
        if every is not None:
            return step % int(every) == 0
        return self.evaluate is None or self.schedule.evaluates(step)

    def _call(self, name: str, callback: Any, record: Record) -> None:
        step, told = self.done.step, {**record, **self.waiting}
        numbers = {k: float(v) for k, v in told.items() if k != "step" and not isinstance(v, str)}
        if isinstance(callback, StatefulCallback):
            result = callback.update(self.carried[name], step, self.state, numbers)
            self.carried[name] = self.place(result.carried)
            if self.evaluate is not None and self.schedule.evaluates(step):
                self.done.scored += result.metrics
            record |= result.metrics
            state, stop = cast(TrainState | None, result.state), result.stop
        else:
            returned: Any = callback(step, self.state, numbers)
            returned = Stop() if returned is Stop else returned
            state, stop = (None, returned) if isinstance(returned, Stop) else (returned, None)
        ended = self.done.stopped is not None or step == self.schedule.steps
        evaluated = self.evaluate is not None and self.schedule.evaluates(step)
        if state is not None and state is not self.state and not (ended and evaluated):
            self.state = self.place(replaced(state, self.state))  # what was evaluated last is kept
        if stop is not None and not ended:
            self.done.stopped = stop.reason

    def _tree(self) -> dict[str, Tree]:
        best = self.best if self.best is not None else ()
        tree: dict[str, Tree] = {"state": self.state, "best": best}
        return {**tree, "callbacks": self.carried} if self.carried else tree

    def save(self) -> None:
        """Save everything that the run needs to go on, whatever step it is at."""
        if self.folder is not None:
            progress = {**asdict(self.done), "sampler": self.feed.sampler.get_state()}
            progress["best"] = list(self.done.best)
            progress["pending"] = jax.tree.map(float, jax.device_get(self.pending))
            self.folder.save(self.done.step, self._tree(), progress)
            self._save_result()

    def _save_result(self) -> None:
        """Write what the run has come to so far, where it is not there."""
        if self.folder is None:
            return
        self._save_model(self.folder, self._chosen(), self._found())
        if self.best is not None:
            self._save_model(self.folder, self.done.step, None, last=True)
        ended = self.done.stopped is not None and self.done.scored
        if ended and not self.folder.has_metrics(self._chosen()):
            self.folder.save_metrics({"step": self._chosen(), **self._scored(self._chosen())})

    def _save_model(
        self, folder: RunFolder, step: int, weights: Any, *, last: bool = False
    ) -> None:
        """Write weights, by default the present ones, unless the folder has those of the step."""
        if folder.has_model(step, last=last):
            return
        present = self._evaluated(self.state).params, self.state.batch_stats
        params, batch_stats = weights or present
        objective = {role: value for role, value in params.items() if role != "model"}
        variables = {
            "params": as_saved(self.feed.spec.model, params["model"]),
            "batch_stats": batch_stats,
            "objective": objective,
        }
        folder.save_model(gather_to_host(variables), step, self._scored(step), last=last)

    def _chosen(self) -> int:
        """The step whose parameters are the run's result so far; before any evaluation the present one."""
        return self.done.best.step if self._found() else self.done.step

    def _found(self) -> Any:
        """The best parameters and statistics, if an evaluation has found any."""
        return self.best if self.done.best.step > 0 else None

    def _scored(self, step: int) -> Record:
        """Return the scores of a step."""
        records = {record["step"]: record for record in self.done.history}
        scores = records.get(step, {})
        return {name: scores[name] for name in self.done.scored if name in scores}

    def _restore(self) -> bool:
        """Go on from the folder's last checkpoint, if there is one."""
        checkpoint = None if self.folder is None else self.folder.restore(self._tree())
        if checkpoint is None:
            return False
        tree, progress = checkpoint
        self.state, self.carried = tree["state"], tree.get("callbacks", {})
        self.best = None if self.schedule.monitor is None else tree["best"]
        self.feed.sampler.set_state(progress.pop("sampler"))
        self.pending = jax.tree.map(np.float32, progress.pop("pending"))
        self.done = Progress(**{**progress, "best": Best(*progress["best"])})
        if self.done.stopped == "steps" and self.done.step < self.schedule.steps:
            self.done.stopped = None  # more steps than there were
        return True


def _copy(tree: Tree) -> Tree:
    """Copy every array, so that donating one tree never invalidates another."""
    return jax.tree.map(jnp.copy, tree)


def _number(name: str, value: Any) -> float:
    """What an evaluation returned of a metric."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"evaluation must return numbers, got {value!r} of {name!r}") from error
