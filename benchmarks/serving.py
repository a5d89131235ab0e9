"""Measure a service: a single query and faiss's flat index, the compile cache, a search by the command line.

    python benchmarks/serving.py --out benchmarks/results.jsonl

Queries are timed in turn, in seconds of the cores together: `jdml.Gallery`, `jdml.nearest`, faiss (the `parity` extra)
and NumPy's matrix product. The compile cache: from import to the first gradient in a process, without
`jdml.keep_compiled_programs()` and with a cache that another process has filled. With --run and --photos also
`jdml search` of the first photograph among the others, embedded before.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np

SIZES = machine.small([(100_000, 64), (1_000_000, 128)], [(500, 8)])
GRADIENT = """
import sys
import jax
import jax.numpy as jnp
import jdml
if len(sys.argv) > 1:
    jdml.keep_compiled_programs(sys.argv[1])
model = jdml.models.create("NETWORK", dim=64)
images, labels = jnp.zeros((16, 64, 64, 3)), jnp.arange(16) % 4
variables = jax.jit(model.init)(jax.random.key(0), images)

@jax.jit
def gradient(variables):
    def loss(variables):
        return jdml.multi_similarity_loss(jdml.sphere(model.apply(variables, images)), labels)
    return jax.grad(loss)(variables)

jax.block_until_ready(gradient(variables))
""".replace("NETWORK", machine.small("resnet18", "small"))


def measure_queries(size: int, dim: int, repeats: int) -> dict[str, Any]:
    """Seconds of one query for its ten nearest rows, warm."""
    import jdml

    random = np.random.default_rng(0)
    vectors = random.standard_normal((size, dim), np.float32)
    query = random.standard_normal((1, dim), np.float32)
    gallery = jdml.Gallery()
    gallery.add(vectors, range(size))
    calls: dict[str, Callable[[], Any]] = {
        "Gallery.search": lambda: gallery.search(query, 10),
        "nearest": lambda: jdml.nearest(query, vectors, 10),
        "product": lambda: query @ vectors.T,
    }
    try:
        import faiss
    except ImportError as error:
        print(f"not compared with faiss: {error}")
    else:
        index = faiss.IndexFlatL2(dim)
        index.add(vectors)
        calls["faiss"] = lambda: index.search(query, 10)
        assert set(calls["faiss"]()[1][0]) == set(calls["Gallery.search"]()[0][0])
    seconds = machine.timed_in_turn(calls, repeats, time.process_time)
    median = machine.median(seconds)
    elapsed = machine.median(machine.timed_in_turn(calls, repeats))
    row = {"shape": f"1 query, {size} x {dim}, k = 10", "seconds": median, "elapsed": elapsed}
    if "faiss" in median:
        row["ratio"] = median["Gallery.search"] / median["faiss"]
        row["ratio_elapsed"] = elapsed["Gallery.search"] / elapsed["faiss"]
    return row


def core_seconds(words: list[str], **variables: str) -> float:
    """Return a process's seconds of the cores together."""
    before = os.times()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **variables})
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def measure_cache(repeats: int) -> dict[str, Any]:
    """From import to the first gradient, in turn without and with a filled cache."""
    words = [sys.executable, "-c", GRADIENT]
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        core_seconds([*words, folder])
        for _ in range(repeats):
            seconds["without"].append(core_seconds(words))
            seconds["with"].append(core_seconds([*words, folder]))
    median = machine.median(seconds)
    ratio = median["with"] / median["without"]
    return {"shape": "from import to the first gradient", "seconds": median, "ratio": ratio}


def measure_search(run: Path, photos: Path, repeats: int) -> dict[str, Any]:
    """`jdml search` of one photograph in a gallery that was embedded before."""
    command = [sys.executable, "-m", "jdml"]
    query = min(photos.rglob("*.*"))
    with tempfile.TemporaryDirectory() as folder:
        gallery = f"{folder}/gallery.npz"
        core_seconds([*command, "embed", str(run), str(photos), "--out", gallery])
        words = [*command, "search", str(run), str(query), "--gallery", gallery]
        seconds = {"search": [core_seconds(words) for _ in range(repeats)]}
        seconds["help"] = [core_seconds([*command, "search", "--help"]) for _ in range(repeats)]
    return {"shape": "jdml search, one photograph", "seconds": machine.median(seconds)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=machine.small(9, 1), help="default: 9")
    parser.add_argument("--run", type=Path, help="folder of a run")
    parser.add_argument("--photos", type=Path, help="folder of photographs")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    chosen = machine.arguments(parser)
    rows = [measure_queries(size, dim, chosen.repeats) for size, dim in SIZES]
    processes = min(chosen.repeats, 3)
    rows.append(measure_cache(processes))
    if chosen.run and chosen.photos:
        rows.append(measure_search(chosen.run, chosen.photos, processes))
    for row in rows:
        print(row["shape"], {name: round(value, 4) for name, value in row["seconds"].items()})
        print("  ratio", round(row.get("ratio", np.nan), 3))
    machine.write(chosen.out, rows)


if __name__ == "__main__":
    main()
