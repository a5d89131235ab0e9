"""Compile small programs of all parts for an accelerator that is absent: `small_programs.py TARGET FILE`.

Writes the counts of each program, or its error, as JSON by name.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compilers

if __name__ == "__main__":
    compilers.prepare(sys.argv[1])

import jax
import jax.numpy as jnp
import programs
from jax import export

from jdml.mining import multi_similarity_pairs
from jdml.models import SmallConvNet, layers
from jdml.recipes import LossConfig
from jdml.runs.export import PLATFORMS


def exported(dim: int) -> tuple[str, Callable[[], Any]]:
    """Return a network that is exported for every platform, like `jdml export` does, and compiled from the export."""
    module = SmallConvNet(dim, (4,))
    images = jax.ShapeDtypeStruct((4, 8, 8, 3), jnp.uint8)
    floats = jnp.zeros((1, 8, 8, 3))
    params = module.init(jax.random.key(0), floats, train=False)

    def embed(images: jax.Array) -> jax.Array:
        return module.apply(params, images / 255.0, train=False)

    program = export.export(jax.jit(embed), platforms=PLATFORMS)(images)
    read = export.deserialize(program.serialize())
    return "exported", programs.traced(read.call, programs.shape(4, 8, 8, 3, dtype=jnp.uint8))


def pooled() -> tuple[str, Callable[[], Any]]:
    """Return max-pooling and its gradient."""

    def value(x: jax.Array) -> jax.Array:
        return layers.max_pool(x, 3, 2, ((1, 1), (1, 1))).sum()

    return "max_pool", programs.traced(jax.value_and_grad(value), programs.shape(2, 16, 16, 8))


def in_bfloat16() -> tuple[str, Callable[[], Any]]:
    """Return a recipe's pair loss in bfloat16, whose network returns float32."""
    objective = LossConfig("multi_similarity").build(4, dtype="bfloat16")

    def value(x: jax.Array, labels: jax.Array) -> jax.Array:
        return objective.loss({}, x, labels)[0]

    arrays = programs.shape(12, programs.DIM), programs.shape(12, dtype=jnp.int32)
    return "multi_similarity in bfloat16", programs.traced(jax.value_and_grad(value), *arrays)


def of_size() -> Iterator[tuple[Any, ...]]:
    """Yield losses of a usual batch: with small batches single kernels dominate the traffic."""
    rows, classes, dim = 1_024, 1_000, 512
    was, programs.DIM = programs.DIM, dim
    yield programs.bare(rows, rows)
    yield programs.bare(rows, classes)
    for name in ("contrastive", "multi_similarity", "sup_con"):
        yield programs.of_pairs(name, rows)
    yield programs.of_pairs(
        "multi_similarity", rows, " with MS pairs", mine=multi_similarity_pairs()
    )
    for name in ("normalized_softmax", "proxy_anchor"):
        yield programs.of_proxies(name, rows, classes)
    programs.DIM = was


LOSSES = {
    "h100": "triplet subcenter_arcface",
    "v5e": "circle info_nce snr_contrastive lifted_structure fast_ap smooth_ap recall_at_k arcface proxy_nca_pp "
    "multi_proxy_anchor_dw soft_triple",
}
"""One of each kind, for one target, besides those of a usual batch: most for v5e, as a GPU's compiler takes four times
as long. `benchmarks/compiled.py` compiles all."""
METHODS = {"h100": ("MPA",), "v5e": ("EPS", "XBM", "PFML", "NIR", "CCP", "sampled")}
"""Whose steps are compiled for which target: each for one."""


def all_programs(target: str) -> Iterator[tuple[Any, ...]]:
    """Yield each program's name, its trace function, and further fields that are not used here."""
    yield exported(programs.DIM)
    yield pooled()
    wanted = tuple(f"{name}," for name in f"products multi_proxy_anchor {LOSSES[target]}".split())
    yield from (p for p in programs.small(None, classes=4, batch=12) if p[0].startswith(wanted))
    yield from (p for p in programs.mined(None) if p[0].startswith("triplet with"))
    yield in_bfloat16()
    yield from of_size()
    for name in programs.judged.FIELDS:
        yield programs.of_field(name, 24, 8)
    yield from programs.flow(None, rows=4, num_blocks=1, hidden=8, depth=2)
    yield from programs.metrics(None, size=40)
    networks = SimpleNamespace(networks=["small"], devices=[2], rows=4, side=16)
    networks.methods = METHODS[target]  # how arrays are partitioned does not depend on the target
    yield from (p for p in programs.steps(networks) if "alone" not in p[0])


def main(target: str, out: Path) -> None:
    """Compile all, and write the counts."""
    programs.place(lambda number: compilers.devices(target, 8)[:number])
    programs.BATCH, programs.DIM, programs.STEP_CLASSES = 12, 8, 128
    programs.MEMORY = 128
    found = {}
    for what, lowered, *_ in all_programs(target):
        try:
            text = compilers.compiled(lowered(), compilers.QUICK)[0].as_text()
            program = compilers.Program(text)
            found[what] = {
                "kernels": program.kernels,
                "bytes": program.bytes,
                "operations": program.operations,
                "collectives": program.collectives,
                "on_host": program.on_host,
                "precisions": program.precisions,
            }
        except Exception:
            found[what] = {"error": traceback.format_exc()}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
