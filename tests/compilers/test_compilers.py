"""The compilers for H100 and TPU v5e compile small programs of all parts; their programs are analysed correctly."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compilers

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("small_programs.py")

TEXT = """HloModule jit_f, is_scheduled=true

%inner (a: f32[8,4], b: f32[8,4]) -> f32[8,8] {
  %a = f32[8,4]{1,0} parameter(0)
  %b = f32[8,4]{1,0} parameter(1)
  ROOT %dot = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, operand_precision={highest,highest}
}

%sliced (all: f32[80,4], at: s32[]) -> f32[8,4] {
  %all = f32[80,4]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %cut = f32[8,4]{1,0} dynamic-slice(%all, %at, %zero), dynamic_slice_sizes={8,4}
}

%body (state: (s32[], f32[80,4])) -> (s32[], f32[80,4]) {
  %state = (s32[], f32[80,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[80,4]{1,0} get-tuple-element(%state), index=1
  %cut.1 = f32[8,4]{1,0} fusion(%x, %i), kind=kLoop, calls=%sliced
  %product = f32[8,8]{1,0} fusion(%cut.1, %cut.1), kind=kCustom, calls=%inner
  %put = f32[80,4]{1,0} dynamic-update-slice(%x, %cut.1, %i, %i)
  ROOT %next = (s32[], f32[80,4]{1,0}) tuple(%i, %put)
}

%condition (state.1: (s32[], f32[80,4])) -> pred[] {
  %state.1 = (s32[], f32[80,4]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%i.1, %ten), direction=LT
}

ENTRY %main (p: f32[80,4]) -> f32[80,4] {
  %p = f32[80,4]{1,0} parameter(0)
  %start = s32[] constant(0)
  %given = (s32[], f32[80,4]{1,0}) tuple(%start, %p)
  %loop = (s32[], /*index=1*/f32[80,4]{1,0}) while(%given), condition=%condition, body=%body
  %out = f32[80,4]{1,0} get-tuple-element(%loop), index=1
  ROOT %sum = f32[80,4]{1,0} all-reduce(%out), to_apply=%condition
}
"""


def test_counts_of_operations() -> None:
    """Loops count by their conditions, slices by their own size, products as two operations per multiplication."""
    program = compilers.Program(TEXT)
    assert program.kernels == 4
    of_turn = (128 + 4 + 128) + (2 * 128 + 256) + (128 + 2 * 4 + 128)
    assert program.bytes == 10 * of_turn + 2 * 1280
    assert program.operations == {"f32": 10 * 2 * 8 * 8 * 4}
    assert program.collectives == {"all-reduce": 1280}
    assert program.on_host == []
    assert list(program.precisions.values()) == [["f32", "f32", "highest,highest"]]


ALONG = """HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[16,4,1], b: f32[8,2,4]) -> f32[16,8,2] {
  %a = f32[16,4,1]{0,1,2} parameter(0)
  %b = f32[8,2,4]{2,1,0} parameter(1)
  ROOT %c = f32[16,8,2]{0,1,2} convolution(%a, %b), window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=bf0_o0i->bf0
}
"""


def test_products_along_a_short_axis() -> None:
    """A TPU computes them as a convolution over one entry and zeros, which are not multiplied."""
    assert compilers.Program(ALONG).operations == {"f32": 2 * 16 * 8 * 2 * 4}


TILED = """HloModule jit_f, is_scheduled=true

%inner (a.1: f32[100,256], b.1: f32[8,256]) -> (f32[100,256], f32[]) {
  %a.1 = f32[100,256]{1,0:T(8,128)} parameter(0)
  %b.1 = f32[8,256]{1,0:T(8,128)} parameter(1)
  %one = f32[]{:T(128)} constant(1)
  ROOT %both = (f32[100,256]{1,0:T(8,128)}, f32[]{:T(128)}) tuple(%a.1, %one)
}

ENTRY %main (p: f32[100,256]) -> f32[100,256] {
  %p = f32[100,256]{1,0:T(8,128)} parameter(0)
  %cut = ((f32[100,256]{1,0:T(8,128)}), f32[8,256]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%p)
  %b = f32[8,256]{1,0:T(8,128)S(1)} slice-done(%cut)
  %near = (f32[100,256]{1,0:T(8,128)S(1)}, f32[]{:T(128)}) fusion(%p, %b), kind=kLoop, calls=%inner
  %c = f32[100,256]{1,0:T(8,128)S(1)} get-tuple-element(%near), index=0
  %d = f32[]{:T(128)} get-tuple-element(%near), index=1
  %twice = f32[]{:T(128)} add(%d, %d)
  %sent = (f32[100,256]{1,0:T(8,128)}, f32[100,256]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) copy-start(%c)
  ROOT %e = f32[100,256]{1,0:T(8,128)} copy-done(%sent)
}
"""


def test_memories_of_a_tpu() -> None:
    """Only traffic through the device's memory counts, in whole tiles; copies count, but not as kernels."""
    program = compilers.Program(TILED)
    assert program.kernels == 1
    padded, cut = 104 * 256 * 4, 8 * 256 * 4
    assert program.bytes == cut + (padded + 4) + 3 * 4 + padded


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("target", compilers.TARGETS)
def test_programs_compile_and_match_their_counts(target: str, tmp_path: Path) -> None:
    """Every program compiles, keeps to the device and to 32 bits, and ranks by products of full precision."""
    found = compiled(target, tmp_path / "found.json")
    assert {name: row["error"] for name, row in found.items() if "error" in row} == {}
    assert {name: row["on_host"] for name, row in found.items() if row["on_host"]} == {}
    ranked = {name: row["precisions"] for name, row in found.items() if name.startswith(RANKED)}
    assert len(ranked) == 5
    for name, precisions in ranked.items():
        # k-center takes differences.
        assert bool(precisions) == (not name.startswith("greedy_k_center")), name
        for left, right, asked in precisions.values():
            assert (left, right, asked) == ("f32", "f32", "highest,highest"), name
    halves = found["multi_similarity in bfloat16"]["precisions"].values()
    assert ["bf16", "bf16", "default"] in halves  # the similarities: exact, accumulated in float32
    assert {asked for left, right, asked in halves if "f32" in (left, right)} == {"highest,highest"}
    lean = [name for name in found if name.startswith(LEAN)]
    assert len(lean) >= (5 if target == "h100" else 8)
    for name in lean:
        # Similarities and one gradient: a batch against itself moves on both sides alike, and mines among them.
        size = name.rpartition(", ")[2].removesuffix(" rows")
        bare = found[f"products, {size} x {size}"]["operations"]["f32"]
        assert found[name]["operations"]["f32"] <= 0.7 * bare, name
        assert found[name]["kernels"] <= 36, name  # some ten of them for the references' centre
    assert found["max_pool"]["kernels"] <= 8  # not one for each position of a window
    with_proxies = found["products, 12 x 8"]["operations"]["f32"]
    assert found[MPA]["operations"]["f32"] <= 1.4 * with_proxies
    among, with_proxies = (found[name]["bytes"] for name in BARE)
    for name, (of_gpu, of_tpu) in MOVED.items():
        bare = with_proxies if "classes" in name else among
        bound = of_gpu if target == "h100" else of_tpu
        assert found[name]["bytes"] <= bound * bare, name
    table = TABLE[target]
    # CCP's proxies are a pair loss's references, which are gathered.
    steps = [name for name in found if name.startswith("small with") and "CCP" not in name]
    assert steps
    for method in steps:
        gathered = found[method]["collectives"]["all-gather"]
        # A device's rows of a memory or a table stay on it; a field gathers all charges once.
        assert gathered <= (2.1 if "PFML" in method else 0.2) * table, method


BARE = "products, 1024 x 1024", "products, 1024 x 1000"
MOVED = {
    "contrastive, 1024 rows": (1.55, 2.4),
    "multi_similarity, 1024 rows": (1.5, 2.4),
    "sup_con, 1024 rows": (1.5, 2.4),
    "multi_similarity with MS pairs, 1024 rows": (1.9, 3.1),
    "normalized_softmax, 1024 x 1000 classes": (1.6, 1.8),
    "proxy_anchor, 1024 x 1000 classes": (1.8, 1.8),
}
"""Bytes to those of the bare products, at most: for an H100, and as a TPU's compiler does with its least effort, which
fuses less. Distances are computed from the references' centre; a miner of a loss of similarities shares its product."""
TABLE = {"h100": 128 * 8 * 4, "v5e": 128 * 128 * 4}
"""Bytes of a memory of the small steps, of 128 rows of 8 numbers, which fill a TPU's tiles of 128; MPA's and PFML's
tables are twice that."""
RANKED = ("evaluate_retrieval", "nearest", "greedy_k_center")
RANKED += ("triplet with", "multi_similarity with")  # miners
"""Programs in which the least difference may change what comes first."""
WORDS = (
    "contrastive multi_similarity info_nce sup_con lifted_structure snr_contrastive triplet fast_ap"
)
LEAN = (*(f"{name}, " for name in WORDS.split()), "multi_similarity with")
MPA = "multi_proxy_anchor, 12 x 4 classes x 2"


def python() -> str:
    """Return an interpreter with the compilers: $JDML_COMPILERS, that of `make .venv/.compilers`, or this one."""
    own = Path(sys.prefix) / "compilers" / "bin" / "python"
    return os.environ.get("JDML_COMPILERS") or str(own if own.exists() else sys.executable)


def compiled(target: str, out: Path) -> dict[str, Any]:
    """Return the script's results; a compiler needs a separate process with its own environment."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    given["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [python(), SCRIPT, target, out],
        env=given,
        capture_output=True,
        text=True,
        timeout=3600,  # it hangs: each target takes about half a minute
        check=False,
    )
    if "no compiler for" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())
