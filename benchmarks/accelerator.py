"""Is this accelerator right, and how fast is it: one command, under eight minutes on a GPU or TPU.

    python benchmarks/accelerator.py

Every loss is checked against the values and gradients of the CPU. Then value and gradient are timed of the judged
losses, of the fields (2,000 to 131,072 charges) and of the everyday losses (2,048 to 262,144 rows x 512, float32 and
bfloat16), compared with plain dense JAX; then retrieval
metrics, and a ResNet-50 step with each method. With memory, the share of the device's peak of the bare matrix
products where that peak is known (--peak-tflops), and how often the least time that `compiled.py` reckoned for the same
program fits. Writes the line accelerator_DEVICE of benchmarks/results.jsonl; a section that fails is told and does not
stop the others. It begins with its plan, each section's share of the time (--budget); what there is no time for is left
out and named.

    .venv/compilers/bin/python benchmarks/accelerator.py --compile-for h100

compiles what it would time, of retrieval one block, by the compiler of a device that is not there.
"""

import argparse
import inspect
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import compilers
import jax
import jax.numpy as jnp
import losses as judged
import machine
import numpy as np
import optax
import potential_field as field
import programs

import jdml
from jdml import models
from jdml.training import create_state, make_train_step

SMOKE, small = machine.SMOKE, machine.small
DIM = small(512, 8)
CHARGES = small((2_000, 8_372, 22_816, 65_536, 131_072), (60,))
ROWS = small((2_048, 32_768, 262_144), (16,))
DTYPES = {"float32": "", "bfloat16": " in bfloat16"}
DENSE_ROWS = 16_384
GALLERIES = small(((60_502, 512), (1_000_000, 128)), ((30, 8),))
IMAGES, SIDE, BACKBONE = small((32, 224, "resnet50"), (4, 16, "small"))
judged.BATCH, judged.CLASSES = small((1_024, (1_000,)), (16, (5,)))
PEAKS = {"A100": 156.0, "H100": 495.0, "H200": 495.0, "L4": 60.0, "TPU v4": 275.0, "TPU v5": 197.0}
"""TFLOP/s of matrix products in the fastest kind that float32 inputs are rounded to there."""

CHECKED = sorted(n for n in jdml.losses.__all__ if n.endswith("_loss") and n != "nir_loss")
if SMOKE:
    CHECKED = ["arcface_loss", "triplet_loss"]

Row = dict[str, Any]

RECKONED = {"H100": "h100", "H200": "h100", "TPU v5 lite": "v5e", "TPU v5e": "v5e"}
"""Devices for which `compiled.py` has reckoned; an H200 is an H100 with 1.4 times its bandwidth."""


class Clock:
    """Divide the time: each section has its share, and the time that earlier ones did not use."""

    def __init__(self, budget: float, sections: list[str]) -> None:
        self.starts, self.left_out = time.monotonic(), list[str]()
        whole = sum(SHARES[name] for name in sections)
        self.plan = {name: budget * SHARES[name] / whole for name in sections}
        self.ends = self.starts

    def begin(self, section: str) -> None:
        """A section's turn."""
        names = list(self.plan)
        self.ends = self.starts + sum(self.plan[n] for n in names[: names.index(section) + 1])

    def allows(self, what: str) -> bool:
        """Whether there is time for something; notes it where there is none."""
        if time.monotonic() < self.ends:
            return True
        self.left_out.append(what)
        return False


def timed(function: Callable[..., Any], *arguments: Any, repeats: int) -> Row:
    """Compile, and the fastest of some calls, with what the compiled program holds and computes."""
    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        taken.append(time.perf_counter() - start)
    return {"seconds": min(taken), "bytes": machine.temporaries(compiled)}


def normal(seed: int, *shape: int) -> np.ndarray:
    """Random vectors."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(repeats: int, clock: Clock) -> list[Row]:
    """Every loss here against itself on the CPU, in float32; several compile at a time."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        rows = pool.map(lambda name: clock.allows(name) and checked(name), CHECKED)
        return [row for row in rows if row]


def case(name: str) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    """Value and gradients of a loss, and what it is checked with."""
    loss = getattr(jdml, name)
    x, y, p = normal(0, 64, 32), np.arange(64) % 8, normal(1, 8, 2, 32)
    arrays = (x, p) if "proxies" in inspect.signature(loss).parameters else (x,)

    def value(*vectors: jax.Array) -> jax.Array:
        return loss(vectors[0], jnp.asarray(y), *vectors[1:])

    return jax.value_and_grad(value, tuple(range(len(arrays)))), arrays


def checked(name: str) -> Row:
    """The largest difference of a loss's value and gradients between this device and the CPU."""
    cpu = jax.devices("cpu")[0]
    function, arrays = case(name)
    step = jax.jit(function)
    here = jax.device_get(step(*map(jnp.asarray, arrays)))
    with jax.default_device(cpu):
        there = jax.device_get(step(*(jax.device_put(a, cpu) for a in arrays)))
    error = max(
        float(np.abs(a - b).max() / max(1e-30, np.abs(b).max()))
        for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True)
    )
    return {"what": name, "largest_difference": error, "right": error < 1e-4}


def judged_losses(repeats: int, clock: Clock) -> list[Row]:
    """Compare the losses of `losses.py` with bare products, and with PyTorch on the same device if it is installed."""
    rows, size = [], judged.BATCH
    for classes, several in ((None, judged.PAIRS), *((n, judged.PROXIES) for n in judged.CLASSES)):
        for name, loss in several.items():
            what = f"{name}, {size} x {classes} classes" if classes else f"{name}, {size} rows"
            what += f" x {loss.per_class}" if classes and loss.per_class > 1 else ""
            if name in judged.JUDGED and clock.allows(what):
                measured = judged.measure(name, loss, classes, repeats)
                rows.append({"what": what, **measured})
    return rows


def fields(repeats: int, clock: Clock) -> list[Row]:
    """PFML in tiles, compared with the dense forms."""
    rows = []
    for charges in CHARGES:
        what = f"potential_field, {charges} charges"
        if clock.allows(what):
            dense = charges if charges <= DENSE_ROWS else 0
            rows.append({"what": what, **field.measure(charges, repeats, dense)})
    return rows


def dense_info_nce(q: jax.Array, n: jax.Array) -> jax.Array:
    """The formula written down."""
    q, n = (v / jnp.linalg.norm(v, axis=1, keepdims=True) for v in (q, n))
    logits = (q @ n.T / 0.07).astype(jnp.float32)
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - jnp.diagonal(logits))


def towers(q: jax.Array, n: jax.Array) -> jax.Array:
    """The same, of the library."""
    return jdml.info_nce_loss(q, references=n)


def of_rows(x: Any, n: Any, y: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The everyday losses of so many rows, which may be shapes alone: names, values with gradients, arguments."""
    for name in judged.EVERYDAY:
        yield name, jax.value_and_grad(getattr(jdml, f"{name}_loss")), (x, y)
    yield "info_nce, towers", jax.value_and_grad(towers, (0, 1)), (x, n)
    if len(x) <= DENSE_ROWS:
        yield "info_nce, towers, dense JAX", jax.value_and_grad(dense_info_nce, (0, 1)), (x, n)


def everyday(repeats: int, clock: Clock) -> list[Row]:
    """Losses by the size of the batch and its type."""
    rows = []
    for size, (dtype, more) in itertools.product(ROWS, DTYPES.items()):
        x, n = (jnp.asarray(normal(s, size, DIM), dtype) for s in (0, 1))
        for name, step, arrays in of_rows(x, n, jnp.arange(size) // 4):
            what = f"{name}{more}, {size} rows"
            if clock.allows(what):
                # A step of the largest takes seconds.
                calls = 1 if size == max(ROWS) else repeats
                measured = timed(step, *arrays, repeats=calls)
                products = 6.0 * size * size * DIM
                measured["products_tflops"] = products / measured["seconds"] / 1e12
                rows.append({"what": what, **measured})
    return rows


def retrieval(repeats: int, clock: Clock) -> list[Row]:
    """Metrics of whole data sets."""
    rows = []
    for size, dim in GALLERIES:
        what = f"retrieval, {size} x {dim}"
        if not clock.allows(what):
            continue
        x, y = normal(0, size, dim), np.arange(size) // 5
        queries = min(size, 60_502)
        gallery = () if queries == size else (x, y)
        own = {"self_index": np.arange(queries)} if gallery else {}
        taken = []
        for _ in range(2):  # the first call compiles
            start = time.perf_counter()
            scores = jdml.evaluate_retrieval(x[:queries], y[:queries], *gallery, **own)
            taken.append(time.perf_counter() - start)
        rows.append(
            {"what": what, "first_seconds": taken[0], "seconds": taken[1], "R@1": scores["R@1"]}
        )
    return rows


def trained() -> Iterator[tuple[str, Any, Any]]:
    """Yield each step's name, network and objective."""
    model = models.create(BACKBONE, dim=DIM, freeze_batch_norm=True, dtype=jnp.bfloat16)
    for name, make in programs.methods(programs.STEP_CLASSES, DIM).items():
        if not SMOKE or name in ("XBM", "sampled"):
            yield f"{BACKBONE} with {name}, {IMAGES} x {SIDE}", model, make()


def training(repeats: int, clock: Clock) -> list[Row]:
    """A step of a network in bfloat16 with each method, its state changed in place."""
    random = np.random.default_rng(0)
    images = jnp.asarray(random.integers(0, 256, (IMAGES, SIDE, SIDE, 3), np.uint8))
    labels = jnp.arange(IMAGES) // 4
    rows, optimizer = [], optax.adam(1e-4)
    for what, model, objective in trained():
        if not clock.allows(what):
            continue
        state = create_state(model, objective, optimizer, images[:1], seed=0)
        step = make_train_step(model, objective, optimizer, donate=True)
        state, _ = jax.block_until_ready(step(state, images, labels))
        taken = []
        for _ in range(repeats):
            start = time.perf_counter()
            state, _ = jax.block_until_ready(step(state, images, labels))
            taken.append(time.perf_counter() - start)
        images_per_second = IMAGES / min(taken)
        rows.append({"what": what, "seconds": min(taken), "images_per_second": images_per_second})
    return rows


def programs_of(section: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a section's programs by name, each as a function that traces it."""
    programs.BATCH, programs.DIM, shape = judged.BATCH, DIM, programs.shape
    if section == "check":
        for name in CHECKED:
            function, arrays = case(name)
            yield name, programs.traced(function, *programs.shapes(arrays))
    if section == "judged":
        yield programs.bare(judged.BATCH, judged.BATCH)
        for name in (n for n in judged.PAIRS if n in judged.JUDGED):
            yield programs.of_pairs(name, judged.BATCH)[:2]
        for classes in judged.CLASSES:
            yield programs.bare(judged.BATCH, classes)
            yield programs.bare(judged.BATCH, judged.CENTRES * classes)
            for name in (n for n in judged.PROXIES if n in judged.JUDGED):
                yield programs.of_proxies(name, judged.BATCH, classes)[:2]
    if section == "training":
        for what, model, objective in trained():
            yield what, partial(programs.step, model, objective, 1, IMAGES, SIDE)
    if section == "fields":
        for charges in CHARGES:
            yield programs.of_field("potential_field", charges, field.BATCH)[:2]
            if charges <= DENSE_ROWS:
                arrays = programs.shapes(tuple(map(jnp.asarray, field.arrays(charges))))
                dense = programs.traced(jax.value_and_grad(field.dense_jax, (0, 2)), *arrays)
                yield f"dense field, {charges} charges", dense
    if section == "everyday":
        for (dtype, more), size in itertools.product(DTYPES.items(), ROWS):
            x, y = shape(size, DIM, dtype=dtype), shape(size, dtype=jnp.int32)
            for name, step, arrays in of_rows(x, x, y):
                yield f"{name}{more}, {size} rows", programs.traced(step, *arrays)
    if section == "retrieval":
        for size, dim in GALLERIES:
            yield programs.ranked(size, dim, min(size, 512), 16)


def compile_for(target: str, sections: list[str]) -> None:
    """Compile all that is timed with the compiler of a device that is not here."""
    compilers.prepare(target)
    jax.config.update("jax_platforms", "cpu")
    programs.place(lambda number: compilers.devices(target, 8)[:number])
    failed = []
    for what, lowered in itertools.chain.from_iterable(map(programs_of, sections)):
        start = time.perf_counter()
        try:
            compilers.compiled(lowered(), compilers.QUICK)
            result = "compiled"
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            failed.append(what)
            result = str(error).splitlines()[0][:200]
        print(f"{what:48} {result}, {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"not compiled: {', '.join(failed)}")


SECTIONS = {
    "check": check,
    "judged": judged_losses,
    "training": training,
    "fields": fields,
    "everyday": everyday,
    "retrieval": retrieval,
}
SHARES = {"check": 3, "judged": 2, "training": 6, "fields": 2, "everyday": 5, "retrieval": 2}
"""Shares of the time, most of which compiles."""


def compare(rows: list[Row], kind: str) -> None:
    """How many of the least times that were reckoned of the same program a measured one takes."""
    known = next((name for part, name in RECKONED.items() if part in kind), "")
    record = machine.read(machine.RESULTS, f"compiled_{known}") or {"rows": []}
    least = {row["what"]: row["least_seconds"] for row in record["rows"] if row["devices"] == 1}
    for row in rows:
        seconds = row.get("seconds") or row.get("milliseconds", {}).get("jdml", 0.0) / 1e3
        seconds = seconds["jdml"] if isinstance(seconds, dict) else seconds
        if seconds and row["what"] in least:
            row["times_least"] = seconds / least[row["what"]]


def show(rows: list[Row], peak: float | None) -> None:
    """For people."""
    for row in rows:
        cells = [f"{row['what']:48}"]
        seconds = row.get("seconds")
        if isinstance(seconds, dict):
            cells += [f"{name} {1e3 * s:.2f} ms" for name, s in seconds.items()]
        elif seconds is not None:
            cells.append(f"{1e3 * seconds:10.2f} ms")
        if "milliseconds" in row:
            cells += [f"{name} {ms:.2f} ms" for name, ms in row["milliseconds"].items()]
        if isinstance(row.get("bytes"), int):
            cells.append(f"{machine.mebibytes(row['bytes']):>8} MiB")
        if "products_tflops" in row and peak:
            row["share_of_peak"] = row["products_tflops"] / peak
            cells.append(f"{100 * row['share_of_peak']:.0f} % of peak")
        if "times_least" in row:
            cells.append(f"{row['times_least']:.1f} x the least reckoned")
        if "right" in row:
            cells.append("right" if row["right"] else f"WRONG by {row['largest_difference']:.1e}")
        print("  ".join(cells), flush=True)


def main() -> None:
    """Check, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of each (default 5)")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds in all (default 400)")
    parser.add_argument("--compile-for", choices=compilers.TARGETS, help="compile, run nothing")
    parser.add_argument("--peak-tflops", type=float, help="the device's peak, if not known")
    parser.add_argument(
        "--out",
        type=Path,
        default=machine.RESULTS,
        help=f"{machine.OUT}; default benchmarks/results.jsonl",
    )
    arguments = machine.arguments(parser)
    sections = [name for name in SECTIONS if name in arguments.only]
    if arguments.compile_for:
        compile_for(arguments.compile_for, sections)
        return
    kind = jax.devices()[0].device_kind
    known = [peak for name, peak in PEAKS.items() if name.lower() in kind.lower()]
    peak = arguments.peak_tflops or next(iter(known), None)
    clock, rows, failed = Clock(arguments.budget, sections), {}, {}
    plan = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in clock.plan.items())
    print(f"{kind}, jax {jax.__version__}; plan: {plan}", flush=True)
    for name in sections:
        clock.begin(name)
        try:
            rows[name] = SECTIONS[name](arguments.repeats, clock)
        except Exception as error:  # out of memory, most often: the other sections still count
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name} failed: {failed[name]}")
            continue
        compare(rows[name], kind)
        show(rows[name], peak)
    for what in clock.left_out:
        print(f"left out for lack of time: {what}")
    record = f"accelerator_{re.sub('[^a-z0-9]+', '_', kind.lower()).strip('_')}"
    result = {"failed": failed, "left_out": clock.left_out, "peak_tflops": peak}
    machine.write(arguments.out, rows, record, **result)
    wrong = [row["what"] for row in rows.get("check", ()) if not row["right"]]
    if wrong or failed:
        raise SystemExit(f"wrong: {', '.join(wrong) or '-'}; failed: {', '.join(failed) or '-'}")


if __name__ == "__main__":
    main()
