"""Golden values on file: values and gradients of every loss, miners, metrics, and twenty steps of every method.

The oracles show that numbers are right; those on file show which of them a change of jdml, JAX, flags or the device has
moved. After an intended change rewrite the file, review the difference, and name it in the changelog:

    python tests/golden/test_golden.py
"""

import json
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import data, metrics, mining, recipes, registry, training
from jdml.flows import PRESETS, preset

FILE = Path(__file__).with_name("values.json")
CLASSES, DIM, STEPS = 6, 8, 20
LABELS = np.arange(24) % CLASSES
SEVERAL = 2
EXACT = 1e-5
"""Tolerance of one computation in float32, for another order of its sums."""
TRAINED = 5e-3
"""Tolerance after twenty steps, which amplify a difference."""

MINERS = dict.fromkeys(miner.builder for miner in registry.MINERS.values())
Numbers = Mapping[str, list[float]]


def wave(*shape: int, pace: float = 0.7) -> np.ndarray:
    """Return numbers in -1…1 without a pattern, independent of any generator."""
    count = np.arange(1, 1 + np.prod(shape), dtype=np.float64)
    return np.cos(pace * count**2).reshape(shape).astype(np.float32)


def digest(values: Any, name: str) -> list[float]:
    """Return three numbers of an array: its sum, its norm, and its product with a wave that depends on the name."""
    flat = np.asarray(values, np.float64).ravel()
    pace = 0.3 + zlib.crc32(name.encode()) % 1000 / 1000
    return [
        float(flat.sum()),
        float(np.linalg.norm(flat)),
        float(flat @ wave(flat.size, pace=pace)),
    ]


X = wave(len(LABELS), DIM) + 0.7 * wave(CLASSES, DIM, pace=1.1)[LABELS]


def of_loss(name: str) -> Numbers:
    """Return the value and the gradients by embeddings and proxies."""
    record = registry.LOSSES[name]
    loss = getattr(jdml, f"{name}_loss")
    arrays = [X]
    if record.kind == "proxy":
        several = (SEVERAL,) if record.proxies > 1 else ()
        arrays.append(wave(CLASSES, *several, DIM, pace=1.3))

    def value(x: jax.Array, *proxies: jax.Array) -> jax.Array:
        return loss(x, LABELS, *proxies)

    found, gradients = jax.jit(jax.value_and_grad(value, tuple(range(len(arrays)))))(*arrays)
    numbers = {"value": [float(found)]}
    return numbers | {
        f"gradient {i}": digest(gradient, f"{name} {i}") for i, gradient in enumerate(gradients)
    }


def of_flow(name: str) -> Numbers:
    """Return latents, log-determinants, and the gradient by the flow's input."""
    flow = preset(name, DIM, DIM)
    params = jax.eval_shape(flow.init, jax.random.key(0), X, X)
    params = jax.tree.map(lambda leaf: 0.05 * wave(*leaf.shape), params)

    def value(x: jax.Array) -> Any:
        latents, determinant = flow.apply(params, x, 0.5 * X)
        return jnp.mean(determinant - 0.5 * jnp.square(latents).sum(-1)), latents

    (found, latents), gradient = jax.jit(jax.value_and_grad(value, has_aux=True))(X)
    numbers = {"value": [float(found)], "latents": digest(latents, name)}
    return numbers | {"gradient": digest(gradient, f"{name} gradient")}


def of_miner(name: str) -> Numbers:
    record = next(miner for miner in registry.MINERS.values() if miner.builder == name)
    miner = record.build(DIM)

    def kept(x: jax.Array) -> Any:
        distances = jnp.sqrt(jnp.square(x[:, None] - x[None]).sum(-1) + 1e-6)
        same = LABELS[:, None] == LABELS[None]
        pairs = mining.Pairs(same & ~np.eye(len(x), dtype=bool), ~same)
        return miner(jax.random.key(0), distances, pairs)

    pairs = jax.jit(kept)(X / np.linalg.norm(X, axis=1, keepdims=True))
    return {part: digest(value, f"{name} {part}") for part, value in pairs._asdict().items()}


def of_metrics() -> Numbers:
    """Return the metrics of `evaluate_retrieval`, of clustering and of verification."""
    scores = metrics.evaluate_retrieval(
        X, LABELS, recall_at=(1, 2, 4), ndcg_at=(4,), precision_at=(2,), true_recall_at=(2,)
    )
    pairs = metrics.verification(X, LABELS, far=(0.1,))
    return {
        **{name: [float(value)] for name, value in scores.items()},
        "NMI": [float(metrics.nmi(X, LABELS, key=jax.random.key(0)))],
        "spectral decay": [float(metrics.spectral_decay(X))],
        "uniformity": [float(metrics.uniformity(X))],
        **{f"pairs' {name}": [float(pairs[name])] for name in ("AUC", "EER")},
    }


class Network(nn.Module):
    """A layer, batch norm, a head. No bias before the norm: its gradient is rounding, which Adam would amplify."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(
            nn.Dense(12, use_bias=False)(x.reshape(len(x), -1))
        )
        return nn.Dense(DIM, name="head")(nn.relu(x))


def of_method(name: str) -> Numbers:
    """Return the loss of every fifth step of twenty, and the final embeddings."""
    images = 0.5 + 0.25 * (wave(48, 16) + wave(CLASSES, 16, pace=1.1)[np.arange(48) % CLASSES])
    blobs = data.Dataset("waves", images.reshape(48, 4, 4, 1), np.arange(48) % CLASSES)
    recipe = recipes.recipe(name, "cub").replace(
        network={"dim": DIM}, batch={"classes": 6, "samples_per_class": 4, "steps": STEPS}
    )
    if recipe.loss.memory_size:
        recipe = recipe.replace(loss={"memory_size": 24, "memory_start_step": 2})
    if isinstance(recipe.loss.method, recipes.NIRConfig):  # the flow's own size is among the flows
        few = {**recipe.loss.method.flow_settings, "num_blocks": 2}
        recipe = recipe.replace(loss={"method": {"flow_settings": few}})
    result = training.train(
        recipe,
        blobs,
        validation=blobs,
        model=Network(),
        progress=False,
        run=training.RunConfig(log_every=5),
    )
    losses = [row["loss"] for row in result.history if "loss" in row]
    return {"losses": losses, "embeddings": digest(result.embedder(blobs.images), name)}


PARTS: Mapping[str, tuple[Callable[..., Numbers], float]] = {
    **{f"loss {name}": (partial(of_loss, name), EXACT) for name in registry.LOSSES},
    **{f"miner {name}": (partial(of_miner, name), EXACT) for name in MINERS},
    **{f"flow {name}": (partial(of_flow, name), EXACT) for name in PRESETS},
    "metrics": (of_metrics, EXACT),
    **{f"method {name}": (partial(of_method, name), TRAINED) for name in recipes.RECIPES},
}


def exactly(compute: Callable[..., Numbers]) -> Numbers:
    """Compute in full precision: by default a GPU or TPU rounds the factors of matrix products."""
    with jax.default_matmul_precision("highest"):
        return compute()


# One method of each kind, and one loss of each module, in `make test`.
METHODS = ("ccp", "nir", "pfml", "proxy_anchor", "xbm")
QUICK = {
    *{r.module: f"loss {name}" for name, r in reversed(registry.LOSSES.items())}.values(),
    *(f"method {name}" for name in METHODS),
    *(part for part in PARTS if part.startswith(("miner", "metrics"))),
    "flow paper",
}


@pytest.mark.parametrize(
    # Programs of other losses.
    "part",
    [pytest.param(p, marks=[] if p in QUICK else [pytest.mark.slow]) for p in PARTS],
)
def test_numbers_match_the_file(part: str) -> None:
    compute, tolerance = PARTS[part]
    on_file = json.loads(FILE.read_text())[part]
    found = exactly(compute)
    assert found.keys() == on_file.keys()
    for what, numbers in found.items():
        # An array's norm is among its numbers: sums may cancel.
        scale = max(map(abs, on_file[what]))
        np.testing.assert_allclose(
            numbers, on_file[what], rtol=0, atol=tolerance * scale, err_msg=f"{part}, {what}"
        )


def test_file_has_no_other_entries() -> None:
    assert json.loads(FILE.read_text()).keys() == PARTS.keys()


if __name__ == "__main__":
    only = sys.argv[1:]
    new = json.loads(FILE.read_text()) if only and FILE.exists() else {}
    for part, (compute, _) in PARTS.items():
        if not only or any(word in part for word in only):
            new[part] = exactly(compute)
            print(part, new[part], flush=True)
    lines = [f" {json.dumps(part)}: {json.dumps(new[part])}" for part in PARTS if part in new]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
