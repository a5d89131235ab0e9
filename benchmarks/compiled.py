"""Compile programs for an H100 or a TPU v5e on any machine; report their memory, traffic and operations.

    make .venv/.compilers
    .venv/compilers/bin/python benchmarks/compiled.py --for h100
    .venv/compilers/bin/python benchmarks/compiled.py --for v5e --only small steps --again
    .venv/compilers/bin/python benchmarks/compiled.py --for v5e --only small arcface
    .venv/compilers/bin/python benchmarks/compiled.py --for h100 --only precision --networks vit_b16 --rows 256
    .venv/compilers/bin/python benchmarks/compiled.py --for v5e --quick --only steps --devices 1 8 256

Value and gradient of every loss, the fields, the metrics, the flow, and training steps of a network with each
method, on one device and on eight. Nothing runs: bytes are operands and results of all kernels that go through the
device's memory, operations those of products and convolutions, temporaries and collectives the compiler's own,
`bare_bytes` what the bare products (or the plain network, or the tiles of a field) move. `least_seconds` is a roofline:
the longest of operations at the published peak, bytes at the published bandwidth, and what is sent to other devices at
theirs, sums twice. `images_that_fit` are those whose temporaries fill the memory that a step's arguments leave;
`estimate_seconds` is a TPU compiler's estimate, `accessed_bytes` its count, which includes memory next to its units.
A program is written to the line compiled_DEVICE of benchmarks/results.jsonl as soon as it is compiled; what is
there already is left out, unless --again asks for it anew. With --quick the compiler takes its least effort, a tenth of
a TPU's compiler's time and another program: operations are the same, bytes and times are larger. Those
are on the line compiled_DEVICE_quick, compared with bare products and networks of the same kind.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import compilers


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--for", dest="target", choices=compilers.TARGETS, required=True, help="which accelerator")
    add(
        "--only",
        nargs="+",
        default=[],
        help=f"sections ({', '.join(SECTIONS)}), and parts of programs' names",
    )
    add("--devices", nargs="+", type=int, default=[1, 8], help="meshes of the steps")
    add("--networks", nargs="+", default=["resnet50"], help="of jdml.models, for the steps")
    add("--methods", nargs="+", help="of the steps (default all)")
    add("--rows", type=int, default=32, help="images of a batch, on each device (default 32)")
    add("--side", type=int, default=224, help="their size (default 224)")
    add("--again", action="store_true", help="compile also what is on record")
    add("--quick", action="store_true", help="with the compiler's least effort")
    add("--smoke", action="store_true", help="one loss with least effort, to see that it runs")
    add("--text", type=Path, help="a folder for the programs' texts")
    add("--budget", type=float, default=1e9, help="seconds after which none is begun")
    add("--out", type=Path, default=Path(__file__).with_name("results.jsonl"), help="the record")
    asked = parser.parse_args()
    if asked.smoke:
        print("smoke: a toy run, whose numbers mean nothing", flush=True)
        asked.only, asked.quick, asked.out = ["small", "contrastive"], True, None
    return asked


class Case(NamedTuple):
    """A program.

    Attributes:
        what: its name.
        lowered: traces it for a device (steps: for their mesh).
        devices: how many run it.
        baseline: the name of the program that it is compared with.
        others: what else to write.
    """

    what: str
    lowered: Callable[[], Any]
    devices: int = 1
    baseline: str | None = None
    others: dict[str, Any] = {}


SECTIONS = (
    "small",
    "mined",
    "large",
    "fields",
    "everyday",
    "metrics",
    "flow",
    "steps",
    "precision",
)

if __name__ == "__main__":
    ASKED = _asked()
    compilers.prepare(ASKED.target)

# Below, as the target is given to JAX before it is loaded.
import jax  # noqa: E402
import machine  # noqa: E402
import programs  # noqa: E402


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """All that is asked for, and what it is compared with."""
    names = [name for name in asked.only if name not in SECTIONS]
    for section in [name for name in SECTIONS if name in asked.only] or SECTIONS:
        all_cases = [Case(*parts) for parts in getattr(programs, section)(asked)]
        wanted = [case for case in all_cases if any(name in case.what for name in names or [""])]
        baseline = {case.baseline for case in wanted}
        yield from (case for case in all_cases if case in wanted or case.what in baseline)


def measured(
    case: Case, target: compilers.Target, asked: argparse.Namespace, rows: dict[Any, Any]
) -> dict[str, Any]:
    """Compile one case and return its row."""
    start, folder = time.perf_counter(), asked.text
    effort = compilers.QUICK if asked.quick else None
    compiled, options = compilers.compiled(case.lowered(), effort)
    text = compiled.as_text()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{case.what.replace(' ', '_').replace(',', '')}_{case.devices}.txt").write_text(
            text
        )
    program = compilers.Program(text, case.others.get("turns", 1))
    operations = program.operations
    computing = sum(
        n / (target.single if kind == "f32" else target.operations)
        for kind, n in operations.items()
    )
    memory = compiled.memory_analysis()
    temporaries, arguments = int(memory.temp_size_in_bytes), int(memory.argument_size_in_bytes)
    row = {
        "what": case.what,
        "devices": case.devices,
        "baseline": case.baseline,
        "bare_bytes": rows.get((case.baseline, 1), {}).get("bytes"),
        "temporaries": temporaries,
        "arguments": arguments,
        "bytes": program.bytes,
        "operations": sum(operations.values()),
        "kernels": program.kernels,
        "collectives": program.collectives,
        "least_seconds": round(
            max(
                computing,
                program.bytes / target.bandwidth,
                bytes_sent(program, case.devices) / target.between,
            ),
            7,
        ),
        "compile_seconds": round(time.perf_counter() - start, 1),
        **case.others,
        **options,
    }
    if "network" in case.others:
        row["images_that_fit"] = int(asked.rows * (target.memory - arguments) / temporaries)
    if target.clock:
        row["estimate_seconds"] = round(program.cycles / target.clock, 7)
        row["accessed_bytes"] = int(compiled.cost_analysis()["bytes accessed"])
    if wrong := program.on_host:
        row["on_host_or_float64"] = wrong
    return row


def bytes_sent(program: compilers.Program, devices: int) -> int:
    """Bytes that a device sends: a sum goes around twice, and of one of which each keeps a part that part comes out."""
    rounds = {"all-reduce": 2, "reduce-scatter": devices - 1}
    return sum(size * rounds.get(kind, 1) for kind, size in program.collectives.items())


def show(row: dict[str, Any]) -> None:
    """For people."""
    sent = {k: f"{machine.mebibytes(v)} MiB" for k, v in row["collectives"].items()}
    print(
        f"{row['what']:44} {row['devices']:3}  {machine.mebibytes(row['temporaries']):>6} MiB held "
        f"{machine.mebibytes(row['bytes']):>7} MiB moved {row['operations'] / 1e9:9.2f} Gop "
        f"{row['kernels']:5} kernels  least {1e6 * row['least_seconds']:9.1f} us  estimate "
        f"{1e6 * row.get('estimate_seconds', float('nan')):9.1f} us  {sent or ''}",
        flush=True,
    )


def main() -> None:
    """Compile, count, print, write after every program."""
    name, target = ASKED.target, compilers.TARGETS[ASKED.target]
    programs.place(lambda number: compilers.devices(name, number))
    record = f"compiled_{name}_quick" if ASKED.quick else f"compiled_{name}"
    known = (machine.read(ASKED.out, record) or {"rows": []})["rows"]
    rows = {(row["what"], row["devices"]): row for row in known}
    ends, failed = time.monotonic() + ASKED.budget, []
    done = set() if ASKED.again else set(rows)
    for case in cases(ASKED):
        key = (case.what, case.devices)
        if time.monotonic() > ends or key in done:
            continue
        done.add(key)
        try:
            rows[key] = measured(case, target, ASKED, rows)
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # too large, or on no such mesh
            failed.append(case.what)
            print(f"{case.what}: {str(error).splitlines()[0][:200]}", flush=True)
            continue
        show(rows[key])
        machine.write(ASKED.out, [rows[key] for key in sorted(rows)], record, target=name)
    if failed:
        raise SystemExit(f"not compiled: {', '.join(failed)}")


if __name__ == "__main__":
    main()
