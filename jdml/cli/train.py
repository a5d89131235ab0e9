"""``jdml train``: train a model with any objective, with checkpoints, and score it on the test part."""

from dataclasses import dataclass

from jdml.cli.options.train import TrainOptions
from jdml.cli.provenance import started
from jdml.cli.terminal import print_table
from jdml.cli.training_run import TrainingRun
from jdml.distributed import is_main_process
from jdml.runs.run_files import write_json


@dataclass(frozen=True)
class Train(TrainOptions):
    """Train embeddings of a data set and score them on its test part.

    With --out, a killed run resumes when the same command is given again, and ends with the same numbers; more --steps
    continue it. The test part is scored once, at the end; --validation holds out training rows for early stopping. A
    method by its paper's recipe, on its paper's split: jdml benchmark.

    jdml train --data omniglot --model small --loss multi_similarity --loss-setting beta=40 --out runs/ms

    jdml train --labels parity --miner eps+semi_hard --dim 2 --normalize none
    """

    def execute(self) -> None:
        """Train, score, print the scores, write metrics.json."""
        self.devices.join()
        options = self.resolve()
        training = TrainingRun(options, started("jdml train", self), self.hints())
        result = training.run()
        metrics = {**training.test(result.embedder), **training.validated(result)}
        if not is_main_process():
            return
        title = options.title(training.recipe)
        if metrics:
            columns = ["scored on", *next(iter(metrics.values()))]
            rows = [[part, *scores.values()] for part, scores in metrics.items()]
            print_table(title, columns, rows)
        else:
            print(f"{title}: trained; --split none leaves nothing to score")
        if options.run.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(options.run.out / "metrics.json", {"step": step, **metrics})
        for line in training.next_steps():
            print(line)
