"""Whole, atomic checkpoints of everything that a run needs to go on, and the folder that they lie in."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jdml._optional_imports import require_package
from jdml._paths import check_disk_space, check_local
from jdml.data.image_source import RUN, run_data_config
from jdml.distributed import Tree, agreed, wait_for_all, writes
from jdml.runs.config_diff import compared, differences, grown, hint, told, told_apart
from jdml.runs.lock import Lock, lock
from jdml.runs.model_metadata import at_defaults
from jdml.runs.run_files import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    METRICS,
    MODEL,
    SHORTER,
    first_line,
    read_description,
    read_json,
    steps_in,
    write_json,
    write_model,
)

SYSTEM = re.compile(r"(?:os_error_code='|OS error )(\d+)")
"""How Orbax's storage tells what the system has refused."""


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
            ``resume=False``, any checkpoint; if another process writes into it.
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
            require_package(library, "a run's folder")
        self.path = Path(path).absolute()
        self._asynchronous = asynchronous
        self._growing = growing
        self._written: int | None = None
        self._more_steps: dict[str, Any] | None = None
        self._lock: Lock | None = None
        self.description = _description(config)
        self._checkpoints = self.path / CHECKPOINTS
        try:
            self._claim(_as_json(config))
            self._manager = self._open_manager(keep)
        except BaseException:
            self._lock = None
            raise
        self._latest: int | None = self._manager.latest_step()
        if self._latest is not None and not resume:
            self.close()
            raise ValueError(
                f"folder {self.path} already has a checkpoint of step {self._latest}: "
                "resume it or choose another folder"
            )

    def save(self, step: int, tree: Tree, progress: Mapping[str, Any]) -> None:
        """Save a pytree of arrays and JSON-able progress as the checkpoint of a step, whole or not at all."""
        from orbax.checkpoint import args

        if step == self._latest:
            return
        packed = _pack(jax.tree.map(jnp.copy, tree) if self._asynchronous else tree)
        # Orbax would stop in the middle, thread by thread.
        check_disk_space(self._checkpoints, sum(leaf.nbytes for leaf in jax.tree.leaves(packed)))
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

    def accept(self) -> None:
        """Write the configuration of a run with more steps than the folder's, once it is known that it can go on."""
        if self._more_steps is not None and writes():
            metrics = self.path / METRICS
            if metrics.exists():  # what the shorter run scored is not what this one does
                metrics.replace(self.path / SHORTER)
            write_json(self.path / CONFIG, self._more_steps)
        self._more_steps = None

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
            if not all(isinstance(kind, str) for kind in dict(arrays).values()):
                raise ValueError(f"arrays must have kinds as text, got {arrays}")
            differing = differences(arrays, _arrays(template))
            if not differing:
                items = args.StandardRestore(_pack(template))
                content = self._read(state=items, progress=args.JsonRestore())
                return _unpack(template, content["state"]), dict(content["progress"])
        except Exception as error:
            raise ValueError(
                f"checkpoint {path} is damaged ({type(error).__name__}: {first_line(error)}); "
                "remove it to go on from the one before, or choose another folder"
            ) from error
        raise ValueError(f"checkpoint {path} {told_apart(arrays, _arrays(template), differing)}")

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
        self._lock = None

    def _claim(self, config: dict[str, Any]) -> None:
        """Compare the configuration with the folder's, or write it there first of all."""
        file = self.path / CONFIG
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"folder must be a folder, {self.path} is a file")
        self._take()
        there = read_json(file, dict) if file.exists() else None
        there = there and at_defaults(there, config)
        if there is None or not self._kept():
            if there is None and any(self._checkpoints.glob("*")):
                raise ValueError(f"folder {self.path} has checkpoints but no {CONFIG}")
            if (self.path / METRICS).exists():
                raise ValueError(
                    f"folder {self.path} has {METRICS}, but neither a log nor a checkpoint of the run whose scores "
                    "these are: choose another folder"
                )
            if writes():
                write_json(file, config)
            return
        differing = differences(compared(there), compared(config))
        changed = [line for line in differing if not (self._growing and grown(line, there, config))]
        if changed:
            kept = (read_json(file, dict) for file in self._checkpoints.glob("*/arrays/metadata"))
            raise ValueError(
                f"folder {self.path} holds a run of another configuration: "
                + "; ".join(told(line) for line in changed)
                + hint(changed, differing, there, config, self._growing, kept)
            )
        self._more_steps = config if differing else None

    def _take(self) -> None:
        """Make the folder, and keep other runs from it; what the first process finds counts for all."""
        if writes():
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(BlockingIOError):
                self._lock = lock(self.path)
        taken = writes() and self._lock is None
        if agreed({"taken": taken})["taken"]:
            raise ValueError(
                f"folder {self.path} is written by another process at this moment: wait for it, or choose another "
                "folder"
            )

    def _kept(self) -> bool:
        """Whether anything is kept of a run but its configuration: nothing is of one refused in its first step."""
        log = self.path / LOG
        return any(self._checkpoints.glob("*")) or (log.exists() and log.stat().st_size > 0)

    def _open_manager(self, keep: int) -> Any:
        import orbax.checkpoint as ocp

        if writes():
            steps = sorted(steps_in(self._checkpoints))
            removed = [self._checkpoints / str(step) for step in steps[:-keep]]
            for leftover in (*self._checkpoints.glob("*.orbax-checkpoint-tmp*"), *removed):
                _remove(leftover)
        wait_for_all("the run's folder")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=self._asynchronous
        )
        return ocp.CheckpointManager(self._checkpoints, options=options)


def _description(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration its model file says."""
    told = {name: config[name] for name in ("embedding", "versions") if name in config}
    return {**told, RUN: run_data_config(config)}


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


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
