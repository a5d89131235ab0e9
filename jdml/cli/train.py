"""``jdml train``: train a model with any objective, with checkpoints, and score it on the test part."""

from dataclasses import dataclass

from jdml.cli.options.train import TrainOptions
from jdml.cli.start_of_run import started


@dataclass(frozen=True)
class Train(TrainOptions):
    """Train embeddings of a data set and score them on its test part.

    With --out, a killed run goes on where it was when the same command is given again, and ends with
    the same numbers; with more --steps it goes on further. The test part is looked at once, at the end; --validation
    holds out a part of the training rows for evaluations on the way and for early stopping. What comes out is for
    jdml embed, search and export. A method by its paper's recipe, on its paper's split: jdml benchmark.

    An example with Omniglot: multi-similarity loss, 4 alphabets of 40 samples a batch.

    jdml train --data omniglot --data-dir DIR --model small --dim 128 --loss multi_similarity
    --loss-setting beta=40 --batch 4x40 --lr 5e-4 --steps 1200 --out runs/ms

    An example with even and odd digits, which need no files: easy positive sampling keeps the digits apart.

    jdml train --labels parity --miner eps+semi_hard --dim 2 --normalize none
    """

    def execute(self) -> None:
        """Train, score, show, write metrics.json."""
        from jdml.cli.terminal import print_table
        from jdml.cli.training_run import TrainingRun
        from jdml.training.placement import writes
        from jdml.training.run_files import write_json

        self.join()
        options = self.settled()
        training = TrainingRun(options, options.recipe(), started("jdml train", self), self.hints())
        result = training.run()
        metrics = {**training.test(result.embedder), **training.validated(result)}
        if not writes():
            return
        title = options.title(training.recipe)
        if metrics:
            columns = ["scored on", *next(iter(metrics.values()))]
            rows = [[part, *scores.values()] for part, scores in metrics.items()]
            print_table(title, columns, rows)
        else:
            print(f"{title}: trained; --split none leaves nothing to score")
        if options.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(options.out / "metrics.json", {"step": step, **metrics})
        for line in training.next_steps():
            print(line)
