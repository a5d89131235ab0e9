"""``jdml sweep``: every combination of settings and seeds, trained and compared."""

import contextlib
import functools
import io
import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jdml.cli.options import ALIASES, Part, defining, fields_of, option_of, read, typed_dict
from jdml.cli.report import print_comparison
from jdml.cli.train import Train
from jdml.cli.training_data import read_training_data
from jdml.compilation_cache import keep_compiled_programs
from jdml.data.load import has_validation
from jdml.ops.checks import did_you_mean, positive
from jdml.report import compare_runs, read_runs
from jdml.report.runs import ORDER
from jdml.runs.identity import data_fingerprint
from jdml.runs.run_files import CONFIG, METRICS, delete_results, read_json, write_json
from jdml.studies.runner import results_of, run_jobs

OWN = ("--seed", "--out", "--quiet", "--coordinator", "--processes", "--process")
"""Options of jdml train that --set does not take."""
COMMA = r",(?![^(\[]*[)\]])"
"""A comma outside of brackets."""
HELD_OUT = 0.2
"""Fraction of the training rows that is held out, if the data have no val part of their own."""
FAILED = "failed"
"""Takes the place of the metrics of a run whose loss is not finite."""


@dataclass(frozen=True)
class Sweep(Train):
    """Train every combination of settings, each with several seeds, and compare them.

    All options of jdml train apply to every run; --set takes one of them and its values, separated by commas. The same
    command resumes after an interruption, and more values or --seeds add runs. Every run has its own folder in --out,
    for jdml report and embed. The first combination is the baseline of the table, here and in jdml compare.

    Runs are compared on held-out rows, not on the test part: those of --validation, the data's own val part, or else a
    fifth of the training rows. A run whose loss is not finite is reported at the end; the others continue.
    """

    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """An option of jdml train and its values: lr=1e-4,1e-3. May be given several times."""
    seeds: Annotated[int, positive] = 1
    """Runs of each combination, with seeds from --seed on."""
    jobs: Annotated[int, positive] = 1
    """Number of runs at a time, each in its own process; on a GPU they share the memory equally."""
    select_on: Literal["test", "validation"] = "validation"
    """Rows that runs are compared on; with test, none are held out unless --validation is given."""
    metric: tuple[str, ...] = ()
    """Metrics of the table at the end. Default: R@1 and MAP@R."""

    def execute(self) -> None:
        """Train the missing runs, and compare all."""
        out = self.run.out
        if out is None:
            raise ValueError("--out is missing: the folder for the runs")
        runs, jobs, checksums = self.runs(), dict[str, Any](), functools.cache(_checksums)
        for name, run in runs.items():
            settled = run.resolve()
            jobs[name] = {
                "name": name,
                "recipe": settled.recipe.to_json(),
                **defining(settled.data, settled.weights, settled.run),
                **checksums(settled.data, settled.run.seed),
            }
        record = out / "sweep.jsonl"
        results_of(jobs, record)  # refuses other settings and other data
        delete_results(record, [name for name in runs if not (out / name / CONFIG).is_file()])
        out.mkdir(parents=True, exist_ok=True)
        before = read_json(out / ORDER, missing=[])
        write_json(out / ORDER, [*runs, *(name for name in before if name not in runs)])
        train, progress = functools.partial(_train_job, runs), not self.run.quiet
        results = run_jobs(train, jobs, record, workers=self.jobs, progress=progress)
        failed = [name for name, result in results.items() if FAILED in result["metrics"]]
        done = [out / name for name in runs if name not in failed]
        if done:
            print_comparison(compare_runs(read_runs(*done), metrics=self.metric))
        for name in failed:
            print(f"failed: {name}: {results[name]['metrics'][FAILED]}")
        print(f"next: jdml report {shlex.quote(str(out))} --out report.html")

    def runs(self) -> dict[str, Train]:
        """Return the options of every run, by its name, ``VALUES-SEED``."""
        settings: dict[str, list[str]] = {}
        for text in self.set:
            option, choices = _values(text)
            settings.setdefault(option, []).extend(choices)
        # A run has a seed and a folder of its own.
        of_runs = {*Train.__dataclass_fields__, *vars(self.run)} - {"run", "seed", "out"}
        own: Any = typed_dict(Sweep, Part(self, tuple(of_runs)))
        flat: Any = (tyro.conf.OmitArgPrefixes,)
        common = tyro.cli(own, args=self.words, return_unknown_args=True, config=flat)[1]
        common += ["--quiet"] * (self.jobs > 1)  # one run shows its steps
        has_own = functools.cache(has_validation)  # combinations share their data
        holds_out = self.select_on == "validation" and "--validation" not in settings
        runs: dict[str, Train] = {}
        for texts in itertools.product(*settings.values()):
            own_words, screen = [*itertools.chain(*map(_words, settings, texts))], io.StringIO()
            words, line = [*common, *own_words], shlex.join(own_words)
            try:
                with contextlib.redirect_stderr(screen), contextlib.redirect_stdout(screen):
                    train = read(Train, words, "jdml train")
            except SystemExit as error:
                raise ValueError(f"--set cannot be {line}: see jdml train --help") from error
            data = train.data
            if holds_out and not data.validation and not has_own(data.data_name, data.data_dir):
                words += ["--validation", str(HELD_OUT)]
                data = replace(data, validation=HELD_OUT)
            title = re.sub(r"[^\w.+=-]+", "_", "_".join(texts)) or "run"
            for seed in range(self.run.seed, self.run.seed + self.seeds):
                name = f"{title}-{seed}"
                if name in runs:
                    raise ValueError(f"--set has two combinations that are both called {title}")
                place = Path(str(self.run.out), name)
                run = replace(train.run, seed=seed, out=place)
                run_words = (*words, f"--seed={seed}", f"--out={place}")
                runs[name] = replace(train, data=data, run=run, words=run_words)
        return runs


def _words(option: str, text: str) -> list[str]:
    """Return the words of an option with a value of --set: one word, or several with a space between them."""
    if text in ("True", "False"):
        return [option if text == "True" else option.replace("--", "--no-", 1)]
    if text.startswith("-"):
        return [f"{option}={text}"]
    return [option, *([text] if "(" in text or "[" in text else shlex.split(text))]


def _checksums(data: Any, seed: int) -> dict[str, str | int | None]:
    """Return the checksums by which a sweep refuses to mix runs of other data."""
    now = read_training_data(data, seed)
    return {"data_checksum": data_fingerprint(now.train), "files_checksum": now.files_checksum}


def _train_job(runs: Mapping[str, Train], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a job of a sweep; print nothing."""
    keep_compiled_programs()
    options = runs[job["name"]]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            options.execute()
    except FloatingPointError as error:  # a repetition would end like this, too
        return {FAILED: str(error)}
    return dict(read_json(Path(str(options.run.out), METRICS)))


def _values(text: str) -> tuple[str, list[str]]:
    """Return an option and its values: of ``lr=1e-4,1e-3`` these are --lr and 1e-4, 1e-3."""
    name, _, values = text.partition("=")
    option = f"--{name.strip().removeprefix('--').replace('_', '-')}"
    known = {option_of(*each) for each in fields_of(Train)} - {*OWN} | {*ALIASES["learning_rate"]}
    choices = [value.strip() for value in re.split(COMMA, values) if value.strip()]
    if option not in known or not choices:
        raise ValueError(
            f"--set must be an option of jdml train and its values, such as lr=1e-4,1e-3; got {text!r}"
            f"{did_you_mean(option[2:], [each[2:] for each in known])}"
        )
    return option, choices
