"""Addresses of other machines are no paths: refused before any work, and nothing is made of them."""

from pathlib import Path, PureWindowsPath

import numpy as np
import optax
import pytest
from flax import linen as nn

import jdml.cli
from jdml import data, models, objectives, report, training
from jdml.registry.places import check_local
from jdml.training import exporting, records, study

ADDRESSES = (
    "s3://bucket/run",
    "gs://bucket/run",
    "hf://org/name",
    "http://host/run",
    "https://host/run",
)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("kind", [str, Path])
def test_addresses_are_refused(address, kind):
    with pytest.raises(ValueError, match=f"out_dir must be a path .* got the address {address}: "):
        check_local("out_dir", kind(address))


@pytest.mark.parametrize(
    "place",
    [
        None, "runs/a", "/abs/a:b", "cub:/data/CUB", "cub:CUB", "~/x", "a/s3://b", "..", Path("C:/x"), 3, b"x",
        PureWindowsPath("C:/x"), Path("/data/s3:/x"), "C:/x",
    ],
)  # fmt: skip
def test_paths_are_taken(place):
    check_local("out_dir", place)


def test_a_file_s_address_says_its_path():
    with pytest.raises(ValueError, match="got file:///data/run: write /data/run"):
        check_local("run", "file:///data/run")
    with pytest.raises(ValueError, match="got the address s3://bucket/x"):
        check_local("source", "cub:s3://bucket/x".partition(":")[2])


class Points(nn.Module):
    """From four numbers to two."""

    @nn.compact
    def __call__(self, x, *, train):
        return nn.Dense(2)(x)


def fit(place):
    points = data.Dataset("points", np.zeros((4, 4), np.float32), np.arange(4) // 2)
    objective, sampler = objectives.pair(jdml.triplet_loss), data.RandomBatchSampler(4, 4)
    return training.fit(Points(), objective, optax.sgd(1), points, sampler, steps=1, out_dir=place)


@pytest.mark.parametrize(
    "address", ["s3://bucket/run.safetensors", Path("gs://bucket/run.safetensors")]
)
@pytest.mark.parametrize(
    "use",
    [
        fit,
        training.load,
        report.read_runs,
        records.read_results,
        lambda place: data.load("folder", data_dir=place),
        lambda place: data.load("digits", data_dir=place),
        lambda place: models.load_weights(place, {}),
        lambda place: models.convert_weights("w.npz", place, arch="resnet18"),
        lambda place: models.convert_weights(place, "w.safetensors", arch="resnet18"),
        lambda place: exporting.export_file(None, place),
        lambda place: study.run_study(dict, {}, place),
        lambda place: report.html_report([], place),
    ],
)
def test_python_refuses_them(use, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="must be a path of this machine, got the address .*bucket"
    ):
        use(address)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("demo --out {}", "--out"),
        ("train --out {}", "--out"),
        ("train --data-dir {}", "--data-dir"),
        ("train --weights {}", "--weights"),
        ("train --classes-file={}", "--classes-file"),
        ("sweep --set lr=1,2 --out {}", "--out"),
        ("sweep --set data-dir={} --out here", "--data-dir"),
        ("benchmark --dry-run --out {}", "--out"),
        ("benchmark --data-dir {}", "--data-dir"),
        ("embed {} photos", "RUN"),
        ("embed run {}", "SOURCE"),
        ("embed run cub:{}", "SOURCE"),
        ("embed run photos --out {}.npz", "--out"),
        ("search run q.png --gallery {}", "--gallery"),
        ("search run {} --gallery g.npz", "QUERY"),
        ("export {} --out m.safetensors", "RUN"),
        ("export run --out {}.safetensors", "--out"),
        ("evaluate {}.npz", "FILE"),
        ("report {}", "RUN"),
        ("report run --out {}.html", "--out"),
        ("report run --source {}", "--source"),
        ("compare {}", "RUN"),
        ("compare run --csv {}.csv", "--csv"),
        ("data check folder {}", "DIR"),
        ("weights convert {}.pth", "FILE"),
        ("weights convert w.pth --out {}.safetensors", "--out"),
    ],
)
def test_every_command_refuses_them(capsys, words, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for address in ADDRESSES[:3]:
        assert jdml.cli.main(words.format(address).split()) == 2
        told = capsys.readouterr().err
        assert f"error: {name} must be a path of this machine, got the address" in told, told
        assert address in told
        assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())
