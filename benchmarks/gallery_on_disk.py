"""Search of a gallery on disk, compared with faiss's flat index: time, memory, and whether both find the same.

    python benchmarks/gallery_on_disk.py --out benchmarks/results.jsonl

10,000 queries in 1,000,000 rows of 128 numbers by default. faiss (the `parity` extra) holds the gallery in memory; jdml
reads it from a file. Each runs in a process of its own, so that its memory is its own.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np


def write_gallery(path: Path, rows: int, dim: int) -> None:
    """Random vectors on the sphere, written in pieces."""
    there = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim))
    random = np.random.default_rng(0)
    for start in range(0, rows, 100_000):
        piece = random.normal(size=(min(100_000, rows - start), dim))
        there[start : start + len(piece)] = piece / np.linalg.norm(piece, axis=1, keepdims=True)
    there.flush()


def queries_of(number: int, dim: int) -> np.ndarray:
    """Other vectors on the sphere."""
    vectors = np.random.default_rng(1).normal(size=(number, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def search(name: str, path: Path, number: int, k: int, out: Any) -> None:
    """Search with one of both, and tell seconds, peak memory, distances and indices."""
    gallery = np.load(path, mmap_mode="r")
    queries = queries_of(number, gallery.shape[1])
    if name == "jdml":
        from jdml.metrics import nearest

        nearest(queries[:500], gallery[:20_000].view(np.memmap), k)  # compiles
        start = time.perf_counter()
        distances, indices = map(np.asarray, nearest(queries, gallery, k))
    else:
        import faiss

        start = time.perf_counter()
        index = faiss.IndexFlatL2(gallery.shape[1])
        index.add(np.asarray(gallery))
        squares, indices = index.search(queries, k)
        distances = np.sqrt(np.maximum(squares, 0))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out.put((seconds, peak, distances, indices))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=int, default=machine.small(1_000_000, 3_000), help="of the gallery"
    )
    parser.add_argument("--queries", type=int, default=machine.small(10_000, 60), help="how many")
    parser.add_argument("--dim", type=int, default=machine.small(128, 8), help="numbers in a row")
    parser.add_argument("--k", type=int, default=10, help="neighbours")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    chosen = machine.arguments(parser)
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gallery.npy"
        write_gallery(path, chosen.rows, chosen.dim)
        for name in ("jdml", "faiss"):
            out = context.Queue()
            process = context.Process(
                target=search, args=(name, path, chosen.queries, chosen.k, out)
            )
            process.start()
            seconds, peak, *answers[name] = out.get()
            process.join()
            rows.append({"name": name, "seconds": seconds, "peak_bytes": peak})
            print(f"{name:6} {seconds:8.1f} s, {machine.mebibytes(peak)} MiB at most", flush=True)
    same = answers["jdml"][1] == answers["faiss"][1]
    tied = np.isclose(answers["jdml"][0], answers["faiss"][0], rtol=0, atol=1e-3)
    agreement = {
        "same_index": float(same.mean()),
        "same_index_or_distance_within_1e-3": float((same | tied).mean()),
        "ratio": rows[0]["seconds"] / rows[1]["seconds"],
    }
    print(agreement)
    shape = f"{chosen.queries} x {chosen.rows} x {chosen.dim}, k = {chosen.k}"
    machine.write(chosen.out, rows, shape=shape, agreement=agreement)


if __name__ == "__main__":
    main()
