"""The options of `jdml train` before the first step: recipes, parts of data, objectives, hints."""

import logging
import re

import jax
import numpy as np
import pytest
from cli.photos import draw_photos

from jdml import recipes
from jdml._optional_imports import progress_bar
from jdml.cli.commands import COMMANDS
from jdml.cli.train import Train, fit_to_data
from jdml.cli.training_data import read_training_data
from jdml.models.io import write_tensors
from jdml.recipes import recommended
from jdml.recipes.loss import MONITORED

FILES = "--data folder --data-dir photos"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw_photos(tmp_path_factory.mktemp("photos") / "photos")


def typed(words: str = "", *more: object) -> Train:
    """Return the options of `jdml train` of what is typed."""
    return COMMANDS["train"].read([*words.split(), *map(str, more)])


def test_later_words_replace_earlier_ones_and_add_settings():
    words = "--lr 1 --loss-setting margin=0.3 reduce_fn=sum --lr 3e-4 --loss-setting reduce_fn=mean"
    options = typed(words)
    assert options.words == tuple(words.split())
    assert options.loss["settings"] == {"margin": 0.3, "reduce_fn": "mean"}
    assert options.optimizer["learning_rate"] == 3e-4


def test_finetuning_is_typed(photos):
    words = f"--data-dir {photos} --split images --model vit_s16 --last-blocks 1 --layer-decay 0.7"
    finetune = typed(words).resolve().recipe.finetune
    assert (finetune.last_blocks, finetune.layer_decay) == (1, 0.7)


# Recipes


def test_defaults_by_kind_of_data(photos, tmp_path):
    settled = typed().resolve()
    recipe = settled.recipe
    assert (settled.data.data, recipe.network.name, recipe.loss.name) == (
        "digits",
        "eps",
        "triplet",
    )
    assert (str(recipe.batch), recipe.optimizer.learning_rate) == ("16x4", 1e-3)
    settled = typed("--loss arcface --data-dir", photos).resolve()
    recipe = settled.recipe
    assert (settled.data.data, settled.data.image_size, recipe.network.name) == (
        "folder",
        64,
        "small",
    )
    assert (recipe.loss.num_proxies, recipe.optimizer.lr_multipliers) == (1, {"proxies": 100.0})
    for size, model in ((64, "eps"), (105, "small")):  # of pictures in memory
        letters = typed("--data omniglot --image-size", size, "--data-dir", photos)
        assert letters.resolve().recipe.network.name == model
    margin = typed("--labels parity --loss margin --learn-beta class --lr-multiplier beta=5").recipe
    assert (margin.loss.learn_beta, margin.optimizer.lr_multipliers["beta"]) == ("class", 5.0)
    field = "--labels parity --loss potential_field"
    best = typed(field).recipe.loss
    assert (best.settings, best.proxies.init, best.num_proxies) == ({}, "samples", 3)
    paper = typed(f"{field} --loss-setting alpha=4 delta=0.3 --proxy-init random").recipe.loss
    assert (paper.settings, paper.proxies.init) == ({"alpha": 4, "delta": 0.3}, "random")
    for words, size in (
        ("--augmentation conventional", 224),
        ("--model resnet18", 224),
        ("--augmentation mlrc", 227),
    ):
        assert typed(words, "--data-dir", photos).resolve().data.image_size == size
    weights = tmp_path / "w.safetensors"
    write_tensors(weights, {"params/x": np.zeros(1)}, {"architecture": "vit_s16"})
    settled = typed("--data-dir", photos, "--weights", weights).resolve()
    assert settled.recipe.network.name == "vit_s16"


def test_methods_use_their_papers_settings(photos):
    """NIR: the backbone is frozen for an epoch, the flow's rate is 5e-4; CCP has one rate."""
    nir = typed("--method nir").recipe
    frozen = nir.finetune.backbone_freeze_epochs, nir.finetune.backbone_freeze_steps
    assert (*frozen, nir.loss.method.flow_learning_rate) == (1, None, 5e-4)
    assert recipes.recipe("nir", "cub").loss.method.flow_learning_rate == 5e-4
    ccp = typed("--method ccp --validation 0.2").recipe
    assert (ccp.optimizer.lr_multipliers, ccp.loss.num_proxies) == ({}, 8)
    assert ccp.loss.method == recipes.recipe("ccp", "cub").loss.method
    own = typed(
        "--method nir --method-setting weight=0.02 --loss-setting delta=0.2 --data-dir", photos
    )
    recipe = own.resolve().recipe
    assert (recipe.loss.method.weight, recipe.loss.settings) == (0.02, {"delta": 0.2})
    assert (recipe.network.name, recipe.loss.name) == ("small", "proxy_anchor")


VIT = "--model vit_s16 --weights vit.safetensors"


@pytest.mark.parametrize(
    ("words", "pretraining"),
    [
        ("--model small", "small"),
        ("--model resnet18", "untrained"),
        ("--model resnet50 --weights resnet50.safetensors", "pretrained"),
        (f"{VIT} --freeze patches", "pretrained"),
        (f"{VIT} --freeze backbone", "frozen"),
        (f"{VIT} --lora 8", "frozen"),
    ],
)
def test_recommended_settings_depend_on_pretraining(words, pretraining):
    made, expected = typed(f"{FILES} {words}").recipe, recommended(pretraining=pretraining)
    assert (made.loss, made.optimizer) == (expected.loss, expected.optimizer)
    assert made.batch.steps == expected.batch.steps
    assert made.network.head_init == expected.network.head_init


@pytest.mark.parametrize("words", ["--loss circle", "--method nir"])
def test_named_loss_or_method_replaces_the_recommended_recipe(words):
    options = typed(f"{FILES} {words}")
    assert (options.recommends, options.recipe.optimizer.schedule) == (False, "constant")


@pytest.mark.parametrize(
    ("words", "sizes", "batch", "miner"),
    [
        ("", [150] * 8, "4x16", "easy_positive"),
        ("--classes-per-batch 8 --samples-per-class 4", [150] * 8, "8x4", "easy_positive"),
        ("--loss triplet", [150] * 8, "8x8", "none"),
        ("--loss triplet --classes-per-batch 64 --samples-per-class 4", [6] * 3, "3x4", "none"),
        ("--loss triplet --classes-per-batch 2 --samples-per-class 40", [6] * 3, "2x6", "none"),
    ],
)
def test_default_batch_and_miner_depend_on_class_sizes(words, sizes, batch, miner):
    options = typed(f"{FILES} --model small {words}")
    made, notes = fit_to_data(options, np.repeat(np.arange(len(sizes)), sizes))
    assert (str(made.batch), made.loss.miner) == (batch, miner)
    was = options.recipe.batch
    assert any(f" not {was}:" in note for note in notes) == (sizes[0] == 6)


def test_small_classes_leave_batch_slots_empty():
    labels = np.repeat(np.arange(8), [9, 10, 9, 10, 9, 3, 3, 3])
    words = f"{FILES} --loss triplet --classes-per-batch 4 --samples-per-class"
    made, notes = fit_to_data(typed(f"{words} 8"), labels)
    assert (str(made.batch), made.batch.on_small_class) == ("4x8", "pad")
    assert any(note.startswith("3 of 8 classes") for note in notes)
    assert len(next(made.batch.build(labels))) == 32
    made, _ = fit_to_data(typed(f"{words} 3"), labels)
    assert (str(made.batch), made.batch.on_small_class) == ("4x3", "refuse")


# Data


def test_label_noise_is_in_training_only(photos):
    settled = typed("--image-size 16 --label-noise 0.5 --data-dir", photos).resolve()
    parts = read_training_data(settled.data, settled.run.seed)
    assert (parts.train.labels != parts.train.views["class"]).sum() == 9
    queries = parts.tests["test"][0]
    np.testing.assert_array_equal(queries.labels, queries.views["class"])


# Objectives and steps


def test_field_activity_is_logged_where_its_pairs_are_few():
    def logged(each):
        words = f"--loss potential_field --dim 4 --proxies-per-class {each}"
        objective = typed(words).recipe.loss.build(10, 4)
        shapes = jax.eval_shape(objective.init, jax.random.key(0)), np.zeros((6, 4), np.float32)
        return set(jax.eval_shape(objective.loss, *shapes, np.arange(6))[1])

    assert logged(2) == {"loss", "attracting", "repelling", "force"}
    assert logged(MONITORED) == {"loss"}


def test_sweep_over_flags_and_tuples(tmp_path):
    """Settings that are typed with it apply unless they are swept."""

    def runs(*values):
        words = f"--out {tmp_path} --loss recall_at_k --loss-setting temperature=3 --model vit_s16"
        swept = COMMANDS["sweep"].read([*words.split(), "--set", *values]).runs()
        return {name: run.recipe for name, run in swept.items()}

    recipes = runs("remat=True,False", "--set", "loss-setting=k=(1, 2),k=(1, 4)")
    assert {name: (r.network.remat, r.loss.settings) for name, r in recipes.items()} == {
        f"{flag}_k=_1_{k}_-0": (flag, {"temperature": 3.0, "k": (1, k)})
        for flag in (True, False)
        for k in (2, 4)
    }
    (swept,) = runs("loss-setting=temperature=4").values()
    assert swept.loss.settings == {"temperature": 4.0}
    with pytest.raises(ValueError, match=r"^--set\b.*--remat 1\b"):
        runs("remat=1")


@pytest.mark.parametrize(("jobs", "quiet"), [(1, False), (2, True)])
def test_sweep_shows_the_steps_of_one_run_at_a_time(jobs, quiet):
    words = ["--out", "runs", "--seed=3", "--set", "lr=1e-3", "--jobs", str(jobs)]
    (run,) = COMMANDS["sweep"].read(words).runs().values()
    assert run.run.quiet is quiet
    assert run.words[-2:] == ("--seed=3", "--out=runs/1e-3-3")
    assert not {"--out", "--seed"} & {*run.words}


def test_log_lines_and_progress_bars_are_on_lines_of_their_own(capsys):
    with progress_bar(True, total=2) as outer, progress_bar(True, total=9) as bar:
        bar.update()
        outer.update()
        logging.getLogger("jdml").warning("skipped: one")
    assert "skipped: one" in re.split(r"[\r\n]|\x1b\[A", capsys.readouterr().err)
