"""The programs that `compiled.py` compiles: each section yields what a program is called, and how it is traced."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import losses as judged
import machine
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jdml
from jdml import ccp, mining, models, objectives
from jdml.distributed import Placement, class_shards
from jdml.flows import ConditionalFlow, preset
from jdml.metrics import gallery_search, neighbors, ranking, retrieval
from jdml.ops import tiled_pairs
from jdml.training import TrainState, make_train_step
from jdml.training.optimizer_wrappers import with_loss_scale

BATCH, DIM, CLASSES = 1_024, 512, 1_000
MANY, MANY_CLASSES, MOST = 32_768, 11_318, 262_144
CHARGES, FIELD_BATCH = (22_816, 131_072), 180
GALLERY = 60_502
MEMORY = machine.small(8_192, 16)
STEP_CLASSES = machine.small(11_264, 8)
"""About Stanford Online Products, in a number that 256 divides."""

Cases = Iterator[tuple[Any, ...]]


def _devices(number: int) -> list[Any]:
    return jax.devices()[:number]


def place(devices: Callable[[int], list[Any]]) -> None:
    """Say what devices there are."""
    global _devices
    _devices = functools.cache(devices)


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An array on one device."""
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=SingleDeviceSharding(_devices(1)[0]))


def shapes(tree: Any) -> Any:
    """Arrays like these on one device."""
    return jax.tree.map(lambda x: shape(*x.shape, dtype=x.dtype), tree)


def traced(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A function that traces another."""
    return lambda: jax.jit(function).lower(*arguments)


def products(x: jax.Array, q: jax.Array, g: jax.Array) -> Any:
    """Similarities, and their gradients by both sides: what no loss can do without."""
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    return product(x, q.T), product(g, q), product(g.T, x)


def bare(rows: int, columns: int) -> tuple[Any, ...]:
    """The bare products of so many rows and columns."""
    arrays = shape(rows, DIM), shape(columns, DIM), shape(rows, columns)
    return f"products, {rows} x {columns}", traced(products, *arrays)


def bare_bytes(rows: int, columns: int) -> int:
    """Bytes that the bare products read and write, for what no device holds."""
    return 4 * (3 * rows * columns + 3 * DIM * (rows + columns))


def of_pairs(
    name: str, rows: int, more: str = "", dtype: Any = jnp.float32, **settings: Any
) -> tuple[Any, ...]:
    """Value and gradient of a pair loss."""
    loss = functools.partial(getattr(jdml, f"{name}_loss"), **settings)
    arrays = shape(rows, DIM, dtype=dtype), shape(rows, dtype=jnp.int32)
    what = f"{name}{more}, {rows} rows"
    return what, traced(jax.value_and_grad(loss), *arrays), 1, bare(rows, rows)[0]


def of_proxies(name: str, rows: int, classes: int) -> tuple[Any, ...]:
    """Value and gradients of a proxy loss."""
    entry = judged.EVERY[name]
    loss = functools.partial(getattr(jdml, f"{name}_loss"), **entry.settings)
    sizes = (classes, *((entry.per_class,) if entry.per_class > 1 else ()), DIM)
    arrays = shape(rows, DIM), shape(rows, dtype=jnp.int32), shape(*sizes)
    what = f"{name}, {rows} x {classes} classes" + (f" x {sizes[1]}" if len(sizes) > 2 else "")
    baseline = bare(rows, classes * entry.per_class)[0]
    return what, traced(jax.value_and_grad(loss, (0, 2)), *arrays), 1, baseline


def of_field(name: str, charges: int, batch: int = FIELD_BATCH) -> tuple[Any, ...]:
    """Value and gradients of a field."""
    classes = (charges - batch) // 2
    arrays = shape(batch, DIM), shape(batch, dtype=jnp.int32), shape(classes, 2, DIM)
    loss = getattr(jdml, f"{name}_loss")
    # Tiles of each unordered pair of charges, written and read once forward and once backward.
    tiles = 4 * 4 * charges * (charges + 1) // 2
    what, others = f"{name}, {charges} charges", {"bare_bytes": tiles, "turns": visits(charges)}
    return what, traced(jax.value_and_grad(loss, (0, 2)), *arrays), 1, None, others


def visits(charges: int, devices: int = 1) -> int:
    """How many pairs of tiles a device visits for its gradient, at most."""
    number = -(-charges // tiled_pairs._default_side(charges, devices))
    return -(-number * (number + 1) // 2 // devices)


def small(asked: Any, classes: int = CLASSES, batch: int = BATCH) -> Cases:
    """Every loss of a usual batch."""
    yield from _every(batch, batch, classes)


def mined(asked: Any) -> Cases:
    """Losses with their usual miners."""
    usual = {
        "triplet": (
            "easiest positive, hardest negative",
            mining.chain(mining.easy_positive(), mining.hard_negative()),
        ),
        "multi_similarity": ("MS pairs", mining.multi_similarity_pairs()),
        "contrastive": (
            "hardest pairs",
            mining.chain(mining.hard_positive(), mining.hard_negative()),
        ),
    }
    yield bare(BATCH, BATCH)
    for name, (miner, mine) in usual.items():
        yield of_pairs(name, BATCH, f" with {miner}", mine=mine)


def large(asked: Any) -> Cases:
    """Pair losses of a large batch, proxy losses of many classes."""
    yield from _every(MANY, BATCH, MANY_CLASSES)


def _every(rows: int, batch: int, classes: int) -> Cases:
    """Pair losses of so many rows, proxy losses of a batch and so many classes, and the bare products of both."""
    yield bare(rows, rows)
    yield bare(batch, classes)
    yield bare(batch, judged.CENTRES * classes)
    for name in judged.PAIRS:
        yield of_pairs(name, rows)
    for name in judged.PROXIES:
        yield of_proxies(name, batch, classes)


def fields(asked: Any) -> Cases:
    """Fields of the paper's size, and of many charges."""
    for charges in CHARGES:
        for name in judged.FIELDS:
            yield of_field(name, charges)


def everyday(asked: Any) -> Cases:
    """Everyday losses of very large batches, compared with products that would take 256 GiB."""
    for name in judged.EVERYDAY:
        yield *of_pairs(name, MOST)[:3], None, {"bare_bytes": bare_bytes(MOST, MOST)}


def ranked(size: int, dim: int, rows: int, depth: int) -> tuple[Any, ...]:
    """A block of `evaluate_retrieval`."""
    theirs, own = shape(size, dtype=jnp.int32), shape(rows, dtype=jnp.int32)
    chunk = gallery_search.Chunk(shape(size), shape(size, dim))
    at_ranks = ranking.recall_at_k, ranking.recall_at_k
    functions = *at_ranks, ranking.precision_at_1, ranking.r_precision, ranking.map_at_r
    ranks = [1, 10, None, None, None]

    def block(chunk: Any, queries: Any, frame: Any, theirs: Any, own: Any) -> Any:
        _, rows_, hits = gallery_search._top(
            chunk, gallery_search.Block(queries, own), frame, depth
        )
        return retrieval._measure(hits, (theirs, own, rows_), own, ranks, functions)

    frame = shape(1, dim), shape(dtype=jnp.int32)
    return (
        f"evaluate_retrieval, {rows} of {size} x {dim}",
        traced(block, chunk, shape(rows, dim), frame, theirs, own),
    )


def metrics(asked: Any, size: int = GALLERY) -> Cases:
    """Yield the metrics of whole data sets."""
    dim = DIM
    rows = min(size, 512)
    yield ranked(size, dim, rows, 16)
    gallery = shape(size, dim)
    nearest = functools.partial(neighbors._nearest, k=10, exclude_self=True)
    yield f"nearest, {size} x {dim}", traced(lambda x: nearest(x, x), gallery)
    pool = shape(min(size, 10_000), dim)
    cover = functools.partial(ccp.greedy_k_center, k=8)
    yield f"greedy_k_center, {pool.shape[0]} x {dim}", traced(lambda x: cover(x, x[:1]), pool)


def flow(asked: Any, rows: int = 128, **changes: Any) -> Cases:
    """Density and gradient of NIR's flow."""
    dim = DIM
    module = preset("released", dim, dim, **changes)
    x = shape(rows, dim)
    params = shapes(jax.eval_shape(module.init, jax.random.key(0), x, x))

    def value(params: Any, x: Any, condition: Any) -> jax.Array:
        latents, log_dets = module.apply(params, x, condition)
        return jdml.nir_loss(latents, log_dets)

    yield f"flow, {rows} x {dim}", traced(jax.value_and_grad(value, (0, 1, 2)), params, x, x)


class Plain(nn.Module):
    """A ResNet-50 written down: bfloat16, frozen batch norm as scale and shift, pooling, a linear layer."""

    dim: int
    stages: tuple[int, ...] = (3, 4, 6, 3)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Embed images."""

        def layer(x: jax.Array, width: int, kernel: int, stride: int = 1) -> jax.Array:
            edge = kernel // 2
            conv = nn.Conv(
                width,
                (kernel, kernel),
                stride,
                [(edge, edge)] * 2,
                use_bias=False,
                dtype=jnp.bfloat16,
            )
            scale = self.param(f"scale_{conv.name}_{len(names)}", nn.initializers.ones, (width,))
            shift = self.param(f"shift_{conv.name}_{len(names)}", nn.initializers.zeros, (width,))
            names.append(width)
            return conv(x) * scale.astype(jnp.bfloat16) + shift.astype(jnp.bfloat16)

        names: list[int] = []
        x = nn.relu(layer(x.astype(jnp.bfloat16), 64, 7, 2))
        x = nn.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])
        for stage, blocks in enumerate(self.stages):
            for block in range(blocks):
                stride, width = 2 if stage and not block else 1, 64 * 2**stage
                y = nn.relu(layer(x, width, 1))
                y = layer(nn.relu(layer(y, width, 3, stride)), 4 * width, 1)
                x = nn.relu(y + (x if block else layer(x, 4 * width, 1, stride)))
        return nn.Dense(self.dim, dtype=jnp.bfloat16)(x.mean((1, 2))).astype(jnp.float32)


def plain(rows: int, side: int) -> tuple[Any, ...]:
    """Forward and backward of the plain network."""
    return f"plain resnet50, {rows} x {side}", _network(Plain(DIM), rows, side)


def alone(network: str, model: Any, rows: int, side: int) -> tuple[Any, ...]:
    """Forward and backward of one of our networks, without a loss and an optimizer."""
    return f"{network} alone, {rows} x {side}", _network(model, rows, side)


def _network(module: Any, rows: int, side: int) -> Callable[[], Any]:
    images = shape(rows, side, side, 3, dtype=jnp.uint8)
    floats = jnp.zeros((1, side, side, 3), jnp.bfloat16)
    variables = shapes(jax.eval_shape(module.init, jax.random.key(0), floats))
    statistics = {k: v for k, v in variables.items() if k != "params"}

    def value(params: Any, statistics: Any, images: jax.Array) -> jax.Array:
        values = {"params": params, **statistics}
        return module.apply(values, images.astype(jnp.bfloat16) / 255).sum()

    return traced(jax.value_and_grad(value), variables["params"], statistics, images)


def methods(classes: int, dim: int) -> dict[str, Callable[[], Any]]:
    """The objectives."""
    eps = mining.chain(mining.easy_positive(), mining.semi_hard_negative(0.2))

    def pair() -> Any:
        return objectives.pair(jdml.multi_similarity_loss, mine=eps)

    def of(loss: Any, *per_class: int, **settings: Any) -> Any:
        return objectives.proxy(loss, classes, dim, *per_class, **settings)

    return {
        "EPS": pair,
        "XBM": lambda: objectives.with_memory(pair(), MEMORY, dim),
        "PFML": lambda: of(jdml.potential_field_loss, 2),
        "MPA": lambda: of(jdml.multi_proxy_anchor_loss, 2),
        "NIR": lambda: objectives.with_nir(
            of(jdml.proxy_anchor_loss), ConditionalFlow(dim, dim, num_blocks=2)
        ),
        "CCP": lambda: objectives.as_proxy_objective(jdml.contrastive_loss, classes, dim, 4),
        "sampled": lambda: objectives.proxy(
            jdml.normalized_softmax_loss, 96 * classes, dim, sampled_classes=12 * classes
        ),
    }


def step(
    model: Any, objective: Any, devices: int, rows: int, side: int, *, scaled: bool = False
) -> Any:
    """The training step, with so many images of a batch on each device; with a scaled loss."""
    devices_ = _devices(devices)
    mesh = Mesh(np.array(devices_), ("data",))
    placement = Placement(mesh, tuple(class_shards(mesh, objective).items()))
    optimizer = with_loss_scale(optax.adam(1e-4)) if scaled else optax.adam(1e-4)
    image = jnp.zeros((1, side, side, 3))
    variables = jax.eval_shape(lambda key: model.init(key, image, train=False), jax.random.key(0))
    params = {
        "model": variables["params"],
        **jax.eval_shape(objective.init, jax.random.key(0)),
    }
    state = TrainState(
        step=jax.ShapeDtypeStruct((), jnp.int32),
        params=params,
        batch_stats=variables.get("batch_stats", {}),
        opt_state=jax.eval_shape(optimizer.init, params),
        objective_state=jax.eval_shape(objective.init_state),
        key=jax.eval_shape(lambda: jax.random.key(0)),
    )
    settings: Any = {"placement": placement, "donate": True, "skip_nonfinite": scaled}
    made = make_train_step(model, objective, optimizer, **settings)
    at = NamedSharding(mesh, P("data"))
    images = jax.ShapeDtypeStruct((rows * devices, side, side, 3), jnp.uint8, sharding=at)
    labels = jax.ShapeDtypeStruct((rows * devices,), jnp.int32, sharding=at)
    shapes = placement.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), state
    )
    return made.lower(shapes, images, labels)


def steps(asked: Any) -> Cases:
    """A training step of each network with each method."""
    for network in asked.networks:
        settings = {"freeze_batch_norm": True} if models_have_batch_norm(network) else {}
        model = models.create(network, dim=DIM, dtype=jnp.bfloat16, **settings)
        if network == "resnet50":
            baseline = plain(asked.rows, asked.side)
        else:
            baseline = alone(network, model, asked.rows, asked.side)
        yield baseline
        for devices in asked.devices:
            for name, make in methods(STEP_CLASSES, DIM).items():
                if asked.methods and name not in asked.methods:
                    continue

                def lowered(make: Any = make, devices: int = devices, model: Any = model) -> Any:
                    return step(model, make(), devices, asked.rows, asked.side)

                what = f"{network} with {name}, {asked.rows} x {asked.side}"
                others = {"network": network, "method": name}
                if name == "PFML":
                    others["turns"] = visits(2 * STEP_CLASSES + asked.rows * devices, devices)
                yield what, lowered, devices, baseline[0], others


def precision(asked: Any) -> Cases:
    """A training step of each network whose blocks can be computed again, by what it computes in."""
    dtypes = ("float32", "bfloat16", "float16")
    for network in asked.networks:
        if not hasattr(jdml.registry.NETWORKS[network].kind, "remat"):
            continue
        for dtype, remat in itertools.product(dtypes, (False, True)):
            model = models.create(network, dim=DIM, dtype=jnp.dtype(dtype).type, remat=remat)

            def lowered(model: Any = model, scaled: bool = dtype == "float16") -> Any:
                make = methods(STEP_CLASSES, DIM)["EPS"]
                return step(model, make(), 1, asked.rows, asked.side, scaled=scaled)

            kind = f"{dtype}, remat" if remat else dtype
            yield f"{network} in {kind}, {asked.rows} x {asked.side}", lowered


def models_have_batch_norm(name: str) -> bool:
    """Whether a network can have its batch norm frozen."""
    return jdml.registry.NETWORKS[name].batch_norm
