"""``jdml train``: train a model with any objective, with checkpoints, and score it on the test part."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from jdml.cli.options.base import as_typed
from jdml.cli.options.data import Data
from jdml.cli.options.machines import Machines
from jdml.cli.options.method import Method
from jdml.cli.options.network import Network
from jdml.cli.options.optimizer import Optimizer
from jdml.cli.options.run import RunOptions
from jdml.cli.typed import started
from jdml.recipes import Recipe


@dataclass(frozen=True)
class Train(Machines, RunOptions, Optimizer, Method, Network, Data):
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

    def check(self) -> None:
        """Refuse options of different parts that do not go together."""
        super().check()
        needs = "a held-out share of the training rows"
        if self.patience is not None and not self.may_hold_out:
            raise ValueError(f"--patience needs --validation, {needs}")
        if self.monitor is not None and self.patience is None and self.method != "ccp":
            raise ValueError("--monitor needs --patience")
        if self.evaluate_every is not None and not self.may_hold_out:
            raise ValueError(f"--evaluate-every needs --validation, {needs}")
        if self.method == "ccp" and not self.may_hold_out:
            raise ValueError(
                "--method ccp needs --validation, held-out rows that tell when a problem ends: --validation 0.2"
            )

    def settled(self) -> Self:
        """Also choose the network by the images, once all is checked."""
        options = super().settled()
        model = options.model or ("small" if options.of_files else "eps")
        options = replace(options, model=model)
        options.recipe()
        options.check_size()
        return options

    def recipe(self) -> Recipe:
        """Say how the options train: the one description that everything is made from.

        Raises:
            ValueError: options that do not go together, as typed.
        """
        with as_typed():
            base = self.of_loss()
            return replace(base, **self.changes(base))

    def config(self) -> dict[str, Any]:
        """Return what defines the run: the recipe, and which data it is for."""
        options = self.settled()
        return {"recipe": options.recipe().to_json(), **options.defining()}

    def title(self, recipe: Recipe) -> str:
        """Return one line that names the run."""
        miner = "" if recipe.miner == "none" else f" + {recipe.miner}"
        method = "" if self.method == "plain" else f"{self.method}, "
        return f"{self.data}: {method}{recipe.loss}{miner}, {recipe.dim}-D, seed {self.seed}"

    def execute(self) -> None:
        """Train, score, show, write metrics.json."""
        from jdml.cli.show import print_table
        from jdml.cli.training import Training
        from jdml.training.checkpoint import write_json
        from jdml.training.placement import writes

        self.join()
        options = self.settled()
        training = Training(options, options.recipe(), started("jdml train", self))
        result = training.run()
        metrics = training.test(result.embedder)
        if not writes():
            return
        title = options.title(training.recipe)
        if metrics:
            print_table(title, *as_table(metrics))
        else:
            print(f"{title}: trained; --split none leaves nothing to score")
        if options.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(options.out / "metrics.json", {"step": step, **metrics})
        for line in training.next_steps():
            print(line)

    def check_size(self) -> None:
        """Refuse what no memory can hold, and a network whose pictures are too large for it."""
        from jdml.cli.sizes import check_memory, check_network

        recipe = self.recipe()
        if self.of_files and self.image_size is not None:
            check_network(str(self.model), self.image_size)
        check_memory(recipe, self.image_size if self.of_files else None, self.batch)


def as_table(rows: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[Any]]]:
    """Turn ``{row: {metric: value}}`` into a table's columns and rows."""
    metrics = next(iter(rows.values()))
    return ["scored on", *metrics], [[name, *row.values()] for name, row in rows.items()]
