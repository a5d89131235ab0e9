"""GPU and TPU: the page about compiled programs and the tables of what was run, from benchmarks/results.jsonl."""

import re
from collections.abc import Iterator, Mapping
from statistics import geometric_mean
from typing import Any

from maker.records import METHODS, benchmarks, table

MIB = 2**20
DEVICES = {"h100": "H100", "v5e": "TPU v5e", "v5e_quick": "TPU v5e, with least effort"}
NETWORKS = {
    "resnet50": "ResNet-50 (plain)",
    "bn_inception": "BN-Inception",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "vit_s16": "ViT-S/16",
}
STEPS = {name: name for name in ("EPS", "XBM", "NIR", "MPA", "CCP", "PFML")}
STEPS["sampled"] = "sampled classes"
SAID = """# Compiled for GPU and TPU

Nothing on this page was run ([what was](accelerators.md)). The compilers for an H100 and a TPU v5e compile on any machine what they compile where the
device is, and these are properties of their programs, read from `benchmarks/results.jsonl` when the site is built:

- **held**: temporaries beside arguments and results, as the compiler allots them.
- **moved**: operands and results of all kernels, which is more than what reaches the memory where caches help. A loop counts
  as often as it turns, a branch as its longer way, a slice as what it takes. A TPU keeps arrays of some MiB in a memory
  beside its units: what stays there is not moved, what is carried there or back is, once.
- **accessed**: what the TPU's compiler counts itself, `cost_analysis()["bytes accessed"]`: both memories, copies from one to the
  other twice, a loop once.
- **× bare**: moved bytes in units of the bare matrix products of the same size, in full float32, or of a plain ResNet-50;
  the other networks beside themselves, without a loss and an optimizer.
- **Gop**: of matrix products and convolutions.
- **kernels**: how many different ones: not copies from one memory of a TPU to the other, and not its sums of two single numbers,
  which need no launch. A loop's kernels count once.
- **least**: a roofline: operations at the published peak (H100: 989 Top/s in bfloat16, 67 in float32; v5e: 197, a sixth of it
  in full float32), bytes at the published bandwidth (3.35 TB/s; 819 GB/s), or what is sent at that between devices (450 and
  200 GB/s; sums go around twice), whichever takes longest. Not a measurement.
- **estimate**: the cycles that a TPU's compiler reckons, at 1.5 GHz; it has no model for some kernels, which count as nothing.
- **before**: moved bytes of programs of the code before the losses were made lean (commit 7c2058a); where nothing else stands, the
  program was not compiled since. Of training steps those of ResNet-50, for a v5e on one chip.

On an H100 the compiler is not allowed to try out kernels, as there is nothing to try them on: products are split as it
guesses. A TPU's compiler takes a quarter of a minute to 2.3 for a loss and up to 17 for a network. With its least effort it
takes a tenth, more or less (0.04 to 0.32 of networks on one chip, which on eight then take up to 18 minutes):
operations stay as they are and kernels nearly, but it keeps less beside the units, so that bytes and times are larger,
to be compared with each other only. The last table has what was compiled so, beside products and networks compiled so.
"""


def page() -> str:
    """Make the page."""
    parts = [SAID]
    for name, title in DEVICES.items():
        if f"compiled_{name}" in benchmarks():
            parts.append(of_device(name, title))
    return "\n".join(parts)


def of_device(name: str, title: str) -> str:
    """Make the table of a device."""
    told = benchmarks()[f"compiled_{name}"]
    rows = {key(row): row for row in told["rows"]}
    before = benchmarks().get(f"compiled_{name}_before", {"rows": []})["rows"]
    earlier = {key(row): row for row in before}
    environment, asked = told["environment"], name.replace("_quick", " --quick")
    lines = []
    for place in sorted({**earlier, **rows}):
        row, old = rows.get(place), earlier.get(place)
        was = f"{old['bytes'] / MIB:,.0f}" if old else "–"
        lines.append([*place, was, *(figures(row) if row else ["–"] * 9)])
    head = [
        "program",
        "devices",
        "before, MiB",
        "moved, MiB",
        "× bare",
        "accessed, MiB",
        "held, MiB",
        "Gop",
        "kernels",
    ]
    head += ["collectives, MiB", "least", "estimate"]
    return (
        f"\n## {title}\n\nJAX {environment['jax']}, {environment['date']}. * of the tiles of pairs, each written and read once "
        "forward and once backward.\n\n"
        f"```console\n$ .venv/compilers/bin/python benchmarks/compiled.py --for {asked}\n```\n\n"
        + table(head, lines)
    )


def figures(row: Mapping[str, Any]) -> list[str]:
    """Write the figures of a program."""
    bare = row["bare_bytes"]
    times = f"{row['bytes'] / bare:.2f}{'' if row['beside'] else '*'}" if bare else "–"
    return [
        f"{row['bytes'] / MIB:,.0f}",
        times,
        f"{row['accessed_bytes'] / MIB:,.0f}" if "accessed_bytes" in row else "–",
        f"{row['temporaries'] / MIB:,.0f}",
        f"{row['operations'] / 1e9:,.2f}",
        str(row["kernels"]),
        f"{sum(row['collectives'].values()) / MIB:,.1f}" if row["devices"] > 1 else "–",
        duration(row["least_seconds"]),
        duration(row.get("estimate_seconds")),
    ]


def key(row: Mapping[str, Any]) -> tuple[str, int]:
    """Tell a program from others."""
    return row["what"], row["devices"]


def duration(seconds: float | None) -> str:
    """Write a time."""
    if seconds is None:
        return "–"
    return f"{1e6 * seconds:.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:,.1f} ms"


def steps(name: str) -> str:
    """Make the table of what steps move, in units of what their network moves alone, by network and method."""
    rows = [row for row in benchmarks()[f"compiled_{name}"]["rows"] if "method" in row]
    found = {(row["network"], row["method"], row["devices"]): row for row in rows}
    devices = sorted({row["devices"] for row in rows})

    def times(network: str, method: str) -> str:
        placed = [found.get((network, method, number)) for number in devices]
        return ", ".join(number(r and r["bytes"] / r["bare_bytes"], 2) for r in placed)

    head = f"moved × the network alone, on {', '.join(map(str, devices))}"
    lines = [
        [title, *(times(network, method) for method in STEPS)]
        for network, title in NETWORKS.items()
    ]
    return table([head, *STEPS.values()], lines)


def filled(page: str) -> str:
    """Put the generated tables into the record of accelerators."""
    page = page.replace("<!-- measured -->", measured())
    return re.sub(r"<!-- steps (\w+) -->\n", lambda named: steps(named[1]), page)


def measured() -> str:
    """Make the tables of every device that `benchmarks/accelerator.py` was run on."""
    names = [name for name in sorted(benchmarks()) if name.startswith("accelerator_")]
    return "\n".join(part for name in names for part in of_run(name))


def of_run(name: str) -> Iterator[str]:
    """Write what was measured on a device, in the order in which it is measured."""
    told = benchmarks()[name]
    rows, environment = (
        {section: told["rows"].get(section, []) for section in RUN},
        told["environment"],
    )
    device, times = environment["device"], "× the least reckoned"
    yield f"### {device}\n"
    yield (
        f"{environment['cores']} cores, JAX {environment['jax']}, PyTorch {environment.get('torch', '–')}, "
        f"{environment['date']}; the line `{name}`."
    )
    if checked := rows["check"]:
        right, most = (
            sum(row["right"] for row in checked),
            max(r["largest_difference"] for r in checked),
        )
        yield f"{right} of {len(checked)} losses are as on the CPU; the largest difference is {most:.1e}."
    if judged := rows["judged"]:
        head = ["loss", "ms", "bare products", "pytorch-metric-learning", "times as fast", times]
        ratios = [row["times_faster"] for row in judged if "times_faster" in row]
        mean = number(geometric_mean(ratios) if ratios else None, 0)
        yield f"\n{mean} times as fast as pytorch-metric-learning in the geometric mean:\n"
        yield table(head, [[METHODS[f"{r['loss']}_loss"], *beside_others(r)] for r in judged])
    if steps := rows["training"]:
        head = ["a step of ResNet-50 with", "time", "images per second", times]
        yield table(
            head,
            [
                [
                    row["what"].partition(" with ")[2].partition(",")[0],
                    duration(row["seconds"]),
                    f"{row['images_per_second']:,.0f}",
                    number(row.get("times_least")),
                ]
                for row in steps
            ],
        )
    if large := [*rows["fields"], *rows["everyday"]]:
        head = ["fields and large batches", "time", "dense JAX", "dense PyTorch", "MiB held", times]
        yield table(head, [[row["what"], *of_size(row)] for row in large])
    if rows["retrieval"]:
        kinds = ("seconds", "first_seconds")
        head = ["metrics", "time", "with compilation"]
        yield table(
            head,
            [[r["what"], *(duration(r.get(kind)) for kind in kinds)] for r in rows["retrieval"]],
        )
    if told["left_out"] or told["failed"]:
        missing = [f"{len(told['left_out'])} for lack of time"] * bool(told["left_out"])
        yield f"Left out: {', '.join([*missing, *told['failed']])}.\n"


RUN = ("check", "judged", "training", "fields", "everyday", "retrieval")
"""Sections of `benchmarks/accelerator.py`."""


def beside_others(row: Mapping[str, Any]) -> list[str]:
    """Write a loss's milliseconds, and those of what it is compared with."""
    ms = row["milliseconds"]
    return [
        *(number(ms.get(who), 2) for who in ("jdml", "floor", "pml")),
        number(row.get("times_faster"), 0),
        number(row.get("times_least")),
    ]


def of_size(row: Mapping[str, Any]) -> list[str]:
    """Write time and memory of a field or a batch, and the times of dense forms."""
    seconds, held = row["seconds"], row["bytes"]
    if not isinstance(seconds, Mapping):
        seconds, held = {"jdml": seconds}, {"jdml": held}
    ways = [duration(seconds.get(who)) for who in ("jdml", "dense JAX", "dense torch")]
    size = held["jdml"]
    return [*ways, number(size and size / MIB, 0), number(row.get("times_least"))]


def number(value: float | None, digits: int = 1) -> str:
    """Write a number."""
    return "–" if value is None else f"{value:,.{digits}f}"
