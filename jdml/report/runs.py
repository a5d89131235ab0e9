"""Read runs from their folders: settings, logs, scores."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from jdml._paths import check_local, expand_user, json_of, wrap_read_errors
from jdml.data import Dataset, ImageFiles
from jdml.data.folder import image_named
from jdml.report.embedding_stats import NO_CLASS
from jdml.runs.embedding_io import read_embeddings
from jdml.runs.run_files import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    METRICS,
    MODEL,
    RESOURCES,
    is_of_benchmark,
    read_json,
    read_results,
)

RESULTS = "results.jsonl"
ORDER = "sweep.json"
"""The names of a sweep's runs, in their order."""
NOT_SETTINGS = ("data_checksum", "data_dir")
"""Settings that only say where the images of a run are."""
OF_NETWORK = ("network", "class", "factory", "dim")
"""Attributes of a network that identify it."""
FILES = "its files"
"""The setting that identifies a run's image files."""
OF_THE_LOOP = ("embedding", "fingerprint", "fit", "callbacks", "provenance", "versions")
"""Entries that training adds to a run's configuration."""
HELD_OUT = "validation"
"""Prefix of the scores of held-out rows, and of an unfinished benchmark's models."""
NOT_CURVES = ("seconds", "step")
NO_SCORES = ("queries", "step")


@dataclass(frozen=True, eq=False)
class Run:
    """One run, whatever made it.

    Attributes:
        name: of the run.
        settings: without the seed, by dotted names.
        seed: None without one.
        metrics: scores by name.
        log: the records of its log: ``step``, ``loss``, and what else was logged.
        path: its folder or file; None in memory.
        config: its ``config.json``.
        command: the command that repeats it.
        versions: of the libraries.
        paper: what the method's paper reports, in percent, by metric.
        seconds: duration.
        memory: peak memory, in MiB.
        embeddings: ``[N, D]``, if known.
        data: the data set of the embeddings.
        train: the training data set, or a part of it.
        train_embeddings: of its rows, if known.
        proxies: ``[C, K, D]``, the objective's, if known.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    log: Sequence[Mapping[str, Any]] = ()
    path: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    memory: float | None = None
    embeddings: Any = None
    data: Any = None
    train: Any = None
    train_embeddings: Any = None
    proxies: Any = None

    @property
    def trained(self) -> bool:
        """Whether there are parameters to load."""
        names = (MODEL, CHECKPOINTS)
        return self.path is not None and any((self.path / name).exists() for name in names)


def read_runs(*places: str | Path) -> list[Run]:
    """Read runs from where they were written.

    Args:
        *places: folders of runs of ``jdml train``, ``benchmark``, ``sweep``, ``demo`` and :func:`jdml.training.fit`, of
            a study, or of several of these; a study's ``results.jsonl``; ``.npz`` files with ``embeddings`` and
            optionally ``labels`` and ``files``.

    Returns:
        The runs, in the order of the places and, within one, of their names; those of a sweep in its order.

    Raises:
        FileNotFoundError: a place does not exist.
        ValueError: a place holds no run.
    """
    if not places:
        raise ValueError("places must name at least one run, got none")
    runs: list[Run] = []
    for each in places:
        check_local("run", each)
        place = expand_user(each)
        if not place.exists():
            raise FileNotFoundError(f"run {place} does not exist")
        with wrap_read_errors(place):
            read = list(_read(place))
        if not read:
            raise ValueError(
                f"{place} holds no run: expected a run's folder (with {CONFIG}), a folder of runs, a study's "
                "results.jsonl or a .npz file"
            )
        runs += read
    # One for each folder or file: two paths may lead to it.
    once = {(Path(run.path or "").resolve(), run.name): run for run in runs}
    names = [run.name for run in once.values()]
    longer = [f"{path.parent.name}/{name}" for path, name in once]
    unique = unique_names(names, longer)
    return [replace(run, name=name) for run, name in zip(once.values(), unique, strict=True)]


def as_runs(runs: Any, data: Any = None) -> list[Run]:
    """Read runs that are folders or files; all of them show ``data`` if it is there."""
    several = [runs] if isinstance(runs, str | Path | Run) else runs
    listed = [r for run in several for r in ([run] if isinstance(run, Run) else read_runs(run))]
    return listed if data is None else [replace(run, data=data) for run in listed]


def _read(place: Path) -> Iterator[Run]:
    if place.suffix == ".npz":
        yield _of_arrays(place)
    elif place.suffix == ".jsonl":
        yield from _of_study(place)
    elif (place / RESULTS).is_file():
        yield from _of_study(place / RESULTS)
    elif "options" in (scores := read_json(place / METRICS, dict, missing={})):
        yield from _of_benchmark(place, scores)
    elif (place / CONFIG).is_file():
        yield _of_folder(place, scores)
    elif place.is_dir():  # the runs of a sweep in its order, so that its first one is the baseline
        order = read_json(place / ORDER, list, missing=[])
        rank = {name: number for number, name in enumerate(order)}
        folders = [child for child in place.iterdir() if child.is_dir()]
        for child in sorted(folders, key=lambda f: (rank.get(f.name, len(rank)), f.name)):
            yield from _read(child)


def _of_folder(place: Path, scores: Mapping[str, Any]) -> Run:
    """Read a run of :func:`jdml.training.fit`, also one of ``jdml train``."""
    config, log = read_json(place / CONFIG, dict), _read_log(place / LOG)
    fit, provenance = config.get("fit", {}), config.get("provenance", {})
    own = {k: v for k, v in config.items() if k not in (*OF_THE_LOOP, *NOT_SETTINGS)}
    recipe = flatten_dict(dict(own.pop("recipe", {})), sep=".")
    # The name of a part is called as the part.
    settings = {name.removesuffix(".name"): value for name, value in recipe.items()}
    settings |= flatten_dict(own, sep=".")
    if "data" not in own:  # a program's own run is known by its fingerprints alone
        settings |= {f"fit.{name}": value for name, value in fit.items() if name != "seed"}
        prints = config.get("fingerprint", {})
        settings |= {f"its {k}": prints[k] for k in ("objective", "optimizer") if k in prints}
        network = config.get("embedding", {})
        settings["its network"] = {k: network[k] for k in OF_NETWORK if k in network}
    if provenance.get("files_checksum") is not None:
        settings[FILES] = provenance["files_checksum"]
    seed = settings.pop("seed", fit.get("seed"))
    memory = read_json(place / RESOURCES, dict, missing={}).get("memory_mib")
    return Run(
        place.resolve().name,
        settings,
        seed,
        _flat_scores(scores, HELD_OUT if is_of_benchmark(config) else ""),
        log,
        place,
        config,
        provenance.get("command"),
        config.get("versions", {}),
        seconds=log[-1].get("seconds") if log else None,
        memory=memory if _is_number(memory) else None,
    )


def _of_benchmark(place: Path, scores: dict[str, Any]) -> Iterator[Run]:
    """Read the runs of ``jdml benchmark``, one for each seed; of four folds the first, with the time of all."""
    options = scores["options"]
    every = scores.get("seeds") or [{k: v for k, v in scores.items() if k != "options"}]
    apart = 4 if options.get("protocol") == "mlrc" else 1
    name = place.resolve().name
    own = {k: v for k, v in options.items() if k not in (*NOT_SETTINGS, "seed")}
    settings = flatten_dict(own, sep=".")
    for number, rows in enumerate(every):
        seed = options.get("seed", 0) + apart * number
        folder = place / f"seed{seed}" if len(every) > 1 else place
        folders = [folder] if (folder / CONFIG).is_file() else sorted(folder.glob("fold*"))
        models = [_of_folder(one, {}) for one in folders if (one / CONFIG).is_file()]
        first = models[0] if models else Run(name, path=place)
        times = [model.seconds for model in models if model.seconds is not None]
        rows = {("" if row == "ours" else row): rows[row] for row in rows if row != "std"}
        yield replace(
            first,
            name=name if len(every) == 1 else f"{name}-{seed}",
            settings=settings,
            seed=seed,
            metrics=_flat_scores(rows),
            config={**first.config, "benchmark": options},
            seconds=sum(times) if len(times) == len(models) > 0 else None,
            memory=max((m.memory for m in models if m.memory is not None), default=None),
            paper=first.config.get("provenance", {}).get("paper", {}),
        )


def _of_study(file: Path) -> Iterator[Run]:
    """Read the results of :func:`jdml.studies.runner.run_jobs`, and of ``jdml demo``."""
    for key, result in read_results(file).items():
        job = {k: v for k, v in result["job"].items() if k not in NOT_SETTINGS}
        settings = flatten_dict(job, sep=".")
        if settings.get("name") == key:  # of a sweep, whose settings are its job's
            settings.pop("name")
        seed, seconds = settings.pop("seed", None), result.get("seconds")
        scores = _flat_scores(result["metrics"])
        seconds = seconds if _is_number(seconds) else None
        yield Run(key, settings, seed, scores, (), file, result["job"], seconds=seconds)


def _of_arrays(place: Path) -> Run:
    """Read embeddings from a file; with several levels of labels, a view for each."""
    vectors, labels, files, _ = read_embeddings(place)
    levels: dict[str, np.ndarray] = {} if labels is None else {"class": labels}
    if labels is not None and labels.ndim == 2:
        levels = {f"level {n}": column for n, column in enumerate(labels.T)}
    names: dict[str, tuple[str, ...]] = {}
    views: dict[str, Any] = {}
    for view, values in levels.items():
        known, views[view] = np.unique(values, return_inverse=True)
        without = known.dtype.kind == "i" and known < 0
        names[view] = tuple(np.where(without, NO_CLASS, known.astype(str)).tolist())
    finest = [np.zeros(len(vectors), np.int32), *views.values()][-1]
    images = vectors if files is None else ImageFiles([image_named(str(name)) for name in files])
    data = Dataset(place.stem, images, finest, views, names)
    return Run(place.stem, {"embeddings": place.name}, path=place, embeddings=vectors, data=data)


def _read_log(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a log."""
    records = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):
            record = json_of(line, path, dict)
            if _is_number(record.get("step")):
                records.append({k: v for k, v in record.items() if v is None or _is_number(v)})
    return records


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _flat_scores(scores: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Flatten nested scores; leave out counts, and what is no finite number."""
    return {
        " ".join(path).strip(): float(value)
        for path, value in flatten_dict({prefix: dict(scores)}).items()
        if _is_number(value) and not isinstance(value, bool) and path[-1] not in NO_SCORES
    }


def unique_names(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Take the longer of two names where the short one repeats, and number those that still repeat."""
    unique: list[str] = []
    times = Counter[str]()
    for short, long in zip(names, longer, strict=True):
        name = long if names.count(short) > 1 else short
        times[name] += 1
        unique.append(name if times[name] == 1 else f"{name} ({times[name]})")
    return unique
