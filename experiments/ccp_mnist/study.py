"""One run of the study: digits mapped to the plane, beside the batch, anchor samples, proxies or CCP's proxies."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.smoke import NETWORK, small
from jdml import data, objectives, training
from jdml.metrics import class_covering
from jdml.ops import ball
from jdml.recipes import CCPConfig, Recipe
from jdml.recipes.ccp import NEVER
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
    "panels": None,
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
    """A sixth of the training images is for validation."""
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
    """The spread of a class's proxies: their mean distance, in units of that between classes."""
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
    panels: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)

    def start(self, state: TrainState, /) -> tuple[Alternation, TrainState]:
        """Also the panel before the first step."""
        carried, after = super().start(state)
        new = np.asarray(after.params["proxies"])
        self.draw(after, new, new)
        return carried, after

    def update(
        self, carried: Alternation, step: int, state: TrainState, metrics: Mapping[str, float], /
    ) -> training.CallbackResult:
        """Also note a problem that ended: what it converged to, and how the next one begins."""
        result = super().update(carried, step, state, metrics)
        if int(result.carried.machine.problem) > int(carried.machine.problem):
            at_best = state._replace(params=carried.params, batch_stats=carried.batch_stats)
            old = np.asarray(ball(carried.params["proxies"]))
            new = np.asarray(result.state.params["proxies"])
            self.draw(result.state, old, new)
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
        """The points in the unit disk."""
        x = training.embed(self.model, state.params["model"], state.batch_stats, points.images)
        return np.asarray(ball(jnp.asarray(x)))

    def draw(self, state: TrainState, old: np.ndarray, new: np.ndarray) -> None:
        """Keep a panel: the points, and the proxies between two problems."""
        labels, points = np.asarray(self.points.labels), self.embed(state, self.points)
        self.panels.append({"points": points, "labels": labels, "old": old, "new": new})


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
    """What no recipe says: anchors of all classes before each batch, which change as often as CCP's problems do.

    Without problems, too, the optimizer is CCP's, whose anchor is then never set: the runs on record, to the bit.
    """
    if recipe.loss.method is not None:
        return {}
    like = recipe_of({**job, "method": "CCP"})
    own: dict[str, Any] = {"optimizer": train_recipe.make_optimizer(like, ("proxies",), 1)}
    if job["method"] == "samples":
        number, seed = int(job["proxies_per_class"]), job["seed"]
        anchors, batches = number * CLASSES, recipe.batch.build(labels, seed)
        own["objective"] = objectives.as_anchor_objective(jdml.contrastive_loss, anchors, **MARGINS)
        own["sampler"] = data.AnchorBatchSampler(
            batches, labels, number, renew_every=ANCHORS_LAST, seed=seed
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
    if job["panels"] is not None and recorder is not None:
        save_panels(recorder, Path(job["panels"]))
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


def save_panels(recorder: Recorder, path: Path) -> None:
    """The start and the first problems, for the picture."""
    radii = [list(problem.values())[4:] for problem in recorder.history]
    panels = enumerate(recorder.panels)
    arrays = {f"{name}{i}": value for i, panel in panels for name, value in panel.items()}
    np.savez(path, number=len(recorder.panels), radii=np.array(radii), **arrays)
