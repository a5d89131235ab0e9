"""The folds and seeds of a method together, side by side on a GPU, which one of these models leaves idle."""

import dataclasses
import functools
import json
import math
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
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
from jdml.models import as_model
from jdml.models.convolution import windows
from jdml.recipes import Recipe
from jdml.runs.run_files import save_result
from jdml.studies.runner import results_of
from jdml.training import Best, default_preprocess, train_recipe
from jdml.training.step import StepConfig, compiled

MOST, LARGE = 24, 2048
"""Models of a program; rows of a batch from which on it has one."""
AT_ONCE = 20
"""Drawings of a model that are embedded at a time: each letter has 20."""


@dataclasses.dataclass(frozen=True)
class ByProducts:
    """A network of the library whose convolutions are products."""

    network: nn.Module

    def init(self, *inputs: Any, **settings: Any) -> Any:
        """Return the network's."""
        return self.network.init(*inputs, **settings)

    def apply(self, *inputs: Any, **settings: Any) -> Any:
        """Return the network's, to rounding."""
        with nn.intercept_methods(_with_products):
            return self.network.apply(*inputs, **settings)


class Models(NamedTuple):
    """Models of one shape, along the first axis of all arrays but the images, which they share."""

    states: Any
    images: jax.Array
    labels: jax.Array
    rows: np.ndarray
    held_out: jax.Array
    held_out_labels: list[jax.Array]


def run_all(settings: Any, jobs: Mapping[str, Job], frozen: str) -> None:
    """Do those of the jobs that have no result yet, and add each one's as if it had gone alone."""
    cache = results_of(jobs, settings.out)
    missing = {_scored_with(job) for name, job in jobs.items() if name not in cache}
    units: dict[str, list[Job]] = {}
    for job in jobs.values():
        if _scored_with(job) in missing:
            units.setdefault(_unit(job), []).append(job)
    parts = {
        f"{name}, {first}": {"models": models[first : first + MOST]}
        for name, models in units.items()
        for first in range(0, len(models), MOST)
    }
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    where = {"cache": str(settings.out.resolve()), "frozen": frozen}
    with tempfile.TemporaryDirectory() as folder:
        every = dataclasses.replace(settings, match=(), out=Path(folder) / "units.jsonl")
        every.results(run, parts, every.out, **where)


def can(job: Job) -> bool:
    """Return whether a job is one model without evaluations that change its steps."""
    return job["fold"] is not None and not Recipe.from_json(job["recipe"]).loss.needs_validation


def _scored_with(job: Job) -> str:
    """Return the name of the models that are scored together, the four of a seed: if one is missing, all go again."""
    if "of" in job or job["column"] not in protocol.COLUMNS:
        return name_of(job)
    return json.dumps([job["column"], job["method"], job["seed"]])


def _unit(job: Job) -> str:
    """The name of the models that have one program: of a recipe and as many letters, however many drawings of each."""
    shape: dict[str, Any] = {"column": job["column"]}
    if "of" in job:
        # Of as many letters: proxies, and margins of a letter each, are parameters.
        shape = {"recipe": job["recipe"], "steps": job["steps"]}
        shape["letters"] = job["data"].get("letters")
        if Recipe.from_json(job["recipe"]).batch.rows >= LARGE:
            shape["model"] = [job["seed"], job["fold"]]
    return f"{job['method']}: {json.dumps(shape)}"


def run(unit: Mapping[str, list[Job]], data_dir: str | None, cache: str, frozen: str) -> dict:
    """Train models of one recipe together, score those whose settings are frozen, and keep each one's result."""
    jobs, begun = unit["models"], time.perf_counter()
    scored = protocol.is_scored(jobs[0])
    test = load_test(jobs[0], data_dir, Path(frozen)) if scored else None
    rows = []
    by_seed: dict[int, list[Any]] = {}
    for job, result, own in zip(jobs, *fit(jobs, data_dir, test), strict=True):
        rows.append((job, result))
        if test is not None and "diverged" not in result:
            result |= score(own, test)
            by_seed.setdefault(job["seed"], []).append(own)
    for seed, four in by_seed.items() if "of" not in jobs[0] else ():
        if test is not None and len(four) == protocol.FOLDS:
            side = train_recipe.normalized(
                Recipe.from_json(jobs[0]["recipe"]), jnp.concatenate(four, 1)
            )
            rows.append(({**jobs[0], "seed": seed, "fold": None}, score(side, test)))
    seconds = round((time.perf_counter() - begun) / len(jobs), 1)
    machine = f"{platform.machine()}, {jax.devices()[0].device_kind}"
    for job, metrics in rows:
        made = {"job": job, "metrics": metrics, "seconds": seconds, "machine": machine}
        save_result(cache, name_of(job), made)
    return {"models": len(jobs)}


def fit(
    jobs: Sequence[Job], data_dir: str | None, test: data.Dataset | None
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return each model's result, and the unseen drawings' normalized embeddings by its best weights."""
    recipe, steps = protocol.recipe_of(jobs[0]), jobs[0]["steps"]
    model, step, models = _begin(jobs, data_dir)
    advance, embed = _programs(model, step)
    states, best_weights = models.states, _weights(models.states)
    every = protocol.every_of(jobs[0])
    if steps % every:
        raise ValueError(
            f"steps must be a multiple of those between evaluations, got {steps}, {every}"
        )
    best, diverged = [Best()] * len(jobs), dict[int, str]()
    curves: list[list[Any]] = [[] for _ in jobs]
    for done in range(every, steps + 1, every):
        rows = jnp.asarray(models.rows[:, done - every : done])
        states, metrics = advance(states, models.images, models.labels, rows)
        for name in ("loss", "grad_norm"):
            values = np.asarray(metrics[name])
            for number in np.flatnonzero(~np.isfinite(values).all(1)):
                first = int((~np.isfinite(values[number])).argmax())
                text = f"the {name} is {values[number, first]} at step {done - every + first + 1}"
                diverged.setdefault(int(number), text)
        vectors, improved = embed(*_weights(states), models.held_out), []
        for number, labels in enumerate(models.held_out_labels):
            value = math.nan
            if number not in diverged:
                x = train_recipe.normalized(recipe, vectors[number])
                value = float(evaluate_retrieval(x, labels, recall_at=(1,))["MAP@R"])
            better = value > best[number].value
            best[number] = Best(value, done) if better else best[number]
            curves[number].append([done, round(value, 5)])
            improved.append(better)
        best_weights = _chosen(jnp.asarray(improved), _weights(states), best_weights)
    results: list[dict[str, Any]] = []
    for number, own in enumerate(best):
        values = {"validation": round(own.value, 5), "best step": own.step, "steps": steps}
        text = diverged.get(number)
        results.append({"diverged": text} if text else {**values, "curve": curves[number]})
    if test is None:
        return results, [None] * len(jobs)
    unseen = jnp.broadcast_to(jnp.asarray(test.images), (len(jobs), *test.images.shape))
    return results, [train_recipe.normalized(recipe, x) for x in embed(*best_weights, unseen)]


def _weights(states: Any) -> tuple[Any, Any]:
    """Return what embeds of training states."""
    return states.params["model"], states.batch_stats


def _begin(jobs: Sequence[Job], data_dir: str | None) -> tuple[Any, Any, Models]:
    """Return the network, the step of one model, and all models before it."""
    whole, recipe = letters(data_dir, "train"), protocol.recipe_of(jobs[0])
    changes = [job.get("data", {}) for job in jobs]
    seeds = [protocol.seed_of(job["seed"], job["fold"]) for job in jobs]
    loaded = [
        load_fold(data_dir, job["fold"], change, seed)
        for job, change, seed in zip(jobs, changes, seeds, strict=True)
    ]
    first = loaded[0][0]
    if {train.num_classes for train, *_ in loaded} != {first.num_classes}:
        raise ValueError(
            "models of a program must have as many letters, for all have the first's parameters"
        )
    model = ByProducts(train_recipe.make_network(recipe, first))
    per_epoch = max(1, len(first) // recipe.batch.rows)
    objective = objective_of(jobs[0]["method"], recipe, first.num_classes)
    if objective is None:
        steps = jobs[0]["steps"]
        objective, optimizer = train_recipe.parts_of_step(
            recipe, first.num_classes, per_epoch, steps
        )
    else:
        optimizer = train_recipe.make_optimizer(recipe, train_recipe.roles_of(objective), per_epoch)
    parts = {"model": model, "objective": objective, "optimizer": optimizer}
    copied = protocol.with_copies(whole) if any(own.get("augmented") for own in changes) else whole
    states, labels, rows = [], [], []
    for (train, _, own), change, seed in zip(loaded, changes, seeds, strict=True):
        at_first = recipe.replace(batch={"steps": 0})
        states.append(train_recipe.train(at_first, train, seed=seed, progress=False, **parts).state)
        of_all = np.full(len(whole), -1, np.int32)
        of_all[own] = train.labels
        labels.append(np.tile(of_all, len(copied) // len(whole)))
        drawn = np.stack([*islice(protocol.batches(recipe, train, seed, change), jobs[0]["steps"])])
        copy, row = np.divmod(drawn, len(train))
        rows.append((own[row] + len(whole) * copy).astype(np.int32))
    models = Models(
        jax.jit(lambda *s: jax.tree.map(lambda *leaves: jnp.stack(leaves), *s))(*states),
        jnp.asarray(copied.images),
        jnp.asarray(np.stack(labels)),
        np.stack(rows),
        jnp.asarray(np.stack([held_out.images for _, held_out, _ in loaded])),
        [jnp.asarray(held_out.labels) for _, held_out, _ in loaded],
    )
    spec = StepConfig(as_model(model), objective, optimizer)
    return model, compiled(spec, donate=False, indexed=True), models


@functools.lru_cache(maxsize=4)
def _programs(model: ByProducts, step: Any) -> tuple[Any, Any]:
    """Return many steps of all models, and the embeddings of as many drawings of each."""

    def steps(state: Any, images: jax.Array, labels: jax.Array, rows: jax.Array) -> Any:
        return jax.lax.scan(lambda state, rows: step(state, images, labels, rows), state, rows)

    def embed_all(params: Any, batch_stats: Any, images: jax.Array) -> jax.Array:
        def embed(images: jax.Array) -> Any:
            variables = {"params": params, "batch_stats": batch_stats}
            return model.apply(variables, default_preprocess(images), train=False)

        vectors = jax.lax.map(embed, images.reshape(-1, AT_ONCE, *images.shape[1:]))
        return vectors.reshape(len(images), -1)

    return jax.jit(jax.vmap(steps, in_axes=(0, None, 0, 0))), jax.jit(jax.vmap(embed_all))


@jax.jit
@jax.vmap
def _chosen(improved: jax.Array, new: Any, old: Any) -> Any:
    """Return the new weights of the models that are better by them."""
    return jax.tree.map(functools.partial(jnp.where, improved), new, old)


def _with_products(call: Any, inputs: Any, settings: Any, context: Any) -> Any:
    """Call a layer of Flax, a convolution by :func:`_by_products`."""
    if isinstance(context.module, nn.Conv) and context.method_name == "__call__":
        object.__setattr__(context.module, "conv_general_dilated", _by_products)
    return call(*inputs, **settings)


def _by_products(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Any, **_: Any
) -> jax.Array:
    """Return a convolution without groups or dilation as one product of the patches and the kernel."""
    size, down_right = (kernel.shape[0], kernel.shape[1]), (strides[0], strides[1])
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(images.shape[1:3], size, strides, padding)
    padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    patches = jnp.concatenate(windows(padded, size, down_right), axis=-1)
    return patches @ kernel.reshape(-1, kernel.shape[-1])
