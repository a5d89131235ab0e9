"""Time and memory of `jdml.metrics.evaluate_retrieval` compared with pytorch-metric-learning with faiss, in one run.

    python benchmarks/retrieval.py --out benchmarks/results.jsonl
    python benchmarks/retrieval.py --groups 1000000 --out benchmarks/results.jsonl

Both compute P@1, R-precision and MAP@R of the same embeddings and are timed in turn after a warm-up, because the
machine may be shared; the ratio compares their medians. Needs the `parity` extra; without it only jdml is measured.

With --groups instead: the cost of ignoring pairs of one class and one group, next to the same search in which
all do, in seconds of the processor's cores together. On record as `retrieval_groups`.
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np

from jdml.metrics import evaluate_retrieval, gallery_search, ranking_score

PML_NAMES = {
    "precision_at_1": "P@1",
    "r_precision": "RP",
    "mean_average_precision_at_r": "MAP@R",
}


def embeddings(size: int, dim: int, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy classes on the sphere."""
    rng = np.random.default_rng(0)
    labels = np.arange(size) // per_class
    centres = rng.normal(size=(labels[-1] + 1, dim))
    vectors = 0.6 * centres[labels] + rng.normal(size=(size, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), labels


def pml(vectors: np.ndarray, labels: np.ndarray) -> Callable[[], dict[str, float]] | None:
    """pytorch-metric-learning's evaluation, or None where it is not installed."""
    try:
        import faiss  # noqa: F401
        import torch
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    except ImportError as error:
        print(f"not compared with pytorch-metric-learning: {error}")
        return None
    # Only as many neighbours as the largest class needs: the default ranks the whole gallery.
    calculator = AccuracyCalculator(
        include=tuple(PML_NAMES), k="max_bin_count", device=torch.device("cpu")
    )
    data = torch.from_numpy(vectors), torch.from_numpy(labels)

    def evaluate() -> dict[str, float]:
        scores = calculator.get_accuracy(*data)
        return {ours: scores[theirs] for theirs, ours in PML_NAMES.items()}

    return evaluate


def temporaries(size: int, dim: int, depth: int, kind: str) -> int:
    """Bytes that the compiled block function holds besides its arguments, its result included."""
    vectors = jax.ShapeDtypeStruct((size, dim), jnp.float32)
    numbers = jax.ShapeDtypeStruct((size,), jnp.float32)
    rows = ranking_score.rows_per_block(size, size)
    own = jax.ShapeDtypeStruct((rows,), jnp.int32)
    queries = jax.ShapeDtypeStruct((rows, dim), jnp.float32)
    frame = jnp.zeros((1, dim)), jnp.int32(0)
    arguments = gallery_search.Chunk(numbers, vectors), gallery_search.Block(queries, own), frame
    if kind == "top_k":
        lowered = gallery_search._top.lower(*arguments, depth)
    else:
        lowered = gallery_search._places.lower(*arguments)
    used = lowered.compile().memory_analysis()
    return used.temp_size_in_bytes + used.output_size_in_bytes


def measure(size: int, dim: int, per_class: int, repeats: int, compare: bool) -> dict[str, Any]:
    """One row of the table."""
    vectors, labels = embeddings(size, dim, per_class)
    on_device = jax.block_until_ready(jnp.asarray(vectors))
    functions: dict[str, Callable[[], dict[str, Any]]] = {
        "jdml": lambda: evaluate_retrieval(on_device, labels)
    }
    peer = pml(vectors, labels) if compare else None
    if peer is not None:
        functions["pml"] = peer
    results, first = {}, {}
    for name, function in functions.items():
        start = time.perf_counter()
        results[name] = function()
        first[name] = time.perf_counter() - start
    seconds = machine.timed_in_turn(functions, repeats)
    median = machine.median(seconds)
    row = {
        "shape": f"{size} x {dim}, R = {per_class - 1}",
        "seconds": median,
        "fastest": {name: min(values) for name, values in seconds.items()},
        "compile_seconds": first["jdml"] - median["jdml"],
        "metrics": results,
    }
    if peer is not None:
        row["ratio"] = median["jdml"] / median["pml"]
        row["largest_difference"] = max(
            abs(results["jdml"][name] - results["pml"][name]) for name in PML_NAMES.values()
        )
    return row


def measure_groups(size: int, dim: int, queries: int, repeats: int) -> dict[str, Any]:
    """A search of a gallery by some of its rows, with `ignore=` by groups and without."""
    vectors, labels = embeddings(size, dim, 6)
    group = np.random.default_rng(1).integers(0, 8, size)
    own = np.linspace(0, size - 1, queries).astype(int)
    gallery = jax.block_until_ready(jnp.asarray(vectors))
    search = functools.partial(
        evaluate_retrieval, gallery[own], labels[own], gallery, labels, self_index=own
    )
    functions: dict[str, Callable[[], dict[str, Any]]] = {
        "all count": search,
        "by groups": lambda: search(ignore=(group[own], group)),
    }
    seconds = machine.timed_in_turn(functions, repeats, time.process_time)
    median = machine.median(seconds)
    return {
        "shape": f"{queries} queries, {size} x {dim}",
        "seconds": median,
        "fastest": {name: min(values) for name, values in seconds.items()},
        "ratio": median["by groups"] / median["all count"],
        "peak_bytes": {name: machine.peak_memory(call) for name, call in functions.items()},
    }


def print_groups(row: dict[str, Any]) -> None:
    """For people."""
    print(f"{row['shape']}: {row['ratio']:.2f} times the seconds")
    for name, seconds in row["seconds"].items():
        memory = machine.mebibytes(row["peak_bytes"][name])
        print(
            f"{name}: {seconds:.2f} core seconds (fastest {row['fastest'][name]:.2f}), {memory} MiB"
        )


def print_table(rows: list[dict[str, Any]], memory: dict[str, int]) -> None:
    """For people."""
    print(
        f"{'embeddings':28} {'jdml s':>8} {'PML s':>8} {'ratio':>6} {'compile s':>10} {'|diff|':>9}"
    )
    for row in rows:
        seconds = row["seconds"]
        theirs = f"{seconds['pml']:8.2f}" if "pml" in seconds else f"{'-':>8}"
        ratio = f"{row['ratio']:6.2f}" if "ratio" in row else f"{'-':>6}"
        gap = f"{row['largest_difference']:9.1e}" if "ratio" in row else f"{'-':>9}"
        compile_seconds = row["compile_seconds"]
        print(
            f"{row['shape']:28} {seconds['jdml']:8.2f} {theirs} {ratio} {compile_seconds:10.2f} {gap}"
        )
    for name, size in memory.items():
        print(f"temporaries of one block, {name}: {machine.mebibytes(size)} MiB")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each (default 7)")
    parser.add_argument(
        "--size", type=int, default=machine.small(20_000, 120), help="embeddings (default 20,000)"
    )
    parser.add_argument(
        "--large", action="store_true", help="also MNIST's size: 60,000 x 64, R = 5,999"
    )
    parser.add_argument(
        "--groups",
        type=int,
        metavar="N",
        help="only 256 queries in N rows, with and without groups",
    )
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    if arguments.groups:
        row = measure_groups(arguments.groups, 128, min(256, arguments.groups), arguments.repeats)
        print_groups(row)
        machine.write(arguments.out, [row], "retrieval_groups")
        return
    rows = [measure(arguments.size, 128, 6, arguments.repeats, compare=True)]
    if arguments.large:
        rows.append(measure(60_000, 64, 6_000, min(2, arguments.repeats), compare=False))
    memory = {
        "20,000 x 128, 8 ranks": temporaries(20_000, 128, 8, "top_k"),
        "60,000 x 512, 8 ranks": temporaries(60_000, 512, 8, "top_k"),
        "60,000 x 512, thousands of ranks": temporaries(60_000, 512, 8192, "sort"),
    }
    print_table(rows, memory)
    machine.write(arguments.out, rows, temporary_bytes=memory)


if __name__ == "__main__":
    main()
