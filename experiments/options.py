"""What the studies' command lines share: some options, and where the data lie."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tyro

from experiments import smoke
from jdml.runs.results_store import read_results
from jdml.studies.runner import run_study
from jdml.training import keep_freed_memory


def resolved(path: Path | None) -> str | None:
    """A path as jobs tell it, wherever the study is started."""
    return None if path is None else str(path.resolve())


def check_names(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that a study does not have."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"--{option} must be some of {', '.join(known)}; got {unknown}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tabled:
    """What every study is asked that has runs beside it."""

    workers: int = 1
    """Runs at a time, each in a process of its own with its share of the cores."""
    smoke: bool = smoke.SMOKE
    """Toy sizes: everything runs once, in seconds, on generated images if there is no folder, into a new folder
    runs/smoke-…. The numbers mean nothing."""
    data_dir: Path | None = None
    """Folder with the data set's files: MNIST's four IDX files, Omniglot's two zips, or crops in CUB's layout; by
    default where `jdml data get NAME` prepares it."""
    table: bool = False
    """Run nothing, and read no images: only the tables of the runs that are kept."""

    @property
    def folder(self) -> str | None:
        """The folder as jobs tell it."""
        return resolved(self.data_dir)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InFolder(Tabled):
    """What a study is asked that begins on the embedded digits and writes all it makes into a folder."""

    data: str = "digits"
    seeds: int = 1
    """Runs per method, with seeds 0, 1, …"""
    steps: int | None = None
    """Training steps of each run; by default those of the data set."""
    out: Path | None = None
    """Folder for results, tables and figures; default runs/STUDY_DATA."""

    def place(self, study: str) -> Path:
        """The folder of a study."""
        return self.out or smoke.small(Path("runs"), smoke.FOLDER) / f"{study}_{self.data}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept(Tabled):
    """What a study is asked whose runs are kept beside it, and made as time allows."""

    minutes: float | None = None
    """Begin no further run after so many minutes."""

    @functools.cached_property
    def _end(self) -> float | None:
        return None if self.minutes is None else time.monotonic() + 60 * self.minutes

    def results(self, run: Any, jobs: Mapping[str, Any], out: Path, **places: Any) -> Any:
        """Do what is missing, as far as time goes from the first call on; all runs that are kept.

        Where the data and other files lie is no part of a job: ``run`` takes it as ``data_dir``, and by ``places``.
        """
        if not self.table:
            one = functools.partial(run, data_dir=self.folder, **places)
            left = None if self._end is None else max(0.0, (self._end - time.monotonic()) / 60)
            run_study(one, jobs, out, workers=self.workers, minutes=left)
        return read_results(out)


def start(main: Callable[[Any], str | None], settings: type, description: str | None) -> None:
    """Begin a study at the command line: read its settings, and print what it returns."""
    chosen: Any = tyro.cli(settings, description=description)
    if smoke.SMOKE:
        chosen = smoke.begin(chosen)
    else:
        keep_freed_memory()
    text = main(chosen)
    if text is not None:
        print(text, flush=True)
