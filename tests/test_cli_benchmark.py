"""`jdml benchmark`: the dry run of every method under both protocols, real files, bad files, the paper's row."""

import json
import shutil

import pytest

from jdml import flows, models
from jdml.cli import main
from jdml.cli.benchmark import Benchmark
from jdml.cli.dry import fake_images
from jdml.cli.papers import PRINTED, printed
from jdml.models import SmallConvNet
from jdml.recipes import RECIPES

FIVE = ("ccp", "eps", "mpa", "nir", "pfml")


@pytest.fixture
def small_backbone(monkeypatch):
    """Networks that compile in no time in the backbone's and the flow's place, with the recipe's head."""

    def create(name, *, dim, pooling="average", freeze_batch_norm=False, dtype=None):
        return SmallConvNet(dim, (8, 8), pooling=pooling)

    monkeypatch.setattr(models, "create", create)
    sizes = {"num_blocks": 1, "depth": 2, "hidden": 8}
    monkeypatch.setitem(flows.PRESETS, "released", flows.PRESETS["released"] | sizes)


def benchmark(capsys, *arguments):
    code = main(["benchmark", "--quiet", "--image-size", "32", "--dim", "8", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("protocol", ["conventional", "mlrc"])
@pytest.mark.parametrize("method", FIVE)
def test_dry_run(method, protocol, small_backbone, capsys, tmp_path):
    arguments = ("--method", method, "--protocol", protocol, "--dry-run", "--out", str(tmp_path))
    code, out, err = benchmark(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "dry run on noise" in out
    found = json.loads((tmp_path / "metrics.json").read_text())
    rows = ["separated", "concatenated", "std"] if protocol == "mlrc" else ["ours"]
    assert set(found) == {"options", *rows}
    assert 0 < found[rows[0]]["R@1"] <= 1
    assert found[rows[0]]["queries"] == 16


def test_dry_run_of_a_real_backbone(capsys, room):
    code, out, err = benchmark(capsys, "--backbone", "resnet18", "--dry-run", "--steps", "1")
    assert (code, err) == (0, "")
    assert "pfml, resnet18" in out


def test_weights_are_loaded(small_backbone, capsys, tmp_path, monkeypatch):
    seen = []

    def load_weights(path, variables):
        seen.append(path)
        return variables

    monkeypatch.setattr(models, "load_weights", load_weights)
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"weights")
    code, _, err = benchmark(capsys, "--dry-run", "--weights", str(weights))
    assert (code, err) == (0, "")
    assert seen == [weights]


def test_real_birds(small_backbone, capsys, shared_data, tmp_path):
    folder = tmp_path / "birds"
    shutil.copytree(shared_data / "cub_crops227", folder)
    arguments = ("--data-dir", str(folder), "--method", "eps", "--batch", "8x4", "--steps", "2")
    code, out, err = benchmark(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "paper" in out
    assert "63.3" in out
    assert "cub: train has 20 classes and 600 images, published are 100 and 5864" in out
    assert (
        "published are 100 and 5924; --dim 8; --batch 8x4; --steps 2; --image-size 32; random weights"
        in out
    )

    bird = next((folder / "images").glob("*/*.jpg"))
    bird.write_bytes(bird.read_bytes()[:2000])
    code, _, err = benchmark(capsys, *arguments, "--on-bad-image", "skip")
    assert code == 0


def test_a_damaged_image_stops_the_run_by_name(small_backbone, capsys):
    with fake_images(32) as folder:
        for image in sorted(folder.glob("*/0.jpg")):
            image.write_bytes(image.read_bytes()[:300])
        arguments = ("--dataset", "folder", "--data-dir", str(folder), "--steps", "20")
        arguments = (*arguments, "--method", "contrastive", "--batch", "4x4")
        code, _, err = benchmark(capsys, *arguments)
        assert code == 2
        assert "0.jpg: expected a whole image" in err


def test_mistakes_are_told(capsys):
    code, _, err = benchmark(capsys)
    assert code == 2
    assert "--dataset cub needs --data-dir, the folder with its files" in err
    for option in ("--dim", "--steps", "--workers", "--image-size"):
        code, _, err = benchmark(capsys, "--dry-run", option, "0")
        assert code == 2
        assert f"{option} must be at least 1, got 0" in err
    code, _, err = benchmark(capsys, "--dry-run", "--weights", "nowhere.safetensors")
    assert code == 2
    assert "--weights must be a file, got nowhere.safetensors" in err


def test_a_killed_benchmark_goes_on(small_backbone, capsys, tmp_path):
    with fake_images(32) as folder:
        where = ("--dataset", "folder", "--data-dir", str(folder), "--batch", "16")
        whole = benchmark(capsys, *where, "--steps", "4", "--out", str(tmp_path / "whole"))
        assert whole[0] == 0
        again = benchmark(capsys, *where, "--steps", "4", "--out", str(tmp_path / "whole"))
        assert again[1] == whole[1]
        other = (*where, "--method", "cpml", "--steps", "4", "--out", str(tmp_path / "whole"))
        code, _, err = benchmark(capsys, *other)
        assert code == 2
        assert "method" in err


def test_printed_rows_are_of_methods_and_backbones_that_exist():
    fields = Benchmark.__dataclass_fields__
    for protocol, method, backbone in PRINTED:
        assert method in RECIPES
        assert backbone.removesuffix("_dino") in str(fields["backbone"].type)
        assert protocol in str(fields["protocol"].type)
    assert printed("mlrc", "nir", "resnet18", "cub") == {}


def test_the_command_offers_every_recipe():
    from typing import get_args, get_type_hints

    assert set(get_args(get_type_hints(Benchmark)["method"])) == set(RECIPES)
