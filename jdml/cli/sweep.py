"""``jdml sweep``: every combination of settings and seeds, trained and compared."""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jdml.cli.compare import show
from jdml.cli.options.reading import Typed, changed_options, make, parse, paths
from jdml.cli.provenance import data_checksum
from jdml.cli.train import Train
from jdml.cli.training_data import has_validation, read_training_data
from jdml.compilation_cache import keep_compiled_programs
from jdml.ops.checks import did_you_mean
from jdml.report import compare_runs, read_runs
from jdml.report.runs import ORDER
from jdml.runs.results_store import delete_results
from jdml.runs.run_files import CONFIG, METRICS, read_json, write_json
from jdml.studies.runner import results_of, run_jobs

OWN = ("--seed", "--out", "--quiet", "--coordinator", "--processes", "--process")
"""Options of jdml train that a sweep sets itself, or has not."""
HELD_OUT = 0.2
"""Share of the training rows by which a sweep chooses, where the data has no val part of its own."""
FAILED = "failed"
"""Takes the place of the metrics of a run whose numbers were no longer finite."""


@dataclasses.dataclass(frozen=True)
class Sweep(Train):
    """Train every combination of settings, each with several seeds, and compare them.

    jdml sweep --set loss=triplet,multi_similarity --set lr=1e-4,1e-3 --seeds 3 --labels parity --out runs/sweep

    All options of jdml train hold for every run; --set takes one of them and its values, a comma between them. Finished
    runs are kept: the same command resumes after an interruption, and more values or --seeds add to what is there.
    Every run has a folder of its own in --out, for jdml report and embed; one that is deleted is trained again. The
    first combination is the baseline of the table, here and in jdml compare. Runs are compared by held-out rows, so
    that the test part chooses nothing: those of --validation, the data's own val part, or else a fifth of the training
    rows. A run whose loss is no longer finite is named at the end; the others continue.

    Where settings differ only in numbers of the loss that are traced (margins, temperatures, learning rates), one vmap
    over them trains all at once, without compiling anything again: docs/look.md has a tested example, and one with
    Optuna.
    """

    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """An option of jdml train and its values: lr=1e-4,1e-3. May be given several times."""
    seeds: int = 1
    """Runs of each combination, with seeds from --seed on."""
    jobs: int = 1
    """Runs at a time, each in a process of its own; on a GPU each has its share of the memory."""
    select_on: Literal["test", "validation"] = "validation"
    """test: hold no rows out unless --validation does; the table then shows scores of the test part."""
    metric: tuple[str, ...] = ()
    """Metrics of the table at the end. Default: R@1 and MAP@R."""

    def execute(self) -> None:
        """Train what is missing, compare all."""
        out = self.run.out
        if out is None:
            raise ValueError("--out is missing: the folder for the runs")
        for name in ("seeds", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        machine = self.devices
        if {machine.coordinator, machine.processes, machine.process} != {None}:
            raise ValueError(
                "--coordinator, --processes and --process are for one run on several machines, jdml train: a sweep "
                "trains its runs one by one; --jobs has several at a time, and each machine may have a sweep of its own"
            )
        runs = self.runs()
        jobs = {name: {"name": name, **options.config()} for name, options in runs.items()}
        record = out / "sweep.jsonl"
        results_of(jobs, record)  # other settings are reported before other data
        _check_data(out, runs)
        delete_results(record, [name for name in runs if not (out / name / CONFIG).is_file()])
        out.mkdir(parents=True, exist_ok=True)
        _keep_order(out / ORDER, list(runs))  # first: a reader meanwhile has the baseline
        progress = not self.run.quiet
        results = run_jobs(_Trainer(runs), jobs, record, workers=self.jobs, progress=progress)
        failed = {
            name: str(r["metrics"][FAILED]) for name, r in results.items() if FAILED in r["metrics"]
        }
        done = [out / name for name in runs if name not in failed]
        if done:
            show(compare_runs(read_runs(*done), metrics=self.metric))
        for name, why in failed.items():
            print(f"failed: {name}: {why}")
        print(f"next: jdml report {shlex.quote(str(out))} --out report.html")

    def runs(self) -> dict[str, Train]:
        """Return the options of every run, by its name, ``VALUES-SEED``."""
        assert self.run.out is not None
        settings = [_values(text) for text in self.set]
        options = [option for option, _ in settings]
        common = changed_options(
            Train(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Train)})
        )
        for option in options:
            if options.count(option) > 1:
                raise ValueError(f"--set {option[2:]} is given twice: give all its values at once")
            *groups, name = paths(Train)[option]
            own = functools.reduce(lambda values, group: values.get(group, {}), groups, common)
            if name in own and not isinstance(own[name], tuple):
                raise ValueError(
                    f"{option} is given, and its values by --set {option[2:]}: give one of them"
                )
        has_own = functools.cache(has_validation)  # combinations share their data
        holds_out = self.select_on == "validation" and "--validation" not in options
        runs: dict[str, Train] = {}
        for values in itertools.product(*(values for _, values in settings)):
            changes = itertools.starmap(read_value, zip(options, values, strict=True))
            train = make(Train, functools.reduce(_merge, changes, common))
            data = train.data
            if holds_out and not data.validation and not has_own(data.data_name, data.data_dir):
                data = dataclasses.replace(data, validation=HELD_OUT)
            title = re.sub(r"[^\w.+=-]+", "_", "_".join(values)) or "run"
            for seed in range(self.run.seed, self.run.seed + self.seeds):
                name = f"{title}-{seed}"
                if name in runs:
                    raise ValueError(f"--set has two combinations that are both called {title}")
                run = dataclasses.replace(train.run, seed=seed, out=self.run.out / name, quiet=True)
                runs[name] = dataclasses.replace(train, data=data, run=run)
        return runs


@functools.cache
def read_value(option: str, text: str) -> Typed:
    """Return what an option of jdml train reads from a text: one word, or several with a space between them.

    Example:
        >>> read_value("--lr", "1e-4")["optimizer"], read_value("--remat", "False")["network"]
        ({'learning_rate': 0.0001}, {'remat': False})
    """
    words = [text] if "(" in text or "[" in text else shlex.split(text)
    words = [f"{option}={text}"] if text.startswith("-") else [option, *words]
    if text in ("True", "False"):
        words = [option if text == "True" else option.replace("--", "--no-", 1)]
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return parse(Train, words, "jdml train")
    except SystemExit as error:
        raise ValueError(f"{option} cannot be {text!r}: see jdml train --help") from error


def _merge(common: Typed, changed: Typed) -> Typed:
    """Return options with others in their place; of several words, after them."""
    merged = dict(common)
    for name, value in changed.items():
        own = common.get(name)
        if isinstance(value, dict):
            value = _merge(own or {}, value)
        elif isinstance(value, tuple):
            value = (*(own or ()), *value)
        merged[name] = value
    return merged


@dataclasses.dataclass(frozen=True)
class _Trainer:
    """From a job of a sweep to its metrics; what its options print is not shown."""

    runs: Mapping[str, Train]

    def __call__(self, job: Mapping[str, Any]) -> dict[str, Any]:

        keep_compiled_programs()
        options = self.runs[job["name"]]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                options.execute()
        except FloatingPointError as error:  # it would come again: the others continue
            return {FAILED: str(error)}
        assert options.run.out is not None
        metrics: dict[str, Any] = read_json(options.run.out / METRICS)
        return metrics


def _check_data(out: Path, runs: Mapping[str, Train]) -> None:
    """Refuse results of other data than there are now."""
    there: dict[str, tuple[int, int | None]] = {}
    for name, options in runs.items():
        file = out / name / CONFIG
        if not file.is_file():
            continue
        options = options.resolve()
        data = {**options.defining(), "place": options.data.data_dir}
        key = json.dumps(data, sort_keys=True, default=str)
        if key not in there:
            now = read_training_data(options.data, options.run.seed)
            there[key] = data_checksum(now.train), now.files_checksum
        config = read_json(file, dict)
        there_before = config.get("data_checksum"), config.get("started", {}).get("files_checksum")
        if any(old not in (None, new) for old, new in zip(there_before, there[key], strict=True)):
            raise ValueError(
                f"--out {out} holds run {name} of other data than there are now: give another --out"
            )


def _keep_order(file: Path, names: list[str]) -> None:
    """Write the order of the runs, those of earlier sweeps in the same folder after them."""
    before = read_json(file) if file.is_file() else []
    write_json(file, [*names, *(name for name in before if name not in names)])


def _parts(values: str) -> list[str]:
    """What stands between commas; those in brackets belong to a value.

    Example:
        >>> _parts("k=(1, 2),k=((1,2),(3,4)),k=5")
        ['k=(1, 2)', 'k=((1,2),(3,4))', 'k=5']
    """
    parts, depth = [""], 0
    for letter in values:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _values(text: str) -> tuple[str, list[str]]:
    """Return an option and its values.

    Example:
        >>> _values("lr=1e-4,1e-3"), _values("loss-setting=margin=0.1,margin=0.2")
        (('--lr', ['1e-4', '1e-3']), ('--loss-setting', ['margin=0.1', 'margin=0.2']))
    """
    name, _, values = text.partition("=")
    option = f"--{name.strip().removeprefix('--').replace('_', '-')}"
    known = [option for option in paths(Train) if option not in OWN]
    if option not in known:
        raise ValueError(
            f"--set must be an option of jdml train and its values, such as lr=1e-4,1e-3; got {text!r}"
            f"{did_you_mean(option[2:], [each[2:] for each in known])}"
        )
    choices = [value.strip() for value in _parts(values) if value.strip()]
    if not choices:
        raise ValueError(f"--set {option[2:]} has no values: write {option[2:]}=FIRST,SECOND")
    return option, choices
