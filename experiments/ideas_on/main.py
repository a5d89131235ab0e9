"""Each paper's idea switched on and off, on its base's own settings and on its own: nothing else differs."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.letters import main as letters
from experiments.letters import protocol
from experiments.letters.methods import METHODS, SHARED
from experiments.letters.protocol import Job, make_job, name_of, read_frozen
from experiments.letters.runs import HERE as LETTERS
from experiments.letters.runs import OfModels
from experiments.letters.tables import LEAST, all_of, single_models
from experiments.omniglot.methods import remembering
from experiments.smoke import SMOKE, record, small
from experiments.study import batch_of, start
from jdml.recipes import NIRConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.report import markdown_table, paired_difference
from jdml.runs.run_files import read_results

HERE = Path(__file__).parent
SEEDS = small((1, 2, 3), (1,))
DRAWINGS = small((4, 8), (4,))
"""Drawings of a letter in a batch of EPS: with two it changes nothing."""
PROXIES = (1, 2, 4, 8)
FLOW_RATE = 5e-4
"""The learning rate of NIR's flow, as printed: 50 times the 1e-5 of the network."""
MEMORY, EVERY = 2048, small(25, 1)
"""Rows of the memory; steps between CCP's evaluations, so that at least five problems end."""
FIELDS = ("PFML, found", "CPML")


class Config(NamedTuple):
    """An idea, on or off (``level``) in a method (``where``), and whether others are compared with it."""

    idea: str
    where: str
    level: str
    recipe: Recipe
    off: bool = False

    @property
    def name(self) -> str:
        """The method's name in the file of results."""
        return f"{self.idea} {self.level}: {self.where}"


@dataclasses.dataclass(frozen=True)
class Settings(OfModels):
    """Settings of the study."""

    out: Path = record(HERE / "results.jsonl")
    """File of the kept runs."""
    frozen: Path = record(HERE / "frozen.json")
    """File of the settings, written before the first run."""
    runs: Path = record(Path("runs/ideas_on"))
    """Folder of the runs that have not ended."""


def settings_of(method: str) -> Recipe:
    """Return a method's frozen settings of the letters' study: tuned where it was, else its paper's."""
    columns = read_frozen(LETTERS / "frozen.json")
    for column in ("tuned", "also", "papers"):
        if method in columns[column]:
            return columns[column][method]
    raise ValueError(f"method must be one of the letters' study, got {method!r}")


def configs() -> Iterator[Config]:
    """Give every setting but those of the two fields, which their trials choose."""
    for base in ("margin", "MS", "circle", "triplet"):
        easy = f"EPS + {base}"
        for method in (base, easy):
            for drawings in DRAWINGS:
                batch = batch_of((protocol.USUAL["batch"] // drawings, drawings))
                at = settings_of(method).replace(batch=batch)
                where = f"{base}, settings of {method}, {drawings} drawings"
                for level, miner in (
                    ("off", METHODS[base].loss.miner),
                    ("on", METHODS[easy].loss.miner),
                ):
                    recipe = at.replace(loss={"miner": miner})
                    yield Config("EPS", where, level, recipe, off=level == "off")
    for method in ("MPA-DW", "MPA-AP"):
        for number in PROXIES:
            recipe = settings_of(method).replace(loss={"proxies": {"per_class": number}})
            yield Config("MPA", method, f"{number} proxies", recipe, off=number == 1)
    for base, own in (("ProxyAnchor", True), ("SoftTriple", False), ("ProxyNCA*", False)):
        # Of the two others base and idea have the same frozen settings, their papers'.
        for method in (base, f"{base} + NIR")[: 1 + own]:
            at, where = settings_of(method), f"{base}, settings of {method}"
            nir = at.loss.method or NIRConfig(start_step=50)
            nir = nir.replace(flow_learning_rate=FLOW_RATE)
            yield Config("NIR", where, "off", at.replace(loss={"method": None}), off=True)
            yield Config("NIR", where, "on", at.replace(loss={"method": nir}))
    for base in ("MS", "contrastive", "triplet"):
        for method in (base, f"{base} + XBM"):
            at, where = settings_of(method), f"{base}, settings of {method}"
            none = {"memory_size": 0, "memory_start_step": 0}
            yield Config("memory", where, "off", at.replace(loss=none), off=True)
            on = at if at.loss.memory_size else remembering(at, MEMORY)
            yield Config("memory", where, "on", on)
    for base in ("contrastive", "MS"):
        for method in (base, f"{base} + CCP"):
            at, where = settings_of(method), f"{base}, settings of {method}"
            if not at.loss.needs_validation:
                rate = {"learning_rate": at.optimizer.learning_rate}
                loss = {"settings": at.loss.settings}
                ccp = METHODS[f"{base} + CCP"].replace(loss=loss, optimizer=rate)
                at = dataclasses.replace(ccp, batch=at.batch)
            plain = {"normalize": METHODS[base].loss.normalize, "proxies": {"per_class": None}}
            off = at.replace(loss={**plain, "method": None})
            yield Config("CCP", where, "off", off, off=True)
            for level, patience in (("one problem", NEVER), ("problems", 1)):
                on = at.replace(loss={"method": {"patience": patience}})
                yield Config("CCP", where, level, on)


def planned() -> list[Config]:
    """List the settings that are run: all of them, or a few with --smoke."""
    return [own for own in configs() if not SMOKE or own.where == "MS, settings of MS"]


def trials() -> list[Job]:
    """Give the fields' trials, at the same points: ranges that both have come first, in one order."""
    return letters.in_turn({name: METHODS[name] for name in FIELDS}, SHARED)


def fields(results: Mapping[str, Any]) -> list[Config]:
    """Give the fields with their best trials' settings; none before all trials are done."""
    best = letters.best_of(results, trials())
    return [
        Config("field", "ten trials each", name, best[name], off=name == "CPML")
        for name in FIELDS
        if best
    ]


def models(chosen: list[Config]) -> list[Job]:
    """Give the models of these settings: seed by seed, fold by fold."""
    return [
        make_job(config.name, "tuned", seed, fold, config.recipe, **every)
        for seed in SEEDS
        for fold in range(protocol.FOLDS)
        for config in chosen
        for every in [{"every": EVERY} if config.idea == "CCP" else {}]
    ]


def freeze(path: Path, chosen: list[Config]) -> None:
    """Add settings to the file of what may be scored; none that is there is changed."""
    before = read_frozen(path)["tuned"]
    new = {config.name: config.recipe for config in chosen}
    if new.keys() - before.keys():
        letters.write_frozen(path, {"tuned": {**new, **before}})


def report(results: Mapping[str, Any], chosen: list[Config]) -> str:
    """Compare every setting with the one that is off in the same place, model by model; Holm over all of them."""
    scores = single_models(results, "tuned")
    off = {(config.idea, config.where): config.name for config in chosen if config.off}
    pairs, done = {}, 0
    for config in chosen:
        mine = scores.get(config.name, {})
        other = scores.get(off[config.idea, config.where], {})
        both = len(mine.keys() & other.keys())
        if both and not config.off:
            pairs[config.name] = paired_difference(mine, other)
            done += both
    planned = len(SEEDS) * protocol.FOLDS * sum(not config.off for config in chosen)
    partial = "All" if done == planned else "PARTIAL:"
    problems = [
        [name_of(run["job"]), str(run["metrics"].get("problems", "–"))]
        for run in results.values()
        if run["job"]["method"].startswith("CCP problems")
    ]
    return "\n".join(
        [
            f"{partial} {done} of {planned} pairs; a difference counts from {LEAST} points.\n",
            all_of(pairs, "on − off, MAP@R, points"),
            markdown_table(["model", "problems that ended"], problems) if problems else "",
        ]
    )


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    if not settings.table:
        freeze(settings.frozen, planned())
        settings.do(models(planned()))
        settings.do(trials())
    chosen = [*planned(), *fields(read_results(settings.out))]
    if not settings.table:
        freeze(settings.frozen, chosen)
        settings.do(models(chosen))
    return report(read_results(settings.out), chosen)


if __name__ == "__main__":
    start(main, Settings, __doc__)
