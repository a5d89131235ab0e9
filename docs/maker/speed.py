"""The page about speed, from benchmarks/results.jsonl."""

from collections.abc import Mapping
from typing import Any

from maker.records import benchmarks, machine, record, table

MIB = 2**20


def page() -> str:
    """Make the page."""
    parts = [
        "# Speed\n",
        "All figures are read from `benchmarks/results.jsonl`; each table has its machine, date and command. They are for a CPU; "
        "GPUs and TPUs are [on another page](accelerators.md).\n",
        losses(),
        small_steps(),
        large_batches(),
        groups(),
        serving(),
        fields(),
        training(),
        shares(),
        photographs(),
    ]
    return "\n".join(parts)


def heading(
    title: str, name: str, command: str, said: str, row: Mapping[str, Any] | None = None
) -> str:
    """Begin a section: its title, what is measured, where and how; of a record of several dates, when a row was."""
    return f"\n## {title}\n\n{said} {machine(name, row)}.\n\n```console\n$ {command}\n```\n"


def losses() -> str:
    """Make the table of losses."""
    rows, on_record = [], record("losses")
    for row in on_record["rows"]:
        name = f"{row['loss']}_loss"
        ms = row["milliseconds"]
        rows.append(
            [
                f"[{row['loss']}](losses/{name}.md)",
                f"{row['classes']:,}" if row["classes"] else "–",
                f"{ms['jdml']:.2f}{'†' if 'processor_time' in row else ''}",
                f"{ms['pml']:.2f}" if "pml" in ms else "–",
                f"{row['times_faster']:.1f}" if "times_faster" in row else "–",
                f"{row['over_floor']:.2f}",
                f"{row['peak_bytes']['jdml'] / MIB:.1f}",
            ]
        )
    head = ["loss", "classes", "ms", "PML's ms", "times as fast", "over the products", "peak MiB"]
    said = (
        "Value and gradient of 256 embeddings of 512 dimensions, compared with pytorch-metric-learning (PML) 2.9.0 in one run. "
        "*Over the products* is the time divided by that of three bare matrix products; a batch against itself needs two. "
        "Both libraries keep freed memory; SoftTriple has no regularizer, as in PML."
    )
    if any("processor_time" in row for row in on_record["rows"]):
        said += " † is processor time, of all cores together, taken while other programs ran."
    slow = [
        row["loss"]
        + (f" of {row['classes']:,} classes" if row["classes"] else "")
        + f" ({row['times_faster'] * row['over_floor']:.1f})"
        for row in on_record["rows"]
        if row.get("times_faster", 2) < 2
    ]
    said += (
        " Less than twice as fast as PML (and how many times as fast the products alone would be): "
        f"{', '.join(slow) or 'none'}."
    )
    command = "python benchmarks/losses.py --repeats 21"
    begin = heading("Losses", "losses", command, said, on_record["rows"][0])
    return begin + table(head, rows)


def fields() -> str:
    """Make the table of the potential field."""
    rows = [
        [f"{row['charges']:,}"]
        + [
            f"{row['seconds'][who]:.2f} s, {row['bytes'][who] / MIB:,.0f} MiB"
            if who in row["seconds"]
            else "–"
            for who in ("jdml", "dense JAX", "dense torch")
        ]
        for row in record("potential_field")["rows"]
    ]
    said = "A step of the [potential field](losses/potential_field_loss.md), in tiles, compared with dense implementations."
    head = ["charges", "jdml", "dense JAX", "dense torch"]
    return heading(
        "Potential fields", "potential_field", "python benchmarks/potential_field.py", said
    ) + table(head, rows)


def small_steps() -> str:
    """Make the table of the parts of small steps."""
    parts = ("products", "normalization", "normalized products", "loss")
    rows = [
        [row["loss"], *(f"{row['milliseconds'][part]:.2f}" for part in parts)]
        for row in record("small_steps")["rows"]
    ]
    said = (
        "Milliseconds for a batch of 256 × 512, with 100 proxies for proxy losses: bare products, normalization and its gradient, cosines "
        "with their gradients, and the loss. Proxy losses add little but normalization to the products; pair losses add passes over the matrix of pairs."
    )
    return heading(
        "Where the time of a small step goes",
        "small_steps",
        "python benchmarks/small_steps.py",
        said,
    ) + table(["loss", *parts], rows)


def large_batches() -> str:
    """Make the tables of blocks of anchors."""
    measured = record("large_batches")
    ways = ("blocks", "at once", "optax")
    rows = [
        [row["loss"], f"{row['rows']:,}"]
        + [
            (f"{row['bytes'][way] / MIB:,.0f} MiB" if way in row["bytes"] else "–")
            + (f", {row['seconds'][way]:.2f} s" if way in row["seconds"] else "")
            for way in ways
        ]
        for row in measured["rows"]
    ]
    limits = [
        [
            row["loss"],
            f"{row['rows']:,} × {row['dim']}",
            f"{row['bytes'] / MIB:,.0f} MiB",
            f"{row['limit'] / MIB:,.0f} MiB",
        ]
        for row in measured["limits"]
    ]
    said = (
        "Temporaries of value and gradient at 128-D as XLA counts them, and seconds where it was run: in blocks of anchors, all at once, and optax's `ntxent`. Memory in blocks "
        f"grows as rows^{measured['exponent_of_bytes']:.2f} over the three largest sizes. The second table compares every pair loss with four arrays of the embeddings and 128 MiB."
    )
    return (
        heading("Large batches", "large_batches", "python benchmarks/large_batches.py", said)
        + table(["loss", "rows", *ways], rows)
        + "\n"
        + table(["loss", "embeddings", "temporaries", "four arrays and 128 MiB"], limits)
    )


def groups() -> str:
    """Make the table of a search in which pairs of one group do not count."""
    (row,) = record("retrieval_groups")["rows"]
    rows = [
        [name, f"{seconds:.2f} s", f"{row['peak_bytes'][name] / MIB:,.0f} MiB"]
        for name, seconds in row["seconds"].items()
    ]
    said = (
        f"`evaluate_retrieval`, {row['shape']}: with [`ignore=` by groups](guides/retrieval.md) and without; "
        f"{row['ratio']:.2f} times the processor time. Memory is what a call adds to the gallery."
    )
    command = "python benchmarks/retrieval.py --groups 1000000"
    begin = heading("Ignored pairs", "retrieval_groups", command, said)
    return begin + table(["", "median", "peak"], rows)


def serving() -> str:
    """Make the table of what a service pays."""
    measured = record("serving")["rows"]
    rows = [
        [
            row["shape"],
            ", ".join(f"{name} {1000 * value:,.0f} ms" for name, value in row["seconds"].items()),
        ]
        for row in measured
    ]
    said = (
        "Processor time, measured in turn: a warm single query of a [`jdml.Gallery`](guides/serve.md) beside faiss's flat index and NumPy's product alone; "
        "a process's first gradient with and without `jdml.keep_compiled_programs()`; a search by the command line."
    )
    begin = heading("A service", "serving", "python benchmarks/serving.py", said)
    return begin + table(["", "median"], rows)


def training() -> str:
    """Make the tables of training steps, one for each version of JAX."""
    said = (
        "A training step (forward and backward, multi-similarity loss, Adam) compared with the same network in PyTorch: speed and memory as "
        "multiples of PyTorch's, with the CPU as one device or two (`jdml train --devices 2`). [How convolutions are computed](convolutions.md)."
    )
    command = "python benchmarks/image_training.py"
    sections, start = [], "image_training_jax_"
    for name in (name for name in benchmarks() if name.startswith(start)):
        title = f"A training step, JAX {name.removeprefix(start)}"
        begin = heading(title, name, command, said)
        sections.append(begin + training_rows(name))
        said = "The same with another JAX."
    return "\n".join(sections)


def training_rows(name: str) -> str:
    """Make the table of a record of training steps."""
    rows = []
    for row in record(name)["rows"]:
        for side, devices in (("jdml", 1), ("two devices", 2)):
            line = [row["network"], f"{row['size']}²", row["batch"], devices]
            for part in ("step", "embedding"):
                ms, peak = row[part]["milliseconds"], row[part]["peak_bytes"]
                line += [f"{ms[side]:.0f}", f"{ms['torch'] / ms[side]:.2f}"]
                line += [f"{peak[side] / peak['torch']:.1f}"]
            rows.append(line)
    head = ["network", "images", "batch", "devices", "step, ms", "PyTorch = 1", "its memory"]
    return table([*head, "embedding, ms", "PyTorch = 1", "its memory"], rows)


def shares() -> str:
    """Make the tables of what CCP and NIR add."""
    steps = [
        [
            row["step"],
            f"{1e3 * row['seconds']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['optimizer_models']:.1f}",
        ]
        for row in record("alternation")["rows"]
        if "ratio" in row
    ]
    flows = [
        [row["dim"], row["preset"], f"{100 * row['share']:.2f} %"]
        for row in record("isotropy")["rows"]
    ]
    return (
        heading(
            "What CCP adds",
            "alternation",
            "python benchmarks/alternation.py",
            "A step of ResNet20-v2 on 32 digits; the optimizer's state in copies of the model.",
        )
        + table(["step", "ms", "plain = 1", "optimizer's copies"], steps)
        + heading(
            "What NIR adds",
            "isotropy",
            "python benchmarks/isotropy.py",
            "Operations of flow and loss as a share of a ResNet-50 step at 224², batch 90, counted by XLA.",
        )
        + table(["dimension", "flow", "share"], flows)
    )


def photographs() -> str:
    """Make the tables of photographs."""
    decoding = [
        [
            row["what"],
            row["workers"],
            f"{row['images_per_second']:.0f}",
            f"{100 * row['of_decoding']:.0f} %",
        ]
        for row in record("input_pipeline")["rows"]
    ]
    waiting = [
        [
            row["backbone"],
            row["batch"],
            f"{row['step_images_per_second']:.1f}",
            f"{row['training_images_per_second']:.1f}",
            f"{100 * row['waiting_share']:.1f} %",
        ]
        for row in record("training_from_files")["rows"]
    ]
    return (
        heading(
            "Photographs from disk",
            "input_pipeline",
            "python benchmarks/input_pipeline.py",
            "Images per second: read, decoded, augmented and batched; and the share of bare decoding.",
        )
        + table(["what", "workers", "images per second", "of decoding"], decoding)
        + heading(
            "Training from files",
            "training_from_files",
            "python benchmarks/training_from_files.py",
            "How long a training step waits for its images.",
        )
        + table(
            ["network", "batch", "steps alone, images/s", "training, images/s", "waiting"], waiting
        )
    )
