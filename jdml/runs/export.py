"""Write what was trained as one file: parameters with their description, or a program without jdml."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import jax

from jdml._optional_imports import require_package
from jdml._paths import check_local
from jdml.data.image_source import RUN, run_data_config
from jdml.models.tensors import replacing
from jdml.runs.inference import Trained
from jdml.runs.run_files import json_text, write_model

PLATFORMS = ("cpu", "cuda", "tpu")
KNOWN = ("cpu", "cuda", "oneapi", "rocm", "tpu")
"""What JAX has rules for by itself."""


def export_stablehlo(trained: Trained, *, platforms: str | Sequence[str] = PLATFORMS) -> bytes:
    """Return a program from images to embeddings, with its parameters, that needs nothing but JAX and flatbuffers.

    Implementation notes:
        JAX reads programs of versions up to six months older than itself, and promises no more: keep the
        ``.safetensors`` file, too, and export again from it.

    Example:
        In a program without jdml::

            model = jax.export.deserialize(open("model.stablehlo", "rb").read())
            embeddings = model.call(images)
    """
    require_package("flatbuffers", "writing a program")
    from jax import export

    names = [platforms] if isinstance(platforms, str) else list(dict.fromkeys(platforms))
    if not names or any(name not in KNOWN for name in names):
        raise ValueError(f"platforms must be among {', '.join(KNOWN)}, got {names}")
    if "shape" not in trained.input:
        raise ValueError("a program takes one array: this run was trained on several")
    (batch,) = export.symbolic_shape("batch")
    shape = (batch, *trained.input["shape"])
    images = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(trained.input["dtype"]))
    embedded = trained.function()

    def each(images: jax.Array) -> jax.Array:
        return jax.vmap(lambda image: embedded(image[None])[0])(images)

    try:
        program = export.export(jax.jit(embedded), platforms=names)(images)
    except Exception:  # of a network that asks for the number of images, which is any
        program = export.export(jax.jit(each), platforms=names)(images)
    return bytes(program.serialize())


def export_file(trained: Trained, out: str | Path) -> tuple[Path, ...]:
    """Write what was trained, atomically."""
    check_local("out", out)
    out = Path(out)
    description = {
        "embedding": dict(trained.description),
        RUN: run_data_config(trained.config),
        "step": trained.step,
        "metrics": dict(trained.metrics),
    }
    description = json.loads(json.dumps(description))
    if out.suffix == ".safetensors":
        variables = {
            "params": trained.params,
            "batch_stats": trained.batch_stats,
            "objective": trained.objective_params,
        }
        write_model(out, variables, description)
        return (out,)
    if out.suffix != ".stablehlo":
        raise ValueError(f"out must end in .safetensors or .stablehlo, got {out}")
    content = export_stablehlo(trained)
    beside = out.with_name(out.name + ".json")
    written = {"jax": jax.__version__, "date": datetime.now(UTC).date().isoformat()}
    # Both are whole on the disk before either takes its place, and no program lies next to another's description.
    with replacing(beside) as metadata:
        metadata.write(json_text({**description, "written": written}).encode())
        metadata.flush()
        os.fsync(metadata.fileno())
        with replacing(out, before=lambda: beside.unlink(missing_ok=True)) as program:
            program.write(content)
    return out, beside
