"""Write a trained model as one file: parameters, or a program for JAX or for ONNX."""

import importlib.metadata
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from jdml._optional_imports import require_package
from jdml._paths import atomic_write, check_local
from jdml.runs.inference import Trained
from jdml.runs.model_metadata import input_template
from jdml.runs.run_files import first_line, write_json, write_model

PLATFORMS = ("cpu", "cuda", "tpu")
"""Platforms of an exported program."""
PROGRAMS = {".stablehlo": "flatbuffers", ".onnx": "jax2onnx"}
"""Endings of programs, and the package that writes each."""


def export_stablehlo(trained: Trained) -> bytes:
    """Return a program from images to embeddings, with its parameters, for ``jax.export.deserialize``."""
    require_package("flatbuffers", "writing a program")
    from jax import export

    images = _open_batch(trained)
    embedded = trained.function()

    def each(images: jax.Array) -> jax.Array:
        return jax.vmap(lambda image: embedded(image[None])[0])(images)

    try:
        program = export.export(jax.jit(embedded), platforms=PLATFORMS)(images)
    except Exception:  # of a network that needs the number of images
        program = export.export(jax.jit(each), platforms=PLATFORMS)(images)
    return bytes(program.serialize())


def export_onnx(trained: Trained) -> bytes:
    """Return an ONNX program from ``images`` to ``embeddings``, whose embeddings of random images are the network's."""
    require_package("jax2onnx", "writing an ONNX file")
    require_package("onnxruntime", "writing an ONNX file")
    from jax2onnx import to_onnx
    from onnxruntime import InferenceSession

    batch, embedded = _open_batch(trained), jax.jit(trained.function())
    log = logging.getLogger("onnx_ir")  # it warns of names that it leaves out
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        program = jax.make_jaxpr(embedded)(batch)
        model: Any = to_onnx(
            lambda images: _as_on_tpu(program.jaxpr, program.consts, [images])[0],
            [batch],
            input_names=["images"],
            output_names=["embeddings"],
        )
        content = bytes(model.SerializeToString())
        images: Any = np.random.default_rng(0).integers(0, 256, (3, *batch.shape[1:]))
        images = images if batch.dtype == np.uint8 else images / 255
        images = images.astype(batch.dtype)
        (actual,) = InferenceSession(content).run(None, {"images": images})
    except Exception as error:  # of a library that does not know an operation
        raise ValueError(f"the network cannot be written as ONNX: {first_line(error)}") from error
    finally:
        log.setLevel(level)
    expected = np.asarray(embedded(images))
    if not np.allclose(actual, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()):
        raise ValueError("the network cannot be written as ONNX: jax2onnx gives other embeddings")
    return content


CALLS = ("jit", "pjit", "checkpoint", "custom_jvp_call", "custom_vjp_call", "closed_call")


def _as_on_tpu(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a program by what it does on a TPU: its operations are standard ones, which ONNX has, too."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

    def value_of(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for step in jaxpr.eqns:
        name, params = step.primitive.name, step.params
        if name == "platform_index":
            values[step.outvars[0]] = None
            continue
        operands = [value_of(variable) for variable in step.invars]
        inner = params.get("jaxpr", params.get("call_jaxpr")) if name in CALLS else None
        if params.get("branches_platforms"):
            platforms = params["branches_platforms"]
            branch = [who is None or "tpu" in who for who in platforms].index(True)
            inner, operands = params["branches"][branch], operands[1:]
        if inner is not None:
            results = _as_on_tpu(
                getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands
            )
        elif name == "reduce_window_max":
            results = [_max_pool(operands[0], **params)]
        else:
            results = step.primitive.bind(*operands, **params)
            results = results if step.primitive.multiple_results else [results]
        values.update(zip(step.outvars, results, strict=True))
    return [value_of(variable) for variable in jaxpr.outvars]


def _max_pool(
    x: jax.Array, window_dimensions: Any, window_strides: Any, padding: Any, **_: Any
) -> jax.Array:
    """Pool images ``[B, H, W, C]`` within edges that are laid down: jax2onnx leaves padding out."""
    for axis, sizes in enumerate(padding):
        edges = [jnp.full_like(lax.slice_in_dim(x, 0, n, axis=axis), -jnp.inf) for n in sizes]
        x = jnp.concatenate([edges[0], x, edges[1]], axis) if any(sizes) else x
    return nn.max_pool(
        x, window_shape=window_dimensions[1:3], strides=window_strides[1:3], padding="VALID"
    )


def _open_batch(trained: Trained) -> jax.ShapeDtypeStruct:
    """Describe a batch of any number of inputs."""
    from jax import export

    if "shape" not in trained.input:
        raise ValueError("a program takes one array: this run was trained on several")
    (batch,) = export.symbolic_shape("batch")
    one = input_template(trained.input)
    return jax.ShapeDtypeStruct((batch, *one.shape[1:]), one.dtype)


def export_file(trained: Trained, out: str | Path) -> tuple[Path, ...]:
    """Write a trained model, as ``.safetensors``, ``.stablehlo`` or ``.onnx``, atomically."""
    check_local("out", out)
    out = Path(out)
    description = dict(trained.description)
    if trained.crop is not None:
        crop = {name: getattr(trained.crop, name) for name in ("short_side", "size")}
        description["evaluation_crop"] = {**crop, "filter": "bilinear"}
    if out.suffix == ".safetensors":
        variables = {
            "params": trained.params,
            "batch_stats": trained.batch_stats,
            "objective": trained.objective_params,
        }
        write_model(out, variables, description)
        return (out,)
    if out.suffix not in PROGRAMS:
        raise ValueError(f"out must end in .safetensors, .stablehlo or .onnx, got {out}")
    content = export_onnx(trained) if out.suffix == ".onnx" else export_stablehlo(trained)
    metadata = out.with_name(out.name + ".json")
    origin = {"jax": jax.__version__, "date": datetime.now(UTC).date().isoformat()}
    origin[PROGRAMS[out.suffix]] = importlib.metadata.version(PROGRAMS[out.suffix])
    metadata.unlink(missing_ok=True)  # a program never lies next to another's description
    with atomic_write(out) as program:
        program.write(content)
    write_json(metadata, {**description, "written": origin})
    return out, metadata
