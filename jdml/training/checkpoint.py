"""A run's folder: its configuration, and whole, atomic checkpoints of everything that it needs to go on."""

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.recipes.base import Recipe
from jdml.registry.extras import need
from jdml.registry.places import check_local, check_room, json_of
from jdml.training.description import at_defaults
from jdml.training.placement import Tree, wait_for_all, writes

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
LOG = "log.jsonl"
MODEL = "model.safetensors"
METRICS = "metrics.json"
DESCRIPTION = "jdml"
"""The key of a model file's metadata under which its description stands, as JSON."""
UNCOMPARED = ("started", "versions")
"""What a run's folder tells, and need not agree with to go on."""
SYSTEM = re.compile(r"(?:os_error_code='|OS error )(\d+)")
"""How Orbax's storage tells what the system has refused."""
GROWING = ("fit.steps", "recipe.steps")
"""Numbers that may be larger when a run goes on."""

SCHEDULE = {"fingerprint.optimizer", "recipe.rate_warmup"}
"""What a schedule that ends at its steps makes another where these grow."""

LONGER = ". The steps grew: with longer=True the run goes on to more of them"
"""What is told where a run of more steps is another in nothing else, and may go on."""
SCHEDULED = (
    ". The steps grew, and a learning rate's schedule ends at its steps: a run with one cannot be made longer; begin "
    "another, or train longer from its parameters at a constant rate, in another folder"
)
"""What is told where a run of more steps has another optimizer."""
WITHOUT_IDS = (
    "has a cross-batch memory without the samples' ids, as it was before older copies of a sample were left out: it "
    "cannot go on; begin another run in another folder"
)
"""What is told of a checkpoint of that time."""


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON to a file atomically: a reader, or a killed process, leaves the old file or the new one."""
    from jdml.models.tensors import write_text

    write_text(Path(path), json_text(content))


def json_text(content: Any) -> str:
    """JSON as it is written to files."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Say which fields of two JSON trees differ, by their dotted names.

    Example:
        >>> differences({"lr": 0.1, "fit": {"steps": 10}}, {"lr": 0.1, "fit": {"steps": 20}})
        ['fit.steps: 10 there, 20 now']
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [f"{prefix}: {json.dumps(old)} there, {json.dumps(new)} now"]
    lines = []
    for name in sorted(old.keys() | new.keys()):
        path = f"{prefix}.{name}" if prefix else name
        if name not in old:
            lines.append(f"{path}: absent there, {json.dumps(new[name])} now")
        elif name not in new:
            lines.append(f"{path}: {json.dumps(old[name])} there, absent now")
        else:
            lines += differences(old[name], new[name], path)
    return lines


class RunFolder:
    """The folder of one run: ``config.json``, ``log.jsonl`` and ``checkpoints/``.

    Args:
        path: the folder; made if it does not exist.
        config: JSON-able description of the run.
        resume: accept a folder that already has a checkpoint of the same configuration.
        keep: checkpoints kept, the newest ones.
        growing: whether a run may go on with more steps than the folder's; None: nor could it if it was asked to.
        asynchronous: write checkpoints in the background.

    Raises:
        TypeError: if ``config`` is not JSON-able.
        ValueError: if the folder holds a run of another configuration, checkpoints without a configuration, or, with
            ``resume=False``, any checkpoint.
        OSError: if there is no room for a checkpoint; the ones before stay whole.

    Implementation notes:
        Orbax writes a checkpoint beside the others and renames it when complete, so a killed save leaves the one before
        and a temporary folder, or a part of one that was being removed, which the next start removes. The step donates
        its buffers: what is written in the background is a copy. Arrays of a mesh are written by the processes that
        hold them, all else by the first one, and read back onto whatever mesh there is then.
    """

    def __init__(
        self,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        resume: bool = True,
        keep: int = 2,
        growing: bool | None = False,
        asynchronous: bool = False,
    ) -> None:
        check_local("path", path)
        for library in ("orbax.checkpoint", "safetensors"):
            need(library, "a run's folder")
        self.path = Path(path).absolute()
        self._asynchronous = asynchronous
        self._growing = growing
        self._written: int | None = None
        self.description = _description(config)
        self._checkpoints = self.path / CHECKPOINTS
        self._claim(_as_json(config))
        self._manager = self._open_manager(keep)
        self._latest: int | None = self._manager.latest_step()
        if self._latest is not None and not resume:
            self.close()
            raise ValueError(
                f"out_dir {self.path} already has a checkpoint of step {self._latest}: "
                "resume it or choose another folder"
            )

    def save(self, step: int, tree: Tree, progress: Mapping[str, Any]) -> None:
        """Save a pytree of arrays and JSON-able progress as the checkpoint of a step, whole or not at all."""
        from orbax.checkpoint import args

        if step == self._latest:
            return
        packed = _pack(jax.tree.map(jnp.copy, tree) if self._asynchronous else tree)
        # Orbax would stop in the middle, thread by thread.
        check_room(self._checkpoints, sum(leaf.nbytes for leaf in jax.tree.leaves(packed)))
        items = args.Composite(
            state=args.StandardSave(packed),
            progress=args.JsonSave(dict(progress)),
            arrays=args.JsonSave(_arrays(tree)),
        )
        with self._told_by_system():
            self._manager.save(step, args=items, force=True)
        self._latest = step

    @contextlib.contextmanager
    def _told_by_system(self) -> Iterator[None]:
        """What the system refuses is said in its words, not in those of Orbax's storage."""
        from jdml.models.tensors import naming

        with naming(self._checkpoints):
            try:
                yield
            except Exception as error:  # of several kinds, with the system's number in its text
                found = SYSTEM.search(str(error))
                if isinstance(error, OSError) or found is None:
                    raise
                raise OSError(int(found[1]), os.strerror(int(found[1]))) from error

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self._latest is not None

    def restore(self, template: Tree) -> tuple[Tree, dict[str, Any]] | None:
        """Return the newest checkpoint's tree, shaped as the template, and its progress; None where there is none.

        Raises:
            ValueError: if the checkpoint is damaged or holds another kind of state.
        """
        from orbax.checkpoint import args

        if self._latest is None:
            return None
        path = self._checkpoints / str(self._latest)
        try:
            arrays = self._read(arrays=args.JsonRestore())["arrays"]
            differing = differences(arrays, _arrays(template))
            if not differing:
                items = args.StandardRestore(_pack(template))
                content = self._read(state=items, progress=args.JsonRestore())
                return _unpack(template, content["state"]), dict(content["progress"])
        except Exception as error:
            raise ValueError(
                f"checkpoint {path} is damaged ({type(error).__name__}: {_first_line(error)}); "
                "remove it to go on from the one before, or choose another folder"
            ) from error
        raise ValueError(f"checkpoint {path} {_told_apart(arrays, _arrays(template), differing)}")

    def _read(self, **items: Any) -> Any:
        from orbax.checkpoint import args

        return self._manager.restore(self._latest, args=args.Composite(**items))

    def has_model(self, step: int) -> bool:
        """Whether ``model.safetensors`` holds the parameters of a step."""
        file = self.path / MODEL
        if self._written is None and file.is_file():
            self._written = read_description(file).get("step")
        return self._written == step

    def save_model(
        self, variables: Mapping[str, Tree], step: int, metrics: Mapping[str, Any]
    ) -> None:
        """Write the parameters of a step, what they scored and what they are, as ``model.safetensors``."""
        described = {**self.description, "step": step, "metrics": dict(metrics)}
        if writes():
            write_model(self.path / MODEL, variables, described)
        self._written = step

    def has_metrics(self, step: int) -> bool:
        """Whether ``metrics.json`` tells what the parameters of a step scored."""
        file = self.path / METRICS
        return file.is_file() and read_json(file, dict).get("step") == step

    def save_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write ``metrics.json``."""
        if writes():
            write_json(self.path / METRICS, metrics)

    def close(self) -> None:
        """Close the checkpoint manager; what is written in the background is waited for."""
        with self._told_by_system():
            self._manager.close()

    def _claim(self, config: dict[str, Any]) -> None:
        """Compare the configuration with the folder's, or write it there first of all."""
        file = self.path / CONFIG
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out_dir must be a folder, {self.path} is a file")
        there = read_json(file, dict) if file.exists() else None
        there = there and at_defaults(there, config)
        if there is None or not self._kept():
            if there is None and any(self._checkpoints.glob("*")):
                raise ValueError(f"out_dir {self.path} has checkpoints but no {CONFIG}")
            self.path.mkdir(parents=True, exist_ok=True)
            if writes():
                write_json(file, config)
            return
        differing = differences(_compared(there), _compared(config))
        changed = [
            line for line in differing if not (self._growing and _grown(line, there, config))
        ]
        if changed:
            raise ValueError(
                f"out_dir {self.path} holds a run of another configuration: "
                + "; ".join(_told(line) for line in changed)
                + self._hint(changed, differing, there, config)
            )
        if differing and writes():
            write_json(file, config)

    def _kept(self) -> bool:
        """Whether anything is kept of a run but its configuration: nothing is of one refused in its first step."""
        log = self.path / LOG
        return any(self._checkpoints.glob("*")) or (log.exists() and log.stat().st_size > 0)

    def _hint(self, changed: list[str], differing: list[str], there: Any, now: Any) -> str:
        """What is to be said where a memory had no ids, or the same run has more steps, another optimizer at most."""
        others = {line.partition(":")[0] for line in changed}.difference(GROWING)
        memories = self._checkpoints.glob("*/arrays/metadata")
        if "fingerprint.objective" in others and any(_lacks_ids(read_json(m)) for m in memories):
            return f". Its checkpoint {WITHOUT_IDS}"
        if not any(_grown(line, there, now) for line in differing):
            return ""
        if "fingerprint.optimizer" in others and others <= SCHEDULE:
            return SCHEDULED
        return "" if others or self._growing is None else LONGER

    def _open_manager(self, keep: int) -> Any:
        import orbax.checkpoint as ocp

        if writes():
            steps = sorted(_steps(self._checkpoints))
            removed = [self._checkpoints / str(step) for step in steps[:-keep]]
            for leftover in (*self._checkpoints.glob("*.orbax-checkpoint-tmp*"), *removed):
                _remove(leftover)
        wait_for_all("the run's folder")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=self._asynchronous
        )
        return ocp.CheckpointManager(self._checkpoints, options=options)


def read_json(path: Path, kind: type = object) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: naming the file, if it is none, or holds another kind of value.
    """
    return json_of(path.read_bytes(), path, kind)


def write_model(path: Path, variables: Mapping[str, Tree], description: Mapping[str, Any]) -> None:
    """Write ``{"params", "batch_stats"}`` and their description as one ``.safetensors``, atomically."""
    from jdml.models.tensors import write_tensors

    arrays = {name: np.asarray(value) for name, value in named_leaves(variables).items()}
    write_tensors(path, arrays, {DESCRIPTION: json.dumps(description, sort_keys=True)})


def read_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays of :func:`write_model` by name, and their description.

    Raises:
        ValueError: a file that cannot be read, or that has no description.
    """
    import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16)

    need("safetensors", "reading a model's file")
    from safetensors import safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except OSError:
        raise
    except Exception as error:  # of safetensors: not such a file
        raise ValueError(
            f"{path} is not a readable .safetensors file: {_first_line(error)}"
        ) from error
    if DESCRIPTION not in metadata:
        raise ValueError(f"{path} was not written by a run of jdml: it does not say what it holds")
    return arrays, json_of(metadata[DESCRIPTION], path, dict)


def read_description(path: Path) -> dict[str, Any]:
    """Read what a model file says of itself; empty where it says nothing."""
    from jdml.models.tensors import read_metadata

    return json_of(read_metadata(path).get(DESCRIPTION, "{}"), path, dict)


def read_checkpoint(run: Path) -> dict[str, Any] | None:
    """Read the newest checkpoint of a run's folder without knowing its kind: NamedTuples become dictionaries.

    Returns:
        ``step``, ``state``, and ``best`` (model parameters and statistics, ``()`` without a monitor); None where there
        is no checkpoint.

    Raises:
        ValueError: a checkpoint that cannot be read.
    """
    need("orbax.checkpoint", "reading a checkpoint")
    import orbax.checkpoint as ocp

    steps = _steps(run / CHECKPOINTS)
    if not steps:
        return None
    path = run / CHECKPOINTS / str(max(steps))
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            state = path.absolute() / "state"
            # As NumPy arrays, wherever they lay: the devices of the run need not be here.
            there = ocp.PyTreeCheckpointHandler().metadata(state).tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), there)
            tree = checkpointer.restore(state, restore_args=as_numpy)
            progress = json.loads((path / "progress" / "metadata").read_text(encoding="utf-8"))
    except Exception as error:
        raise ValueError(
            f"checkpoint {path} is damaged ({type(error).__name__}: {_first_line(error)})"
        ) from error
    return {**tree, "step": max(steps), "progress": progress}


def named_leaves(tree: Tree) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths.

    Example:
        >>> named_leaves({"params": {"dense": {"kernel": 1, "bias": 2}}})
        {'params/dense/bias': 2, 'params/dense/kernel': 1}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(str(_key(part)) for part in path): leaf for path, leaf in leaves}


def _key(part: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(part, attribute):
            return getattr(part, attribute)
    return part


def _description(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration its model file says."""
    return {name: config[name] for name in ("embedding", "versions") if name in config}


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs agree in; fields that a recipe did not have when it was written have their defaults."""
    compared = {name: value for name, value in config.items() if name not in UNCOMPARED}
    if isinstance(compared.get("recipe"), Mapping):
        compared["recipe"] = {**Recipe().to_json(), **compared["recipe"]}
    return compared


def _grown(line: str, there: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a difference is a number that may be larger, and is."""
    name = line.partition(":")[0]
    if name not in GROWING:
        return False
    old, new = (
        functools.reduce(lambda tree, part: tree[part], name.split("."), config)
        for config in (there, now)
    )
    return isinstance(old, int) and isinstance(new, int) and old < new


def _told(line: str) -> str:
    """A difference, in words where it is one of fingerprints."""
    name = line.partition(":")[0]
    part = name.removeprefix("fingerprint.")
    return line if part == name else f"the {part} is another"


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(config))
    except TypeError as error:
        raise TypeError(f"config must be JSON-able: {error}") from error


def _is_key(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _pack(tree: Tree) -> Tree:
    """Make every leaf a plain array: typed keys become their data."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else jnp.asarray(x), tree)


def _unpack(template: Tree, packed: Tree) -> Tree:
    """Undo :func:`_pack`: key data become typed keys again where the template has them."""

    def restore(like: jax.Array, leaf: jax.Array) -> jax.Array:
        if _is_key(like):
            return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))
        return leaf

    return jax.tree.map(restore, template, packed)


def _arrays(tree: Tree) -> dict[str, str]:
    """Describe every array by its path: ``{"['params']['proxies']": "float32[2, 1, 3]"}``."""
    leaves = jax.tree_util.tree_leaves_with_path(_pack(tree))
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def _told_apart(there: Mapping[str, str], now: Mapping[str, str], differing: list[str]) -> str:
    """Say why arrays are others: a setting of JAX that changes them, a memory of old, or another model."""
    if _lacks_ids(there) and not _lacks_ids(now):
        return WITHOUT_IDS
    keys = [
        (there.get(name, ""), now.get(name, ""))
        for name in now
        if name.endswith((".key", "['key']"))
    ]
    if there.keys() == now.keys():
        if any(old != new and old.startswith("uint32") for old, new in keys):
            lengths = {"uint32[2]": "threefry2x32", "uint32[4]": "rbg"}
            was, is_ = (lengths.get(kind, kind) for kind in keys[0])
            return (
                f"has random keys of another kind, {was} there, {is_} now: set "
                f'jax.config.update("jax_default_prng_impl", {was!r}) before the run goes on'
            )
        wide = ("float64", "int64", "uint64", "complex128")
        double = [any(kind.startswith(wide) for kind in kinds.values()) for kinds in (there, now)]
        if double[0] != double[1]:
            return (
                f'has {"double" if double[0] else "single"} precision: set jax.config.update("jax_enable_x64", '
                f"{double[0]}) before the run goes on"
            )
    shown = "; ".join(differing[:3])
    more = len(differing) - 3
    return f"is of another model: {shown}{f'; and {more} more' if more > 0 else ''}"


def _lacks_ids(arrays: Mapping[str, str]) -> bool:
    """Whether among arrays, by their paths, there is a cross-batch memory that does not know its samples."""
    memories = (name.removesuffix("next_slot") for name in arrays if name.endswith(".next_slot"))
    return any(f"{memory}ids" not in arrays for memory in memories)


def _steps(checkpoints: Path) -> list[int]:
    """The steps of which there are checkpoints, whole or partly removed."""
    return [int(path.name) for path in checkpoints.glob("*") if path.name.isdigit()]


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""
