"""The compilers for a GPU or TPU that is not here: how they are called, and what their programs hold, move and compute.

Nothing runs and nothing is timed. The extra `compilers` brings them, best into an environment of its own, which
`make .venv/.compilers` makes: where they are installed, JAX looks for devices. They need none, and no driver.
"""

import importlib.util
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 7 } runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The description of an H100 SXM that XLA needs."""
PACKAGES = {"gpu": ("jax_cuda12_plugin", "jax_plugins.xla_cuda12"), "tpu": ("libtpu",)}
"""Modules without which there is no compiler for a platform."""
QUICK = {"exec_time_optimization_effort": -1.0, "memory_fitting_effort": -1.0}
"""A tenth of a TPU compiler's time, for what need not be the best program."""


class Target(NamedTuple):
    """An accelerator, with its published figures.

    Attributes:
        platform: as JAX calls it.
        topologies: how XLA calls so many devices.
        operations: per second in bfloat16, accumulated in float32.
        single: the same of products of float32 that keep float32's precision: an H100's vector units; a TPU multiplies
            six times in bfloat16.
        bandwidth: bytes per second between a device and its memory.
        between: bytes per second that a device sends to others.
        memory: bytes.
        clock: cycles per second, in which a TPU's compiler estimates; 0 where it does not.
    """

    platform: str
    topologies: Mapping[int, str]
    operations: float
    single: float
    bandwidth: float
    between: float
    memory: float
    clock: float = 0.0


TARGETS = {
    "h100": Target("gpu", {1: "1x1x8", 8: "1x1x8"}, 989e12, 67e12, 3.35e12, 450e9, 80e9),
    "v5e": Target(
        "tpu",
        {1: "v5e:2x4", 8: "v5e:2x4", 256: "v5e:16x16"},
        197e12,
        197e12 / 6,
        819e9,
        200e9,
        16e9,
        1.5e9,
    ),
}


def missing(name: str) -> str | None:
    """Say what a compiler lacks, or None."""

    def absent(module: str) -> bool:
        try:
            return importlib.util.find_spec(module) is None
        except ModuleNotFoundError:
            return True

    lacking = [module for module in PACKAGES[TARGETS[name].platform] if absent(module)]
    if not lacking:
        return None
    return f"no compiler for {name}: {', '.join(lacking)} is not installed (make .venv/.compilers)"


def prepare(name: str) -> None:
    """Set what the compiler reads from the environment: before JAX looks for devices, once in a process."""
    if reason := missing(name):
        raise SystemExit(reason)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if TARGETS[name].platform == "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
        return
    import libtpu

    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_LIBRARY_PATH"] = libtpu.get_library_path()
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"


def devices(name: str, number: int) -> list[Any]:
    """Give devices to compile for. What asks JAX where programs run is told: there."""
    import jax
    from jax.experimental import topologies

    jax.devices()  # which loads the plugins
    target = TARGETS[name]
    topology = target.topologies[number]
    if target.platform == "gpu":
        description = topologies.get_topology_desc(
            platform="cuda", target_config=H100, topology=topology
        )
    else:
        description = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    jax.default_backend = lambda: target.platform
    return list(description.devices[:number])


def compiled(lowered: Any, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Compile a traced program, and say with which options.

    Without a card to try kernels on, XLA takes its own (Triton) for each product, and finds no tiles for some of a
    transformer, of 6,304 = 32 · 197 rows: those programs take cuBLAS's, as XLA does with a card.
    """
    chosen_options = dict(options or {})
    try:
        return lowered.compile(compiler_options=chosen_options), {
            "options": chosen_options
        } if chosen_options else {}
    except Exception as error:
        if "output tile sizes" not in str(error):
            raise
    chosen_options["xla_gpu_enable_triton_gemm"] = False
    return lowered.compile(compiler_options=chosen_options), {"options": chosen_options}


BYTES = {"pred": 1, "u8": 1, "s8": 1, "bf16": 2, "f16": 2, "u16": 2, "s16": 2}
BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "token": 0}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
SILENT = frozenset(
    "parameter constant tuple get-tuple-element bitcast iota after-all partition-id replica-id "
    "opt-barrier add-dependency".split()
)
"""Operations that are no kernels and move nothing."""
SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
"""The type, sizes and layout of an array: the order of its axes, a TPU's tiles, and where it lies."""
COPIES = ("copy-start", "slice-start", "dynamic-slice-start")
"""Operations that copy arrays from one memory to another."""


class Instruction(NamedTuple):
    """One line of a program."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    inner: str
    rest: str
    is_root: bool


def sizes_of(type_: str) -> list[int]:
    """Bytes of each array of a type, a TPU's filled up to whole tiles."""
    results = []
    for kind, shape, layout in SHAPE.findall(type_):
        sizes = [int(n) for n in shape.split(",") if n]
        axes, _, rest = layout.partition(":")
        if tile := re.match(r"T\(([\d,]+)\)", rest):
            units = [int(n) for n in reversed(tile[1].split(","))]
            for axis, unit in zip(map(int, filter(None, axes.split(","))), units, strict=False):
                sizes[axis] = -(-sizes[axis] // unit) * unit
        results.append(math.prod(sizes) * BYTES.get(kind, 4))
    return results


def size_of(type_: str) -> int:
    """Bytes of a type, of all parts of a tuple."""
    return sum(sizes_of(type_))


def in_memory(type_: str) -> list[bool]:
    """Which arrays of a type lie in the device's memory: a TPU keeps small ones in another, next to its units."""
    return ["S(" not in layout for _, _, layout in SHAPE.findall(type_)]


def _shape(type_: str) -> list[int]:
    match = SHAPE.search(type_)
    return [int(n) for n in match[2].split(",") if n] if match else []


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes the one at ``start``."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(f"no closing bracket: {text}")


def _instruction(line: str) -> Instruction | None:
    match = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
    if match is None:
        return None
    text = re.sub(r"/\*.*?\*/", "", line[match.end() :])
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opened = text.index("(", end)
    closed = _closing(text, opened)
    operands = re.findall(r"%([\w.\-]+)", text[opened:closed])
    return Instruction(
        match[2],
        text[:end],
        text[end:opened].strip(),
        tuple(operands),
        text[opened + 1 : closed],
        text[closed + 1 :],
        match[1] is not None,
    )


class Program:
    """A compiled program, read from its text.

    A kernel moves its operands and its results; of an operand that it only takes slices from, these. A loop counts as
    often as it turns, a branch as the longer of its ways.

    Args:
        text: of the program.
        turns: of loops whose turns depend on the data.
    """

    def __init__(self, text: str, turns: int = 1) -> None:
        self.turns = turns
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            header = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$", line)
            if header:
                current = self.computations[header[2]] = {}
                self.entry = header[2] if header[1] else self.entry
            elif line.startswith("  ") and (instruction := _instruction(line)):
                current[instruction.name] = instruction

    @cached_property
    def steps(self) -> list[tuple[float, str, Instruction]]:
        """Everything that is launched: how often, in which computation, what."""
        return list(self._walk(self.entry, 1.0))

    def _walk(self, name: str, times: float) -> Iterator[tuple[float, str, Instruction]]:
        for step in self.computations[name].values():
            if step.opcode == "while":
                body = re.search(r"body=%?([\w.\-]+)", step.rest)
                assert body is not None
                yield from self._walk(body[1], times * self._turns(step))
            elif step.opcode == "conditional":
                listed = re.search(r"branch_computations=\{(.*?)\}", step.rest)
                ways = re.findall(r"%?([\w.\-]+)", listed[1]) if listed else []
                ways += re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", step.rest)
                yield from max(
                    (list(self._walk(way, times)) for way in ways),
                    key=lambda steps: (sum(n * self._moved(w, i) for n, w, i in steps), len(steps)),
                )
            elif step.opcode == "call" and (
                called := re.search(r"to_apply=%?([\w.\-]+)", step.rest)
            ):
                yield from self._walk(called[1], times)
            elif step.opcode not in SILENT:
                yield times, name, step

    def _turns(self, loop: Instruction) -> int:
        """How often a loop turns: as the compiler says, or as its condition compares."""
        if match := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest):
            return int(match[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
        assert condition is not None
        numbers = [
            int(i.inner)
            for i in self.computations[condition[1]].values()
            if i.opcode == "constant" and i.inner.isdigit()
        ]
        return max(numbers, default=self.turns)

    @property
    def kernels(self) -> int:
        """How many different kernels there are: copies from memory to memory and sums of two numbers are none."""
        return sum(1 for _, _, step in self.steps if self._is_kernel(step))

    @property
    def bytes(self) -> int:
        """Bytes that all kernels read from the device's memory and write to it."""
        return int(sum(n * self._moved(where, step) for n, where, step in self.steps))

    @property
    def operations(self) -> dict[str, float]:
        """Operations of matrix products and convolutions, by the type of what they multiply."""
        totals: dict[str, float] = {}
        for times, where, step in self.steps:
            for inside, product in self._products(where, step):
                of = self.computations[inside]
                left = of.get(product.operands[0])
                match = SHAPE.search(left.type if left else "")
                kind = match[1] if match else "?"
                totals[kind] = totals.get(kind, 0.0) + times * self._operations(inside, product)
        return totals

    @property
    def precisions(self) -> dict[str, list[str]]:
        """How products are computed: types and precision of what each multiplies."""
        totals: dict[str, list[str]] = {}
        for _, where, step in self.steps:
            for inside, product in self._products(where, step):
                of = self.computations[inside]
                kinds = [SHAPE.search(of[n].type) for n in product.operands[:2] if n in of]
                asked = re.search(
                    r"(?:operand_precision=\{|operand_precision\":\[)([^\]}]*)", product.rest
                )
                named = asked[1].replace('"', "").lower() if asked else "default"
                totals[f"{inside}:{product.name}"] = [*(k[1] for k in kinds if k), named]
        return totals

    @property
    def collectives(self) -> dict[str, int]:
        """Bytes that come out of each kind of collective."""
        totals: dict[str, float] = {}
        times = {}
        for n, where, _ in self.steps:
            times[where] = n
        for name, computation in self.computations.items():
            for step in computation.values():
                kind = step.opcode.removesuffix("-done")
                if kind in COLLECTIVES:
                    totals[kind] = totals.get(kind, 0) + times.get(name, 1) * size_of(step.type)
        return {kind: int(size) for kind, size in totals.items()}

    @property
    def cycles(self) -> float:
        """Sum the cycles that a TPU's compiler estimates for its kernels."""
        matches = ((n, re.search(r'"estimated_cycles":"(\d+)"', s.rest)) for n, _, s in self.steps)
        return sum(n * int(cycles[1]) for n, cycles in matches if cycles)

    @property
    def on_host(self) -> list[str]:
        """List operations through the host and in float64: neither belongs into a program."""
        bad = re.compile(r"\b(infeed|outfeed|send|recv|custom-call.*callback)\b")
        return [
            s.name
            for _, _, s in self.steps
            if bad.search(f"{s.opcode} {s.rest}") or "f64[" in s.type
        ]

    def _is_kernel(self, step: Instruction) -> bool:
        if step.opcode.endswith("-done") or step.opcode in COPIES or "ConcatBitcast" in step.rest:
            return False
        alone = step.opcode not in ("fusion", "custom-call") and step.opcode not in COLLECTIVES
        return not (alone and re.match(r"\w+\[\]", step.type) and len(step.operands) <= 2)

    def _moved(self, where: str, step: Instruction) -> int:
        if "ConcatBitcast" in step.rest:
            return 0
        if step.opcode.endswith("-done"):
            return self._write_size({}, step)
        of = self.computations[where]
        types = [of[name].type if name in of else "" for name in step.operands]
        inside = self._inside(step, types)
        size = 0 if step.opcode.endswith("-start") else self._write_size(inside, step)
        if step.opcode in COPIES:
            return min(sizes_of(step.type)[:2]) if all(in_memory(types[0])) else 0
        return size + sum(self._read(inside, place, type_) for place, type_ in enumerate(types))

    def _inside(self, step: Instruction, types: Sequence[str] = ()) -> dict[str, Instruction]:
        """Return the instructions of a kernel: the computation that it calls, or itself alone."""
        if called := re.search(r"calls=%?([\w.\-]+)", step.rest):
            return self.computations.get(called[1], {})
        parameters = {
            str(place): Instruction(str(place), type_, "parameter", (), str(place), "", False)
            for place, type_ in enumerate(types)
        }
        return {**parameters, step.name: step._replace(operands=tuple(parameters), is_root=True)}

    def _read(self, inside: dict[str, Instruction], place: int, type_: str) -> int:
        """Bytes of an operand that are read: of what is only sliced, the slices."""
        whole = sum(itertools.compress(sizes_of(type_), in_memory(type_)))
        if not inside or not whole:
            return whole
        name = next(
            (i.name for i in inside.values() if i.opcode == "parameter" and i.inner == str(place)),
            "",
        )
        total = 0
        for user in (i for i in inside.values() if name in i.operands):
            first = user.operands[0] == name
            if user.opcode in ("dynamic-slice", "gather", "slice") and first:
                total += size_of(user.type)
            elif user.opcode == "fusion":
                within = self._inside(user)
                places = [place for place, operand in enumerate(user.operands) if operand == name]
                total += sum(self._read(within, place, type_) for place in places)
            elif user.opcode != "dynamic-update-slice" or not first:  # which is done in place
                return whole
        return min(total, whole)

    def _write_size(self, inside: dict[str, Instruction], step: Instruction) -> int:
        """Bytes of the results: of what is updated in place, the update."""
        sizes = sizes_of(step.type)
        root = next((i for i in inside.values() if i.is_root), None)
        if root is not None:
            parts = [inside[n] for n in root.operands] if root.opcode == "tuple" else [root]
            for place, part in enumerate(parts):
                if part.opcode == "dynamic-update-slice":
                    sizes[place] = size_of(inside[part.operands[1]].type)
        return sum(itertools.compress(sizes, in_memory(step.type)))

    def _products(self, where: str, step: Instruction) -> Iterator[tuple[str, Instruction]]:
        """The products of a kernel, with the computation they stand in."""
        if step.opcode in ("dot", "convolution") or re.search("__cublas|__cudnn", step.rest):
            yield where, step
        called = re.search(r"calls=%?([\w.\-]+)", step.rest)
        if called and called[1] in self.computations:
            for inner in self.computations[called[1]].values():
                yield from self._products(called[1], inner)

    def _operations(self, where: str, product: Instruction) -> float:
        of = self.computations[where]
        left, right = (_shape(of[name].type) for name in product.operands[:2])
        result = _shape(product.type)
        labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", product.rest)
        if labels is None:
            contracted = re.search(r"lhs_contracting_dim\w*\W+([\d\W]*?)[\]}]", product.rest)
            places = [int(n) for n in re.findall(r"\d+", contracted[1])] if contracted else []
            return 2.0 * math.prod(result) * math.prod(left[place] for place in places)
        if "BackwardFilter" in product.rest:
            kernel, moved = result, right
        elif "BackwardInput" in product.rest:
            kernel, moved = right, left
        else:
            kernel, moved = right, result
        # Zeros between entries are not multiplied; nor those around one, by which a TPU writes products along a short
        # axis.
        apart = re.search(r"lhs_dilate=([\dx]+)", product.rest)
        zeros = math.prod(int(n) for n in apart[1].split("x")) if apart else 1
        for axis in filter(str.isdigit, labels[1] if moved is result else ""):
            if left[labels[1].index(axis)] == 1:
                zeros *= max(kernel[labels[2].index(axis)], result[labels[3].index(axis)])
        return 2.0 * math.prod(moved) * math.prod(kernel) / kernel[labels[2].index("o")] / zeros
