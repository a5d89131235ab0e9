"""What the studies' command lines share: some options, where the data lie, and what is done with the results."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jdml.training.study import run_study


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What every study is asked."""

    workers: int = 1
    """Runs at a time, each in a process of its own with its share of the cores."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnData(Options):
    """What a study is asked that begins on the embedded digits."""

    data: str = "digits"
    data_dir: Path | None = None
    """Folder with the data set's files: MNIST's four IDX files, Omniglot's two zips, or crops in CUB's layout."""

    @property
    def folder(self) -> str | None:
        """The folder as jobs tell it; a data set that needs one and has none ends the program."""
        if self.data_dir is None and self.data != "digits":
            raise SystemExit(f"--data {self.data} needs --data-dir, the folder with its files")
        return None if self.data_dir is None else str(self.data_dir.resolve())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept(Options):
    """What a study is asked whose runs are kept beside it, and made as time allows."""

    minutes: float | None = None
    """Begin no further run after so many minutes."""
    table: bool = False
    """Run nothing."""

    def run(
        self, run: Callable[..., Mapping[str, Any]], jobs: Mapping[str, Any], out: Path
    ) -> None:
        """Do what is missing, as far as time goes."""
        run_study(run, jobs, out, workers=self.workers, minutes=self.minutes)


def tell(tables: str, results: Mapping[str, Any], path: Path) -> None:
    """Print tables, and how long their runs took; write the tables."""
    minutes = sum(result["seconds"] for result in results.values()) / 60
    print(f"{tables}\n{len(results)} runs, {minutes:.0f} process-minutes in all", flush=True)
    path.write_text(tables)
