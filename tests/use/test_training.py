"""What `jdml train` and `jdml benchmark` make of their options, and what they say before the first step."""

import json
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn

import jdml
from jdml import data, models, objectives, recipes, training
from jdml.cli.train import Train
from jdml.cli.training_data import read_training_data
from jdml.cli.training_run import TrainingRun
from jdml.models import SmallConvNet
from jdml.models.tensors import write_tensors
from jdml.recipes import Recipe, make_objective, make_optimizer
from jdml.recipes.objective import MONITORED
from jdml.recipes.optimizer import learning_rate
from jdml.training.by_recipe import parts_of_step

pytestmark = pytest.mark.slow


def classes(part) -> list[str]:
    """The names of the classes that occur."""
    return sorted(set(np.array(part.class_names["class"])[part.labels].tolist()))


def parts_of(**options):
    settled = Train(image_size=16, **options).settled()
    return read_training_data(settled, settled.seed)


def training_of(options):
    settled = options.settled()
    return TrainingRun(settled, settled.recipe(), {})


def test_defaults_by_kind_of_data(photos, tmp_path):
    settled, recipe = Train().settled(), Train().recipe()
    assert (settled.data, settled.model, recipe.loss) == ("digits", "eps", "triplet")
    assert (recipe.batch, recipe.steps, recipe.rate, recipe.dim) == ((16, 4), 1000, 1e-3, 64)
    assert recipe.num_proxies == 0
    settled = Train(data_dir=photos, loss="arcface").settled()
    recipe = settled.recipe()
    assert (settled.data, recipe.network, settled.image_size) == ("folder", "small", 64)
    assert (recipe.num_proxies, recipe.role_rates) == (1, {"proxies": 100.0})
    assert Train(data_dir=photos, augmentation="conventional").settled().image_size == 224
    for size, model in ((None, "eps"), (64, "eps"), (105, "small")):  # of pictures in memory
        letters = Train(data="omniglot", data_dir=photos, image_size=size)
        assert letters.settled().model == model
    assert Train(data_dir=photos, model="resnet18").settled().image_size == 224
    assert Train(data_dir=photos, augmentation="mlrc").settled().image_size == 227
    weights = tmp_path / "w.safetensors"
    write_tensors(weights, {"params/x": np.zeros(1)}, {"architecture": "vit_s16"})
    assert Train(data_dir=photos, weights=weights).settled().recipe().network == "vit_s16"
    config = Train(data_dir=photos, out=tmp_path, method="nir").config()
    assert config["data"] == "folder"
    assert {"network": "small", "loss": "proxy_anchor"}.items() <= config["recipe"].items()
    assert not {"model", "loss", "loss_setting", "workers", "data_dir", "out"} & set(config)
    json.dumps(config)


def test_a_run_s_recipe_is_read_from_its_folder(tmp_path):
    """Told, repeated, changed in one value."""
    options = Train(method="nir", method_setting=("weight=0.02",), loss_setting=("delta=0.2",))
    config = json.loads(json.dumps(options.config()))
    recipe = Recipe.from_json(config["recipe"])
    assert recipe == options.settled().recipe()
    assert (recipe.method.weight, recipe.settings) == (0.02, {"delta": 0.2})
    assert replace(recipe, rate=0.5).rate == 0.5


def test_the_paper_s_way_where_defaults_had_drifted():
    """NIR: an epoch in which the backbone waits, a flow at 5e-4; CCP: anchored from the start, one rate for all."""
    nir = Train(method="nir").recipe()
    assert (nir.warmup_epochs, nir.warmup_steps, nir.method.flow_lr) == (1, None, 5e-4)
    assert recipes.recipe("nir", "cub").method.flow_lr == 5e-4
    ccp = Train(method="ccp", validation=0.2).recipe()
    assert (ccp.method.anchor_first, ccp.role_rates, ccp.num_proxies) == (True, {}, 8)
    assert ccp.method == recipes.recipe("ccp", "cub").method


def test_splits(photos, tmp_path):
    parts = parts_of(data_dir=photos)
    assert classes(parts.train) == ["kind0", "kind1", "kind2"]
    drawn = [parts_of(data_dir=photos, split="classes", seed=seed) for seed in (0, 1)]
    assert classes(drawn[0].train) != classes(drawn[1].train)
    assert not set(classes(drawn[0].train)) & set(classes(drawn[0].tests["test"][0]))
    by_image = parts_of(data_dir=photos, split="images", test_share=0.4)
    assert classes(by_image.train) == classes(by_image.tests["test"][0])
    assert (len(by_image.train), len(by_image.tests["test"][0])) == (24, 12)
    with pytest.raises(ValueError, match="could be found; write a larger --test-share, or"):
        parts_of(data_dir=photos, split="images")  # one image of each
    everything = parts_of(data_dir=photos, split="none")
    assert (len(everything.train), everything.tests) == (36, {})
    (tmp_path / "names.txt").write_text("kind4\nkind1\n")
    named = parts_of(data_dir=photos, classes_file=tmp_path / "names.txt")
    assert classes(named.train) == ["kind1", "kind4"]


def test_a_layout_and_a_table(photos, tmp_path, draw):
    for split, kinds in (("train", 3), ("val", 2)):
        draw(tmp_path / "layout" / split, kinds, 3)
    parts = parts_of(data_dir=tmp_path / "layout")
    assert (len(parts.train), len(parts.validation)) == (9, 6)
    assert parts.tests["validation"][0] is parts.validation
    with pytest.raises(ValueError, match="--validation is not for data with a val part of its own"):
        parts_of(data_dir=tmp_path / "layout", validation=0.2)
    rows = [
        f"{photos}/kind{k}/{i}.png,{k % 2},{('train', 'test')[k // 2]}"
        for k in range(4)
        for i in range(3)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["file,label,split", *rows]))
    parts = parts_of(data_dir=tmp_path / "t.csv")
    assert (len(parts.train), len(parts.tests["test"][0])) == (6, 6)


def test_label_noise_is_in_training_alone(photos):
    parts = parts_of(data_dir=photos, label_noise=0.5)
    assert (parts.train.labels != parts.train.views["class"]).sum() == 9
    queries = parts.tests["test"][0]
    np.testing.assert_array_equal(queries.labels, queries.views["class"])


def test_a_class_of_one_image_is_told(tmp_path, draw):
    draw(tmp_path, 4, 2)
    (tmp_path / "kind0" / "0.png").unlink()
    (tmp_path / "kind0" / "0.heic").write_bytes(b"?")
    notes = parts_of(data_dir=tmp_path).notes
    assert notes[0].startswith("1 file of other kinds (1 .heic) left out")
    assert notes[1].startswith("training: 1 class has a single image")


@pytest.mark.parametrize(("kind", "shape"), [("class", (2,)), ("shared", ())])
def test_the_margin_loss_learns_its_boundary(kind, shape):
    options = Train(
        labels="parity",
        loss="margin",
        loss_setting=("beta=1.1",),
        learn_beta=kind,
        beta_lr_factor=5,
    )
    recipe = options.recipe()
    params = {"model": {}, **make_objective(recipe, 2).init(jax.random.key(0))}
    np.testing.assert_allclose(params["beta"], np.full(shape, 1.1), rtol=1e-6)
    optimizer = make_optimizer(recipe, ("beta",), 1)
    state = optimizer.init(params)
    updates, _ = optimizer.update({"model": {}, "beta": np.ones(shape)}, state, params)
    np.testing.assert_allclose(updates["beta"], np.full(shape, -5e-3), rtol=1e-4)


def test_a_field_may_do_without_proxies():
    options = Train(labels="parity", loss="potential_field", proxies_per_class=0)
    objective = make_objective(options.recipe(), 2)
    assert objective.init(jax.random.key(0)) == {}
    x, y = jax.random.normal(jax.random.key(1), (6, 64)), np.arange(6) % 2
    loss, _ = objective.loss({}, x, y, key=jax.random.key(2))
    assert loss == jdml.potential_field_loss(x, y) == jdml.potential_field_loss(x, y, alpha=1.0)


def test_fields_are_as_the_study_found_and_the_paper_s_is_an_option_away():
    field = {"labels": "parity", "loss": "potential_field"}
    best = Train(**field).recipe()
    assert (best.settings, best.start, best.num_proxies) == ({}, "samples", 3)
    assert Train(**field, proxies_per_class=1).recipe().num_proxies == 1
    paper = Train(**field, loss_setting=("alpha=4", "delta=0.3"), proxies_start="random").recipe()
    assert (paper.settings, paper.start) == ({"alpha": 4, "delta": 0.3}, "random")
    other = Train(labels="parity", loss="proxy_anchor").recipe()
    assert (other.settings, other.start) == ({}, "random")
    for options, message in (
        ({"loss": "triplet", "proxies_start": "random"}, "--proxies-start is for proxy losses"),
        ({**field, "proxies_per_class": 0, "proxies_start": "samples"}, "needs proxies that are"),
    ):
        with pytest.raises(ValueError, match=message):
            Train(**options).settled()


def test_schedules():
    def rates(**options):
        rate = learning_rate(Train(steps=4, **options).recipe(), 1.0, steps=4)
        return [round(float(rate(step)), 4) for step in range(5)]

    assert learning_rate(Train().recipe(), 0.5, steps=1000) == 0.5
    assert rates(warmup=2) == [0.5, 1, 1, 1, 1]
    assert rates(schedule="cosine") == [1, 0.8536, 0.5, 0.1464, 0]
    assert rates(schedule="linear") == [1, 0.75, 0.5, 0.25, 0]
    assert rates(schedule="linear", warmup=2) == [0.5, 1, 1, 0.5, 0]


def test_nir_and_every_option_of_a_network_make_a_step():
    """The step is traced, not compiled: roles, rates and shapes fit each other."""
    pytest.importorskip("distrax")
    options = Train(
        method="nir", method_setting=("weight=0.1", "warmup=2"), model="small", pooling="gem",
        dtype="bfloat16", dim=4, batch="8", schedule="linear",
    )  # fmt: skip
    run = training_of(options)
    parts = (run.model, *parts_of_step(run.recipe, 10, steps_per_epoch=9, steps=1000))
    images = run.train.images[:8]
    state = training.create_state(*parts, images, seed=0)
    assert set(state.params) == {"model", "proxies", "flow"}
    step = training.make_train_step(*parts, preprocess=run.preprocess)
    after, metrics = step.eval_shape(state, images, run.train.labels[:8])
    assert "nir_loss" in metrics
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_what_goes_on_in_a_field_is_logged_where_its_pairs_are_few():
    def logged(each):
        options = Train(loss="potential_field", dim=4, proxies_per_class=each)
        objective = make_objective(options.recipe(), 10)
        shapes = jax.eval_shape(objective.init, jax.random.key(0)), np.zeros((6, 4), np.float32)
        return set(jax.eval_shape(objective.loss, *shapes, np.arange(6))[1])

    assert logged(2) == {"loss", "attracting", "repelling", "force"}
    assert logged(MONITORED) == {"loss"}


def test_ccp_trains(jdml_command, tmp_path):
    done = jdml_command(
        *"train --method ccp --validation .3 --proxies-per-class 2 --method-setting patience=1".split(),
        *"--dim 2 --batch 8 --steps 2 --evaluate-every 1 --quiet --out".split(), tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "digits: ccp, contrastive, 2-D, seed 0" in done.out
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hook"]["patience"] == 1
    assert config["hook"]["anchor_first"]
    assert (config["recipe"]["normalize"], config["embedding"]["normalize"]) == ("ball", "ball")
    trained = training.load(tmp_path)
    assert trained.objective_params["proxies"].shape == (10, 2, 2)
    vectors = trained.embed(np.zeros((1, 8, 8, 1), np.uint8))
    assert np.linalg.norm(vectors) <= 1 + 1e-6


def test_seeds_of_a_benchmark(jdml_command, tmp_path, monkeypatch):
    def create(name, *, dim, pooling="average", freeze_batch_norm=False, dtype=None):
        return SmallConvNet(dim, (8,), pooling=pooling)

    monkeypatch.setattr(models, "create", create)
    command = "benchmark --dry-run --method contrastive --seeds 2 --image-size 16 --dim 4 --steps 1"
    own = "--lr 1e-3 --loss-setting negative_margin=0.9 --label-noise 0.1 --quiet --workers 1"
    done = jdml_command(*command.split(), *own.split(), "--out", tmp_path)
    assert done.code == 0, done.err
    assert "contrastive, resnet50, 2 seeds (dry run on noise)" in done.out
    assert "±" in done.out
    assert "paper" not in done.out
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    mean = np.mean([rows["ours"]["R@1"] for rows in metrics["seeds"]])
    assert metrics["ours"]["R@1"] == pytest.approx(mean)
    steps = [training.load(tmp_path / f"seed{seed}").step for seed in (0, 1)]
    assert steps == [1, 1]


WORDS = "--dim 4 --steps 1 --quiet --workers 1".split()


def test_photographs_without_weights(photos, jdml_command):
    done = jdml_command("train", "--data-dir", photos, *WORDS)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("small: 93,732 parameters, images 64×64×3")
    assert "3x6 an epoch" in lines[1]
    assert lines[2] == "a batch has 45 pairs of one class, which circle learns from"
    assert (
        "note: images are cut to 64 pixels, which fit the network small: --image-size for others"
        in lines
    )
    at = next(i for i, line in enumerate(lines) if "pretrained weights" in line)
    convert, again = (line.split() for line in lines[at + 1 : at + 3])
    assert (
        " ".join(convert)
        == "jdml weights convert resnet50.pth --arch resnet50 --out resnet50.safetensors"
    )
    assert again[:2] == ["jdml", "train"]
    assert "--weights resnet50.safetensors" in " ".join(again)
    # Both are commands that are read to the file that is not there.
    assert "resnet50.pth" in jdml_command(*convert[1:]).err
    assert "--weights must be a file" in jdml_command(*again[1:]).err


@pytest.mark.parametrize(
    "typed", [["--image-size", "16"], ["--model", "small", "--image-size", "16"]]
)
def test_a_size_that_was_typed_is_not_told(photos, jdml_command, typed):
    done = jdml_command("train", "--data-dir", photos, *WORDS, *typed)
    assert "images are cut" not in done.out
    assert "pretrained weights" in done.out
    assert "--model" not in done.out.partition("jdml train")[2].partition("\n")[0]


def test_held_out_rows_are_told_in_the_opening_line(jdml_command):
    done = jdml_command("train", "--steps", 1, "--dim", 2, "--quiet", "--validation", 0.1)
    assert "train 1,078 images of 10 classes; validation 120 of 10; test 599 of 10; " in done.out


def test_what_needs_no_hint_has_none(jdml_command):
    done = jdml_command("train", "--steps", 1, "--dim", 2, "--quiet")
    assert done.code == 0, done.err
    assert "note" not in done.out


@pytest.mark.parametrize(("typed", "fits"), [("64x4", "3x4"), ("1000", "18"), ("2x40", "2x6")])
def test_a_batch_larger_than_the_data_shrinks(photos, jdml_command, typed, fits):
    size = ["--image-size", 16, "--batch", typed]
    done = jdml_command("train", "--data-dir", photos, *WORDS, *size)
    assert done.code == 0, done.err
    assert f"note: --batch is {fits}, not {typed}: 18 images of 3 classes train" in done.out


@pytest.mark.parametrize(
    "more", [[], ["--schedule", "cosine"], ["--loss", "proxy_anchor"], ["--validation", ".3"]]
)
def test_no_steps_score_the_start(jdml_command, tmp_path, more):
    words = ["train", "--dim", 4, "--quiet", *more]
    done = jdml_command(*words, "--steps", 0, "--out", tmp_path)
    assert done.code == 0, done.err
    scores = json.loads((tmp_path / "metrics.json").read_text())
    assert scores["step"] == training.load(tmp_path).step == 0
    alone = jdml_command(*words, "--steps", 0)
    assert f"{scores['test digit']['R@1']:.4f}" in alone.out
    if not more:
        assert jdml_command(*words, "--steps", 2, "--out", tmp_path).code == 0
        assert training.load(tmp_path).step == 2


def test_fit_of_no_steps_gives_back_the_start():
    class Points(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            return nn.Dense(2)(x)

    points = data.Dataset("points", np.eye(4, dtype=np.float32), np.arange(4) // 2)
    result = training.fit(
        Points(), objectives.pair(jdml.triplet_loss), optax.sgd(1.0), points, data.RandomBatchSampler(4, 4),
        steps=0, evaluate=lambda embedder: {"mean": float(embedder(points.images).mean())}, progress=False,
    )  # fmt: skip
    assert (result.stopped, int(result.state.step), len(result.history)) == ("steps", 0, 1)
    assert result.history[0]["mean"] == pytest.approx(result.embedder(points.images).mean())
