"""`jdml train` on image files: augmentations, pretrained weights, In-shop's gallery, damaged files."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

import jdml.cli
from jdml import losses, models, objectives, registry
from jdml.cli.options.train import TrainOptions
from jdml.cli.search import Search
from jdml.cli.training_run import fitted
from jdml.data import ImageFiles
from jdml.models import weights
from jdml.models.tensors import write_tensors
from jdml.recipes import Recipe, recommended
from jdml.recipes.sampler import make_sampler
from jdml.training import create_state, load
from jdml.training.embedded import Embedded

pytest.importorskip("PIL.Image")
pytest.importorskip("grain")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("augmentation", ["mlrc", "conventional", "none"])
def test_a_folder_of_classes(train_images, animals, tmp_path, augmentation):
    code, out, err = train_images(
        "--data", "folder", "--data-dir", animals, "--augmentation", augmentation,
        "--batch", "2x3", "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, err
    assert err == ""
    assert "test class" in out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0 <= metrics["test class"]["MAP@R"] <= 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["augmentation"] == augmentation
    assert "workers" not in config


def test_photographs_are_trained_as_recommended(train_images, animals, tmp_path):
    """Where neither a loss nor a method is named; whatever is typed is kept."""
    code, out, err = train_images(
        "--data-dir", animals, "--model", "small", "--out", tmp_path / "run"
    )
    assert (code, err) == (0, "")
    assert "note: no --loss and no --method is named: the recommended recipe" in out
    told = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    labels = np.repeat(np.arange(2), 8)
    expected = recommended(labels, begins="small", steps=3)
    assert Recipe.from_json(told) == dataclasses.replace(expected, network="small", dim=4)
    assert expected.batch == (2, 8)
    typed = ("--batch", "2x3", "--miner", "easy_positive", "--lr", "0.5", "--schedule", "constant")
    code, out, err = train_images("--data-dir", animals, "--out", tmp_path / "typed", *typed)
    assert (code, err) == (0, "")
    told = json.loads((tmp_path / "typed" / "config.json").read_text())["recipe"]
    names = ("loss", "batch", "miner", "rate", "schedule")
    assert [told[name] for name in names] == ["circle", [2, 3], "easy_positive", 0.5, "constant"]
    code, out, err = train_images(
        "--data-dir", animals, "--out", tmp_path / "own", "--loss", "n_pair"
    )
    told = json.loads((tmp_path / "own" / "config.json").read_text())["recipe"]
    assert [told[name] for name in names] == ["n_pair", [2, 8], "none", 1e-3, "constant"]
    assert "recommended" not in out


def test_a_run_of_the_recommended_recipe_is_not_made_longer(capsys, animals, tmp_path):
    """Its schedule ends at its steps, and its warm-up is a share of them: that is what is told."""
    options = (
        f"--model eps --dim 4 --quiet --image-size 16 --data-dir {animals} --out {tmp_path}/run"
    )
    for steps, code in (19, 0), (40, 2):
        assert jdml.cli.main(["train", *options.split(), "--steps", str(steps)]) == code
    assert "a learning rate's schedule ends at its steps" in capsys.readouterr().err


FILES = Path("photos")
KNOWN = {
    "small": {"model": "small"},
    "untrained": {"model": "resnet18"},
    "pretrained": {"weights": Path("resnet50.safetensors"), "model": "resnet50"},
    "frozen": {"weights": Path("vit.safetensors"), "model": "vit_s16", "lora": 8},
}


@pytest.mark.parametrize("network", KNOWN)
def test_what_is_recommended_goes_by_what_the_network_knows(network):
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


@pytest.mark.parametrize(
    "typed", [{"loss": "circle"}, {"method": "nir"}, {"data": "digits", "data_dir": None}]
)
def test_nothing_is_recommended_where_it_is_said_how_or_of_no_photographs(typed):
    options = TrainOptions(**{"data": "folder", "data_dir": FILES, **typed})
    assert not options.recommends
    assert options.recipe().schedule == "constant"
    network_of_one_s_own = TrainOptions(data="folder", data_dir=FILES, model="nets:make")
    assert network_of_one_s_own.recipe().rate == 1e-3


@pytest.mark.parametrize(
    ("typed", "batch", "miner"),
    [
        ({}, (4, 16), "easy_positive"),
        ({"miner": "none"}, (4, 16), "none"),
        ({"batch": "8x4"}, (8, 4), "easy_positive"),
        ({"loss": "triplet"}, (8, 8), "none"),
    ],
)
def test_large_classes_are_trained_by_their_nearest_positives(typed, batch, miner):
    options = TrainOptions(data="folder", data_dir=FILES, model="small", **typed)
    made, _ = fitted(options.recipe(), options, np.repeat(np.arange(8), 150))
    assert (made.batch, made.miner) == (batch, miner)


def test_classes_smaller_than_a_batch_s_places_leave_some_empty():
    labels = np.repeat(np.arange(8), [9, 10, 9, 10, 9, 3, 3, 3])
    few = "3 of 8 classes have fewer than 8 images: their places in a batch stay empty"
    for loss in ("triplet", None):
        options = TrainOptions(data="folder", data_dir=FILES, model="small", loss=loss, batch="4x8")
        made, notes = fitted(options.recipe(), options, labels)
        assert (made.batch, made.small_classes) == ((4, 8), "pad")
        assert few in notes
        batches = make_sampler(made, labels)
        assert len(next(batches)) == 32
    options = dataclasses.replace(options, loss="triplet", batch="99x99")
    made, notes = fitted(options.recipe(), options, labels)
    assert made.batch == (8, 10)
    assert notes[-1].startswith("--batch is 8x10, not 99x99: 56 images of 8 classes train")
    options = dataclasses.replace(options, batch="4x3")
    made, notes = fitted(options.recipe(), options, labels)
    assert (made.batch, made.small_classes, notes) == ((4, 3), "refuse", ())


def test_pools_of_proxies_are_augmented_as_batches_are(train_images, animals, monkeypatch):
    drawn = []
    augmented = ImageFiles.augmented
    monkeypatch.setattr(
        ImageFiles, "augmented", lambda *a, **k: drawn.append(1) or augmented(*a, **k)
    )
    words = ("--data-dir", animals, "--loss", "contrastive", "--method", "ccp", "--validation", 0.5)
    kept = ("--model", "small", "--freeze", "backbone", "--kept-views")
    for more, expected in (
        (("--augmentation", "none"), False),
        ((*kept, 1), False),
        ((*kept, 2), True),
        (("--augmentation", "conventional"), True),
    ):
        drawn.clear()
        code, _, err = train_images(*words, *more)
        assert code == 0, err
        assert bool(drawn) == expected


def test_a_head_that_cannot_begin_as_recommended_begins_at_random(
    train_images, animals, tmp_path, monkeypatch
):
    """A width that is more than the features; typed, it is refused before any work, and both are named."""
    monkeypatch.setattr(models, "create", lambda name, dim: models.SmallConvNet(dim))
    monkeypatch.setattr(models, "load_weights", lambda path, variables: variables)
    file = tmp_path / "resnet18.safetensors"
    file.write_bytes(b"weights")
    wide = ("--model", "resnet18", "--weights", file, "--dim", 65, "--steps", 0)
    code, out, err = train_images("--data-dir", animals, *wide)
    assert code == 0, err
    assert "note: the head begins at random: " in out
    code, out, err = train_images("--data-dir", animals, *wide, "--head", "principal")
    assert code == 2
    assert "--head principal, --dim 65: " in err
    assert "no more dimensions than features, got 65 of 64" in err


def test_pretrained_weights(train_images, animals, tmp_path, monkeypatch):
    seen = []

    def load_weights(path, variables):
        seen.append(path.read_bytes())
        return jax.tree.map(lambda leaf: 2 * leaf, variables)

    monkeypatch.setattr(models, "create", lambda name, dim: models.SmallConvNet(dim, (8,)))
    monkeypatch.setattr(models, "load_weights", load_weights)
    file = tmp_path / "resnet18.safetensors"
    file.write_bytes(b"weights")
    data = ("--data", "folder", "--data-dir", animals, "--model", "resnet18", "--batch", "2x3")
    began = [
        json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0])["loss"]
        for name, more in (("random", ()), ("pretrained", ("--weights", file)))
        if train_images(*data, *more, "--out", tmp_path / name)[0] == 0
    ]
    assert seen == [b"weights"]
    assert began[0] != began[1]
    file.write_bytes(b"others")
    code, _, err = train_images(*data, "--weights", file, "--out", tmp_path / "pretrained")
    assert code == 2
    assert "weights" in err


@pytest.mark.parametrize("network", ["vit_s16", "siglip_b16"])
def test_what_a_file_of_weights_says_its_network_is(
    train_images, jdml_main, animals, tmp_path, monkeypatch, network
):
    """Another grid, another activation and bicubic: it is made so, and read again so, by name and all others."""
    tiny = {"width": 8, "depth": 1, "heads": 2, "hidden": 16, "patch": 8, "grid": 2}
    record = registry.NETWORKS[network]
    small = dataclasses.replace(record, settings={**record.settings, **tiny})
    monkeypatch.setitem(registry.NETWORKS, network, small)
    activation = "quick_gelu" if network == "vit_s16" else "gelu"
    said = {"resampling": "transformers", "activation": activation, "grid": 3}
    net = models.create(network, dim=4, **said)
    variables = net.init(jax.random.key(0), np.zeros((1, 24, 24, 3), np.float32))
    arrays = {
        name: np.asarray(leaf)
        for name, leaf in flatten_dict(variables, sep="/").items()
        if not name.startswith("params/head")
    }
    file, run = tmp_path / "w.safetensors", tmp_path / "run"
    told = {weights.ARCHITECTURE: network, weights.SETTINGS: json.dumps(said)}
    write_tensors(file, arrays, told)
    data = ("--data", "folder", "--data-dir", animals, "--batch", "2x3")
    words = (*data, "--model", network, "--weights", file, "--out", run)
    code, _, err = train_images(*words)
    assert (code, err) == (0, "")
    assert load(run).model == net
    assert jdml_main("embed", run, animals, "--out", tmp_path / "e.npz")[0] == 0
    (run / "metrics.json").unlink()
    config = json.loads((run / "config.json").read_text())
    named = config["embedding"]
    for key in ("network", "dim", "settings"):
        del named[key]
    named["class"] = "jdml.models.vit.VisionTransformer"  # as runs of before have it
    (run / "config.json").write_text(json.dumps(config))
    assert train_images(*words)[0] == 0


def test_weights_of_another_network(train_images, animals, tmp_path):
    """What they say is of their own network: it is not what is refused."""
    file = tmp_path / "w.safetensors"
    told = {weights.ARCHITECTURE: "vit_s16", weights.SETTINGS: '{"grid": 24}'}
    write_tensors(file, {"params/positions": np.zeros((1, 577, 384), np.float32)}, told)
    data = ("--data", "folder", "--data-dir", animals, "--batch", "2x3")
    code, _, err = train_images(*data, "--model", "resnet18", "--weights", file)
    assert code == 2
    assert "holds weights of 'vit_s16', which do not fit the variables" in err


def test_weights_of_a_later_version(tmp_path):
    file = tmp_path / "w.safetensors"
    write_tensors(file, {}, {weights.ARCHITECTURE: "vit_s16", weights.SETTINGS: '{"rope": 3}'})
    with pytest.raises(ValueError, match=r"w.safetensors says rope=3 of its network, and vit_s16"):
        weights.settings_of(file, "vit_s16")
    assert weights.settings_of(file, "vit_b16") == {}


def test_a_network_of_one_s_own_that_is_not_as_its_weights_say_is_told(tmp_path, caplog):
    net = models.VisionTransformer(4, width=8, depth=1, heads=2, patch=8, grid=2)
    images = np.zeros((1, 16, 16, 3), np.float32)
    arrays = flatten_dict(net.init(jax.random.key(0), images), sep="/")
    arrays = {k: np.asarray(v) for k, v in arrays.items() if not k.startswith("params/head")}
    file = tmp_path / "w.safetensors"
    said = '{"resampling": "transformers", "grid": 2}'
    write_tensors(file, arrays, {weights.ARCHITECTURE: "vit_s16", weights.SETTINGS: said})
    objective = objectives.pair(losses.triplet_loss)
    given = {"pretrained": functools.partial(models.load_weights, file), "seed": 0}
    for network, lines in ((net, 1), (net.clone(resampling="transformers"), 0)):
        caplog.clear()
        create_state(network, objective, optax.sgd(0.1), images, **given)
        assert [record.message[:78] for record in caplog.records] == lines * [
            "pretrained weights are of a network with resampling='transformers', the model "
        ]


def test_weights_that_do_not_fit(train_images, animals, tmp_path):
    data = ("--data", "folder", "--data-dir", animals)
    assert (
        "vit_l16 or vit_s16, got --model eps"
        in train_images(*data, "--weights", "r.safetensors")[2]
    )
    code, _, err = train_images(*data, "--model", "resnet50", "--weights", tmp_path / "nowhere")
    assert code == 2
    assert f"--weights must be a file, got {tmp_path / 'nowhere'}" in err


def test_where_classes_share_a_vector_it_is_told_that_nothing_is_near_enough(capsys):
    search = Search(Path("run"), ("query.png",), max_distance="auto")
    same = Embedded(np.ones((4, 2), np.float32), np.array(list("aabb")))
    assert search._limit(same) == -1.0
    assert "nothing is near enough" in capsys.readouterr().out


def test_inshop_is_searched_in_its_gallery(train_images, tmp_path, draw):
    rows = [
        (f"img/{item}/{i}.jpg", f"id_{item:08}", status)
        for item, statuses in enumerate((("train",) * 4, ("train",) * 4, ("query", "gallery") * 2))
        for i, status in enumerate(statuses)
    ]
    lines = [" ".join(row) for row in rows]
    text = "\n".join([str(len(rows)), "image_name item_id evaluation_status", *lines])
    (tmp_path / "list_eval_partition.txt").write_text(text)
    for seed, (path, _, _) in enumerate(rows):
        draw(tmp_path / path, seed)
    code, out, err = train_images("--data", "inshop", "--data-dir", tmp_path, "--batch", 4)
    assert code == 0, err
    assert "R@30" in out
    assert "test item" in out


def test_damaged_images(train_images, animals, tmp_path):
    (animals / "ant" / "3.jpg").write_bytes(b"no image")
    options = ("--data", "folder", "--data-dir", animals, "--batch", 16, "--out", tmp_path / "run")
    code, _, err = train_images(*options)
    assert (code, err.count("\n")) == (2, 1)
    assert "3.jpg: expected a whole image" in err
    code, _, err = train_images(*options[:-1], tmp_path / "other", "--on-bad-image", "skip")
    assert code == 0, err
    last = (tmp_path / "other" / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["bad_images"] == 1


def test_a_stopped_run_goes_on_with_skip_wherever_its_images_lie(train_images, animals, tmp_path):
    (animals / "dog" / "3.jpg").write_bytes(b"no image")  # scored, not trained on
    options = ("--data", "folder", "--batch", 8, "--out", tmp_path / "run")
    code, _, err = train_images(*options, "--data-dir", animals)
    assert (code, err.count("\n")) == (2, 1)
    moved = animals.rename(tmp_path / "moved")
    code, _, err = train_images(*options, "--data-dir", moved, "--on-bad-image", "skip")
    assert code == 0, err
    (moved / "ant" / "0.jpg").rename(moved / "ant" / "zero.jpg")
    code, _, err = train_images(*options, "--data-dir", moved, "--on-bad-image", "skip")
    assert code == 2
    assert "data_checksum" in err


def test_weights_and_a_damaged_first_image(train_images, animals, tmp_path, monkeypatch):
    (animals / "ant" / "0.jpg").write_bytes(b"no image")
    (tmp_path / "r.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(models, "create", lambda name, dim: models.SmallConvNet(dim, (8,)))
    monkeypatch.setattr(models, "load_weights", lambda path, variables: variables)
    code, _, err = train_images(
        "--data", "folder", "--data-dir", animals, "--batch", 4, "--model", "resnet18",
        "--weights", tmp_path / "r.safetensors", "--on-bad-image", "skip",
    )  # fmt: skip
    assert code == 0, err


def test_a_data_set_without_test_images_is_refused_at_once(train_images, shared_data, tmp_path):
    data = ("--data", "cub", "--data-dir", shared_data / "cub_fullres", "--batch", 4)
    code, _, err = train_images(*data, "--out", tmp_path / "run")
    assert code == 2
    assert "cub: the split 'test' has no images in" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", 2], "--workers is for image files; digits lies in memory"),
        (["--augmentation", "mlrc"], "--augmentation is for image files"),
        (["--on-bad-image", "skip"], "--on-bad-image is for image files"),
        (["--data", "cub", "--train-classes", 1], "--train-classes is for digits, mnist and omni"),
        (["--data", "inshop"], "--data-dir must be the folder of the inshop files"),
        (["--data", "cub", "--data-dir", "/no/such"], "cub needs images.txt"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    code = jdml.cli.main(["train", *map(str, arguments)])
    shown = capsys.readouterr()
    assert code == 2
    assert message in shown.err
    assert shown.err.count("\n") == 1
