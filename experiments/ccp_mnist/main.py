"""CCP on digits in the plane: proxies that come together, and alternating problems that spread them again."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

import jdml
from experiments import study
from experiments.omniglot.methods import Parts
from experiments.smoke import NETWORK, small
from experiments.study import FolderOptions, best_of, cell, cells, over_seeds, start, with_seeds
from jdml import data, objectives, training
from jdml.metrics import class_covering
from jdml.ops import ball
from jdml.recipes import CCPConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.report import markdown_table, paired_difference
from jdml.training import Alternation, TrainState, train_recipe
from jdml.training.alternation import AlternatingProblems, make_callback

CLASSES = 10
METHODS = ("in batch", "samples", "single", "CCP")
"""References: the batch; K anchor samples per class, embedded anew at each step (eq. 4.10); proxies (eq. 4.11)."""
STUDY = study.read_toml(__file__)
BASE: dict[str, Any] = {**STUDY["base"], "panels": None}  # as the runs on record have it
MARGINS, TASKS = STUDY["margins"], STUDY["data"]
ANCHORS_LAST = 200
"""Steps, as long as a short problem of CCP: eq. 4.10 is solved for one set of anchors after another."""
SCORED, TRAINING_SCORED, SHOWN = 1000, 10_000, 1000
"""Images at most: for validation; that train and are scored at the end, as many as MNIST has for testing; for covering
radii."""
RATES = {"learning_rate": 1e-3, "lr_multipliers": {"proxies": 10.0}}
RECIPE = Recipe().replace(
    loss={"name": "contrastive", "settings": MARGINS, "normalize": "ball"},
    network={"name": small("resnet20v2", NETWORK), "dim": 2},
    batch={"classes": 8, "samples_per_class": 4},
    optimizer={**RATES, "b2": 0.99, "clip_global_norm": {".*": 10.0}},
)
"""Settings that all runs share."""


def first(part: data.Dataset, number: int) -> data.Dataset:
    """Return the first images."""
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


def within(proxies: np.ndarray) -> float:
    """Return the spread of a class's proxies: their mean distance, in units of that between classes."""

    def mean_distance(points: np.ndarray) -> float:
        apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
        return float(apart.sum() / max(len(points) * (len(points) - 1), 1))

    return float(np.mean([*map(mean_distance, proxies)])) / max(
        mean_distance(proxies.mean(1)), 1e-9
    )


@dataclasses.dataclass(frozen=True)
class Recorder(AlternatingProblems):
    """Alternating problems that note what each one converged to."""

    points: Any = None
    """Images whose embeddings the proxies cover: some that train, and others."""
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def update(
        self, carried: Alternation, step: int, state: TrainState, metrics: Mapping[str, float], /
    ) -> training.CallbackResult:
        """Also note what a problem that ended converged to, and how the next one begins."""
        result = super().update(carried, step, state, metrics)
        if int(result.carried.machine.problem) > int(carried.machine.problem):
            at_best = state._replace(params=carried.params, batch_stats=carried.batch_stats)
            old = np.asarray(ball(carried.params["proxies"]))
            new = np.asarray(result.state.params["proxies"])
            weights = at_best.params["model"], at_best.batch_stats
            known_digits, unseen_digits = (
                class_covering(
                    ball(jnp.asarray(training.embed(self.model, *weights, part.images))),
                    part.labels,
                )
                for part in self.points
            )
            self.history.append(
                {
                    "steps": step - sum(problem["steps"] for problem in self.history),
                    "validation": float(carried.machine.best),
                    "within": within(old),
                    "next within": within(new),
                    "class radius": known_digits.radius,
                    "between classes": known_digits.between,
                    "class ratio": known_digits.ratio,
                    **{f"unseen {name}": value for name, value in unseen_digits._asdict().items()},
                }
            )
        return result


def recipe_of(job: dict[str, Any]) -> Recipe:
    """Contrastive, in the unit disk, against the batch or proxies; the model anchored, the proxies not."""
    task, number, problems = TASKS[job["data"]], None, None
    if job["method"] in ("single", "CCP"):
        number = int(job["proxies_per_class"])
        problems = CCPConfig(
            pool_size=max(int(job["pool_size"]), number),
            strength=job["strength"],
            patience=task["patience"] if job["method"] == "CCP" else NEVER,
            run_patience=NEVER,
            tolerance=task["tolerance"],
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
    """Return what chooses the proxies of a recipe with problems, and notes what they converge to."""
    if recipe.loss.method is None:
        return None
    model = train_recipe.make_network(recipe, parts.train)
    made = make_callback(recipe.loss.method, recipe, model, parts.train, "validation", seed=seed)
    return Recorder(**vars(made), points=(first(parts.train, SHOWN), parts.validation))


def train(
    recipe: Recipe, parts: Parts, every: int, patience: int | None = None, **settings: Any
) -> training.FitResult:
    """Train, with MAP@R of the validation images after every so many steps."""
    images, labels = parts.validation.images, parts.validation.labels

    def evaluate(embedder: Any) -> dict[str, float]:
        return {"validation": map_at_r(embedder(images), labels)}

    evaluation = training.Evaluation(evaluate, every, "validation", patience)
    return train_recipe.train(
        recipe, parts.train, evaluation=evaluation, progress=False, **settings
    )


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network; MAP@R of its best evaluation on validation, training and test images."""
    parts, recipe, seed = load(job["data"], job["data_dir"]), recipe_of(job), job["seed"]
    recorder = make_recorder(recipe, parts, seed)
    own = own_parts(job, recipe, parts.train.labels)
    own["callbacks"] = [] if recorder is None else [recorder]
    result = train(recipe, parts, TASKS[job["data"]]["every"], seed=seed, **own)
    scored = first(parts.train, TRAINING_SCORED)
    history = [] if recorder is None else recorder.history
    return {
        **best_of(result),
        "train": map_at_r(result.embedder(scored.images), scored.labels),
        "test": map_at_r(result.embedder(parts.test.images), parts.test.labels),
        "curve": [[r["step"], r["validation"]] for r in result.history if "validation" in r],
        "problems": 1 + len(history),
        "history": history,
    }


def points_of(sweep: dict[str, Any]) -> dict[tuple[float, Any], dict[str, Any]]:
    """Return what is set at each point of a sweep."""
    points = itertools.product(sweep["rows"], sweep["columns"])
    return {(row, column): {sweep["row"]: row, sweep["column"]: column} for row, column in points}


SWEEPS, OF_PROBLEMS, PAPER = (STUDY[name] for name in ("sweeps", "of_problems", "paper"))


@dataclasses.dataclass(frozen=True)
class Settings(FolderOptions):
    """Settings of the study."""

    data: Literal["digits", "mnist"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist: the full 28×28 set in --data-dir."""
    parts: tuple[Literal["methods", "pool", "strength", "batch"], ...] = small(
        ("methods",), ("methods", "pool")
    )
    """methods: the batch, anchor samples, a single proxy problem and CCP. pool, strength, batch: the
    sweeps."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run of the study by name."""
    steps = settings.steps or TASKS[settings.data]["steps"]
    base = {**BASE, "data": settings.data, "data_dir": settings.folder, "steps": steps}
    named = {method: {"method": method} for method in METHODS}
    points = {
        name_of(own): {"method": "CCP", **own}
        for part in settings.parts
        if part in SWEEPS
        for own in points_of(SWEEPS[part]).values()
    }
    jobs = with_seeds(base, named, settings.seeds if "methods" in settings.parts else 0)
    return {**jobs, **with_seeds(base, points, settings.sweep_seeds)}


def name_of(own: dict[str, Any]) -> str:
    """Return a run's name, by what differs from the study's settings, so that grids and methods share runs."""
    changed = [f"{k} {v:g}" for k, v in own.items() if k != "method" and v != BASE[k]]
    return ", ".join([own.get("method", "CCP"), *changed])


def report(results: dict[str, Any], settings: Settings) -> str:
    """Return all tables as Markdown."""
    sections = []
    if "methods" in settings.parts:
        sections += method_tables(results)
    for part in (part for part in settings.parts if part in SWEEPS):
        row, column = (SWEEPS[part][name].replace("_", " ") for name in ("row", "column"))
        rows = [[f"{value:g}"] for value in SWEEPS[part]["rows"]]
        for (value, _), own in points_of(SWEEPS[part]).items():
            at = SWEEPS[part]["rows"].index(value)
            rows[at] += cells(results, name_of(own), ["validation"])
        sections.append(f"MAP@R on validation by {row} (rows) and {column} (columns):\n")
        sections.append(markdown_table([row, *map(str, SWEEPS[part]["columns"])], rows))
    return "\n".join(sections)


def method_tables(results: dict[str, Any]) -> list[str]:
    """Return MAP@R of the best evaluation, by method and by seed, and CCP problem by problem."""
    columns = ("validation", "train", "test")
    test = {method: dict(enumerate(over_seeds(results, method, "test"))) for method in METHODS}
    scored, seeds, problems = [], [], []
    for method in METHODS:
        number = f"{np.mean(over_seeds(results, method, 'problems')):.1f}"
        scored.append([method, *cells(results, method, columns), number, PAPER[method]])
        gain = "–" if method == "CCP" else str(paired_difference(test["CCP"], test[method]))
        seeds.append([method, *(f"{100 * value:.1f}" for value in test[method].values()), gain])
    runs = [result["metrics"]["history"] for key, result in results.items() if key[:4] == "CCP-"]
    for number, these in enumerate(itertools.zip_longest(*runs), 1):
        own = [problem for problem in these if problem is not None]
        means = (cell([problem[n] for problem in own], *form) for n, *form in OF_PROBLEMS.values())
        problems.append([str(number), str(len(own)), *means])
    return [
        *("MAP@R:\n", markdown_table(["references", *columns, "problems", "paper"], scored)),
        "On test images, by seed:\n",
        markdown_table(["test", *(f"seed {seed}" for seed in test["CCP"]), "CCP − it"], seeds),
        "CCP, problem by problem:\n",
        markdown_table(["problem", "runs", *OF_PROBLEMS], problems),
    ]


main = study.folder_study(__file__, run, make_jobs, report)


if __name__ == "__main__":
    start(main, Settings, __doc__)
