"""The folds and seeds of a method in one program: for a GPU, which one of these models leaves idle.

Start, batches, steps, evaluations and choice are those of :func:`jdml.training.by_recipe.train`, to rounding (tested);
only the convolutions are others: of kernels that differ by model XLA makes convolutions of groups, which are slow, of
products products of batches. CCP's models, which the host leads from problem to problem, are not trained so.
"""

import dataclasses
import functools
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.letters import protocol
from experiments.letters.methods import objective_of
from experiments.letters.protocol import Job, letters, load_fold, load_test, name_of, score
from jdml import data
from jdml.metrics import evaluate_retrieval
from jdml.models.convolution import windows
from jdml.recipes import Recipe
from jdml.recipes.optimizer import make_optimizer
from jdml.recipes.sampler import make_sampler
from jdml.training import by_recipe, make_indexed_step, standard
from jdml.training.records import keep_result, read_results
from jdml.training.schedule import Best, improve

SLICES = 20
"""Parts in which drawings are embedded: each letter has 20."""


@dataclasses.dataclass(frozen=True)
class ByProducts:
    """A network of the library whose convolutions are products."""

    network: nn.Module

    def init(self, *inputs: Any, **settings: Any) -> Any:
        """The network's."""
        return self.network.init(*inputs, **settings)

    def apply(self, *inputs: Any, **settings: Any) -> Any:
        """The network's, to rounding."""
        with nn.intercept_methods(_with_products):
            return self.network.apply(*inputs, **settings)


class Models(NamedTuple):
    """Models of one shape, along the first axis of all arrays."""

    states: Any
    labels: jax.Array
    rows: np.ndarray
    held_out: jax.Array
    held_out_labels: list[jax.Array]


def run_all(settings: Any, jobs: Mapping[str, Job]) -> None:
    """Do those of the jobs that can go together and have no result yet, and keep each one's as if it had gone alone."""
    units: dict[str, list[Job]] = {}
    for name, job in jobs.items():
        if name not in read_results(settings.out) and job["fold"] is not None:
            if Recipe.from_json(job["recipe"]).has_hook:
                continue
            units.setdefault(f"{job['column']}: {job['method']}", []).append(job)
    where = {"kept": str(settings.out.resolve()), "frozen": str(settings.frozen.resolve())}
    with tempfile.TemporaryDirectory() as folder:
        work = {name: {"models": models} for name, models in units.items()}
        settings.results(run, work, Path(folder) / "units.jsonl", **where)


def run(unit: Mapping[str, list[Job]], data_dir: str | None, kept: str, frozen: str) -> dict:
    """Train models of one recipe together, score those whose settings are frozen, and keep each one's result."""
    jobs, begun = unit["models"], time.perf_counter()
    scored = jobs[0]["column"] in protocol.COLUMNS
    test = load_test(jobs[0], data_dir, Path(frozen)) if scored else None
    results, vectors = fit(jobs, data_dir, test)
    rows = list(zip(jobs, results, strict=True))
    if test is not None:
        for result, own in zip(results, vectors, strict=True):
            if "diverged" not in result:
                result |= score(own, test)
        normalize = functools.partial(by_recipe.normalized, Recipe.from_json(jobs[0]["recipe"]))
        for seed in {job["seed"] for job in jobs}:
            of_seed = [
                x
                for (job, result), x in zip(rows[: len(jobs)], vectors, strict=True)
                if job["seed"] == seed and "MAP@R" in result
            ]
            if len(of_seed) == protocol.FOLDS:
                together = score(normalize(jnp.concatenate(of_seed, axis=1)), test)
                rows.append(({**jobs[0], "seed": seed, "fold": None}, together))
    seconds = round((time.perf_counter() - begun) / len(jobs), 1)
    told = {"seconds": seconds, "machine": f"{platform.machine()}, {jax.devices()[0].device_kind}"}
    for job, metrics in rows:
        keep_result(kept, name_of(job), {"job": job, "metrics": metrics, **told})
    return {"models": len(jobs)}


def fit(
    jobs: Sequence[Job], data_dir: str | None, test: data.Dataset | None
) -> tuple[list[dict[str, Any]], list[Any]]:
    """What each model's run leaves, and the unseen drawings' normalized embeddings by its best weights."""
    recipe, steps = Recipe.from_json(jobs[0]["recipe"]), jobs[0]["steps"]
    whole = letters(data_dir, "train")
    model, step, models = _begin(jobs, recipe, steps, data_dir)
    advance, embed = _programs(model, step)
    images = jnp.asarray(whole.images)
    states, best_weights = models.states, _weights(models.states)
    every = min(protocol.EVERY, steps)
    best: list[Best] = [Best()] * len(jobs)
    curves: list[list[Any]] = [[] for _ in jobs]
    diverged: dict[int, str] = {}
    for done in range(every, steps + 1, every):
        rows = jnp.asarray(models.rows[:, done - every : done])
        states, metrics = advance(states, images, models.labels, rows)
        _note_divergence(diverged, metrics, done - every)
        vectors, improved = embed(*_weights(states), models.held_out), []
        for number, labels in enumerate(models.held_out_labels):
            x = by_recipe.normalized(recipe, vectors[number])
            value = float(evaluate_retrieval(x, labels, recall_at=(1,))["MAP@R"])
            best[number], better = improve(best[number], value, done)
            curves[number].append([done, round(value, 5)])
            improved.append(better)
        best_weights = _chosen(jnp.asarray(improved), _weights(states), best_weights)
    results = [
        {"diverged": diverged[number]}
        if number in diverged
        else {
            "validation": round(own.value, 5),
            "best step": own.step,
            "steps": steps,
            "curve": curves[number],
        }
        for number, own in enumerate(best)
    ]
    if test is None:
        return results, []
    unseen = jnp.broadcast_to(jnp.asarray(test.images), (len(jobs), *test.images.shape))
    return results, [by_recipe.normalized(recipe, x) for x in embed(*best_weights, unseen)]


def _weights(states: Any) -> tuple[Any, Any]:
    """Of training states what embeds."""
    return states.params["model"], states.batch_stats


def _begin(
    jobs: Sequence[Job], recipe: Recipe, steps: int, data_dir: str | None
) -> tuple[ByProducts, Any, Models]:
    """The network, the step of one model, and all models before it."""
    whole = letters(data_dir, "train")
    folds = data.mlrc_folds(whole.labels, protocol.FOLDS)
    loaded = [load_fold(data_dir, job["fold"]) for job in jobs]
    first = loaded[0][0]
    model = ByProducts(by_recipe.make_network(recipe, first))
    per_epoch = max(1, len(first) // recipe.batch_size)
    objective = objective_of(jobs[0]["method"], recipe, first.num_classes)
    if objective is None:
        objective, optimizer = by_recipe.parts_of_step(recipe, first.num_classes, per_epoch, steps)
    else:
        optimizer = make_optimizer(recipe, by_recipe.roles_of(objective), per_epoch, steps)
    parts = {"model": model, "objective": objective, "optimizer": optimizer}
    states, labels, rows = [], [], []
    for job, (train, _) in zip(jobs, loaded, strict=True):
        seed = protocol.seed_of(job["seed"], job["fold"])
        begun = by_recipe.train(recipe, train, steps=0, seed=seed, progress=False, **parts)
        states.append(begun.state)
        own = np.flatnonzero(folds[job["fold"]].train)
        of_all = np.full(len(whole), -1, np.int32)
        of_all[own] = train.labels
        labels.append(of_all)
        sampler = make_sampler(recipe, train.labels, seed, train.views)
        rows.append(own[np.stack([next(sampler) for _ in range(steps)])].astype(np.int32))
    models = Models(
        _stacked(*states),
        jnp.asarray(np.stack(labels)),
        np.stack(rows),
        jnp.asarray(np.stack([held_out.images for _, held_out in loaded])),
        [jnp.asarray(held_out.labels) for _, held_out in loaded],
    )
    return model, make_indexed_step(model, objective, optimizer), models


def _programs(model: ByProducts, step: Any) -> tuple[Any, Any]:
    """Many steps of all models, and the embeddings of as many drawings of each."""

    def steps(state: Any, images: jax.Array, labels: jax.Array, rows: jax.Array) -> Any:
        return jax.lax.scan(lambda state, rows: step(state, images, labels, rows), state, rows)

    def embed(params: Any, batch_stats: Any, images: jax.Array) -> jax.Array:
        variables = {"params": params, "batch_stats": batch_stats}
        parts = images.reshape(SLICES, -1, *images.shape[1:])
        apply = functools.partial(model.apply, variables, train=False)
        vectors = jax.lax.map(lambda part: apply(standard(part)), parts)
        return vectors.reshape(len(images), -1)

    return jax.jit(jax.vmap(steps, (0, None, 0, 0))), jax.jit(jax.vmap(embed))


@jax.jit
def _stacked(*states: Any) -> Any:
    """States of one shape, side by side."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


@jax.jit
def _chosen(improved: jax.Array, new: Any, old: Any) -> Any:
    """The new weights of the models that are better by them."""

    def choose(one: jax.Array, new: Any, old: Any) -> Any:
        return jax.tree.map(functools.partial(jnp.where, one), new, old)

    return jax.vmap(choose)(improved, new, old)


def _note_divergence(
    diverged: dict[int, str], metrics: Mapping[str, jax.Array], before: int
) -> None:
    """Tell of each model the first step whose loss or gradient was not finite."""
    for name in ("loss", "grad_norm"):
        wrong = ~np.isfinite(np.asarray(metrics[name]))
        for number in np.flatnonzero(wrong.any(1)):
            first = int(wrong[number].argmax())
            value = metrics[name][number, first]
            diverged.setdefault(int(number), f"the {name} is {value} at step {before + first + 1}")


def _with_products(call: Any, inputs: Any, settings: Any, context: Any) -> Any:
    """Call a layer of Flax, a convolution by :func:`_by_products`."""
    if isinstance(context.module, nn.Conv) and context.method_name == "__call__":
        object.__setattr__(context.module, "conv_general_dilated", _by_products)
    return call(*inputs, **settings)


def _by_products(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Any, **_: Any
) -> jax.Array:
    """A convolution without groups or dilation as one product of the patches and the kernel."""
    size, down_right = (kernel.shape[0], kernel.shape[1]), (strides[0], strides[1])
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(images.shape[1:3], size, strides, padding)
    padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    patches = jnp.concatenate(windows(padded, size, down_right), axis=-1)
    return patches @ kernel.reshape(-1, kernel.shape[-1])
