"""The shared parts of studies: their options, the runs that are missing, and the cells of their tables."""

import dataclasses
import functools
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import smoke
from jdml.report import holm_correction, markdown_table, mean_std, paired_difference
from jdml.runs.run_files import read_results, through_json
from jdml.studies.runner import run_jobs
from jdml.training import FitResult, disable_malloc_trim

Results = Mapping[str, Any]
"""Runs by name: each has its job, its metrics, its seconds and its machine."""


def read_toml(file: str, name: str = "study.toml") -> dict[str, Any]:
    """Return a file of values next to a study's file; with --smoke those of its table smoke replace others."""
    values = tomllib.loads(Path(file).with_name(name).read_text())
    for key, toy in values.pop("smoke", {}).items():
        if smoke.SMOKE:
            values[key] = {**values[key], **toy} if isinstance(values[key], dict) else toy
    return values


PAPER = read_toml(__file__, "paper.toml")
"""Results that the papers report, by study and table."""


def batch_of(rows: int | Sequence[int]) -> dict[str, int]:
    """Return a recipe's batch: so many rows, or so many classes and samples of each."""
    if isinstance(rows, int):
        return {"size": rows}
    return {"classes": rows[0], "samples_per_class": rows[1]}


def absolute(path: Path | None) -> str | None:
    """Return a path as jobs have it, wherever the study is started."""
    return None if path is None else str(path.resolve())


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of every study."""

    workers: int = 1
    """Runs at a time, each in a process of its own with its share of the cores."""
    smoke: bool = smoke.SMOKE
    """Toy sizes: everything runs once, in seconds, on generated images if there is no folder, into a new folder
    runs/smoke-…. The numbers mean nothing."""
    data_dir: Path | None = None
    """Folder with the data set's files: MNIST's four IDX files, Omniglot's two zips, or crops in CUB's layout; by
    default where `jdml data get NAME` prepares it."""
    match: tuple[str, ...] = ()
    """Regular expressions: do only the runs in whose names one of them occurs."""
    table: bool = False
    """Run nothing, and read no images: only the tables of the runs on record."""
    weights: Path | None = None
    """For photographs: pretrained weights of EfficientNet-Lite0, from jdml weights convert."""

    @property
    def folder(self) -> str | None:
        """The data's folder as jobs have it."""
        return absolute(self.data_dir)

    def chosen(self, jobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the jobs that are asked for."""
        wanted = re.compile("|".join(self.match))
        return {name: job for name, job in jobs.items() if wanted.search(name)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderOptions(StudyOptions):
    """The options of a study whose runs are written into a folder, and copied to its record by hand."""

    seeds: int = smoke.small(3, 1)
    """Runs per method, with seeds 0, 1, …"""
    sweep_seeds: int = 1
    """Runs per point of the sweeps."""
    steps: int | None = None
    """Training steps of each run; by default those of the data set."""
    out: Path | None = None
    """Folder of the results; default runs/STUDY_DATA."""

    def place(self, study: str) -> Path:
        """Return the folder of a study, which is named by its file."""
        name = f"{Path(study).parent.name}_{getattr(self, 'data', '')}".rstrip("_")
        return self.out or smoke.small(Path("runs"), smoke.FOLDER) / name

    def results(
        self, study: str, run: Any, jobs: Mapping[str, Any], part: str | None = None
    ) -> Results:
        """Run what is missing, and return all runs; with --table those of a part that are on record."""
        if self.table:
            return read_record(study, getattr(self, "data", "") if part is None else part)
        run = functools.partial(attempt, run)
        return run_jobs(
            run, self.chosen(jobs), self.place(study) / "results.jsonl", workers=self.workers
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordOptions(StudyOptions):
    """The options of a study whose runs are added to its record as time allows."""

    minutes: float | None = None
    """Begin no further run after so many minutes."""
    out: Path | None = None
    """File of the runs; default the study's record."""

    @functools.cached_property
    def _end(self) -> float | None:
        return None if self.minutes is None else time.monotonic() + 60 * self.minutes

    def results(self, run: Any, jobs: Mapping[str, Any], file: Path, **places: Any) -> Any:
        """Run what is missing, as far as time allows from the first call on; return all runs on record.

        Where the data and other files lie is no part of a job: ``run`` takes it as ``data_dir``, and by ``places``.
        """
        out = self.out or smoke.record(file)
        if not self.table:
            one = functools.partial(attempt, run, data_dir=self.folder, **places)
            left = None if self._end is None else max(0.0, (self._end - time.monotonic()) / 60)
            run_jobs(one, self.chosen(jobs), out, workers=self.workers, minutes=left)
        return read_results(out)


def attempt(run: Any, job: Mapping[str, Any], **places: Any) -> dict[str, Any]:
    """Do a run; the metrics of one that diverges say so."""
    try:
        return dict(run(job, **places))
    except FloatingPointError as error:
        return {"diverged": str(error)}


def best_of(result: FitResult) -> dict[str, Any]:
    """Return the best evaluation of a run, and its step."""
    assert result.best is not None
    return {"validation": result.best.value, "best step": result.best.step}


def start(main: Callable[[Any], str], settings: type, description: str | None) -> None:
    """Begin a study at the command line: read its settings, and print what it returns."""
    chosen: Any = tyro.cli(settings, description=description)
    if smoke.SMOKE:
        chosen = smoke.begin(chosen)
    else:
        disable_malloc_trim()
    print(main(chosen), flush=True)


def folder_study(study: str, run: Any, jobs: Any, report: Any) -> Callable[[Any], str]:
    """Return the main function of a study in a folder: it runs what is missing, and returns the tables."""
    return lambda settings: report(settings.results(study, run, jobs(settings)), settings)


def record_study(record: Path, run: Any, jobs: Any, tables: Any) -> Callable[[Any], str]:
    """Return that of a study with a record: it runs what is missing, as far as time goes."""
    return lambda settings: tables(settings.results(run, jobs(settings), record))


def with_seeds(base: Mapping[str, Any], runs: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Return the jobs of named runs: all with the first seed, then with the next."""
    return {
        f"{name}-{seed}": {**base, **own, "seed": seed}
        for seed in range(seeds)
        for name, own in runs.items()
    }


def read_record(study: str, part: str = "") -> dict[str, Any]:
    """Return those runs on record next to a study's file that are called ``part: run``, or those of no part."""
    runs = read_results(Path(study).with_name("results.jsonl"))
    named = {name.rpartition(": ")[::2]: run for name, run in runs.items()}
    return {name: run for (of, name), run in named.items() if of == part}


def over_seeds(results: Mapping[str, Mapping[str, Any]], name: str, metric: str) -> list[Any]:
    """Return the values of a metric in all runs called ``NAME-SEED``, without those that do not have it."""
    chosen = (run["metrics"] for key, run in results.items() if key.rpartition("-")[0] == name)
    return [metrics[metric] for metrics in chosen if metric in metrics]


def by_seed(
    results: Mapping[str, Mapping[str, Any]], metric: str, /, **settings: Any
) -> dict[int, Any]:
    """Return the values of a metric by seed, of the runs whose jobs have some settings; refuse two of one seed."""
    values: dict[int, Any] = {}
    wanted = through_json(settings)
    for run in results.values():
        job, metrics = run["job"], run["metrics"]
        if not wanted.items() <= job.items() or metric not in metrics or "seed" not in job:
            continue
        if job["seed"] in values:
            raise ValueError(
                f"settings must select one run of a seed, got two of seed {job['seed']} with {settings}"
            )
        values[job["seed"]] = metrics[metric]
    return values


def cell(values: Sequence[float], scale: float = 100.0, digits: int = 1, none: str = "–") -> str:
    """Return mean and standard deviation of runs, in percent by default; a dash where there are none."""
    return mean_std(values, scale=scale, digits=digits) if len(values) else none


def cells(
    results: Results, name: str, metrics: Iterable[str], scale: float = 100.0, digits: int = 1
) -> list[str]:
    """Return a cell for each metric, of the runs of a name over their seeds."""
    return [cell(over_seeds(results, name, metric), scale, digits) for metric in metrics]


def gains(results: Results, name: str, base: str, metric: str) -> Any:
    """Return by how much the runs of a name are better than those of another, seed by seed."""
    return np.subtract(*(over_seeds(results, one, metric) for one in (name, base)))


def curve(history: Sequence[Mapping[str, Any]], metric: str = "MAP@R") -> list[list[float]]:
    """Return step and value of each evaluation of a run."""
    return [[one["step"], round(float(one[metric]), 5)] for one in history if metric in one]


def present(names: Iterable[str], results: Results, setting: str) -> list[str]:
    """Return the names for a setting that some run has."""
    there = {result["job"].get(setting) for result in results.values()}
    return [name for name in names if name in there]


def paired_table(
    title: str,
    tests: Mapping[str, tuple[str, str]],
    values: Mapping[str, Mapping[str, Mapping[Any, float]]],
    *,
    planned: int | None = None,
) -> str:
    """Return the differences of two settings of each test, by column; of the first test also p-values by Holm.

    ``values`` are scores by column, setting and seed; ``planned`` is the number of columns that were planned.
    """
    tested = {
        name: {
            column: paired_difference(runs.get(one, {}), runs.get(other, {}))
            for column, runs in values.items()
        }
        for name, (one, other) in tests.items()
    }
    rows = [
        [f"{name}: {' − '.join(tests[name])}", *map(str, results.values())]
        for name, results in tested.items()
    ]
    table = markdown_table([title, *values], rows)
    if planned is None:
        return table
    first, results = next(iter(tested.items()))
    p = holm_correction({column: each.p for column, each in results.items()}, tests=planned)
    words = ", ".join(f"{column} {value:.2g}" for column, value in p.items()) or "no runs yet"
    return f"{table}\n{first}, p with Holm's correction over {planned} tests: {words}.\n"
