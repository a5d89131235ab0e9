"""``jdml demo``: see easy positive sampling undo class collapse on real digits."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """Train on even/odd labels, and see which methods still separate the digits.

    Four methods learn 16-D embeddings of real 8x8 digits 0 to 5 from the labels even and odd only. They are scored on
    the digits: unseen images of 0 to 5, and the unseen digits 6 to 9. It takes about a minute on two cores and needs no
    files.
    """

    out: Path = Path("runs/demo")
    """Folder for the figure (demo.png), the page (report.html), metrics.json and config.json."""
    steps: int = 400
    """Training steps of each method."""
    seeds: int = 3
    """Runs of each method; the table shows their mean and standard deviation."""

    def execute(self) -> None:
        """Train the four methods, print the table, write the figure and the run folder."""
        from jdml.cli.tables import print_table
        from jdml.studies.demo import run_demo, summary, table

        result = run_demo(self.out, steps=self.steps, seeds=self.seeds)
        print_table("R@1 and MAP@R by digit, in %, of models trained on even/odd", *table(result))
        for line in summary(result):
            print(line)
        print(f"figure: {self.out / 'demo.png'}")
        print(f"report: {self.out / 'report.html'}")
