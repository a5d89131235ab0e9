"""The options of `jdml train` before the first step: recipes, parts of data, objectives, hints."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tyro
from cli.photos import draw_photos

from jdml import mining, recipes, training
from jdml.cli.commands import COMMANDS
from jdml.cli.options.train import TrainOptions
from jdml.cli.start_of_run import words_of
from jdml.cli.train import Train
from jdml.cli.training_data import read_training_data
from jdml.cli.training_run import TrainingRun, fitted
from jdml.models.tensors import write_tensors
from jdml.recipes import Recipe, make_objective, recommended
from jdml.recipes.objective import MONITORED
from jdml.recipes.optimizer import learning_rate
from jdml.recipes.sampler import make_sampler
from jdml.recipes.words import build_miner
from jdml.training.by_recipe import parts_of_step

FILES = Path("photos")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw_photos(tmp_path_factory.mktemp("photos") / "photos")


def classes(part) -> list[str]:
    """Return the names of the classes that occur."""
    return sorted(set(np.array(part.class_names["class"])[part.labels].tolist()))


def parts_of(**options):
    settled = Train(image_size=16, **options).settled()
    return read_training_data(settled, settled.seed)


def test_miners_are_chained():
    built = build_miner("eps + multi_similarity_negative:epsilon=0.2", dim=8)
    ms = mining.multi_similarity_pairs(epsilon=0.2, mine_positives=False)
    assert built == mining.chain(mining.easy_positive(), ms)
    assert build_miner("none", dim=8) is None


def test_options_round_trip_through_command_words():
    options = Train(
        data="digits",
        loss="triplet",
        loss_setting=("margin=0.3",),
        train_classes=(0, 1),
        lr=3e-4,
        tensorboard=True,
    )
    assert tyro.cli(Train, args=words_of(options)) == options


# Recipes


def test_defaults_by_kind_of_data(photos, tmp_path):
    settled, recipe = Train().settled(), Train().recipe()
    assert (settled.data, settled.model, recipe.loss) == ("digits", "eps", "triplet")
    assert (recipe.batch, recipe.steps, recipe.rate, recipe.dim) == ((16, 4), 1000, 1e-3, 64)
    assert recipe.num_proxies == 0
    settled = Train(data_dir=photos, loss="arcface").settled()
    recipe = settled.recipe()
    assert (settled.data, recipe.network, settled.image_size) == ("folder", "small", 64)
    assert (recipe.num_proxies, recipe.role_rates) == (1, {"proxies": 100.0})
    for size, model in ((64, "eps"), (105, "small")):  # of pictures in memory
        letters = Train(data="omniglot", data_dir=photos, image_size=size)
        assert letters.settled().model == model
    margin = Train(labels="parity", loss="margin", learn_beta="class", beta_lr_factor=5).recipe()
    assert (margin.learn_beta, margin.role_rates["beta"]) == ("class", 5.0)
    field = {"labels": "parity", "loss": "potential_field"}
    best = Train(**field).recipe()
    assert (best.settings, best.start, best.num_proxies) == ({}, "samples", 3)
    paper = Train(**field, loss_setting=("alpha=4", "delta=0.3"), proxies_start="random").recipe()
    assert (paper.settings, paper.start) == ({"alpha": 4, "delta": 0.3}, "random")
    for changes, size in (
        ({"augmentation": "conventional"}, 224),
        ({"model": "resnet18"}, 224),
        ({"augmentation": "mlrc"}, 227),
    ):
        assert Train(data_dir=photos, **changes).settled().image_size == size
    weights = tmp_path / "w.safetensors"
    write_tensors(weights, {"params/x": np.zeros(1)}, {"architecture": "vit_s16"})
    assert Train(data_dir=photos, weights=weights).settled().recipe().network == "vit_s16"
    config = Train(data_dir=photos, out=tmp_path, method="nir").config()
    assert config["data"] == "folder"
    assert {"network": "small", "loss": "proxy_anchor"}.items() <= config["recipe"].items()
    assert not {"model", "loss", "loss_setting", "workers", "data_dir", "out"} & set(config)
    json.dumps(config)


def test_methods_use_their_papers_settings():
    """NIR: the backbone is frozen for an epoch, the flow's rate is 5e-4; CCP: anchored from the start, one rate."""
    nir = Train(method="nir").recipe()
    assert (nir.warmup_epochs, nir.warmup_steps, nir.method.flow_lr) == (1, None, 5e-4)
    assert recipes.recipe("nir", "cub").method.flow_lr == 5e-4
    ccp = Train(method="ccp", validation=0.2).recipe()
    assert (ccp.method.anchor_first, ccp.role_rates, ccp.num_proxies) == (True, {}, 8)
    assert ccp.method == recipes.recipe("ccp", "cub").method
    typed = Train(method="nir", method_setting=("weight=0.02",), loss_setting=("delta=0.2",))
    recipe = Recipe.from_json(json.loads(json.dumps(typed.config()))["recipe"])
    assert recipe == typed.settled().recipe()
    assert (recipe.method.weight, recipe.settings) == (0.02, {"delta": 0.2})


KNOWN = {
    "small": {"model": "small"},
    "untrained": {"model": "resnet18"},
    "pretrained": {"weights": Path("resnet50.safetensors"), "model": "resnet50"},
    "frozen": {"weights": Path("vit.safetensors"), "model": "vit_s16", "lora": 8},
}


@pytest.mark.parametrize("network", KNOWN)
def test_recommended_settings_depend_on_pretraining(network):
    options = TrainOptions(data="folder", data_dir=FILES, **KNOWN[network])
    made, expected = options.recipe(), recommended(begins=network)
    for name in ("loss", "settings", "rate", "rate_warmup", "schedule", "head", "steps"):
        assert getattr(made, name) == getattr(expected, name), name
    assert (made.head == "principal") == (network in ("pretrained", "frozen"))
    if network == "frozen":
        head = dataclasses.replace(options, lora=None, freeze="backbone").recipe()
        assert (head.rate, head.head) == (made.rate, "principal")
        nearly_all = dataclasses.replace(options, lora=None, freeze="patches").recipe()
        assert nearly_all.rate == recommended(begins="pretrained").rate
    for typed in ({"loss": "circle"}, {"method": "nir"}):
        options = TrainOptions(data="folder", data_dir=FILES, **typed)
        assert (options.recommends, options.recipe().schedule) == (False, "constant")


@pytest.mark.parametrize(
    ("typed", "sizes", "batch", "miner"),
    [
        ({}, [150] * 8, (4, 16), "easy_positive"),
        ({"miner": "none"}, [150] * 8, (4, 16), "none"),
        ({"batch": "8x4"}, [150] * 8, (8, 4), "easy_positive"),
        ({"loss": "triplet"}, [150] * 8, (8, 8), "none"),
        ({"loss": "triplet", "batch": "64x4"}, [6] * 3, (3, 4), "none"),
        ({"loss": "triplet", "batch": "1000"}, [6] * 3, 18, "none"),
        ({"loss": "triplet", "batch": "2x40"}, [6] * 3, (2, 6), "none"),
    ],
)
def test_default_batch_and_miner_depend_on_class_sizes(typed, sizes, batch, miner):
    options = TrainOptions(data="folder", data_dir=FILES, model="small", **typed)
    made, notes = fitted(options.recipe(), options, np.repeat(np.arange(len(sizes)), sizes))
    assert (made.batch, made.miner) == (batch, miner)
    assert any(f" not {options.batch}:" in note for note in notes) == (sizes[0] == 6)


def test_small_classes_leave_batch_slots_empty():
    labels = np.repeat(np.arange(8), [9, 10, 9, 10, 9, 3, 3, 3])
    for loss in ("triplet", None):
        options = TrainOptions(data="folder", data_dir=FILES, model="small", loss=loss, batch="4x8")
        made, notes = fitted(options.recipe(), options, labels)
        assert (made.batch, made.small_classes) == ((4, 8), "pad")
        assert any(note.startswith("3 of 8 classes") for note in notes)
        assert len(next(make_sampler(made, labels))) == 32
    options = dataclasses.replace(options, loss="triplet", batch="4x3")
    made, notes = fitted(options.recipe(), options, labels)
    assert (made.batch, made.small_classes, notes) == ((4, 3), "refuse", ())


def test_schedules():
    def rates(**options):
        rate = learning_rate(Train(steps=4, **options).recipe(), 1.0, steps=4)
        return [round(float(rate(step)), 4) for step in range(5)]

    assert learning_rate(Train().recipe(), 0.5, steps=1000) == 0.5
    assert rates(warmup=2) == [0.5, 1, 1, 1, 1]
    assert rates(schedule="cosine") == [1, 0.8536, 0.5, 0.1464, 0]
    assert rates(schedule="linear") == [1, 0.75, 0.5, 0.25, 0]
    assert rates(schedule="linear", warmup=2) == [0.5, 1, 1, 0.5, 0]


# Data


def test_splits(photos, tmp_path):
    parts = parts_of(data_dir=photos)
    assert classes(parts.train) == ["kind0", "kind1", "kind2"]
    drawn = [parts_of(data_dir=photos, split="classes", seed=seed) for seed in (0, 1)]
    assert classes(drawn[0].train) != classes(drawn[1].train)
    assert not set(classes(drawn[0].train)) & set(classes(drawn[0].tests["test"][0]))
    by_image = parts_of(data_dir=photos, split="images", test_share=0.4)
    assert classes(by_image.train) == classes(by_image.tests["test"][0])
    assert (len(by_image.train), len(by_image.tests["test"][0])) == (24, 12)
    with pytest.raises(ValueError, match=r"--test-share\b"):
        parts_of(data_dir=photos, split="images", test_share=0.1)
    everything = parts_of(data_dir=photos, split="none")
    assert (len(everything.train), everything.tests) == (36, {})
    (tmp_path / "names.txt").write_text("kind4\nkind1\n")
    named = parts_of(data_dir=photos, classes_file=tmp_path / "names.txt")
    assert classes(named.train) == ["kind1", "kind4"]


def test_data_from_a_layout_and_a_table(photos, tmp_path):
    for split, kinds in (("train", 3), ("val", 2)):
        draw_photos(tmp_path / "layout" / split, kinds, 3)
    parts = parts_of(data_dir=tmp_path / "layout")
    assert (len(parts.train), len(parts.validation)) == (9, 6)
    assert parts.tests["validation"][0] is parts.validation
    with pytest.raises(ValueError, match=r"^--validation\b"):
        parts_of(data_dir=tmp_path / "layout", validation=0.2)
    rows = [f"{photos}/kind{i}/0.png,{i // 2},train" for i in range(4)]
    rows += [f"{photos}/kind4/{i}.png,{i // 2},test" for i in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["file,label,split", *rows]))
    parts = parts_of(data_dir=tmp_path / "t.csv")
    assert (len(parts.train), len(parts.tests["test"][0])) == (4, 4)


def test_label_noise_is_in_training_only(photos):
    parts = parts_of(data_dir=photos, label_noise=0.5)
    assert (parts.train.labels != parts.train.views["class"]).sum() == 9
    queries = parts.tests["test"][0]
    np.testing.assert_array_equal(queries.labels, queries.views["class"])


def test_single_images_and_other_files_are_noted(tmp_path):
    draw_photos(tmp_path, 4, 2)
    (tmp_path / "kind0" / "0.png").unlink()
    (tmp_path / "kind0" / "0.heic").write_bytes(b"?")
    others, lone = parts_of(data_dir=tmp_path).notes[:2]
    assert ".heic" in others
    assert "1 class " in lone


# Objectives and steps


def test_step_is_traced_with_every_network_option():
    """The step is traced, not compiled: roles, rates and shapes fit each other."""
    typed = {"model": "small", "pooling": "gem", "dtype": "bfloat16", "dim": 4}
    options = Train(loss="proxy_anchor", batch="8", schedule="linear", **typed).settled()
    run = TrainingRun(options, options.recipe(), {})
    parts = (run.model, *parts_of_step(run.recipe, 10, steps_per_epoch=9, steps=1000))
    state = training.create_state(*parts, run.train.images[:8], seed=0)
    assert set(state.params) == {"model", "proxies"}
    step = training.make_train_step(*parts, preprocess=run.preprocess)
    after, _ = step.eval_shape(state, run.train.images[:8], run.train.labels[:8])
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_field_activity_is_logged_where_its_pairs_are_few():
    def logged(each):
        options = Train(loss="potential_field", dim=4, proxies_per_class=each)
        objective = make_objective(options.recipe(), 10)
        shapes = jax.eval_shape(objective.init, jax.random.key(0)), np.zeros((6, 4), np.float32)
        return set(jax.eval_shape(objective.loss, *shapes, np.arange(6))[1])

    assert logged(2) == {"loss", "attracting", "repelling", "force"}
    assert logged(MONITORED) == {"loss"}


# Hints


@pytest.mark.parametrize("typed", [{}, {"image_size": 16}])
def test_photographs_without_weights_print_how_to_get_weights(typed, photos):
    """Both commands are complete; cropping is mentioned if the size was not typed."""
    hints = Train(data_dir=photos, **typed).hints()
    convert, again = (line.split() for line in hints[-2:])
    assert convert == COMMANDS["weights convert"].example.replace("resnet18", "resnet50").split()
    read = tyro.cli(Train, args=again[2:])
    assert (read.weights, read.data_dir) == (Path("resnet50.safetensors"), photos)
    assert len(hints) == (3 if typed else 4)
    assert Train().hints() == []
