"""Tables from the files on record: benchmarks/results.jsonl and experiments/*/results.jsonl."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from experiments import results
from jdml.runs.run_files import read_results

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results.jsonl"

# What a loss or miner is called in the studies' tables; a row "A + B" is one of both.
METHODS = {
    "arcface_loss": "ArcFace",
    "circle_loss": "circle",
    "contrastive_loss": "contrastive",
    "contrastive_potential_loss": "CPML",
    "cosface_loss": "CosFace",
    "easy_positive": "EPS",
    "fast_ap_loss": "FastAP",
    "lifted_structure_loss": "lifted structure",
    "margin_loss": "margin",
    "multi_proxy_anchor_ap_loss": "MPA-AP",
    "multi_proxy_anchor_dw_loss": "MPA-DW",
    "multi_proxy_anchor_loss": "MPA",
    "multi_similarity_loss": "MS",
    "n_pair_loss": "N-pair",
    "nir_loss": "NIR",
    "normalized_softmax_loss": "normalized softmax",
    "potential_field_loss": "PFML",
    "proxy_anchor_loss": "ProxyAnchor",
    "proxy_nca_loss": "ProxyNCA",
    "proxy_nca_margin_loss": "ProxyNCA*",
    "proxy_nca_pp_loss": "ProxyNCA++",
    "similarity_contrastive_loss": "contrastive (similarity)",
    "snr_contrastive_loss": "SNR contrastive",
    "soft_triple_loss": "SoftTriple",
    "triplet_loss": "triplet",
}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
    return text.replace(" ± ", "\u00a0±\u00a0") + "\n"


@cache
def benchmarks() -> dict[str, dict[str, Any]]:
    """Read what the benchmarks have measured, by name."""
    return read_results(RESULTS)


def record(name: str) -> dict[str, Any]:
    """Give a benchmark's record."""
    return benchmarks()[name]


def machine(name: str, row: Mapping[str, Any] | None = None) -> str:
    """Say where and when a benchmark was run, or one of its rows."""
    e = {**record(name)["environment"], **({"date": row["date"]} if row and "date" in row else {})}
    return f"{e['cores']} × {e['machine']} {e['device'].upper()} cores, JAX {e['jax']}, {e['date']}"


def cost(loss: str) -> str:
    """Make the table of what a loss costs; "" where none is on record."""
    rows = [row for row in record("losses")["rows"] if f"{row['loss']}_loss" == loss]
    if not rows:
        return ""
    lines = []
    for row in rows:
        ms, mib = row["milliseconds"], {k: v / 2**20 for k, v in row["peak_bytes"].items()}
        lines.append(
            [
                f"{row['classes']:,}" if row["classes"] else "–",
                f"{ms['jdml']:.2f}",
                f"{row['over_floor']:.2f}",
                f"{mib['jdml']:.1f}",
                f"{row['times_faster']:.1f}" if "times_faster" in row else "–",
                f"{mib['pml']:.1f}" if "pml" in mib else "–",
            ]
        )
    head = [
        "classes",
        "ms",
        "÷ bare products",
        "peak MiB",
        "times as fast as PML",
        "PML's MiB",
    ]
    where = machine("losses", rows[0])
    clock = "; processor time, both cores together" if "processor_time" in rows[0] else ""
    said = f"Value and gradient of 256 embeddings of 512 dimensions{clock}; {where}.\n"
    return f"{said}\n{table(head, lines)}"


def flow_cost() -> str:
    """Make the table of what a flow adds to a loss."""
    head = [
        "dimensions",
        "flow",
        "ms of the loss",
        "ms with the flow",
        "share of ResNet-50's operations",
    ]
    rows = [
        [
            row["dim"],
            row["preset"],
            *(f"{v:.1f}" for v in row["milliseconds"].values()),
            f"{row['share']:.2%}",
        ]
        for row in record("isotropy")["rows"]
    ]
    said = f"The loss is a sum over the batch; the cost is the flow's. {machine('isotropy')}.\n"
    return f"{said}\n{table(head, rows)}"


def best(count: int = 6) -> str:
    """Make a table of the best methods of each study."""
    rows = []
    for column in results.COLUMNS:
        values = results.values(column)
        place = sorted(values, key=lambda m: -sum(values[m]) / len(values[m]))[:count]
        cells = " · ".join(f"{m} {results.cell(column, m, values[m])}" for m in place)
        link = f"[{column.title}](experiments/{column.folder}/README.md)"
        rows.append([link, column.date, cells])
    return table(["study", "date", "R@1 in percent: mean ± std (runs) [paper]"], rows)


def rows_of(name: str) -> str:
    """Make the table of what the studies found for a loss or miner; "" where none is on record."""
    method = METHODS.get(name)
    if method is None:
        return ""
    rows = []
    for column in results.COLUMNS:
        values = results.values(column)
        named = {m: v for m, v in values.items() if method in m.split(" + ")}
        place = sorted(values, key=lambda m: -sum(values[m]) / len(values[m]))
        for m, runs in sorted(named.items(), key=lambda item: item[0]):
            link = f"[{column.title}](../experiments/{column.folder}/README.md)"
            rank = f"{place.index(m) + 1} of {len(place)}"
            rows.append([link, m, results.cell(column, m, runs), rank])
    return (
        table(["study", "method", "R@1: mean ± std (runs) [paper]", "place"], rows) if rows else ""
    )
