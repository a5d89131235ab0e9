"""Pretrained weights: mapping of every array, files that do not fit, damaged files."""

import sys
import typing
from functools import cache
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from models.files import convert, random_arrays, zeros
from safetensors.numpy import load_file, save_file

import jdml.cli
from jdml.cli.data import Convert
from jdml.models import convert_weights, load_weights
from jdml.models.weight_formats import weight_formats
from jdml.registry import pretrained_networks

ARCH = "efficientnet_lite0"
NO_TORCH = "reads files of PyTorch: pip install torch"


@cache
def stored() -> dict[str, np.ndarray]:
    """Return random arrays of EfficientNet-Lite0 with the names of its PyTorch file."""
    classifier = {"_fc.weight": np.zeros((10, 1280), np.float32)}
    return random_arrays(ARCH, weight_formats(ARCH)[0]) | classifier


def converted(folder: Path, arrays: dict[str, np.ndarray] | None = None) -> Path:
    return convert(stored() if arrays is None else arrays, folder, ARCH)[1]


def test_every_array_but_the_heads_is_mapped(tmp_path):
    variables = zeros(ARCH)
    done = load_weights(converted(tmp_path), variables)
    assert jax.tree.structure(done) == jax.tree.structure(variables)
    for name, value in flatten_dict(done, sep="/").items():
        assert np.all(np.asarray(value) == 0) == name.startswith("params/head/"), name
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


def test_half_precision_files_are_read_as_float32(tmp_path):
    halves = {name: value.astype(ml_dtypes.bfloat16) for name, value in stored().items()}
    halves["_bn0.num_batches_tracked"] = np.zeros((), np.float32)  # not a layer
    arrays = load_file(converted(tmp_path, halves))
    assert {value.dtype for value in arrays.values()} == {np.dtype(np.float32)}
    kernel = stored()["_conv_head.weight"][:, :, 0, 0].T
    np.testing.assert_allclose(arrays["params/top/conv/kernel"][0, 0], kernel, rtol=4e-3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"_blocks.3._bn1.bias": None}, r"1 of 245 .*_blocks\.3\._bn1\.bias"),
        ({"_conv_stem.weight": np.zeros((32, 1, 3, 3), "f4")}, r"_stem\..*\[32, 1, .*\[32, 3, "),
        ({"_blocks.0._se_reduce.weight": np.ones(3, "f4")}, "_se_reduce"),
        ({"_bn1.bias": np.full(1280, np.nan, "f4")}, r"_bn1\.bias"),
    ],
)
def test_arrays_that_do_not_fit_are_named(changes, named, tmp_path):
    arrays = {name: x for name, x in (stored() | changes).items() if x is not None}
    with pytest.raises(ValueError, match=rf"in\.safetensors\b.*{named}"):
        converted(tmp_path, arrays)
    assert not (tmp_path / "out.safetensors").exists()


def test_file_of_another_network_is_refused(tmp_path):
    out, other = converted(tmp_path), tmp_path / "in.safetensors"
    with pytest.raises(ValueError, match=r"in\.safetensors: 100 of 100 .*resnet18"):
        convert_weights(other, tmp_path / "b.safetensors", arch="resnet18")
    with pytest.raises(ValueError, match=rf"out\.safetensors .*{ARCH}.* \[32\]"):
        load_weights(out, zeros("resnet18"))
    with pytest.raises(ValueError, match=r"in\.safetensors .*architecture"):
        load_weights(other, zeros(ARCH))  # not converted
    variables = zeros(ARCH)
    variables["params"]["stem"]["conv"]["kernel"] = np.zeros((3, 3, 1, 32))
    with pytest.raises(ValueError, match=r"kernel is \[3, 3, 3, 32\] .*\[3, 3, 1, 32\]"):
        load_weights(out, variables)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_truncated_file_is_named(suffix, keep, tmp_path):
    file = tmp_path / f"in{suffix}"
    arrays = {"a": np.arange(1000.0, dtype=np.float32), "b": np.ones((50, 50), np.float32)}
    if suffix == ".safetensors":
        save_file(arrays, file)
    else:
        torch = pytest.importorskip("torch", reason=NO_TORCH)
        torch.save({name: torch.from_numpy(value) for name, value in arrays.items()}, file)
    content = file.read_bytes()
    file.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(ValueError, match=rf"in\{suffix} cannot be read: ."):
        convert_weights(file, tmp_path / "out.safetensors", arch=ARCH)


def test_torch_file_without_torch_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "in.pth").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"in\.pth\b.*\btorch\b"):
        convert_weights(tmp_path / "in.pth", tmp_path / "out.safetensors", arch=ARCH)


def test_refusals(tmp_path):
    file, out = converted(tmp_path), tmp_path / "out.safetensors"
    nowhere, gone = tmp_path / "nowhere.safetensors", tmp_path / "gone" / "out.safetensors"
    for path, to, arch, error, name in (
        (file, out, "vgg", ValueError, r"^arch\b.*resnet18.*vgg"),
        (file, "out.npz", ARCH, ValueError, r"^out\b"),
        (file, "s3://out.safetensors", ARCH, ValueError, r"^out\b.*address"),
        ("in.h5", out, ARCH, ValueError, r"^in\.h5 .*\.safetensors, \.pth"),
        (nowhere, out, ARCH, FileNotFoundError, "nowhere"),
        (file, gone, ARCH, ValueError, "^out .*gone"),
        (file, file, ARCH, ValueError, r"^out\b"),
    ):
        with pytest.raises(error, match=name):
            convert_weights(path, to, arch=arch)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_weights(nowhere, {})


def test_command_converts_every_architecture(tmp_path, capsys, monkeypatch):
    choices = typing.get_args(typing.get_type_hints(Convert)["arch"])
    assert set(choices) == set(pretrained_networks())
    monkeypatch.chdir(tmp_path)
    save_file(stored(), "in.safetensors")
    assert jdml.cli.main(["weights", "convert", "in.safetensors", "--arch", ARCH, "--names"]) == 0
    shown = capsys.readouterr().out
    assert {"245", "1", "0", "_fc.weight"} <= set(shown.split())
    assert ["params/top/conv/kernel", "_conv_head.weight"] in map(str.split, shown.splitlines())
    ours = flatten_dict(zeros(ARCH), sep="/")
    expected = {name for name in ours if not name.startswith("params/head/")}
    assert load_file(f"{ARCH}.safetensors").keys() == expected
    assert jdml.cli.main(["weights", "convert", "in.safetensors"]) == 2
    refused = capsys.readouterr().err
    assert "resnet50" in refused
    assert refused.count("\n") == 1
