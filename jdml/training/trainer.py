"""A run in progress: results of steps are checked, evaluated and written."""

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
from jdml.runs.run_files import LAST, MODEL, Log
from jdml.training.batch_source import BatchSource
from jdml.training.callbacks import Callbacks, StatefulCallback, Stop, copy_new_arrays
from jdml.training.optimizer_wrappers import evaluation_params
from jdml.training.run_config import Best, FitResult, Progress, Record, Schedule, update_best
from jdml.training.step import TrainState

PATIENCE = 50
"""First steps after which a run without any gradient, whose batches have no pairs, is stopped."""

_log = logging.getLogger(__name__)


class Trainer:
    """A run in progress: the train state, the loop's progress, and the folder of both."""

    def __init__(
        self,
        source: BatchSource,
        schedule: Schedule,
        state: TrainState,
        folder: RunFolder | None,
        callbacks: Callbacks,
    ) -> None:
        self.source, self.schedule, self.folder = source, schedule, folder
        self.evaluation, self.callbacks = schedule.evaluation, callbacks
        self.place = source.placement.place
        self.state: TrainState = self.place(_copy(state))
        self.carried: dict[str, Tree] = {
            name: self.place(callback.template(self.state))
            for name, callback in callbacks.stateful.items()
        }
        self.progress = Progress()
        self.best: Any = () if self.evaluation.monitor is None else self._weights()
        self.pending: list[Metrics] = []
        self.monitored: dict[str, float] = {}
        self.timing: Mapping[str, float] = {}
        self.steps_without_gradient = 0
        self.saved: dict[str, int] = {}
        """The step of each model file."""
        if jax.tree.leaves(state.objective_state):
            source.missing_pairs.clear()  # a memory has positives and negatives, too
        if self._restore():
            self._save_result()  # a process may have been killed before it was written
        else:
            for name, callback in callbacks.stateful.items():
                self.carried[name], self.state = self.place(callback.start(self.state))
        path = folder.path if folder is not None and is_main_process() else None
        self.log = Log(path, after_step=self.progress.step)

    def close(self) -> None:
        """Stop the workers of the batches, and close the log."""
        self.source.close()
        self.log.close()

    def record_step(self, state: TrainState, metrics: Metrics) -> None:
        """Record the result of a step, without waiting for it."""
        self.state = state
        self.pending.append(metrics)
        self.progress.step += 1

    def log_and_evaluate(self) -> None:
        """Check and average the metrics of the last steps, evaluate, call back, write."""
        step, progress = self.progress.step, self.progress
        record: Record = {"step": step, **self._average_pending(), **self.source.data_metrics()}
        self.timing = self.source.timing_metrics()
        if self.schedule.evaluates(step):
            self._evaluate(record)
        is_running = progress.stop_reason is None
        self._call_back(record)
        if is_running and progress.stop_reason is not None and not self.schedule.evaluates(step):
            self._evaluate(record)
        if step == self.schedule.steps and progress.stop_reason is None:
            progress.stop_reason = "steps"
        if self.folder is not None and progress.stop_reason is not None:
            record["model"] = MODEL
        progress.history.append(record)
        # Before the checkpoint: a run that resumes from it would not write this line.
        self.log.write({**record, **self.timing})
        if self.schedule.saves(step) or progress.stop_reason is not None:
            self.save()

    def summary(self) -> Mapping[str, float | int | str]:
        """Return the numbers of the progress bar: the last loss or the skipped steps, the monitored metric, waiting."""
        last = self.progress.history[-1]
        shown = "skipped" if math.isnan(float(last["loss"])) else "loss"
        return {shown: last[shown], **self.monitored, **self.timing}

    def result(self) -> FitResult:
        """Return the run's result."""
        best, monitor = self._best_weights(), self.evaluation.monitor
        if self.best and not best and self.progress.score_names:
            _log.warning("monitor %r was never a number: the last parameters are kept", monitor)
        params, batch_stats = best or self._weights()
        state = self.state._replace(params=params, batch_stats=batch_stats)
        return FitResult(
            state=self.state,
            history=self.progress.history,
            best=self.progress.best if best else None,
            best_params=params,
            best_batch_stats=batch_stats,
            stop_reason=str(self.progress.stop_reason),
            embedder=BatchSource.embedder(self.source, state),
        )

    def _weights(self) -> tuple[dict[str, Tree], Tree]:
        params, batch_stats = _copy((self._evaluated_params(), self.state.batch_stats))
        return params, batch_stats

    def _evaluated_params(self) -> dict[str, Tree]:
        return evaluation_params(self.state.params, self.state.opt_state)

    def _average_pending(self) -> Record:
        """Average the metrics of the steps since the last record; refuse or count those that are not finite."""
        if not self.pending:
            return {}
        values, progress = jax.device_get(self.pending), self.progress
        self.pending = []
        self._check_learning(values)
        finite = []
        for step, metrics in enumerate(values, progress.step - len(values) + 1):
            wrong = [name for name in ("loss", "grad_norm") if not np.isfinite(metrics[name])]
            progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if wrong else 0
            if not wrong:
                finite.append(metrics)
            elif progress.skipped_in_a_row >= (self.callbacks.skip_limit or 1):
                before = progress.skipped_in_a_row - 1
                raise FloatingPointError(
                    f"the {wrong[0]} is {metrics[wrong[0]]} at step {step}"
                    + (f", as in the {before} before it" if before else "")
                )
        means = {
            name: float(np.mean([m[name] for m in finite])) if finite else math.nan
            for name in sorted(values[0])
        }
        skipped = {"skipped": len(values) - len(finite)} if self.callbacks.skip_limit else {}
        return {**means, **skipped}

    def _check_learning(self, values: list[Metrics]) -> None:
        """Stop a run in which no step had a gradient, and no batch had positives, or negatives."""
        if not self.source.missing_pairs or any(metrics["grad_norm"] != 0 for metrics in values):
            self.source.missing_pairs.clear()  # it learns: labels are no longer observed
            return
        self.steps_without_gradient += len(values)
        if self.steps_without_gradient >= min(PATIENCE, self.schedule.steps):
            if len(np.unique(self.source.train.labels)) < 2:
                raise ValueError("train must have rows of at least two classes, all are of one")
            raise ValueError(
                f"sampler must yield batches with {self.source.missing_pairs[0]}: none of the first "
                f"{self.steps_without_gradient} had any; write jdml.data.ClassBatchSampler(labels, 16, 4)"
            )

    def _evaluate(self, record: Record) -> None:
        """Evaluate, if the run has an evaluation: add its scores to a record, and update the best."""
        if self.evaluation.function is None:
            return
        progress, monitor = self.progress, self.evaluation.monitor
        state = self.state._replace(params=self._evaluated_params())
        scores = self.evaluation.function(self.source.embedder(state))
        metrics = broadcast_metrics({str(name): float(value) for name, value in scores.items()})
        for name in sorted(metrics.keys() & {*record, "model", "skipped"}):
            raise ValueError(f"evaluation must not return {name!r}, a name of the log: rename it")
        self.monitored = dict(list(metrics.items())[:1])
        if monitor is not None:
            if monitor not in metrics:
                raise ValueError(f"monitor {monitor!r} is not among the metrics {sorted(metrics)}")
            self.monitored = {monitor: metrics[monitor]}
            progress.best, improved = update_best(progress.best, metrics[monitor], progress.step)
            if improved:
                self.best = self._weights()
            patience = self.evaluation.patience
            if patience is not None and progress.best.evals_since_improvement >= patience:
                progress.stop_reason = "patience"
        progress.score_names = list(metrics)
        record |= metrics

    def _call_back(self, record: Record) -> None:
        """Call the callbacks that are due, each once; all of them if one ends the run."""
        waiting = dict(self.callbacks.called)
        while due := [name for name, callback in waiting.items() if self._is_due(callback)]:
            for name in due:
                self._call(name, waiting.pop(name), record)

    def _is_due(self, callback: Any) -> bool:
        step, every = self.progress.step, getattr(callback, "every", None)
        if step == self.schedule.steps or self.progress.stop_reason is not None:
            return True
        if every is not None:
            return step % int(every) == 0
        return self.evaluation.function is None or self.schedule.evaluates(step)

    def _call(self, name: str, callback: Any, record: Record) -> None:
        step, progress = self.progress.step, self.progress
        values = {**record, **self.timing}.items()
        numbers = {k: float(v) for k, v in values if k != "step" and not isinstance(v, str)}
        is_evaluated = self.evaluation.function is not None and self.schedule.evaluates(step)
        if isinstance(callback, StatefulCallback):
            result = callback.update(self.carried[name], step, self.state, numbers)
            self.carried[name] = self.place(result.carried)
            if is_evaluated:
                progress.score_names += result.metrics
            record |= result.metrics
            state, stop = cast(TrainState | None, result.state), result.stop
        else:
            returned: Any = callback(step, self.state, numbers)
            returned = Stop() if returned is Stop else returned
            state, stop = (None, returned) if isinstance(returned, Stop) else (returned, None)
        is_last = progress.stop_reason is not None or step == self.schedule.steps
        # The result has the parameters that were evaluated last.
        if state is not None and state is not self.state and not (is_last and is_evaluated):
            self.state = self.place(copy_new_arrays(state, self.state))
        if stop is not None and not is_last:
            progress.stop_reason = stop.reason

    def _tree(self) -> dict[str, Tree]:
        tree: dict[str, Tree] = {"state": self.state, "best": self.best}
        return {**tree, "callbacks": self.carried} if self.carried else tree

    def save(self) -> None:
        """Save everything that the run needs to resume, at any step."""
        if self.folder is not None:
            progress = {**asdict(self.progress), "sampler": self.source.sampler.get_state()}
            progress["pending"] = jax.tree.map(float, jax.device_get(self.pending))
            self.folder.save(self.progress.step, self._tree(), progress)
            self._save_result()

    def _save_result(self) -> None:
        """Write the best and the last parameters and, of a run that has ended, scores, unless they were written."""
        if self.folder is None:
            return
        progress, best = self.progress, self._best_weights()
        step = progress.best.step if best else progress.step
        scores = self._save_model(self.folder, MODEL, step, best)
        if self.best:
            self._save_model(self.folder, LAST, progress.step, None)
        if progress.stop_reason is not None and progress.score_names:
            self.folder.save_metrics({"step": step, **scores})

    def _save_model(self, folder: RunFolder, name: str, step: int, weights: Any) -> Record:
        """Write parameters, by default the present ones, unless they were written; return their scores."""
        records = {record["step"]: record for record in self.progress.history}
        record = records.get(step, {})
        scores = {name: record[name] for name in self.progress.score_names if name in record}
        if self.saved.get(name) != step:
            params, batch_stats = weights or (self._evaluated_params(), self.state.batch_stats)
            variables = {
                "params": as_saved(self.source.spec.model, params["model"]),
                "batch_stats": batch_stats,
                "objective": {role: value for role, value in params.items() if role != "model"},
            }
            folder.save_model(name, gather_to_host(variables), step, scores)
            self.saved[name] = step
        return scores

    def _best_weights(self) -> Any:
        """Return the best parameters and statistics, after the first improvement."""
        return self.best if self.progress.best.step > 0 else None

    def _restore(self) -> bool:
        """Resume from the folder's last checkpoint, if there is one."""
        checkpoint = None if self.folder is None else self.folder.restore(self._tree())
        if checkpoint is None:
            return False
        tree, progress = checkpoint
        self.state, self.carried = tree["state"], tree.get("callbacks", {})
        self.best = tree["best"]
        self.source.sampler.set_state(progress.pop("sampler"))
        self.pending = jax.tree.map(np.float32, progress.pop("pending"))
        self.progress = Progress(**{**progress, "best": Best(*progress["best"])})
        if self.progress.stop_reason == "steps" and self.progress.step < self.schedule.steps:
            self.progress.stop_reason = None  # the run has more steps now
        return True


def _copy(tree: Tree) -> Tree:
    """Copy every array, so that donating one tree never invalidates another."""
    return jax.tree.map(jnp.copy, tree)
