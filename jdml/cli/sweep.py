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

from jdml.cli.messages import check_places, check_words
from jdml.cli.start_of_run import words_of
from jdml.cli.train import Train
from jdml.registry.constraints import nearest

OWN = ("seed", "out", "quiet")
"""Options of jdml train that a sweep sets itself."""

JOINED = ("loss_setting", "method_setting")
"""Options whose words are numbers by name: those that are typed hold beside those of --set."""
HELD_OUT = 0.2
"""Share of the training rows by which a sweep chooses, where the data has no val part of its own."""
FAILED = "failed"
"""What a run's result has in the place of metrics, where its numbers were no longer finite."""


def _repeated() -> Any:
    import tyro

    return tyro.conf.UseAppendAction


@dataclasses.dataclass(frozen=True)
class Sweep(Train):
    """Train every combination of settings, each with several seeds, and compare them.

    jdml sweep --set loss=triplet,multi_similarity --set lr=1e-4,1e-3 --seeds 3 --labels parity --out runs/sweep

    All options of jdml train hold for every run; --set takes one of them and its values, a comma between them. Finished
    runs are kept: the same command goes on after an interruption, and more values or --seeds add to what is there.
    Every run lies in a folder of its own in --out, for jdml report and embed; one that is deleted is trained again. The
    first combination is the baseline of the table, here and in jdml compare. Runs are compared by held-out rows, so
    that the test part chooses nothing: those of --validation, the data's own val part, or else a fifth of the training
    rows. A run whose loss is no longer finite is named at the end; the others go on.

    Where settings differ only in numbers of the loss that are traced (margins, temperatures, learning rates), one vmap
    over them trains all at once, without compiling anything again: docs/look.md has a tested example, and one with
    Optuna.
    """

    set: Annotated[tuple[str, ...], _repeated()] = ()
    """An option of jdml train and its values: lr=1e-4,1e-3. May be given several times."""
    seeds: int = 1
    """Runs of each combination, with seeds from --seed on."""
    jobs: int = 1
    """Runs at a time, each in a process of its own; on a GPU each has its share of the memory."""
    choose_on: Literal["test", "validation"] = "validation"
    """test: hold no rows out unless --validation does; the table then shows scores of the test part."""
    metric: tuple[str, ...] = ()
    """Metrics of the table at the end. Default: R@1 and MAP@R."""

    def execute(self) -> None:
        """Train what is missing, compare all."""
        from jdml.cli.compare import show
        from jdml.report import compare_runs, read_runs
        from jdml.report.runs import ORDER
        from jdml.training.records import forget_results
        from jdml.training.run_files import CONFIG
        from jdml.training.study import kept_results, run_study

        if self.out is None:
            raise ValueError("--out is missing: the folder for the runs")
        for name in ("seeds", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if {self.coordinator, self.processes, self.process} != {None}:
            raise ValueError(
                "--coordinator, --processes and --process are for one run on several machines, jdml train: a sweep "
                "trains its runs one by one; --jobs has several at a time, and each machine may have a sweep of its own"
            )
        runs = self.runs()
        jobs = {name: {"name": name, **options.config()} for name, options in runs.items()}
        kept = self.out / "sweep.jsonl"
        kept_results(jobs, kept)  # other settings are told before other data
        _check_data(self.out, runs)
        forget_results(kept, [name for name in runs if not (self.out / name / CONFIG).is_file()])
        self.out.mkdir(parents=True, exist_ok=True)
        _keep_order(self.out / ORDER, list(runs))  # first: whoever looks meanwhile has the baseline
        results = run_study(_Trainer(runs), jobs, kept, workers=self.jobs, progress=not self.quiet)
        failed = {
            name: str(r["metrics"][FAILED]) for name, r in results.items() if FAILED in r["metrics"]
        }
        done = [self.out / name for name in runs if name not in failed]
        if done:
            show(compare_runs(read_runs(*done), metrics=self.metric))
        for name, why in failed.items():
            print(f"failed: {name}: {why}")
        print(f"next: jdml report {shlex.quote(str(self.out))} --out report.html")

    def runs(self) -> dict[str, Train]:
        """The options of every run, by its name, ``VALUES-SEED``."""
        import tyro

        from jdml.cli.training_data import has_validation

        assert self.out is not None
        settings = [_values(text) for text in self.set]
        names = [name for name, _ in settings]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"--set {name} is given twice: give all its values at once")
            if name not in JOINED and getattr(self, name) != getattr(Train, name, None):
                option = name.replace("_", "-")
                raise ValueError(
                    f"--{option} is given, and its values by --set {option}: give one of them"
                )
        common = words_of(
            Train(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Train)}),
            without=(*names, *OWN),
        )
        has_own = functools.cache(has_validation)  # combinations share their data
        holds_out = self.choose_on == "validation" and "validation" not in names
        runs: dict[str, Train] = {}
        for values in itertools.product(*(values for _, values in settings)):
            chosen: list[str] = []
            for name, value in zip(names, values, strict=True):
                chosen += _typed(name, value)
                chosen += getattr(self, name) if name in JOINED else ()
            check_words(Train, chosen)
            options = tyro.cli(Train, prog="jdml sweep", args=[*common, *chosen])
            check_places(options)
            place = (options.data_name, options.data_dir)
            if holds_out and not options.validation and not has_own(*place):
                options = dataclasses.replace(options, validation=HELD_OUT)
            title = re.sub(r"[^\w.+=-]+", "_", "_".join(values)) or "run"
            for seed in range(self.seed, self.seed + self.seeds):
                name = f"{title}-{seed}"
                if name in runs:
                    raise ValueError(f"--set has two combinations that are both called {title}")
                runs[name] = dataclasses.replace(
                    options, seed=seed, out=self.out / name, quiet=True
                )
        return runs


@dataclasses.dataclass(frozen=True)
class _Trainer:
    """From a job of a sweep to its metrics; what its options print is not shown."""

    runs: Mapping[str, Train]

    def __call__(self, job: Mapping[str, Any]) -> dict[str, Any]:
        from jdml.training.compiled_programs import keep_compiled_programs
        from jdml.training.run_files import METRICS, read_json

        keep_compiled_programs()
        options = self.runs[job["name"]]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                options.execute()
        except FloatingPointError as error:  # it would come again: the others go on
            return {FAILED: str(error)}
        assert options.out is not None
        metrics: dict[str, Any] = read_json(options.out / METRICS)
        return metrics


def _check_data(out: Path, runs: Mapping[str, Train]) -> None:
    """Refuse results of other data than there are now."""
    from jdml.cli.start_of_run import data_checksum
    from jdml.cli.training_data import read_training_data
    from jdml.training.run_files import CONFIG, read_json

    there: dict[str, tuple[int, int | None]] = {}
    for name, options in runs.items():
        file = out / name / CONFIG
        if not file.is_file():
            continue
        options = options.settled()
        data = {**options.defining(), "place": options.data_dir, "seed": options.seed}
        key = json.dumps(data, sort_keys=True, default=str)
        if key not in there:
            now = read_training_data(options, options.seed)
            there[key] = data_checksum(now.train), now.files_checksum
        config = read_json(file, dict)
        told = config.get("data_checksum"), config.get("started", {}).get("files_checksum")
        if any(old not in (None, new) for old, new in zip(told, there[key], strict=True)):
            raise ValueError(
                f"--out {out} holds run {name} of other data than there are now: give another --out"
            )


def _keep_order(file: Path, names: list[str]) -> None:
    """Write the order of the runs, those of earlier sweeps in the same folder after them."""
    from jdml.training.run_files import read_json, write_json

    before = read_json(file) if file.is_file() else []
    write_json(file, [*names, *(name for name in before if name not in names)])


def _typed(name: str, value: str) -> list[str]:
    """An option with a value as it is typed; that of a flag is True or False.

    Example:
        >>> _typed("lr", "1e-4"), _typed("remat", "True"), _typed("remat", "False")
        (['--lr', '1e-4'], ['--remat'], ['--no-remat'])
    """
    option = name.replace("_", "-")
    if isinstance(getattr(Train, name, None), bool):
        if value not in ("True", "False"):
            raise ValueError(f"--set {name} is a flag: its values are True and False, got {value}")
        return [f"--{option}" if value == "True" else f"--no-{option}"]
    return [f"--{option}", *([value] if "(" in value or "[" in value else shlex.split(value))]


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
    """An option and its values.

    Example:
        >>> _values("lr=1e-4,1e-3"), _values("loss-setting=margin=0.1,margin=0.2")
        (('lr', ['1e-4', '1e-3']), ('loss_setting', ['margin=0.1', 'margin=0.2']))
    """
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    known = [field.name for field in dataclasses.fields(Train) if field.name not in OWN]
    if name not in known:
        raise ValueError(
            f"--set must be an option of jdml train and its values, such as lr=1e-4,1e-3; got {text!r}"
            f"{nearest(name, known)}"
        )
    listed = [value.strip() for value in _parts(values) if value.strip()]
    if not listed:
        raise ValueError(f"--set {name} has no values: write {name}=FIRST,SECOND")
    return name, listed
