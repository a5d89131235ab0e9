"""One run of the study: digits mapped to the plane, beside the batch, anchor samples, proxies or CCP's proxies."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

import jdml
from jdml import data, models, objectives, optim, training
from jdml.ccp import AlternatingProjections
from jdml.metrics import class_covering
from jdml.ops import ball
from jdml.training import AlternatingProblems, Alternation, HookResult, TrainState, embed

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
PROXY_RATE = 10.0
"""The proxies' learning rate, in units of the model's."""
NEVER = 10**6
ANCHORS_LAST = 200
"""Steps, as long as a short problem of CCP: eq. 4.10 is solved for one set of anchors after another."""
SCORED = 1000
"""Validation images at most: they are embedded again at every evaluation."""
TRAINING_SCORED = 10_000
"""Training images at most that are scored at the end: as many as MNIST has for testing."""
SHOWN = 1000
"""Points of the training set for covering radii and pictures."""


class Task(NamedTuple):
    """What differs between the data sets."""

    steps: int
    every: int
    patience: int
    tolerance: float
    """Of MAP@R: what is less than this is no improvement, and no reason to go on with a problem."""


TASKS = {"digits": Task(1500, 20, 3, 0.01), "mnist": Task(6000, 50, 3, 0.002)}
RATE = 1e-3
"""At the start; it falls to 0 by a cosine."""


class Parts(NamedTuple):
    """Images to train on, to choose by, and to report."""

    train: data.Dataset
    validation: data.Dataset
    test: data.Dataset


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

    def start(self, state: TrainState) -> tuple[Alternation, TrainState]:
        """Also the panel before the first step."""
        carried, after = super().start(state)
        self.note(state, None, after, 0, 0.0)
        return carried, after

    def after_evaluation(
        self, carried: Alternation, state: TrainState, metrics: Mapping[str, float]
    ) -> HookResult:
        """Also note a problem that ended."""
        result = super().after_evaluation(carried, state, metrics)
        ended = int(result.carried.machine.problem) > int(carried.machine.problem)
        if ended:
            at_best = state._replace(params=carried.params, batch_stats=carried.batch_stats)
            self.note(at_best, carried, result.state, int(state.step), float(carried.machine.best))
        return result

    def embed_points(self, state: TrainState, points: Any) -> np.ndarray:
        """The points in the unit disk."""
        x = embed(self.model, state.params["model"], state.batch_stats, points.images)
        return np.asarray(ball(jnp.asarray(x)))

    def note(
        self,
        state: TrainState,
        converged: Alternation | None,
        after: TrainState,
        step: int,
        score: float,
    ) -> None:
        """What a problem converged to, and how the next one begins."""
        labels = np.asarray(self.points.labels)
        new = np.asarray(after.params["proxies"])
        old = new if converged is None else np.asarray(ball(converged.params["proxies"]))
        panel = {
            "points": self.embed_points(after, self.points),
            "labels": labels,
            "old": old,
            "new": new,
        }
        self.panels.append(panel)
        if converged is None:
            return
        seen, unseen = (
            class_covering(self.embed_points(state, part), part.labels)
            for part in (self.points, self.unseen)
        )

        before = sum(problem["steps"] for problem in self.history)
        self.history.append(
            {
                "steps": step - before,
                "validation": score,
                "within": within(old),
                "next within": within(new),
                "class radius": seen.radius,
                "between classes": seen.between,
                "class ratio": seen.ratio,
                "unseen radius": unseen.radius,
                "unseen between": unseen.between,
                "unseen ratio": unseen.ratio,
            }
        )


def make_objective(job: dict[str, Any]) -> objectives.Objective:
    """Contrastive, in the unit disk, against the batch, anchors or proxies."""
    per_class = int(job["proxies_per_class"])
    if job["method"] == "in batch":
        return objectives.pair(jdml.contrastive_loss, normalize=ball, **MARGINS)
    if job["method"] == "samples":
        return objectives.as_anchor_objective(jdml.contrastive_loss, per_class * CLASSES, **MARGINS)
    return objectives.as_proxy_objective(
        jdml.contrastive_loss,
        CLASSES,
        2,
        per_class,
        in_batch_weight=job["in_batch_weight"],
        **MARGINS,
    )


def make_optimizer(job: dict[str, Any]) -> optax.GradientTransformation:
    """Adam with clipped gradients; the model anchored, the proxies not."""

    def adam(rate: float) -> optax.GradientTransformation:
        falling = optax.cosine_decay_schedule(rate, job["steps"])
        return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(falling, b2=0.99))

    anchored = optax.chain(optim.add_anchored_weights(job["strength"]), adam(RATE))
    return optim.partition_by_role(
        {"model": anchored, "proxies": adam(PROXY_RATE * RATE)},
        lambda params: {name: name for name in params},
    )


def make_sampler(job: dict[str, Any], labels: np.ndarray) -> data.EpochSampler:
    """Batches of some classes; anchors of all classes before them, which change as often as problems of CCP do."""
    classes, samples = int(job["classes_per_batch"]), int(job["samples_per_class"])
    sampler = data.ClassBatchSampler(labels, classes, samples, seed=job["seed"])
    if job["method"] != "samples":
        return sampler
    return data.AnchorBatchSampler(
        sampler,
        labels,
        int(job["proxies_per_class"]),
        renew_every=ANCHORS_LAST,
        seed=job["seed"],
    )


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network; MAP@R of its best evaluation on validation, training and test images."""
    parts, task = load(job["data"], job["data_dir"]), TASKS[job["data"]]
    model = models.ResNet20V2(2)
    shown = parts.train.select(np.arange(min(SHOWN, len(parts.train))))
    hook = Recorder(
        model=model,
        train=parts.train,
        pool_size=max(int(job["pool_size"]), int(job["proxies_per_class"])),
        monitor="validation",
        machine=AlternatingProjections(
            patience=task.patience if job["method"] == "CCP" else NEVER,
            run_patience=NEVER,
            tolerance=task.tolerance,
        ),
        restore=job["restore"],
        seed=job["seed"],
        points=shown,
        unseen=parts.validation,
    )
    result = training.fit(
        model,
        make_objective(job),
        make_optimizer(job),
        parts.train,
        make_sampler(job, parts.train.labels),
        steps=job["steps"],
        seed=job["seed"],
        evaluate=lambda embedder: {
            "validation": map_at_r(embedder(parts.validation.images), parts.validation.labels)
        },
        evaluate_every=task.every,
        monitor="validation",
        hook=hook if job["method"] in ("single", "CCP") else None,
        log_every=task.every,
        progress=False,
    )
    assert result.best is not None
    if job["panels"] is not None:
        save_panels(hook, Path(job["panels"]))
    scored = parts.train.select(np.arange(min(TRAINING_SCORED, len(parts.train))))
    return {
        "validation": result.best.value,
        "best step": result.best.step,
        "train": map_at_r(result.embedder(scored.images), scored.labels),
        "test": map_at_r(result.embedder(parts.test.images), parts.test.labels),
        "curve": [[r["step"], r["validation"]] for r in result.history if "validation" in r],
        "problems": 1 + len(hook.history),
        "history": hook.history,
    }


def save_panels(hook: Recorder, path: Path) -> None:
    """The start and the first problems, for the picture."""
    keys = (
        "class radius",
        "between classes",
        "class ratio",
        "unseen radius",
        "unseen between",
        "unseen ratio",
    )
    radii = [[problem[key] for key in keys] for problem in hook.history]
    arrays = {f"{name}{i}": v for i, panel in enumerate(hook.panels) for name, v in panel.items()}
    np.savez(path, number=len(hook.panels), radii=np.array(radii), **arrays)
