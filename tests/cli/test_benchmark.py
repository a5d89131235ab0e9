"""`jdml benchmark`: dry runs of methods under their protocols, real files, bad files, the paper's row."""

import json
import shutil

import jax
import numpy as np
import pytest
from cli.photos import draw_photos

from jdml import training
from jdml.cli.commands import COMMANDS
from jdml.recipes.paper_comparison import footnotes

FEW = "--classes-per-batch 2 --samples-per-class 4 --steps 2 --evaluate-every 2"
"""Options of a short run on the photographs."""


pytestmark = pytest.mark.usefixtures("small_backbone")


def read(words):
    """Return the options of `jdml benchmark` of what is typed."""
    return COMMANDS["benchmark"].read(words.split())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Draw 8 classes of 8 images to train on, and as many to score."""
    return draw_photos(tmp_path_factory.mktemp("photos"), 16, 8)


@pytest.fixture
def benchmark(jdml_main, photos):
    words = "benchmark --dataset folder --quiet --image-size 32 --dim 8 --workers 1 --data-dir"

    def run(typed, *more):
        return jdml_main(*words.split(), photos, *typed.split(), *more)

    return run


@pytest.mark.slow  # one proxy problem after the other, four models, and a flow
@pytest.mark.parametrize(
    ("method", "protocol"),
    [
        ("ccp --pooling max", "ablation"),
        ("ccp --dataset cars", "mlrc"),
        ("nir --dataset sop", "conventional"),
    ],
)
def test_dry_run(method, protocol, benchmark, tmp_path):
    words = f"--dry-run --method {method} --protocol {protocol} --out {tmp_path}"
    code, out, err = benchmark(words)
    assert (code, err) == (0, "")
    assert "(dry run on noise)" in out
    assert benchmark(words) == (0, out, "")  # in another folder of noise
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    rows = ["separated", "concatenated", "std"] if protocol == "mlrc" else ["ours"]
    assert set(metrics) == {"options", *rows}
    assert 0 < metrics[rows[0]]["R@1"] <= 1
    assert metrics[rows[0]]["queries"] == 16
    assert f"{100 * metrics[rows[0]]['R@1']:.1f}" in out


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.json", {"EPS": {"R@1": [0.5]}}),
        ("config.json", {"provenance": {"command": "jdml train"}}),
    ],
)
def test_foreign_output_folder_is_refused_and_unchanged(file, content, benchmark, tmp_path):
    (tmp_path / file).write_text(json.dumps(content))
    code, _, err = benchmark("--out", tmp_path)
    assert code == 2
    assert f"--out {tmp_path}" in err
    assert json.loads((tmp_path / file).read_text()) == content


def test_training_starts_from_the_given_weights(benchmark, tmp_path):
    words = f"--method eps {FEW} --steps 0 --seed"
    assert benchmark(words, 1, "--out", tmp_path / "other")[0] == 0
    code, _, err = benchmark(words, 2, "--out", tmp_path / "run", "--weights", tmp_path / "other")
    assert (code, err) == (0, "")
    held = [training.load(tmp_path / name).params for name in ("run", "other")]
    jax.tree.map(np.testing.assert_array_equal, *held)


@pytest.mark.slow  # decodes 2,400 photographs
def test_real_birds(benchmark, shared_data, tmp_path):
    folder = tmp_path / "birds"
    shutil.copytree(shared_data / "cub_crops227", folder)
    batch = "--classes-per-batch 8 --samples-per-class 4 --steps 2"
    words = f"--dataset cub --data-dir {folder} --method eps {batch}"
    code, out, err = benchmark(words)
    assert (code, err) == (0, "")
    for count in ("20", "600", "100", "5864"):  # classes and images, ours and the published
        assert count in out.split()
    assert "EPS" not in out  # no table has crops of 32²
    bird = next((folder / "images").glob("*/*.jpg"))
    bird.write_bytes(bird.read_bytes()[:2000])
    assert benchmark(words, "--on-bad-image", "skip")[0] == 0


@pytest.mark.slow  # a whole benchmark
def test_repeated_command_returns_its_result_and_another_is_refused(benchmark, tmp_path):
    words = f"--batch-size 16 --steps 4 --out {tmp_path}"
    whole = benchmark(words)
    assert whole[0] == 0, whole
    assert benchmark(words)[1] == whole[1]
    code, _, err = benchmark(f"{words} --method cpml")
    assert (code, "method" in err) == (2, True)


def test_seeds_and_held_out_training_images(benchmark, tmp_path):
    own = "--lr 1e-3 --loss-setting negative_margin=0.9 --label-noise 0.1 --validation 0.5"
    code, out, err = benchmark(f"{FEW} --method contrastive {own} --seeds 2 --out", tmp_path)
    assert code == 0, err
    assert "±" in out
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    mean = np.mean([rows["ours"]["R@1"] for rows in metrics["seeds"]])
    assert metrics["ours"]["R@1"] == pytest.approx(mean)
    assert 16 < metrics["ours"]["queries"] <= 32  # half of 64; there are 64 of test classes
    assert [training.load(tmp_path / f"seed{seed}").step for seed in (0, 1)] == [2, 2]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--method ccp --backbone bn_inception --protocol mlrc", [62.39, 69.73]),
        ("--method ccp --method-setting loss=multi_similarity --dataset cars", [89.02]),
        ("--method xbm --backbone bn_inception --protocol mlrc --dataset sop", [78.68, 75.37]),
        ("--backbone vit_s16 --normalization vit_s16_dino", [83.1]),
        ("--label-noise 0.2", [66.7]),
        ("--method nir --method-setting blocks=15 width=64", [66.5]),
        ("--label-noise 0.1", []),
        ("--validation 0.15", []),
        ("--method ccp --protocol mlrc", []),  # ResNet-50
    ],
)
def test_command_is_compared_with_the_papers_rows(typed, expected):
    options = read(typed)
    rows = [row for each in options.paper_rows() for row in each.rows.values()]
    firsts = [row.get("R@1", next(iter(row.values()))) for row in rows]
    assert sorted(firsts) == sorted(expected)


def test_differences_from_the_paper_are_listed_below_its_row():
    recipes = [read(f"--method mpa {words}").recipe() for words in ("", "--pooling max")]
    assert [recipe.network.pooling for recipe in recipes] == ["cubic", "max"]
    options = read("--method eps --classes-per-batch 8 --samples-per-class 4 --steps 2")
    below = "\n".join(footnotes(options.paper_rows(), "eps", "conventional"))
    for difference in ("batch 8x4 (paper: 20x8)", "steps 2"):
        assert difference in below


@pytest.mark.parametrize(("dataset", "most"), [("cub", 15_000), ("inshop", 150_000)])
def test_step_limit_exceeds_the_papers_longest_runs(dataset, most):
    """The longest needed 131,000 steps on average (CCP's Table 5)."""
    options = read(f"--method contrastive --dataset {dataset} --protocol mlrc")
    assert options.run_recipe().batch.steps == most
