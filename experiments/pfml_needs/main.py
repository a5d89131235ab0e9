"""What PFML needs: its parameters and its proxies' start, tried on held-out classes; then its paper's regime."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from experiments.pfml_needs.tables import of_task, report
from experiments.pfml_needs.trials import TASKS, run
from experiments.smoke import SMOKE, record, small
from experiments.study import RecordOptions, read_toml, start

HERE = Path(__file__).parent
NOISE = 0.2
DELTAS, NEAREST = (0.2, 0.5, 1.0), (0.005, 0.5, 0.75, 0.9)
FACTORS: dict[str, tuple[Any, ...]] = {
    "start": ("sphere", "samples"),
    "attraction": ("on", "off"),
    "alpha": (1.0, 4.0),
    "clip": ("none", "entry", "norm"),
}
if SMOKE:
    FACTORS = {name: levels[: 1 + (name == "start")] for name, levels in FACTORS.items()}
DIMS = small((16, 128, 512), (8,))
NUMBERS = small((0, 1, 3, 15), (2,))
RATES = (100.0, 10.0)
FEW = {"proxies": (1, 3), "alpha": (1.0, 4.0), "start": ("sphere", "samples"), "proxy_rate": RATES}
REGIME = read_toml(__file__)["regime"]
CLIPS = {"PFML": "norm", "PFML-found": "entry"}
"""Of proxies' gradients in the regime: at first, and as settled on held-out classes since."""

NEEDS = {"batches": ("alphabets", "letters"), "few": ("letters",), "regime": ("letters",)}
"""The tasks of parts that are not for all: a batch of digits has both classes anyway."""
Part = Literal["points", "factors", "range", "number", "sphere", "batches", "few", "regime"]


@dataclasses.dataclass(frozen=True)
class Settings(RecordOptions):
    """What is run."""

    task: Literal["digits", "alphabets", "letters"] = "digits"
    """digits: even and odd, on scikit-learn's. alphabets, letters: Omniglot by its coarse or its fine labels."""
    seeds: int = small(3, 1)
    """Runs of each setting, with seeds 0, 1, …; another pair of digits, other alphabets are held out by each."""
    parts: tuple[Part, ...] = small(
        ("points", "factors", "range", "number", "sphere"), ("points", "factors", "number")
    )
    """points: proxies alone, among fixed points. factors: start, attraction, α and clip. range: δ and where repulsion
    ends, with wrong labels, too. number: of proxies. sphere: proxies kept on it, at two learning rates. batches: random
    or of few classes (Omniglot). few: where a class has few images, number, α, start and learning rate of proxies on
    held-out letters. regime: the paper's, on the letters of the test alphabets."""
    steps: int | None = None
    """Training steps; default 300 (digits), 600 (alphabets), 1200 (letters)."""
    out: Path = record(HERE)
    """Where the kept runs are."""


def base(options: Settings, /, **changed: Any) -> dict[str, Any]:
    """Today's preset, which every part but points changes in one way or another."""
    job = {"task": options.task, "batch": TASKS[options.task].batch, "steps": options.steps}
    method = {"method": "PFML", "settings": {"delta": 0.2, "alpha": 1.0}, "proxies": 15}
    guards = {"start": "sphere", "clip": "entry", "sphere": False, "proxy_rate": 100.0}
    return {**job, **method, **guards, "test": False, "noise": 0.0, **changed}


def with_factors(job: dict[str, Any], **levels: Any) -> dict[str, Any]:
    """Return a job at one level of each factor."""
    own = {**job["settings"], "alpha": levels["alpha"]}
    own["proxy_attraction"] = levels["attraction"] == "on"
    return {**job, "settings": own, "start": levels["start"], "clip": levels["clip"]}


def grid(**factors: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return every combination of levels."""
    combined = itertools.product(*factors.values())
    return [dict(zip(factors, levels, strict=True)) for levels in combined]


def settings_of(part: Part, options: Settings) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the levels and the job, without its seed, of each setting of a part."""
    job, noises = functools.partial(base, options), (0.0, NOISE)
    plain = {
        "number": grid(proxies=NUMBERS, noise=noises),
        "sphere": grid(sphere=(False, True), proxy_rate=RATES),
    }
    for levels in plain.get(part, ()):
        yield levels, job(**levels)
    if part == "points":
        own = {"task": "points", "batch": None, "steps": None}
        for levels in grid(dim=DIMS, **FACTORS):
            yield levels, {**with_factors(job(**own), **levels), "dim": levels["dim"]}
    elif part == "factors":
        for levels in grid(**FACTORS):
            yield levels, with_factors(job(), **levels)
    elif part == "range":
        for levels in grid(delta=DELTAS, nearest=NEAREST, noise=noises):
            reach = {"min_distance": levels["nearest"] * levels["delta"]}
            own = {"delta": levels["delta"], "alpha": 1.0, **reach}
            yield levels, job(settings=own, noise=levels["noise"])
    elif part == "batches":
        for name, batch in (("random", 160), ("balanced", (4, 40))):
            yield {"batch": name}, job(batch=batch)
    elif part == "few":
        for levels in grid(**FEW):
            own = {name: value for name, value in levels.items() if name != "alpha"}
            field = {"delta": 0.2, "alpha": levels["alpha"]}
            yield levels, job(settings=field, clip="norm", **own)
    elif part == "regime":
        for (name, values), noise in itertools.product(REGIME.items(), noises):
            method, number, own = values["method"], values["proxies"], values.get("settings", {})
            start = "samples" if method in ("PFML", "CPML") else "sphere"
            clip = CLIPS.get(name.split(",")[0], "none")
            levels = {"method": name.replace(" ", ""), "noise": noise}
            field = {"method": method, "proxies": number, "settings": own}
            yield levels, job(**field, noise=noise, test=True, start=start, clip=clip)


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run by name, which tells its task, its part and its levels; one seed of all settings after the other."""
    jobs = {}
    for part, seed in itertools.product(settings.parts, range(settings.seeds)):
        for levels, job in settings_of(part, settings):
            told = " ".join(f"{name}={value}" for name, value in levels.items())
            jobs[f"{settings.task}: {part}: {told}-{seed}"] = {**job, "seed": seed}
    return jobs


def main(settings: Settings) -> str:
    """Run what is missing; return the tables of what is kept."""
    for part, tasks in NEEDS.items():
        if part in settings.parts and settings.task not in tasks:
            raise SystemExit(f"--parts {part} is for --task {' or '.join(tasks)}")
    results = settings.results(run, make_jobs(settings), settings.out / "results.jsonl")
    return report(of_task(results, settings.task), settings.parts)


if __name__ == "__main__":
    start(main, Settings, __doc__)
