"""CCP on digits in the plane: proxies that come together, and alternating problems that spread them again."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.smoke import NETWORK, small
from experiments.study import FolderOptions, cell, cells, start
from jdml import data, objectives, training
from jdml.metrics import class_covering
from jdml.ops import ball
from jdml.recipes import CCPConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.report import markdown_table, paired_difference
from jdml.studies.runner import over_seeds
from jdml.training import Alternation, TrainState, train_recipe
from jdml.training.alternation import AlternatingProblems, make_callback

CLASSES = 10
METHODS = ("in batch", "samples", "single", "CCP")
"""References: the batch; K anchor samples per class, embedded anew at each step (eq. 4.10); proxies (eq. 4.11)."""
BASE: dict[str, Any] = {
    "proxies_per_class": 4,
    "pool_size": 16,
    "strength": 2e-4,
    "classes_per_batch": 8,
    "samples_per_class": 4,
    "in_batch_weight": 0.1,
    "restore": False,
    "panels": None,  # as the runs on record have it
}
MARGINS = {"positive_margin": 0.0, "negative_margin": 0.5}
ANCHORS_LAST = 200
"""Steps, as long as a short problem of CCP: eq. 4.10 is solved for one set of anchors after another."""
SCORED, TRAINING_SCORED = 1000, 10_000
"""Validation images at most, which are embedded again at every evaluation; training images that are scored at the end:
as many as MNIST has for testing."""
SHOWN = 1000
"""Points of the training set for covering radii and pictures."""


class Task(NamedTuple):
    """What differs between the data sets."""

    steps: int
    every: int
    patience: int
    tolerance: float
    """Of MAP@R: what is less than this is no improvement, and no reason to go on with a problem."""


TASKS = {"digits": Task(small(1500, 9), small(20, 1), 3, 0.01), "mnist": Task(6000, 50, 3, 0.002)}
RATES = {"learning_rate": 1e-3, "lr_multipliers": {"proxies": 10.0}}
RECIPE = Recipe().replace(
    loss={"name": "contrastive", "settings": MARGINS, "normalize": "ball"},
    network={"name": small("resnet20v2", NETWORK), "dim": 2},
    batch={"classes": 8, "samples_per_class": 4},
    optimizer={**RATES, "b2": 0.99, "clip_global_norm": {".*": 10.0}},
)
"""What all runs share."""


class Parts(NamedTuple):
    """Images to train on, to choose by, and to report."""

    train: data.Dataset
    validation: data.Dataset
    test: data.Dataset

    @property
    def shown(self) -> data.Dataset:
        """The first of those that train."""
        return first(self.train, SHOWN)


def first(part: data.Dataset, number: int) -> data.Dataset:
    """So many images, or all."""
    return part.select(np.arange(min(number, len(part))))


@functools.cache
def load(name: str, data_dir: str | None) -> Parts:
    """Return the parts of a data set; a sixth of the training images is for validation."""
    train, test = (data.load(name, data_dir=data_dir, split=split) for split in ("train", "test"))
    chosen = np.random.default_rng(0).permutation(len(train)) < len(train) // 6
    scored = np.flatnonzero(chosen)[:SCORED]
    return Parts(train.select(~chosen), train.select(scored), test)


def map_at_r(x: np.ndarray, labels: np.ndarray) -> float:
    """MAP@R of embeddings in the ball."""
    return jdml.evaluate_retrieval(np.asarray(ball(jnp.asarray(x))), labels)["MAP@R"]


def mean_distance(points: np.ndarray) -> float:
    """Between all pairs of points."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    return float(apart.sum() / max(len(points) * (len(points) - 1), 1))


def within(proxies: np.ndarray) -> float:
    """Return the spread of a class's proxies: their mean distance, in units of that between classes."""
    of_class = [mean_distance(own) for own in proxies]
    return float(np.mean(of_class)) / max(mean_distance(proxies.mean(1)), 1e-9)


@dataclasses.dataclass(frozen=True)
class Recorder(AlternatingProblems):
    """Alternating problems that note what each one came to."""

    points: Any = None
    """A data set: whose embeddings the proxies are to cover."""
    unseen: Any = None
    """Another, of images that do not train."""
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def update(
        self, carried: Alternation, step: int, state: TrainState, metrics: Mapping[str, float], /
    ) -> training.CallbackResult:
        """Also note a problem that ended: what it converged to, and how the next one begins."""
        result = super().update(carried, step, state, metrics)
        if int(result.carried.machine.problem) > int(carried.machine.problem):
            at_best = state._replace(params=carried.params, batch_stats=carried.batch_stats)
            old = np.asarray(ball(carried.params["proxies"]))
            new = np.asarray(result.state.params["proxies"])
            parts = (self.points, self.unseen)
            seen, unseen = (class_covering(self.embed(at_best, p), p.labels) for p in parts)
            self.history.append(
                {
                    "steps": step - sum(problem["steps"] for problem in self.history),
                    "validation": float(carried.machine.best),
                    "within": within(old),
                    "next within": within(new),
                    "class radius": seen.radius,
                    "between classes": seen.between,
                    "class ratio": seen.ratio,
                    **{f"unseen {name}": value for name, value in unseen._asdict().items()},
                }
            )
        return result

    def embed(self, state: TrainState, points: Any) -> np.ndarray:
        """Return the points in the unit disk."""
        x = training.embed(self.model, state.params["model"], state.batch_stats, points.images)
        return np.asarray(ball(jnp.asarray(x)))


def recipe_of(job: dict[str, Any]) -> Recipe:
    """Contrastive, in the unit disk, against the batch or proxies; the model anchored, the proxies not."""
    task, number, problems = TASKS[job["data"]], None, None
    if job["method"] in ("single", "CCP"):
        number = int(job["proxies_per_class"])
        problems = CCPConfig(
            pool_size=max(int(job["pool_size"]), number),
            strength=job["strength"],
            patience=task.patience if job["method"] == "CCP" else NEVER,
            run_patience=NEVER,
            tolerance=task.tolerance,
            restore=job["restore"],
            anchor_first=False,
            in_batch_weight=job["in_batch_weight"],
        )
    batch = {"classes": job["classes_per_batch"], "samples_per_class": job["samples_per_class"]}
    return RECIPE.replace(
        loss={"method": problems, "proxies": {"per_class": number}},
        batch={**batch, "steps": job["steps"]},
        optimizer={"schedule": "cosine"},
    )


def own_parts(job: dict[str, Any], recipe: Recipe, labels: np.ndarray) -> dict[str, Any]:
    """Return what no recipe has: anchors of all classes before each batch; CCP's optimizer, its anchor never set."""
    if recipe.loss.method is not None:
        return {}
    like = recipe_of({**job, "method": "CCP"})
    own: dict[str, Any] = {"optimizer": train_recipe.make_optimizer(like, ("proxies",), 1)}
    if job["method"] == "samples":
        number, seed = int(job["proxies_per_class"]), job["seed"]
        anchors, batches = number * CLASSES, recipe.batch.build(labels, seed)
        own["objective"] = objectives.as_anchor_objective(jdml.contrastive_loss, anchors, **MARGINS)
        own["sampler"] = data.AnchorBatchSampler(
            batches, labels, number, refresh_every=ANCHORS_LAST, seed=seed
        )
    return own


def make_recorder(recipe: Recipe, parts: Parts, seed: int) -> Recorder | None:
    """What chooses the proxies of a recipe with problems, and notes what they come to."""
    if recipe.loss.method is None:
        return None
    model = train_recipe.make_network(recipe, parts.train)
    made = make_callback(recipe.loss.method, recipe, model, parts.train, "validation", seed=seed)
    return Recorder(**vars(made), points=parts.shown, unseen=parts.validation)


def train(
    recipe: Recipe, parts: Parts, every: int, patience: int | None = None, **settings: Any
) -> training.FitResult:
    """Train, with MAP@R of the validation images after every so many steps."""
    images, labels = parts.validation.images, parts.validation.labels

    def evaluate(embedder: Any) -> dict[str, float]:
        return {"validation": map_at_r(embedder(images), labels)}

    evaluation = training.Evaluation(evaluate, every, "validation", patience)
    own = {"evaluation": evaluation, "progress": False}
    return train_recipe.train(recipe, parts.train, **own, **settings)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network; MAP@R of its best evaluation on validation, training and test images."""
    parts, recipe, seed = load(job["data"], job["data_dir"]), recipe_of(job), job["seed"]
    recorder = make_recorder(recipe, parts, seed)
    own = own_parts(job, recipe, parts.train.labels)
    own["callbacks"] = [] if recorder is None else [recorder]
    result = train(recipe, parts, TASKS[job["data"]].every, seed=seed, **own)
    assert result.best is not None
    scored = first(parts.train, TRAINING_SCORED)
    history = [] if recorder is None else recorder.history
    return {
        "validation": result.best.value,
        "best step": result.best.step,
        "train": map_at_r(result.embedder(scored.images), scored.labels),
        "test": map_at_r(result.embedder(parts.test.images), parts.test.labels),
        "curve": [[r["step"], r["validation"]] for r in result.history if "validation" in r],
        "problems": 1 + len(history),
        "history": history,
    }


class Sweep(NamedTuple):
    """A grid: a row per value of one setting, a column per value of another."""

    setting: str
    values: tuple[float, ...]
    beside: str
    beside_values: tuple[Any, ...]


SWEEPS = {
    "pool": Sweep(
        "pool_size", small((8, 16, 32), (8,)), "proxies_per_class", small((1, 4, 8), (4,))
    ),
    "strength": Sweep("strength", (0.0, 2e-4, 2e-2), "proxies_per_class", (1, 4, 8)),
    "batch": Sweep("classes_per_batch", (2, 4, 8, 10), "method", ("in batch", "CCP")),
}
OF_PROBLEMS = {
    "steps": ("steps", 1.0, 0),
    "MAP@R": ("validation", 100.0, 1),
    "spread of proxies": ("within", 1.0, 3),
    "of the next": ("next within", 1.0, 3),
    "covering radius of classes": ("class radius", 1.0, 3),
    "distance between classes": ("between classes", 1.0, 3),
    "ratio": ("class ratio", 1.0, 3),
    "of validation": ("unseen ratio", 1.0, 3),
}
"""What is told of each problem: its name in the history, its scale, its digits."""
PAPER = {"in batch": "–", "samples": "98.06", "single": "–", "CCP": "97.21"}


@dataclasses.dataclass(frozen=True)
class Settings(FolderOptions):
    """What is run."""

    data: Literal["digits", "mnist"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist: the full 28×28 set in --data-dir."""
    sweep_seeds: int = 1
    """Runs per point of the sweeps."""
    parts: tuple[Literal["methods", "pool", "strength", "batch"], ...] = small(
        ("methods",), ("methods", "pool")
    )
    """methods: the batch, anchor samples, a single proxy problem and CCP. pool, strength, batch: the
    sweeps."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run of the study by name."""
    steps = settings.steps or TASKS[settings.data].steps
    base = {**BASE, "data": settings.data, "data_dir": settings.folder, "steps": steps}
    jobs = {}
    for seed in range(settings.seeds if "methods" in settings.parts else 0):
        for method in METHODS:
            jobs[f"{method}-{seed}"] = {**base, "method": method, "seed": seed}
    for part in settings.parts:
        for own in grid(SWEEPS[part]).values() if part in SWEEPS else ():
            for seed in range(settings.sweep_seeds):
                job = {**base, "method": "CCP", **own, "seed": seed}
                jobs.setdefault(f"{name_of(own)}-{seed}", job)
    return jobs


def grid(sweep: Sweep) -> dict[tuple[float, Any], dict[str, Any]]:
    """What is set at each point of a sweep."""
    return {
        (value, other): {sweep.setting: value, sweep.beside: other}
        for value in sweep.values
        for other in sweep.beside_values
    }


def name_of(own: dict[str, Any]) -> str:
    """Return a run by what differs from the study's own settings, so that grids and methods share theirs."""
    changed = [f"{k} {v:g}" for k, v in own.items() if k != "method" and v != BASE[k]]
    return ", ".join([own.get("method", "CCP"), *changed])


def methods_table(results: dict[str, Any]) -> str:
    """MAP@R of what the best validation chose, and the paper's figure."""
    columns = ("validation", "train", "test")
    rows = []
    for method in METHODS:
        problems = f"{np.mean(over_seeds(results, method, 'problems')):.1f}"
        rows.append([method, *cells(results, method, columns), problems, PAPER[method]])
    return markdown_table(["references", *columns, "problems", "paper"], rows)


def seeds_table(results: dict[str, Any]) -> str:
    """MAP@R on test images seed by seed, and what CCP has more over the same seeds."""
    test = {method: dict(enumerate(over_seeds(results, method, "test"))) for method in METHODS}
    rows = []
    for method, of_seeds in test.items():
        gain = "–" if method == "CCP" else str(paired_difference(test["CCP"], of_seeds))
        rows.append([method, *(f"{100 * value:.1f}" for value in of_seeds.values()), gain])
    titles = (f"seed {seed}" for seed in test["CCP"])
    return markdown_table(["test", *titles, "CCP − it"], rows)


def problems_table(results: dict[str, Any]) -> str:
    """CCP problem by problem, over the seeds."""
    runs = [result["metrics"]["history"] for key, result in results.items() if key[:4] == "CCP-"]
    rows = []
    for number in range(max(map(len, runs))):
        these = [history[number] for history in runs if len(history) > number]
        means = [
            cell([problem[name] for problem in these], scale, digits)
            for name, scale, digits in OF_PROBLEMS.values()
        ]
        rows.append([str(number + 1), str(len(these)), *means])
    return markdown_table(["problem", "runs", *OF_PROBLEMS], rows)


def report(results: dict[str, Any], settings: Settings) -> str:
    """Return all tables as Markdown."""
    sections = []
    if "methods" in settings.parts:
        sections += ["MAP@R:\n", methods_table(results)]
        sections += ["On test images, by seed:\n", seeds_table(results)]
        sections += ["CCP, problem by problem:\n", problems_table(results)]
    for part in (part for part in settings.parts if part in SWEEPS):
        title = f"{SWEEPS[part].setting} (rows) and {SWEEPS[part].beside} (columns):\n"
        sections.append(f"MAP@R on validation by {title.replace('_', ' ')}")
        sections.append(sweep_table(results, SWEEPS[part]))
    return "\n".join(sections)


def sweep_table(results: dict[str, Any], sweep: Sweep) -> str:
    """Return a row per value, a column per value of the other setting."""
    rows = [[f"{value:g}"] for value in sweep.values]
    for (value, _), own in grid(sweep).items():
        rows[sweep.values.index(value)] += cells(results, name_of(own), ["validation"])
    return markdown_table([sweep.setting.replace("_", " "), *map(str, sweep.beside_values)], rows)


def main(settings: Settings) -> str:
    """Run what is missing; return the tables."""
    return report(settings.results(__file__, run, make_jobs(settings)), settings)


if __name__ == "__main__":
    start(main, Settings, __doc__)
