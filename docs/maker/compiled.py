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

Nothing on this page was run; [measurements](accelerators.md) are on another one. The compilers for an H100 and a TPU v5e run on any machine. These are
properties of their programs, read from `benchmarks/results.jsonl`:

- **held**: temporaries without arguments and results.
- **moved**: operands and results of all kernels, an upper bound of the memory traffic. A loop counts for each iteration, a branch
  for its longer side. Arrays that a TPU keeps in its on-chip memory are not moved; copies to and from it count once.
- **accessed**: the TPU compiler's `cost_analysis()["bytes accessed"]`: both memories, copies twice, a loop once.
- **× bare**: moved bytes divided by those of the bare matrix products, in full float32, or of a plain ResNet-50; for other networks
  by those of the network without loss and optimizer.
- **Gop**: of matrix products and convolutions.
- **kernels**: different kernels, without copies between a TPU's memories and scalar sums. A loop's kernels count once.
- **least**: a roofline: operations at the published peak (H100: 989 Top/s in bfloat16, 67 in float32; v5e: 197, a sixth of it
  in full float32), bytes at the published bandwidth (3.35 TB/s; 819 GB/s), or traffic between devices (450 and
  200 GB/s; sums are sent twice), whichever takes longest. Not a measurement.
- **estimate**: the TPU compiler's cycles at 1.5 GHz; kernels that it has no model for count as 0.
- **before**: moved bytes of an older version (commit 7c2058a). A row with only this column was not compiled again.

Without a device the H100's compiler cannot try kernels out, and guesses how to split products. The TPU's compiler takes up to
2.3 minutes for a loss and 17 for a network. Its least effort takes about a tenth; bytes and times are then larger and can be
compared only with each other. The last table has such programs.
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
    record = benchmarks()[f"compiled_{name}"]
    rows = {key(row): row for row in record["rows"]}
    before = benchmarks().get(f"compiled_{name}_before", {"rows": []})["rows"]
    earlier = {key(row): row for row in before}
    environment, asked = record["environment"], name.replace("_quick", " --quick")
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
        f"\n## {title}\n\nJAX {environment['jax']}, {environment['date']}. * divided by the tiles of pairs, written and read once "
        "forward and once backward.\n\n"
        f"```console\n$ .venv/compilers/bin/python benchmarks/compiled.py --for {asked}\n```\n\n"
        + table(head, lines)
    )


def figures(row: Mapping[str, Any]) -> list[str]:
    """Write the figures of a program."""
    bare = row["bare_bytes"]
    times = f"{row['bytes'] / bare:.2f}{'' if row['baseline'] else '*'}" if bare else "–"
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
    by_step = {(row["network"], row["method"], row["devices"]): row for row in rows}
    devices = sorted({row["devices"] for row in rows})

    def times(network: str, method: str) -> str:
        placed = [by_step.get((network, method, number)) for number in devices]
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
    record = benchmarks()[name]
    rows, environment = (
        {section: record["rows"].get(section, []) for section in RUN},
        record["environment"],
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
        yield table(head, [[METHODS[f"{r['loss']}_loss"], *table_row(r)] for r in judged])
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
    if record["left_out"] or record["failed"]:
        missing = [f"{len(record['left_out'])} for lack of time"] * bool(record["left_out"])
        yield f"Left out: {', '.join([*missing, *record['failed']])}.\n"


RUN = ("check", "judged", "training", "fields", "everyday", "retrieval")
"""Sections of `benchmarks/accelerator.py`."""


def table_row(row: Mapping[str, Any]) -> list[str]:
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
