"""`jdml benchmark`: the dry run of every method under both protocols, real files, bad files, the paper's row."""

import json
import shutil

import pytest
import tyro

from jdml import flows, models
from jdml.cli import main
from jdml.cli.benchmark import Benchmark, fake_images
from jdml.cli.benchmark_table import paper_rows
from jdml.models import SmallConvNet, resnets
from jdml.recipes import RECIPES
from jdml.recipes.beside import CROPS
from jdml.training.process import EndedError

pytestmark = pytest.mark.slow

FIVE = ("ccp", "eps", "mpa", "nir", "pfml")


@pytest.fixture
def small_backbone(monkeypatch):
    """Networks that compile in no time in the backbone's and the flow's place, with the recipe's head."""

    def create(name, *, dim, pooling="average", freeze_batch_norm=False, dtype=None):
        return SmallConvNet(dim, (8,), pooling=pooling)

    monkeypatch.setattr(models, "create", create)
    sizes = {"num_blocks": 1, "depth": 2, "hidden": 8}
    monkeypatch.setitem(flows.PRESETS, "paper", flows.PRESETS["paper"] | sizes)


def benchmark(capsys, *arguments):
    code = main(["benchmark", "--quiet", "--image-size", "32", "--dim", "8", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("method", "protocol"), [*((method, "conventional") for method in FIVE), ("ccp", "mlrc")]
)
def test_dry_run(method, protocol, small_backbone, capsys, tmp_path):
    arguments = ("--method", method, "--protocol", protocol, "--dry-run", "--out", str(tmp_path))
    code, out, err = benchmark(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "dry run on noise" in out
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    rows = ["separated", "concatenated", "std"] if protocol == "mlrc" else ["ours"]
    assert set(metrics) == {"options", *rows}
    assert 0 < metrics[rows[0]]["R@1"] <= 1
    assert metrics[rows[0]]["queries"] == 16


def test_a_folder_of_something_else_is_left_alone(capsys, tmp_path):
    command = {"started": {"command": "jdml train"}}
    for name, content in (("metrics.json", {"EPS": {"R@1": [0.5]}}), ("config.json", command)):
        (tmp_path / name).write_text(json.dumps(content))
        code, _, err = benchmark(capsys, "--dry-run", "--out", str(tmp_path))
        assert code == 2
        assert "holds another run: give another folder" in err
        assert json.loads((tmp_path / name).read_text()) == content


def test_what_ended_beside_a_command_is_told_in_its_words(capsys, monkeypatch):
    def end(self):
        raise EndedError("a worker was ended: begin again with fewer workers")

    monkeypatch.setattr(Benchmark, "execute", end)
    code, _, err = benchmark(capsys)
    assert code == 2
    assert err == "jdml benchmark: error: a worker was ended: begin again with fewer workers\n"


def test_dry_run_of_the_first_block_of_a_real_backbone(capsys, monkeypatch):
    """Of a width that no other test has: programs are kept by what a network says of itself."""
    monkeypatch.setitem(resnets.BLOCKS, 18, (1,))
    small = ("--dim", "6", "--steps", "1", "--batch", "8x4", "--backbone", "resnet18")
    code, out, err = benchmark(capsys, "--dry-run", *small)
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


def test_real_birds(small_backbone, capsys, shared_data, tmp_path, monkeypatch):
    folder = tmp_path / "birds"
    shutil.copytree(shared_data / "cub_crops227", folder)
    arguments = ("--data-dir", str(folder), "--method", "eps", "--batch", "8x4", "--steps", "2")
    arguments = (*arguments, "--dim", "128")
    code, out, err = benchmark(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "cub: train has 20 classes and 600 images, published are 100 and 5864" in out
    assert "EPS" not in out  # no table has crops of 32²
    assert "no table of the papers has this task" in out
    monkeypatch.setitem(CROPS, "conventional", 32)
    code, out, err = benchmark(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "EPS, Table 2" in out
    assert "63.3" in out
    assert "not as in EPS, Table 2: batch 8x4 (paper: 20x8); steps 2\n" in out
    assert "published are 100 and 5924; random weights\n" in out
    assert "the framework's, which its appendix says were kept" in out

    bird = next((folder / "images").glob("*/*.jpg"))
    bird.write_bytes(bird.read_bytes()[:2000])
    code, _, err = benchmark(capsys, *arguments, "--on-bad-image", "skip")
    assert code == 0


def test_a_damaged_image_stops_the_run_by_name(small_backbone, capsys):
    with fake_images(32) as folder:
        for image in sorted(folder.glob("*/*/0.jpg")):
            image.write_bytes(image.read_bytes()[:300])
        arguments = ("--dataset", "folder", "--data-dir", str(folder), "--steps", "20")
        arguments = (*arguments, "--method", "contrastive", "--batch", "4x4")
        code, _, err = benchmark(capsys, *arguments)
        assert code == 2
        assert "0.jpg: expected a whole image" in err


def test_an_ablation_is_one_model_with_the_pooling_that_is_asked_for(small_backbone, capsys):
    words = ("--dry-run", "--method", "ccp", "--protocol", "ablation", "--pooling", "max")
    code, out, err = benchmark(capsys, *words)
    assert (code, err) == (0, "")
    assert "ours" in out
    options = Benchmark(method="mpa", pooling="max", dry_run=True)
    assert options.recipe().pooling == "max"
    assert Benchmark(method="mpa", dry_run=True).recipe().pooling == "cubic"
    code, _, err = benchmark(capsys, "--dry-run", "--backbone", "vit_s16", "--pooling", "max")
    assert code == 2
    assert "--pooling is not for --backbone vit_s16, which has its own" in err


@pytest.mark.parametrize("protocol", ["conventional", "mlrc"])
def test_no_steps_score_the_start(small_backbone, capsys, protocol):
    words = ("--dry-run", "--method", "eps", "--steps", "0", "--protocol", protocol)
    code, out, err = benchmark(capsys, *words)
    assert code == 0, err
    assert "R@1" in out


def test_mistakes_are_told(capsys):
    code, _, err = benchmark(capsys, "--dataset", "inshop")
    assert code == 2
    assert "--data-dir must be the folder of the inshop files, got None" in err
    for option in ("--dim", "--workers", "--image-size"):
        code, _, err = benchmark(capsys, "--dry-run", option, "0")
        assert code == 2
        least = "at least 1" if option == "--image-size" else "positive"
        assert f"{option} must be {least}, got 0" in err
    code, _, err = benchmark(capsys, "--dry-run", "--steps", "-1")
    assert code == 2
    assert "--steps must not be negative, got -1" in err
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


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--method ccp --backbone bn_inception --protocol mlrc", [62.39, 69.73]),
        ("--method ccp --method-setting loss=multi_similarity --dataset cars", [89.02]),
        ("--method xbm --backbone bn_inception --protocol mlrc --dataset sop", [78.68, 75.37]),
        ("--backbone vit_s16 --dataset cars", [91.5]),
        ("--label-noise 0.2", [66.7]),
        ("--dim 64", [63.9]),
        ("--method mpa --backbone bn_inception --proxies-per-class 4", [69.0]),
        ("--method eps --backbone bn_inception --dim 512 --batch 20x13 --dataset cars", [85.5]),
        ("--method nir --method-setting pooling=average+max --dim 512", [70.5]),
        ("--method nir --method-setting blocks=15 width=64", [66.5]),
        ("--label-noise 0.1", []),
        ("--image-size 112", []),
        ("--method ccp --protocol mlrc", []),  # ResNet-50
        ("--method ccp --method-setting single=True", []),
    ],
)
def test_the_paper_s_rows_of_a_command(typed, expected):
    options = tyro.cli(Benchmark, args=typed.split())
    rows = [row for each in paper_rows(options, options.recipe()) for row in each.rows.values()]
    assert sorted(next(iter(row.values())) for row in rows) == sorted(expected)


def test_dino_s_weights_are_another_row():
    options = Benchmark(backbone="vit_s16", input_stats="vit_s16_dino")
    assert next(iter(paper_rows(options, options.recipe())[0].rows.values()))["R@1"] == 83.1


@pytest.mark.parametrize(("dataset", "most"), [("cub", 15_000), ("inshop", 150_000)])
def test_no_run_of_the_tables_is_cut(dataset, most, monkeypatch):
    """The longest needed 131,000 steps on average (CCP's Table 5)."""
    monkeypatch.setattr(Benchmark, "_config", lambda self, train: {})  # of images that are not here
    options = Benchmark(method="contrastive", dataset=dataset, protocol="mlrc")
    assert options._plan(None).steps == most


def test_ccp_s_row_says_how_many_classes_trained(small_backbone, capsys, shared_data, monkeypatch):
    monkeypatch.setitem(CROPS, "conventional", 32)
    given = ("--data-dir", str(shared_data / "cub_crops227"), "--method", "ccp", "--steps", "1")
    code, out, err = benchmark(capsys, *given, "--batch", "8x4", "--dim", "512")
    assert (code, err) == (0, "")
    assert "ours, 3/4 of the classes" in out
    assert "a quarter of the training classes only tells when a problem ends" in out


def test_settings_of_methods_are_checked(capsys):
    def refuses(method, setting, message, *more):
        given = ("--dry-run", "--method", method, "--method-setting", setting, *more)
        code, _, err = benchmark(capsys, *given)
        assert code == 2
        assert message in err

    refuses("ccp", "omega=1", "--method-setting: ccp has no setting 'omega'; it has anchor_first,")
    refuses("ccp", "loss=proxy_anchor", "loss must be one of contrastive, multi_similarity")
    refuses("nir", "loss=triplet", "loss must be one of proxy_anchor, proxy_nca_margin")
    refuses("nir", "flow=wide", "wide")
    refuses("pfml", "clip=vector", "the preset's alpha and delta", "--loss-setting", "alpha=4")
    refuses("mpa", "weight=1", "mpa has no setting 'weight'; it has none")


def test_the_command_offers_every_recipe():
    from typing import get_args, get_type_hints

    assert set(get_args(get_type_hints(Benchmark)["method"])) == set(RECIPES)
