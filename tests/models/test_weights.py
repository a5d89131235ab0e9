"""Pretrained weights: every array in its place, files that do not fit, files that are broken."""

import os
import re
import sys
import typing
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file

import jdml.cli
from jdml.cli.weights import Architecture
from jdml.models import convert_weights, create, load_weights
from jdml.models.dialects import dialects, stored_shape
from jdml.models.weights import _shapes
from jdml.registry import pretrained_networks

pytestmark = pytest.mark.slow

ARCH = "efficientnet_lite0"
NO_TORCH = "reads files of PyTorch: pip install torch"


def variables_of(arch: str) -> dict:
    """As a network's init returns them, all zeros."""
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    shapes = jax.eval_shape(create(arch, dim=8).init, jax.random.key(0), images)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


@cache
def stored() -> dict[str, np.ndarray]:
    """Random arrays of EfficientNet-Lite0 as its PyTorch file holds them."""
    dialect, draw = dialects(ARCH)[0], np.random.default_rng(0)
    arrays = {"_fc.weight": np.zeros((10, 1280), np.float32)}
    for target, shape in _shapes(ARCH).items():
        name = dialect.name(target.partition("/")[2])
        size = stored_shape(target, shape, dialect, name)
        arrays[name] = draw.uniform(0.5, 1.5, size).astype(np.float32)
    return arrays


def converted(folder: Path, arrays: dict[str, np.ndarray] | None = None) -> Path:
    save_file(stored() if arrays is None else arrays, folder / "in.safetensors")
    convert_weights(folder / "in.safetensors", folder / "out.safetensors", arch=ARCH)
    return folder / "out.safetensors"


def test_every_array_lands_in_its_place(tmp_path):
    done = load_weights(converted(tmp_path), variables_of(ARCH))
    params, statistics = jax.tree.map(np.asarray, (done["params"], done["batch_stats"]))
    depthwise = params["stage1_block0_depthwise"]["conv"]["kernel"]
    np.testing.assert_array_equal(
        depthwise[2, 0, 0, 5], stored()["_blocks.1._depthwise_conv.weight"][5, 0, 2, 0]
    )
    np.testing.assert_array_equal(
        params["top"]["conv"]["kernel"][0, 0], stored()["_conv_head.weight"][:, :, 0, 0].T
    )
    np.testing.assert_array_equal(
        statistics["stage6_block0_project"]["norm"]["var"], stored()["_blocks.15._bn2.running_var"]
    )


def test_the_head_stays_and_everything_else_comes_from_the_file(tmp_path):
    variables = variables_of(ARCH)
    done = load_weights(converted(tmp_path), variables)
    assert jax.tree.structure(done) == jax.tree.structure(variables)
    for name, value in flatten_dict(done, sep="/").items():
        assert np.all(np.asarray(value) == 0) == name.startswith("params/head/"), name


def test_half_precision_files_are_read_as_float32(tmp_path):
    import ml_dtypes

    halves = {name: value.astype(ml_dtypes.bfloat16) for name, value in stored().items()}
    arrays = load_file(converted(tmp_path, halves))
    assert {value.dtype for value in arrays.values()} == {np.dtype(np.float32)}
    kernel = stored()["_conv_head.weight"][:, :, 0, 0].T
    np.testing.assert_allclose(arrays["params/top/conv/kernel"][0, 0], kernel, rtol=4e-3)


def test_a_missing_parameter_is_named(tmp_path):
    arrays = {name: value for name, value in stored().items() if name != "_blocks.3._bn1.bias"}
    missing = (
        r"in\.safetensors: 1 of 245 parameters of efficientnet_lite0 are missing, .*"
        r"_blocks\.3\._bn1\.bias \(params/stage2_block0_depthwise/norm/bias\)"
    )
    with pytest.raises(ValueError, match=missing):
        converted(tmp_path, arrays)
    assert not (tmp_path / "out.safetensors").exists()


def test_another_shape_is_named(tmp_path):
    arrays = {**stored(), "_conv_stem.weight": np.zeros((32, 1, 3, 3), np.float32)}
    message = (
        r"in\.safetensors: _conv_stem\.weight has shape \[32, 1, 3, 3\], "
        r"efficientnet_lite0 needs \[32, 3, 3, 3\] for params/stem/conv/kernel"
    )
    with pytest.raises(ValueError, match=message):
        converted(tmp_path, arrays)


def test_a_file_of_another_network_is_refused(tmp_path):
    out = converted(tmp_path)
    with pytest.raises(ValueError, match=r"100 of 100 parameters of resnet18 are missing"):
        convert_weights(tmp_path / "in.safetensors", tmp_path / "b.safetensors", arch="resnet18")
    expected = (
        r"out\.safetensors holds weights of 'efficientnet_lite0', which do not fit the variables: "
        r"\S+ is \[32\] in the file and absent in the variables"
    )
    with pytest.raises(ValueError, match=expected):
        load_weights(out, variables_of("resnet18"))


@pytest.mark.parametrize(
    "name", ["_blocks.0._se_reduce.weight", "_blocks.16._bn0.bias", "_conv_stem.bias"]
)
def test_a_network_with_more_between_its_layers_is_refused(name, tmp_path):
    arrays = {**stored(), name: np.ones(3, np.float32)}
    message = rf"in\.safetensors holds another network than {ARCH}: .* 1 arrays more .* {name}"
    with pytest.raises(ValueError, match=message):
        converted(tmp_path, arrays)
    counted = {**stored(), "_bn0.num_batches_tracked": np.zeros((), np.float32)}
    assert converted(tmp_path, counted).exists()


def test_weights_that_are_not_finite_are_named(tmp_path):
    arrays = {**stored(), "_bn1.bias": np.full(1280, np.nan, np.float32)}
    with pytest.raises(ValueError, match=r"_bn1\.bias has values that are not finite"):
        converted(tmp_path, arrays)


def test_numbers_that_are_no_weights_are_named(tmp_path):
    name = "_bn1.running_var"
    with pytest.raises(
        ValueError, match=r"_bn1\.running_var holds variances, of which -1.* is none"
    ):
        converted(tmp_path, {**stored(), name: -stored()[name]})
    for values, kind in ((1j * stored()[name], "complex64"), (np.zeros(4, "V2"), r"\|V2")):
        np.savez(tmp_path / "in.npz", **{**stored(), name: values})
        with pytest.raises(ValueError, match=rf"in.npz: {name} has type {kind}, expected floating"):
            convert_weights(tmp_path / "in.npz", tmp_path / "out.safetensors", arch=ARCH)
    np.savez(tmp_path / "in.npz", **{**stored(), name: np.full(1280, 1e300)})
    with pytest.raises(ValueError, match=rf"{name} has values that are not finite"):
        convert_weights(tmp_path / "in.npz", tmp_path / "out.safetensors", arch=ARCH)
    with pytest.raises(
        TypeError, match="variables must be what the network's init returns, got a N"
    ):
        load_weights(converted(tmp_path), None)


def test_variables_of_another_shape_are_refused(tmp_path):
    variables = variables_of(ARCH)
    variables["params"]["stem"]["conv"]["kernel"] = np.zeros((3, 3, 1, 32))
    expected = r"params/stem/conv/kernel is \[3, 3, 3, 32\] in the file and \[3, 3, 1, 32\]"
    with pytest.raises(ValueError, match=expected):
        load_weights(converted(tmp_path), variables)


def test_a_file_that_was_not_converted_is_refused(tmp_path):
    save_file(stored(), tmp_path / "in.safetensors")
    with pytest.raises(ValueError, match=r"in\.safetensors does not name its architecture"):
        load_weights(tmp_path / "in.safetensors", variables_of(ARCH))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_a_truncated_file_is_named(suffix, keep, tmp_path):
    file = tmp_path / f"in{suffix}"
    arrays = {"a": np.arange(1000.0, dtype=np.float32), "b": np.ones((50, 50), np.float32)}
    if suffix == ".safetensors":
        save_file(arrays, file)
    elif suffix == ".npz":
        np.savez(file, **arrays)
    else:
        torch = pytest.importorskip("torch", reason=NO_TORCH)
        torch.save({name: torch.from_numpy(value) for name, value in arrays.items()}, file)
    content = file.read_bytes()
    file.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(ValueError, match=rf"in\{suffix} is not a readable \{suffix} file: ."):
        convert_weights(file, tmp_path / "out.safetensors", arch=ARCH)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_code_in_a_pickle_is_not_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Harmful()}, "in.pth")
    np.savez("in.npz", a=np.array([Harmful()], dtype=object))
    for file, why in (("in.pth", "it holds more than tensors"), ("in.npz", "Object arrays")):
        with pytest.raises(ValueError, match=f"{file} is not a readable .*file: {why}"):
            convert_weights(file, "out.safetensors", arch=ARCH)
    assert not Path("harm").exists()


def test_without_torch_its_files_say_what_they_need(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "in.pth").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"reading .*in\.pth needs torch: pip install torch"):
        convert_weights(tmp_path / "in.pth", tmp_path / "out.safetensors", arch=ARCH)


def test_refusals(tmp_path):
    out = tmp_path / "out.safetensors"
    with pytest.raises(ValueError, match=r"arch must be one of \('resnet18', .* got 'vgg'"):
        convert_weights("in.npz", out, arch="vgg")
    with pytest.raises(ValueError, match=r"out must end in \.safetensors, got out\.npz"):
        convert_weights("in.npz", "out.npz", arch=ARCH)
    with pytest.raises(ValueError, match=r"in\.h5 must end in one of \.safetensors, \.npz, \.pth"):
        convert_weights("in.h5", out, arch=ARCH)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz does not exist"):
        convert_weights(tmp_path / "nowhere.npz", out, arch=ARCH)
    with pytest.raises(
        FileNotFoundError, match=r"out must lie in a folder that exists, got .*gone"
    ):
        convert_weights(tmp_path / "in.npz", tmp_path / "gone" / "out.safetensors", arch=ARCH)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.safetensors does not exist"):
        load_weights(tmp_path / "nowhere.safetensors", {})
    with pytest.raises(ValueError, match=r"path must end in \.safetensors .* got in\.npz"):
        load_weights("in.npz", {})
    file = converted(tmp_path)
    with pytest.raises(ValueError, match="out must be another file than path"):
        convert_weights(file, file, arch=ARCH)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    out = converted(tmp_path)
    before = out.read_bytes()

    def fail(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    others = {name: 2 * value for name, value in stored().items()}
    with pytest.raises(OSError, match="no space left"):
        converted(tmp_path, others)
    assert out.read_bytes() == before


def test_the_command_line_converts_every_architecture_and_says_what_matched(
    tmp_path, capsys, monkeypatch
):
    assert set(typing.get_args(Architecture)) == set(pretrained_networks())
    monkeypatch.chdir(tmp_path)
    save_file(stored(), "in.safetensors")
    assert jdml.cli.main(["weights", "convert", "in.safetensors", "--arch", ARCH, "--names"]) == 0
    shown = capsys.readouterr().out
    assert "245 converted, 1 unused, 0 missing" in shown
    assert "unused: _fc.weight" in shown
    assert re.search(r"params/top/conv/kernel +_conv_head\.weight", shown)
    assert load_file(f"{ARCH}.safetensors").keys() == _shapes(ARCH).keys()
    assert jdml.cli.main(["weights", "convert", "in.safetensors"]) == 2
    assert re.fullmatch(r"jdml weights convert: error: .*resnet50.*\n", capsys.readouterr().err)
