"""The folder of a run, and atomic checkpoints of all that the run needs to resume."""

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jdml import adapt
from jdml._optional_imports import require_package
from jdml._paths import check_disk_space, check_local
from jdml.data.load import RUN, run_data_config
from jdml.distributed import Tree, broadcast_metrics, is_main_process
from jdml.runs.identity import differences, explain
from jdml.runs.run_files import (
    CHECKPOINTS,
    CONFIG,
    LAST,
    LOG,
    METRICS,
    MODEL,
    first_line,
    read_json,
    write_json,
)

UNCOMPARED = {"provenance": None, "versions": None}
"""Parts of a configuration that may differ when a run is resumed."""
GROWING = ("fit.steps", "recipe.batch.steps")
"""Numbers that may be larger when a run is resumed."""


class RunFolder:
    """The folder of a run; a killed save leaves the previous checkpoint, and parts that the next start removes."""

    def __init__(
        self,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        resume: bool = True,
        growing: bool | None = False,
        asynchronous: bool = False,
    ) -> None:
        check_local("path", path)
        for library in ("filelock", "orbax.checkpoint", "safetensors"):
            require_package(library, "a run's folder")
        self.path = Path(path).absolute()
        self._asynchronous = asynchronous
        self._growing = growing
        self._more_steps: dict[str, Any] | None = None
        import orbax.checkpoint as ocp
        from filelock import FileLock

        self._lock = FileLock(self.path / ".lock", thread_local=False)
        parts = {name: config[name] for name in ("embedding", "versions") if name in config}
        self.description: dict[str, Any] = {**parts, RUN: run_data_config(config)}
        self._checkpoints = self.path / CHECKPOINTS
        try:
            self._claim(json.loads(json.dumps(config)))
            options = ocp.CheckpointManagerOptions(
                max_to_keep=2, enable_async_checkpointing=asynchronous, cleanup_tmp_directories=True
            )
            self._manager = ocp.CheckpointManager(self._checkpoints, options=options)
            self.latest: int | None = self._manager.latest_step()
            if self.latest is not None and not resume:
                raise ValueError(f"folder {self.path} has a run of step {self.latest}: resume it")
        except BaseException:
            self._lock.release()
            raise

    def save(self, step: int, tree: Tree, progress: Mapping[str, Any]) -> None:
        """Save a pytree of arrays and JSON-able progress as the checkpoint of a step, atomically."""
        from orbax.checkpoint import args

        if step == self.latest:
            return
        # The next step takes the state's memory.
        packed = _pack(jax.tree.map(jnp.copy, tree) if self._asynchronous else tree)
        # Orbax would fail halfway.
        check_disk_space(self._checkpoints, sum(leaf.nbytes for leaf in jax.tree.leaves(packed)))
        items = args.Composite(
            state=args.StandardSave(packed),
            progress=args.JsonSave(dict(progress)),
            arrays=args.JsonSave(adapt.describe_arrays(packed)),
        )
        self._manager.save(step, args=items, force=True)
        self.latest = step

    def restore(self, template: Tree) -> tuple[Tree, dict[str, Any]] | None:
        """Return the newest checkpoint's tree, shaped as the template, and its progress; None without one."""
        checkpoint = None if self.latest is None else self._read_latest(template)
        if self._more_steps is not None and is_main_process():  # and the run can resume
            (self.path / METRICS).unlink(missing_ok=True)  # of the shorter run
            write_json(self.path / CONFIG, self._more_steps)
        return checkpoint

    def _read_latest(self, template: Tree) -> tuple[Tree, dict[str, Any]]:
        from orbax.checkpoint import args

        path = self._checkpoints / str(self.latest)
        try:
            restore = functools.partial(self._manager.restore, self.latest)
            saved = restore(args=args.Composite(arrays=args.JsonRestore()))["arrays"]
            differing = differences(saved, adapt.describe_arrays(_pack(template)))
            if not differing:
                items = {"state": args.StandardRestore(_pack(template))}
                content = restore(args=args.Composite(**items, progress=args.JsonRestore()))
                return _unpack(template, content["state"]), dict(content["progress"])
        except Exception as error:
            raise ValueError(
                f"checkpoint {path} is damaged ({type(error).__name__}: {first_line(error)}); "
                "remove it to resume from the one before, or choose another folder"
            ) from error
        shown, more = "; ".join(explain(differing)[:3]), len(differing) - 3
        rest = f"; and {more} more" if more > 0 else ""
        raise ValueError(f"checkpoint {path} is of another model: {shown}{rest}")

    def save_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write ``metrics.json``, unless it has the scores of this step, to which others may have been added."""
        file = self.path / METRICS
        if is_main_process() and read_json(file, dict, missing={}).get("step") != metrics["step"]:
            write_json(file, metrics)

    def close(self) -> None:
        """Wait for background writes, and release the folder."""
        self._manager.close()
        self._lock.release()

    def _claim(self, config: dict[str, Any]) -> None:
        """Compare the configuration with the folder's, or write it there first of all."""
        file = self.path / CONFIG
        self._acquire()
        saved = read_json(file, dict) if file.exists() else None
        log = self.path / LOG
        has_log = log.exists() and log.stat().st_size > 0
        if saved is None or not (has_log or any(self._checkpoints.glob("*"))):
            models = [self.path / name for name in (MODEL, LAST)]
            foreign = [self.path / METRICS, *([] if saved else models)]
            if there := [other.name for other in foreign if other.exists()]:
                raise ValueError(f"folder {self.path} has {there[0]} but no run: choose another")
            if is_main_process():
                for model in models:  # of a run that was begun here before
                    model.unlink(missing_ok=True)
                write_json(file, config)
            return
        differing = differences(*({**each, **UNCOMPARED} for each in (saved, config)))
        grows = self._growing is not None and all(
            name in GROWING and type(old) is type(new) is int and old < new
            for name, (old, new) in differing.items()
        )
        if differing and not (grows and self._growing):
            shown = "; ".join(explain(differing))
            hint = ". To train it for more steps: RunConfig(allow_more_steps=True)" if grows else ""
            raise ValueError(f"folder {self.path} holds a run with other settings: {shown}{hint}")
        self._more_steps = config if differing else None

    def _acquire(self) -> None:
        """Make the folder, and lock it in the first process, for all processes."""
        from filelock import Timeout

        if is_main_process():
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(Timeout):
                self._lock.acquire(timeout=0)
        taken = is_main_process() and not self._lock.is_locked
        if broadcast_metrics({"taken": taken})["taken"]:
            raise ValueError(f"folder {self.path} is written by another run now: choose another")


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
