"""Images per second of the input pipeline, compared with bare decoding by as many threads, in the same run.

    python benchmarks/input_pipeline.py --folder CUB_200_2011/images --out benchmarks/results.jsonl

Decoding is what no pipeline can do without: a file's bytes to RGB pixels. The pipeline also crops, resizes, mirrors,
gathers batches and hands them over. Without a folder the images are generated JPEGs of 500 × 375. With `--parquet` the
same images also come out of a Parquet file.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import machine
import numpy as np

from jdml.data import (
    Dataset,
    ImageBatches,
    ImageFiles,
    RandomBatchSampler,
    conventional,
    from_parquet,
    mlrc,
)
from jdml.data.images import decode, usable_cores

BATCH = machine.small(32, 4)
AUGMENTATIONS = {"mlrc 227": mlrc(), "conventional 224": conventional()}


def generate(folder: Path, count: int) -> list[Path]:
    """JPEGs of 500 × 375 with the detail of photographs: coarse noise, blown up, and a little fine noise."""
    from PIL import Image

    random = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize((500, 375))
        fine = random.normal(0, 6, (375, 500, 3))
        pixels = np.clip(np.asarray(coarse) + fine, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03}.jpg", quality=90)
    return sorted(folder.glob("*.jpg"))


def as_table(files: list[Path], folder: Path) -> ImageFiles:
    """The images in a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    rows = {"image": [file.read_bytes() for file in files], "label": range(len(files))}
    file = folder / "images.parquet"
    parquet.write_table(pyarrow.table(rows), file)
    return from_parquet(file, transform=conventional()).images


def bare(files: list[Path], threads: int) -> Callable[[int], float]:
    """Seconds of decoding a number of images."""
    pool = ThreadPoolExecutor(threads)

    def run(images: int) -> float:
        wanted = [files[i % len(files)] for i in range(images)]
        start = time.perf_counter()
        for _ in pool.map(lambda file: decode(file.read_bytes()), wanted):
            pass
        return time.perf_counter() - start

    return run


def piped(batches: ImageBatches, ahead: int) -> Callable[[int], float]:
    """Seconds of a number of images; the batches that lie ready are taken before."""

    def run(images: int) -> float:
        for _ in range(ahead):
            next(batches)
        start = time.perf_counter()
        for _ in range(images // BATCH):
            next(batches)
        return time.perf_counter() - start

    return run


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="images at any depth; default: generated JPEGs")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=machine.small([1, len(usable_cores())], [1, 2])
    )
    parser.add_argument(
        "--repeats", type=int, default=machine.small(5, 1), help="turns of each (default 5)"
    )
    parser.add_argument(
        "--batches", type=int, default=machine.small(8, 1), help="batches a turn and worker"
    )
    parser.add_argument(
        "--no-processes", action="store_true", default=machine.SMOKE, help="threads only"
    )
    parser.add_argument("--parquet", action="store_true", help="also rows of a Parquet file")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    with tempfile.TemporaryDirectory() as temporary:
        files = (
            sorted(p for p in arguments.folder.rglob("*") if p.suffix.lower() in (".jpg", ".png"))
            if arguments.folder
            else generate(Path(temporary), machine.small(64, 5))
        )
        table = as_table(files, Path(temporary)) if arguments.parquet else None
        rows = measure(files, table, arguments)
    print(f"{len(files)} images, batches of {BATCH}")
    print(f"{'':>28} {'workers':>8} {'images/s':>9} {'of decoding':>12}")
    for row in rows:
        print(
            f"{row['what']:>28} {row['workers']:>8} {row['images_per_second']:>9.0f} {row['of_decoding']:>12.2f}"
        )
    machine.write(arguments.out, rows)


def measure(
    files: list[Path], table: ImageFiles | None, arguments: argparse.Namespace
) -> list[dict]:
    """All kinds, one turn each, several times around."""
    runs: dict[tuple[str, int], Callable[[int], float]] = {}
    pipelines = []
    for workers in dict.fromkeys(arguments.workers):
        runs["decoding", workers] = bare(files, workers)
        kinds = ("thread",) if arguments.no_processes else ("thread", "process")
        for kind in kinds:
            for name, transform in AUGMENTATIONS.items():
                data = Dataset("files", ImageFiles(files, transform), np.arange(len(files)))
                sampler = RandomBatchSampler(len(files), BATCH)
                pipelines.append(ImageBatches(data, sampler, workers=workers, worker_kind=kind))
                runs[f"{name}, {kind}", workers] = piped(pipelines[-1], 2 + 2 * workers)
        if table is not None:
            data = Dataset("rows", table, np.arange(len(files)))
            pipelines.append(
                ImageBatches(data, RandomBatchSampler(len(files), BATCH), workers=workers)
            )
            runs["Parquet", workers] = piped(pipelines[-1], 2 + 2 * workers)
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for _ in range(arguments.repeats):
        for (name, workers), run in runs.items():
            images = BATCH * arguments.batches * workers
            time.sleep(machine.PAUSE)
            seconds[name, workers].append(run(images) / images)
    for pipeline in pipelines:
        pipeline.close()
    middle = {key: statistics.median(values) for key, values in seconds.items()}
    return [
        {
            "what": name,
            "workers": workers,
            "images_per_second": 1 / value,
            "of_decoding": middle["decoding", workers] / value,
        }
        for (name, workers), value in middle.items()
    ]


if __name__ == "__main__":
    main()
