"""Runs, read back from where they were written: what was run, what it logged, what it scored."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jdml._paths import check_local, expand_user, json_of, wrap_read_errors
from jdml.data import Dataset, ImageFiles
from jdml.data.folder import image_named
from jdml.report.embedding_analysis import NO_CLASS
from jdml.runs.embedding_io import read_embeddings
from jdml.runs.results_store import read_results
from jdml.runs.run_files import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    METRICS,
    MODEL,
    RESOURCES,
    is_of_benchmark,
    read_json,
)

RESULTS = "results.jsonl"
ORDER = "sweep.json"
"""The names of a sweep's runs, in their order."""
NOT_SETTINGS = ("data_checksum", "data_dir")
"""What says where the images of a run lay, and which they were."""
OF_NETWORK = ("network", "class", "factory", "dim")
"""What says which network a run has trained; not its other attributes, of which older runs tell fewer."""
FILES = "its files"
"""Which image files a run was given; runs of before this was told have nothing there."""
OF_THE_LOOP = ("embedding", "fingerprint", "fit", "callbacks", "started", "versions")
"""What the loop adds to a run's configuration."""
HELD_OUT = "validation"
"""What comes before the scores of a benchmark's models while it goes on: of the classes that they do not see."""
NOT_CURVES = ("seconds", "step")


@dataclass(frozen=True, eq=False)
class Run:
    """One run, whatever made it.

    Attributes:
        name: what it is called.
        settings: what defines it, apart from the seed, by dotted names.
        seed: its seed; None where it has none.
        metrics: what it scored, by name.
        log: the records of its log: ``step``, ``loss``, and what else was logged.
        path: its folder or file; None in memory.
        config: its ``config.json``.
        command: what repeats it.
        versions: of what computed it.
        paper: what the method's paper reports, in percent, by metric.
        seconds: how long it took.
        memory: the most memory that it held, in MiB.
        embeddings: ``[N, D]``, where they are at hand.
        data: the data set whose rows were embedded, or are to be.
        train: the data set that was trained on, or a part of it.
        train_embeddings: of its rows, where they are at hand.
        proxies: what the objective learned beside the model: ``[C, K, D]``.
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
        return self.path is not None and (
            (self.path / MODEL).is_file() or (self.path / CHECKPOINTS).is_dir()
        )


def read_runs(*places: str | Path) -> list[Run]:
    """Read runs from where they were written.

    Args:
        *places: folders of runs of ``jdml train``, ``benchmark``, ``sweep``, ``demo`` and :func:`jdml.training.fit`, of
            a study, or of several of these; a study's ``results.jsonl``; ``.npz`` files with ``embeddings`` and, if
            there are any, ``labels`` and ``files``.

    Returns:
        The runs, in the order of the places and, within one, of their names; of a sweep in its own order.

    Raises:
        FileNotFoundError: a place that is not there.
        ValueError: a place that holds no run.
    """
    if not places:
        raise ValueError("places must name at least one run, got none")
    runs: list[Run] = []
    for each in places:
        check_local("run", each)
    once = {place.resolve(): place for place in map(expand_user, reversed(places))}
    for place in reversed(once.values()):
        if not place.exists():
            raise FileNotFoundError(f"run {place} does not exist")
        with wrap_read_errors(place):
            here = list(_read(place))
        if not here:
            raise ValueError(
                f"{place} holds no run: expected a folder with {CONFIG} or of such folders, the results of a study, "
                "or a .npz file"
            )
        runs += here
    return _named_apart(_each_once(runs))


def _read(place: Path) -> Iterator[Run]:
    if not place.is_dir():
        if place.suffix == ".npz":
            yield _of_arrays(place)
        elif place.suffix == ".jsonl":
            yield from _of_study(read_results(place))
        else:
            raise ValueError(f"{place} is neither a folder nor a .npz or .jsonl file")
        return
    scores = read_json(place / METRICS) if (place / METRICS).is_file() else {}
    if isinstance(scores, dict) and "options" in scores:
        yield from _of_benchmark(place, scores)
    elif _is_demo(scores):
        yield from _of_demo(place, scores)
    elif (place / CONFIG).is_file():
        yield _of_folder(place, scores)
    elif (place / RESULTS).is_file():
        yield from _of_study(read_results(place / RESULTS))
    else:
        for child in _in_order(place):
            yield from _read(child)


def _in_order(place: Path) -> list[Path]:
    """The folders in a folder: those of a sweep as it had them, so that its first one is everybody's baseline."""
    order = read_json(place / ORDER, list) if (place / ORDER).is_file() else []
    known = {name: number for number, name in enumerate(order)}
    inside = [child for child in place.iterdir() if child.is_dir()]
    return sorted(inside, key=lambda child: (known.get(child.name, len(known)), child.name))


def _of_folder(place: Path, scores: Mapping[str, Any]) -> Run:
    """A run of :func:`jdml.training.fit`, by itself or under ``jdml train``."""
    config = _read_config(place / CONFIG)
    log = _read_log(place / LOG)
    own = {name: value for name, value in config.items() if name not in OF_THE_LOOP}
    values = {**_recipe_settings(own.pop("recipe", {})), **own}
    settings = _flat({k: v for k, v in values.items() if k not in NOT_SETTINGS})
    if "data" not in own:  # a program's own run: what it did is known by its fingerprints alone
        fit = {f"fit.{k}": v for k, v in config.get("fit", {}).items() if k != "seed"}
        prints = config.get("fingerprint", {})
        settings |= fit | {f"its {k}": prints[k] for k in ("objective", "optimizer") if k in prints}
        network = config.get("embedding", {})
        settings["its network"] = {k: network[k] for k in OF_NETWORK if k in network}
    files = config.get("started", {}).get("files_checksum")
    if files is not None:
        settings[FILES] = files
    seed = _seed(settings.pop("seed", config.get("fit", {}).get("seed")), str(place / CONFIG))
    last: Mapping[str, Any] = log[-1] if log else {}
    started = config.get("started", {})
    resources = read_json(place / RESOURCES) if (place / RESOURCES).is_file() else {}
    memory = resources.get("memory_mib")
    return Run(
        place.name,
        settings,
        seed,
        _flat_scores(scores, HELD_OUT if is_of_benchmark(config) else ""),
        log,
        place,
        config,
        started.get("command"),
        config.get("versions", {}),
        seconds=last.get("seconds"),
        memory=memory if _is_number(memory) else None,
    )


def _recipe_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's values by dotted name; a part's name is called as the part."""
    values = _flat(recipe)
    return {name.removesuffix(".name"): value for name, value in values.items()}


def _seed(value: Any, where: str) -> int | None:
    if value is not None and not isinstance(value, int):
        raise ValueError(f"{where}: seed must be an integer, got {json.dumps(value)}")
    return value


def _of_benchmark(place: Path, scores: dict[str, Any]) -> Iterator[Run]:
    """The runs of ``jdml benchmark``: one for each seed; of four folds the first, and what all of them took."""
    scores = dict(scores)
    options = scores.pop("options")
    every = scores.pop("seeds", [scores])
    apart = 4 if options.get("protocol") == "mlrc" else 1
    settings = _flat({k: v for k, v in options.items() if k not in (*NOT_SETTINGS, "seed")})
    for number, rows in enumerate(every):
        seed = options.get("seed", 0) + apart * number
        folder = place / f"seed{seed}" if len(every) > 1 else place
        folders = [folder] if (folder / CONFIG).is_file() else sorted(folder.glob("fold*"))
        models = [_of_folder(one, {}) for one in folders if (one / CONFIG).is_file()]
        inside = models[0] if models else Run(place.name)
        times = [model.seconds for model in models if model.seconds is not None]
        memories = [model.memory for model in models if model.memory is not None]
        rows = {
            ("" if row == "ours" else row): values for row, values in rows.items() if row != "std"
        }
        config = {**inside.config, "benchmark": options}
        yield replace(
            inside,
            name=place.name if len(every) == 1 else f"{place.name}-{seed}",
            settings=settings,
            seed=seed,
            metrics=_flat_scores(rows),
            config=config,
            seconds=sum(times) if len(times) == len(models) > 0 else None,
            memory=max(memories, default=None),
            paper=inside.config.get("started", {}).get("paper", {}),
        )


def _of_demo(place: Path, scores: Mapping[str, Any]) -> Iterator[Run]:
    config = _read_config(place / CONFIG) if (place / CONFIG).is_file() else {}
    for method, columns in scores.items():
        for seed in range(len(next(iter(columns.values())))):
            metrics = {name: float(values[seed]) for name, values in columns.items()}
            settings = {"method": method, **_flat(config)}
            settings.pop("seeds", None)
            yield Run(f"{method}-{seed}", settings, seed, metrics, path=place, config=config)


def _of_study(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Run]:
    """The results of :func:`jdml.studies.runner.run_study`."""
    for key, result in results.items():
        if not {"job", "metrics"} <= result.keys():
            continue
        settings = _flat({k: v for k, v in result["job"].items() if k not in NOT_SETTINGS})
        if settings.get("name") == key:  # of a sweep, whose settings are its job's
            settings.pop("name")
        seed = _seed(settings.pop("seed", None), key)
        seconds = result.get("seconds")
        yield Run(
            key,
            settings,
            seed,
            _flat_scores(result["metrics"]),
            config=result["job"],
            seconds=seconds if _is_number(seconds) else None,
        )


def _of_arrays(place: Path) -> Run:
    """Embeddings that lie in a file."""
    embedded = read_embeddings(place)
    vectors = embedded.vectors
    names: dict[str, tuple[str, ...]] = {}
    views: dict[str, Any] = {}
    for view, labels in _by_level(embedded.labels):
        known, numbers = np.unique(labels, return_inverse=True)
        without = known.dtype.kind in "if" and known < 0
        names[view] = tuple(np.where(without, NO_CLASS, known.astype(str)).tolist())
        views[view] = numbers.reshape(-1)
    finest = [np.zeros(len(vectors), np.int32), *views.values()][-1]
    images: Any = vectors
    if embedded.files is not None:
        images = ImageFiles([image_named(str(name)) for name in embedded.files])
    data = Dataset(place.stem, images, finest, views, names)
    return Run(
        place.stem, {"embeddings": str(place.name)}, path=place, embeddings=vectors, data=data
    )


def _by_level(labels: np.ndarray | None) -> list[tuple[str, np.ndarray]]:
    """The labels of each level, with the level's name."""
    if labels is None or labels.ndim == 1:
        return [] if labels is None else [("class", labels)]
    return [(f"level {level}", column) for level, column in enumerate(labels.T)]


def _is_demo(scores: Any) -> bool:
    return (
        isinstance(scores, dict)
        and bool(scores)
        and all(
            isinstance(columns, dict)
            and bool(columns)
            and all(isinstance(values, list) and values for values in columns.values())
            for columns in scores.values()
        )
    )


def _read_config(path: Path) -> dict[str, Any]:
    """A configuration, whose parts are what others look into."""
    config: dict[str, Any] = read_json(path, dict)
    for name in ("recipe", "benchmark", *OF_THE_LOOP):
        part = config.get(name, {})
        if not isinstance(part, dict):
            raise ValueError(f"{path}: {name} must be a JSON object, got {json.dumps(part)}")
    return config


def _read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that can be read: the last one may be in the making."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            record = json_of(line, path)
        except ValueError:
            continue
        if isinstance(record, dict) and _is_number(record.get("step")):
            records.append({k: v for k, v in record.items() if v is None or _is_number(v)})
    return records


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _flat_scores(scores: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested scores by their words, without what is no finite number."""
    flat: dict[str, float] = {}
    for name, value in scores.items():
        whole = f"{prefix} {name}".strip()
        if isinstance(value, Mapping):
            flat |= _flat_scores(value, whole)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if math.isfinite(value) and name not in ("step", "queries"):
                flat[whole] = float(value)
    return flat


def _each_once(runs: Sequence[Run]) -> list[Run]:
    """The runs, those that two paths lead to under the first one."""
    once: dict[Any, Run] = {}
    for number, run in enumerate(runs):
        settings = json.dumps(run.settings, sort_keys=True, default=str)
        key = number if run.path is None else (run.path.resolve(), run.seed, settings)
        once.setdefault(key, run)
    return list(once.values())


def _named_apart(runs: list[Run]) -> list[Run]:
    """The runs, those of the same name with their folder's folder before it, or a number."""
    names = [run.name for run in runs]
    renamed: list[Run] = []
    taken: set[str] = set()
    for run in runs:
        name = run.name
        if names.count(name) > 1 and run.path is not None:
            name = f"{run.path.absolute().parent.name}/{name}"
        number = 1
        while name in taken:
            number += 1
            name = f"{run.name} ({number})"
        taken.add(name)
        renamed.append(run if name == run.name else replace(run, name=name))
    return renamed
