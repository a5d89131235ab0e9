"""A run in progress: steps are taken, and their results checked, evaluated and written."""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.multihost_utils import process_allgather

from jdml import adapt
from jdml._optional_imports import progress_bar
from jdml.distributed import Tree, broadcast_metrics, is_main_process, note_termination
from jdml.models.finetuning import WithLora
from jdml.objectives.base import Metrics
from jdml.runs.checkpoint import RunFolder
from jdml.runs.run_files import LAST, MODEL, Log, write_model
from jdml.training.batch_source import BatchSource
from jdml.training.callbacks import Callbacks, Stop
from jdml.training.optimizer_wrappers import evaluation_params
from jdml.training.run_config import Best, FitResult, Progress, Record, Schedule
from jdml.training.step import StepConfig, TrainState

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
        self.best: Any = () if self.evaluation.monitor is None else _copy(self._weights())
        self.pending: list[Metrics] = []
        self.monitored: dict[str, float] = {}
        self.timing: Mapping[str, float] = {}
        # A memory has positives and negatives, too; a process has only its own rows of a batch.
        self.learns = bool(jax.tree.leaves(state.objective_state)) or jax.process_count() > 1
        self.steps_without_gradient = 0
        self.has_pairs = np.zeros(2, bool)
        """Whether a batch had two rows of one class, and rows of two classes."""
        self.saved: dict[str, int] = {}
        """The step of each model file."""
        if self._restore():
            self._save_result()  # a process may have been killed before it was written
        else:
            for name, callback in callbacks.stateful.items():
                self.carried[name], self.state = self.place(callback.start(self.state))
        path = folder.path if folder is not None and is_main_process() else None
        self.log = Log(path, after_step=self.progress.step)

    def run(self, *, shown: bool) -> None:
        """Step until the run has stopped, and log and evaluate as its schedule says."""
        schedule, progress, source = self.schedule, self.progress, self.source
        noted = note_termination(self.folder is not None)
        bars = progress_bar(shown, total=schedule.steps, initial=progress.step)
        with noted as ending, bars as bar:
            if schedule.steps == 0 and progress.stop_reason is None:
                self._log_and_evaluate()
            mesh, is_first = source.placement.mesh, True
            # A CPU's devices wait for each other with few threads: a step must end before the next.
            in_turn = mesh is not None and mesh.devices.flat[0].platform == "cpu"
            while progress.stop_reason is None:
                batch = source.next_batch(self.state)
                if is_first and is_main_process() and _log.isEnabledFor(logging.INFO):
                    bar.clear()  # it is drawn again below the line
                    lowered = source.program.lower(self.state, *batch)
                    _log.info("%s", _memory_summary(source.spec, self.state, lowered))
                is_first = False
                self.state, metrics = source.program(self.state, *batch)
                del batch  # its memory is free for the next one
                source.last_metrics = metrics
                if not self.learns:
                    classes = len(np.unique(source.last_labels))
                    self.has_pairs |= (classes < len(source.last_labels), classes > 1)
                self.pending.append(metrics)
                progress.step += 1
                if in_turn:
                    jax.block_until_ready(metrics)
                bar.update()
                if schedule.pauses(progress.step):
                    self._log_and_evaluate()
                    last = progress.history[-1]
                    name = "skipped" if math.isnan(last["loss"]) else "loss"
                    bar.set_postfix({name: last[name], **self.monitored, **self.timing})
                end = ending(progress.step)
                if end is not None and progress.stop_reason is None:
                    self.save()
                    raise end

    def _log_and_evaluate(self) -> None:
        """Check and average the metrics of the last steps, evaluate, call back, write."""
        step, progress = self.progress.step, self.progress
        record: Record = {"step": step, **self._average_pending()}  # waits for the steps
        of_data, self.timing = self.source.metrics()
        record |= of_data
        is_evaluated = self.schedule.evaluates(step)
        if is_evaluated:
            self._evaluate(record)
        self._call_back(record)
        if progress.stop_reason is not None and not is_evaluated:
            self._evaluate(record)
        if step == self.schedule.steps and progress.stop_reason is None:
            progress.stop_reason = "steps"
        progress.history.append(record)
        # Before the checkpoint: a run that resumes from it would not write this line.
        self.log.write({**record, **self.timing})
        if self.schedule.saves(step) or progress.stop_reason is not None:
            self.save()

    def result(self) -> FitResult:
        """Return the run's result."""
        progress, monitor = self.progress, self.evaluation.monitor
        is_best = progress.best.step > 0
        if self.best and not is_best and progress.score_names:
            _log.warning("monitor %r was never a number: the last parameters are kept", monitor)
        params, batch_stats = self.best if is_best else _copy(self._weights())
        state = self.state._replace(params=params, batch_stats=batch_stats)
        return FitResult(
            state=self.state,
            history=progress.history,
            best=progress.best if is_best else None,
            best_params=params,
            best_batch_stats=batch_stats,
            stop_reason=str(progress.stop_reason),
            embedder=BatchSource.embedder(self.source, state),
        )

    def _weights(self) -> tuple[dict[str, Tree], Tree]:
        """Return the parameters to evaluate and save, and the running statistics."""
        return evaluation_params(self.state.params, self.state.opt_state), self.state.batch_stats

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
        has_gradient = any(metrics["grad_norm"] != 0 for metrics in values)
        self.learns = self.learns or has_gradient or bool(self.has_pairs.all())
        self.steps_without_gradient += len(values)
        if self.learns or self.steps_without_gradient < min(PATIENCE, self.schedule.steps):
            return
        if len(np.unique(self.source.train.labels)) < 2:
            raise ValueError("train must have rows of at least two classes, all are of one")
        pairs = "rows of two classes" if self.has_pairs[0] else "two rows of one class"
        raise ValueError(
            f"sampler must yield batches with {pairs}: a pair loss had no gradient in the first "
            f"{self.steps_without_gradient} steps; write jdml.data.ClassBatchSampler(labels, 16, 4)"
        )

    def _evaluate(self, record: Record) -> None:
        """Evaluate, if the run has an evaluation: add its scores to a record, and update the best."""
        if self.evaluation.function is None:
            return
        progress, monitor = self.progress, self.evaluation.monitor
        state = self.state._replace(params=self._weights()[0])
        scores = self.evaluation.function(self.source.embedder(state))
        metrics = broadcast_metrics({str(name): float(value) for name, value in scores.items()})
        for name in sorted(metrics.keys() & {*record, "skipped"}):
            raise ValueError(f"evaluation must not return {name!r}, a name of the log: rename it")
        self.monitored = dict(list(metrics.items())[:1])
        if monitor is not None:
            if monitor not in metrics:
                raise ValueError(f"monitor {monitor!r} is not among the metrics {sorted(metrics)}")
            self.monitored = {monitor: metrics[monitor]}
            if metrics[monitor] > progress.best.value:  # NaN never is; of ties the first is kept
                progress.best = Best(metrics[monitor], progress.step)
                self.best = _copy(self._weights())
            else:
                number = progress.best.evals_since_improvement + 1
                progress.best = progress.best._replace(evals_since_improvement=number)
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
        usual = 1 if self.evaluation.function is None else self.evaluation.every
        return step % int(every or usual) == 0

    def _call(self, name: str, callback: Any, record: Record) -> None:
        step, progress = self.progress.step, self.progress
        numbers = {k: float(v) for k, v in {**record, **self.timing}.items() if k != "step"}
        is_evaluated = self.evaluation.function is not None and self.schedule.evaluates(step)
        is_last = progress.stop_reason is not None or step == self.schedule.steps
        stop: Any = None
        if name in self.carried:
            result = callback.update(self.carried[name], step, self.state, numbers)
            self.carried[name] = self.place(result.carried)
            if is_evaluated:
                progress.score_names += result.metrics
            record |= result.metrics
            state, stop = result.state, result.stop
        else:
            state = callback(step, self.state, numbers)
            if state is Stop or isinstance(state, Stop):
                state, stop = None, state
        # The result has the parameters that were evaluated last.
        if state is not None and state is not self.state and not (is_last and is_evaluated):
            if not isinstance(state, TrainState):
                kind = type(state).__name__
                raise TypeError(f"callbacks must return None, a TrainState or Stop, got a {kind}")
            message = "callbacks must return a state of the same shapes"
            adapt.check_same_arrays(message, self.state, state)
            # The next step takes the memory of the state's arrays.
            new = jax.tree.map(lambda x, own: x if x is own else jnp.copy(x), state, self.state)
            self.state = self.place(new)
        if stop is not None and not is_last:
            progress.stop_reason = stop.reason

    def _tree(self) -> dict[str, Tree]:
        return {"state": self.state, "best": self.best, "callbacks": self.carried}

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
        progress, last = self.progress, self._weights()
        is_best = progress.best.step > 0
        step, weights = (progress.best.step, self.best) if is_best else (progress.step, last)
        scores = self._save_model(self.folder, MODEL, step, weights)
        if self.best:
            self._save_model(self.folder, LAST, progress.step, last)
        if progress.stop_reason is not None and progress.score_names:
            self.folder.save_metrics({"step": step, **scores})

    def _save_model(self, folder: RunFolder, name: str, step: int, weights: Any) -> Record:
        """Write parameters and statistics, unless they were written; return their scores."""
        record = next((each for each in self.progress.history if each["step"] == step), {})
        scores = {name: record[name] for name in self.progress.score_names if name in record}
        if self.saved.get(name) != step:
            (params, batch_stats), model = weights, self.source.spec.model
            own = params["model"]
            variables = {
                "params": model.merged(own) if isinstance(model, WithLora) else own,
                "batch_stats": batch_stats,
                "objective": {role: value for role, value in params.items() if role != "model"},
            }
            arrays = process_allgather(variables, tiled=True)
            if is_main_process():
                description = {**folder.description, "step": step, "metrics": scores}
                write_model(folder.path / name, arrays, description)
            self.saved[name] = step
        return scores

    def _restore(self) -> bool:
        """Resume from the folder's last checkpoint, if there is one."""
        checkpoint = None if self.folder is None else self.folder.restore(self._tree())
        if checkpoint is None:
            return False
        tree, progress = checkpoint
        self.state, self.best, self.carried = tree["state"], tree["best"], tree["callbacks"]
        self.source.sampler.set_state(progress.pop("sampler"))
        self.pending = jax.tree.map(np.float32, progress.pop("pending"))
        self.steps_without_gradient = -len(self.pending)  # whose batches are not known
        self.progress = Progress(**{**progress, "best": Best(*progress["best"])})
        if self.progress.stop_reason == "steps" and self.progress.step < self.schedule.steps:
            self.progress.stop_reason = None  # the run has more steps now
        return True


def _memory_summary(spec: StepConfig, state: TrainState, lowered: Any) -> str:
    """Say how many of the model's parameters learn, and the memory of parameters, optimizer and a step."""
    trees = {"parameters": state.params, "optimizer": state.opt_state}
    sizes = {name: sum(x.nbytes for x in jax.tree.leaves(tree)) for name, tree in trees.items()}
    of_step = lowered.compile().memory_analysis()
    if of_step is not None:  # activations, gradients, a batch
        sizes["a step"] = of_step.temp_size_in_bytes
    memory = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in sizes.items())
    networks = spec.split(state.params)[0]["model"], state.params["model"]
    learning, size = map(optax.tree.size, networks)
    return f"memory    {memory}; {learning:,} of {size:,} parameters of the network learn"


def _copy(tree: Tree) -> Tree:
    """Copy every array, so that donating one tree never invalidates another."""
    return jax.tree.map(jnp.copy, tree)
