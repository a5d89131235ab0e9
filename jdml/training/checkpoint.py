"""A run's folder: its configuration, and whole, atomic checkpoints of everything that it needs to go on."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON to a file atomically: a reader, or a killed process, leaves the old file or the new one."""
    path = Path(path)
    partial = path.with_name(path.name + ".tmp")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Say which fields of two JSON trees differ, by their dotted names.

    Example:
        >>> differences({"lr": 0.1, "fit": {"steps": 10}}, {"lr": 0.1, "fit": {"steps": 20}})
        ['fit.steps: 10 there, 20 now']
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [f"{prefix}: {json.dumps(old)} there, {json.dumps(new)} now"]
    found = []
    for name in sorted(old.keys() | new.keys()):
        path = f"{prefix}.{name}" if prefix else name
        if name not in old:
            found.append(f"{path}: absent there, {json.dumps(new[name])} now")
        elif name not in new:
            found.append(f"{path}: {json.dumps(old[name])} there, absent now")
        else:
            found += differences(old[name], new[name], path)
    return found


class RunFolder:
    """The folder of one run: ``config.json``, ``log.jsonl`` and ``checkpoints/``.

    Args:
        path: the folder; made if it does not exist.
        config: JSON-able description of the run.
        resume: accept a folder that already has a checkpoint of the same configuration.
        keep: checkpoints kept, the newest ones.

    Raises:
        TypeError: if ``config`` is not JSON-able.
        ValueError: if the folder holds a run of another configuration, checkpoints without a configuration, or, with
            ``resume=False``, any checkpoint.

    Implementation notes:
        Orbax writes a checkpoint beside the others and renames it when complete, so a killed save leaves the one before
        and a temporary folder, which the next start removes. Saves are synchronous: the step donates its buffers.
    """

    def __init__(
        self, path: str | Path, config: Mapping[str, Any], *, resume: bool = True, keep: int = 2
    ) -> None:
        self.path = Path(path).absolute()
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

    def save(self, step: int, tree: Any, progress: Mapping[str, Any]) -> None:
        """Save a pytree of arrays and JSON-able progress as the checkpoint of a step, whole or not at all."""
        from orbax.checkpoint import args

        if step == self._latest:
            return
        items = args.Composite(
            state=args.StandardSave(_pack(tree)),
            progress=args.JsonSave(dict(progress)),
            arrays=args.JsonSave(_arrays(tree)),
        )
        self._manager.save(step, args=items, force=True)
        self._latest = step

    def restore(self, template: Any) -> tuple[Any, dict[str, Any]] | None:
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
                found = self._read(state=items, progress=args.JsonRestore())
                return _unpack(template, found["state"]), dict(found["progress"])
        except Exception as error:
            raise ValueError(
                f"checkpoint {path} is damaged ({type(error).__name__}: {_first_line(error)}); "
                "remove it to go on from the one before, or choose another folder"
            ) from error
        raise ValueError(f"checkpoint {path} is of another model: {'; '.join(differing)}")

    def _read(self, **items: Any) -> Any:
        from orbax.checkpoint import args

        return self._manager.restore(self._latest, args=args.Composite(**items))

    def close(self) -> None:
        """Close the checkpoint manager."""
        self._manager.close()

    def _claim(self, config: dict[str, Any]) -> None:
        """Compare the configuration with the folder's, or write it there first of all."""
        file = self.path / CONFIG
        if not file.exists():
            if self._checkpoints.exists() and any(self._checkpoints.iterdir()):
                raise ValueError(f"out_dir {self.path} has checkpoints but no {CONFIG}")
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(file, config)
            return
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is not valid JSON: {error}") from error
        differing = differences(there, config)
        if differing:
            raise ValueError(
                f"out_dir {self.path} holds a run of another configuration: " + "; ".join(differing)
            )

    def _open_manager(self, keep: int) -> Any:
        import orbax.checkpoint as ocp

        for leftover in self._checkpoints.glob("*.orbax-checkpoint-tmp*"):
            _remove(leftover)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        return ocp.CheckpointManager(self._checkpoints, options=options)


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(config))
    except TypeError as error:
        raise TypeError(f"config must be JSON-able: {error}") from error


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _pack(tree: Any) -> Any:
    """Make every leaf a plain array: typed keys become their data."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else jnp.asarray(x), tree)


def _unpack(template: Any, packed: Any) -> Any:
    """Undo :func:`_pack`: key data become typed keys again where the template has them."""

    def restore(like: Any, leaf: Any) -> Any:
        if _is_key(like):
            return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))
        return leaf

    return jax.tree.map(restore, template, packed)


def _arrays(tree: Any) -> dict[str, str]:
    """Describe every array by its path: ``{"['params']['proxies']": "float32[2, 1, 3]"}``."""
    leaves = jax.tree_util.tree_leaves_with_path(_pack(tree))
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""
