"""Runs of each method on 1, 2, 4 and 8 devices, as a script, because a process cannot change its number of devices.

    JAX_NUM_CPU_DEVICES=8 PYTHONPATH=tests python tests/scale/eight_devices.py RESULTS.json 0/1 [WORD …]

runs part 0 of 1 of the checks, as `meshes/eight_devices.py` does. `meshes/test_meshes.py` runs all.
"""

import contextlib
import functools
import tempfile
from collections.abc import Mapping
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes.checks import Checks, mapped, operations

import jdml
from jdml import objectives
from jdml.ccp import AlternatingProjections
from jdml.data import ClassBatchSampler, Dataset, RandomBatchSampler
from jdml.flows import ConditionalFlow
from jdml.mining import chain, easy_positive, semi_hard_negative
from jdml.optim import add_anchored_weights, partition_by_role
from jdml.training import AlternatingProblems, Devices, Evaluation, RunConfig, fit

CLASSES, DIM, STEPS = 8, 16, 30
RNG = np.random.default_rng(0)
LABELS = np.arange(64) % CLASSES
CENTRES = RNG.uniform(40, 210, (CLASSES, 4, 4, 1))
IMAGES = np.clip(CENTRES[LABELS] + RNG.normal(0, 30, (64, 4, 4, 1)), 0, 255).astype(np.uint8)
DATA = Dataset("dots", IMAGES, LABELS, {"class": LABELS})
CHECKS = Checks()
check = CHECKS.add


class Net(nn.Module):
    """A network with dropout, for randomness, and optional batch norm.

    CCP's embeddings stay inside the unit ball: at its border rounding decides on which side a proxy is.
    """

    batch_norm: bool = False
    scale: float = 1.0

    @nn.compact
    def __call__(self, images: Any, *, train: bool = False) -> Any:
        # Without a bias: before batch norm its gradient is rounding, which Adam amplifies.
        x = nn.Dense(8, use_bias=False)(images.reshape(len(images), -1))
        if self.batch_norm:
            x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(0.1, deterministic=not train)(nn.tanh(x))
        return self.scale * nn.Dense(DIM)(x)


def rates(*roles: str) -> Any:
    names = {"model": 1e-2, "proxies": 1e-2, "flow": 1e-3}
    rules = {role: optax.adam(names[role], eps=1e-3) for role in ("model", *roles)}
    return partition_by_role(rules, lambda params: {role: role for role in params})


def anchored() -> Any:
    mask = lambda params: {role: role == "model" for role in params}  # noqa: E731
    return optax.chain(add_anchored_weights(1e-2, mask), rates("proxies"))


def problems(model: Any) -> AlternatingProblems:
    machine = AlternatingProjections(patience=1, run_patience=100)  # R@8 soon reaches its maximum
    return AlternatingProblems(model, DATA, pool_size=6, monitor="R@8", machine=machine)


FLOW = ConditionalFlow(DIM, DIM, num_blocks=1, hidden=4, depth=1)
EPS = chain(easy_positive(), semi_hard_negative(0.2))
PAIR = objectives.pair(jdml.contrastive_loss, mine=EPS)
PROXY = functools.partial(objectives.proxy, num_classes=CLASSES, dim=DIM)
# Attraction of 1/r² between nearly equal proxies amplifies rounding: it ends at 0.2. Repulsion has no limit to cross.
SMOOTH = {"alpha": 1.0, "delta": 0.2, "repulsion_delta": 2.5}
METHODS: dict[str, Mapping[str, Any]] = {
    "EPS": {
        "objective": objectives.pair(jdml.triplet_loss, mine=EPS),
        "model": Net(batch_norm=True),
    },
    "XBM": {"objective": objectives.with_memory(PAIR, 40, DIM)},
    "PFML": {"objective": PROXY(jdml.potential_field_loss, proxies_per_class=2, **SMOOTH)},
    "MPA": {"objective": PROXY(jdml.multi_proxy_anchor_loss, proxies_per_class=2)},
    "NIR": {"objective": objectives.with_nir(PROXY(jdml.proxy_anchor_loss), FLOW, weight=0.5)},
    "CCP": {
        "objective": objectives.as_proxy_objective(jdml.contrastive_loss, CLASSES, DIM, 2),
        "optimizer": anchored(),
        "callback": problems,
        "model": Net(scale=0.2),
    },
}
OPTIMIZERS = {roles: rates(*roles) for roles in [(), ("proxies",), ("flow", "proxies")]}


def evaluate(embed: Any) -> Mapping[str, float]:
    scores = jdml.evaluate_retrieval(jnp.asarray(embed(IMAGES)), jnp.asarray(LABELS))
    return {name: scores[name] for name in ("MAP@R", "R@8")}


def grid_of(devices: int) -> Mesh:
    return jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])


def train(name: str, devices: int | None, *, batch: int = 4, **settings: Any) -> Any:
    """Train a method for 30 steps; on a mesh its proxies are sharded."""
    method = METHODS[name]
    model = method.get("model", Net())
    roles = tuple(sorted(jax.eval_shape(method["objective"].init, jax.random.key(0))))
    where: dict[str, Any] = {"micro_batch": settings.pop("micro_batch", None)}
    if devices is not None:
        where["mesh"] = grid_of(devices)
        where["shard"] = {"proxies": P("data")} if "proxies" in roles else None
    chosen = {
        "steps": STEPS,
        "run": RunConfig(**{"log_every": 10, **settings.pop("run", {})}),
        "evaluation": Evaluation(evaluate, every=5, monitor="MAP@R"),
        "callbacks": [method["callback"](model)] if "callback" in method else [],
        "devices": Devices(**where),
        "progress": False,
    }
    sampler = settings.pop("sampler", ClassBatchSampler(LABELS, 4, batch, seed=1))
    optimizer = method.get("optimizer", OPTIMIZERS[roles])
    return fit(model, method["objective"], optimizer, DATA, sampler, **{**chosen, **settings})


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """Compare parameters and history to a relative 1e-4."""
    for a, b in (actual.state.params, expected.state.params), (actual.history, expected.history):
        chex.assert_trees_all_close(a, b, rtol=tolerance, atol=tolerance)


@functools.cache
def alone(name: str) -> Any:
    return train(name, None)


def register(name: str) -> None:
    def as_on_one_device() -> None:
        for devices in (1, 2, 8) if name == "MPA" else (8,):
            result = train(name, devices)
            assert_same(result, alone(name))
            proxies = result.state.params.get("proxies")
            if proxies is not None:
                assert proxies.addressable_shards[0].data.shape[0] == CLASSES // devices
        if "callback" in METHODS[name]:
            assert max(record["problem"] for record in alone(name).history) >= 2
        if name in ("XBM", "MPA"):
            assert_same(train(name, 8, batch=3), train(name, None, batch=3))  # 12 rows on 8 devices

    CHECKS[name] = as_on_one_device


for name in METHODS:
    register(name)


class Stopped(BaseException):
    """Simulates a signal."""


class Dying(ClassBatchSampler):
    """A sampler that ends its process before a step."""

    dies_at = 0

    def __next__(self) -> np.ndarray:
        if self.step + 1 == self.dies_at:
            raise Stopped
        return super().__next__()


@check
def checkpoints_resume_on_other_numbers_of_devices() -> None:
    """A memory and sharded proxies are killed and resumed on other numbers; on as many devices they resume exactly."""
    for name, topology in {"XBM": (4, 1, 8), "PFML": (8, 2, 4), "MPA": (4, 4, 4)}.items():
        with tempfile.TemporaryDirectory() as folder:
            for devices, end in zip(topology, (8, 17, 0), strict=True):
                sampler = Dying(LABELS, 4, 4, seed=1)
                sampler.dies_at = end
                run = {"folder": folder, "checkpoint_every": 5, "async_checkpoints": end == 17}
                with contextlib.suppress(Stopped):
                    result = train(name, devices, sampler=sampler, run=run)
        assert_same(result, alone(name))
    unbroken = train("MPA", 4)
    assert result.history == unbroken.history
    chex.assert_trees_all_equal(result.state.params, unbroken.state.params)


@check
def micro_batches_on_a_mesh() -> None:
    """Micro-batches with blocks, a memory and nested embeddings equal one device's."""
    nested = jdml.matryoshka(jdml.info_nce_loss, (8, 16))
    METHODS["nested"] = {
        "objective": objectives.with_memory(objectives.pair(nested, anchor_block=4), 40, DIM)
    }
    for name in ("nested", "MPA"):
        few = {"micro_batch": 8, "steps": 10}
        assert_same(train(name, 4, **few), train(name, None, **few))


@check
def each_device_draws_among_its_own_classes() -> None:
    """On a mesh and inside shard_map: all classes of the batch, as many from each device, an eighth of the work."""
    classes, dim, number = 512, 16, 128
    objective = objectives.proxy(jdml.normalized_softmax_loss, classes, dim, sampled_classes=number)
    x = jnp.asarray(RNG.normal(size=(16, dim)), jnp.float32)
    y = jnp.asarray(RNG.integers(0, classes, 16), jnp.int32)
    proxies = objective.init(jax.random.key(1))["proxies"]
    grid = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(grid, P("data"))
    placed = jax.device_put((proxies, x, y), rows)

    def step(proxies: Any, x: Any, y: Any, **more: Any) -> Any:
        def value(proxies: Any, x: Any) -> Any:
            params = {"proxies": proxies}
            return objective.loss(params, x, y, key=jax.random.key(2), **more)[0]

        return jax.value_and_grad(value, (0, 1))(proxies, x)

    actual = jax.device_get(jax.jit(step)(*placed))
    moved = np.flatnonzero(np.abs(actual[1][0]).sum((1, 2)))
    assert set(np.asarray(y)) <= set(moved)
    assert len(moved) == number
    assert (np.bincount(moved // (classes // 8)) == number // 8).all()
    # The loss of those classes, on one device.
    among = jnp.searchsorted(jnp.asarray(moved), y)
    expected = jdml.normalized_softmax_loss(x, among, proxies[moved])
    np.testing.assert_allclose(actual[0], expected, 1e-5)
    inner = mapped(step, grid, P("data"), (P(), P("data")))
    chex.assert_trees_all_close(inner(*placed), actual, rtol=1e-5, atol=1e-6)
    # With replicated proxies every device makes the same draw.
    replicated = jax.device_put(proxies, NamedSharding(grid, P()))
    expected = jax.jit(step)(proxies, x, y)
    for check_vma in (True, False):
        of, to = (P(), P("data"), P("data")), (P(), (P(), P("data")))
        inner = mapped(step, grid, of, to, check_vma=check_vma)
        again = inner(replicated, *placed[1:])
        chex.assert_trees_all_close(again, expected, rtol=1e-5, atol=1e-6)
    objective = objectives.proxy(jdml.normalized_softmax_loss, 8192, dim, sampled_classes=2048)
    kinds = [((8192, 1, dim), np.float32), ((16, dim), np.float32), ((16,), np.int32)]
    counts = []
    for at in (rows, None):
        shapes = [jax.ShapeDtypeStruct(*kind, sharding=at) for kind in kinds]
        counts.append(operations(jax.jit(lambda *arrays: step(*arrays)).trace(*shapes).jaxpr))
    assert counts[0] / counts[1] < 0.15, counts


class Wide(nn.Module):
    """A network whose step takes longer than its dispatch."""

    @nn.compact
    def __call__(self, images: Any, *, train: bool = False) -> Any:
        return nn.Dense(DIM)(nn.tanh(nn.Dense(512)(images.reshape(len(images), -1))))


@check
def steps_do_not_run_ahead_of_each_other() -> None:
    """On a CPU, whose devices share few threads, concurrent steps would deadlock."""
    devices = Devices(grid_of(8), {"proxies": P("data")})
    sampler, optimizer = RandomBatchSampler(64, 64, seed=1), OPTIMIZERS[("proxies",)]
    objective = PROXY(jdml.proxy_anchor_loss)
    parts = Wide(), objective, optimizer, DATA, sampler
    result = fit(*parts, steps=200, devices=devices, progress=False)
    assert np.isfinite(result.history[-1]["loss"])


@check
def wrong_shards_are_refused() -> None:
    for name, arguments, settings in (
        (r"shard\['proxies'\].* 3 devices.*\[8, 2, 16\]", ("MPA", 3), {}),
        ("mesh: .* 12 rows .* 8 devices", ("EPS", 8), {"batch": 3}),
        ("micro_batch=4", ("EPS", 8), {"micro_batch": 4}),
    ):
        with pytest.raises(ValueError, match=f"^{name}"):
            train(*arguments, **settings)


if __name__ == "__main__":
    CHECKS.main()
