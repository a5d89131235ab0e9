"""The options of `jdml train` and `jdml benchmark`: what they stand for, mostly without training."""

import json

import jax
import numpy as np
import pytest

import jdml
from jdml import models, training
from jdml.cli.job import Job, learning_rate
from jdml.cli.names import MONITORED
from jdml.cli.reading import read_parts
from jdml.cli.resolve import resolve
from jdml.cli.train import Train
from jdml.models import SmallConvNet
from jdml.models.tensors import write_tensors

pytestmark = pytest.mark.slow


def classes(part) -> list[str]:
    """The names of the classes that occur."""
    return sorted(set(np.array(part.class_names["class"])[part.labels].tolist()))


def parts_of(**options):
    return read_parts(resolve(Train(image_size=16, **options)))


def test_defaults_by_kind_of_data(photos, tmp_path):
    resolved = resolve(Train())
    assert (resolved.data, resolved.model, resolved.loss) == ("digits", "eps", "triplet")
    assert resolved.proxies_per_class is None
    resolved = resolve(Train(data_dir=photos, loss="arcface"))
    assert (resolved.data, resolved.model, resolved.image_size) == ("folder", "small", 224)
    assert (resolved.proxies_per_class, resolved.proxies_lr_factor) == (1, 100.0)
    assert resolve(Train(data_dir=photos, augmentation="mlrc")).image_size == 227
    weights = tmp_path / "w.safetensors"
    write_tensors(weights, {"params/x": np.zeros(1)}, {"architecture": "vit_s16"})
    assert resolve(Train(data_dir=photos, weights=weights)).model == "vit_s16"
    config = Train(data_dir=photos, out=tmp_path, method="nir").config()
    assert {"data": "folder", "model": "small", "loss": "proxy_anchor"}.items() <= config.items()
    json.dumps(config)


def test_splits(photos, tmp_path):
    parts = parts_of(data_dir=photos)
    assert classes(parts.train) == ["kind0", "kind1", "kind2"]
    drawn = [parts_of(data_dir=photos, split="classes", seed=seed) for seed in (0, 1)]
    assert classes(drawn[0].train) != classes(drawn[1].train)
    assert not set(classes(drawn[0].train)) & set(classes(drawn[0].tests["test"][0]))
    by_image = parts_of(data_dir=photos, split="images")
    assert classes(by_image.train) == classes(by_image.tests["test"][0])
    assert (len(by_image.train), len(by_image.tests["test"][0])) == (30, 6)
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
    job = Job(resolve(options))
    params = {"model": {}, **job.objective.init(jax.random.key(0))}
    np.testing.assert_allclose(params["beta"], np.full(shape, 1.1), rtol=1e-6)
    state = job.optimizer.init(params)
    updates, _ = job.optimizer.update({"model": {}, "beta": np.ones(shape)}, state, params)
    np.testing.assert_allclose(updates["beta"], np.full(shape, -5e-3), rtol=1e-4)


def test_a_field_may_do_without_proxies():
    job = Job(resolve(Train(labels="parity", loss="potential_field", proxies_per_class=0)))
    assert job.objective.init(jax.random.key(0)) == {}
    x, y = jax.random.normal(jax.random.key(1), (6, 64)), np.arange(6) % 2
    loss, _ = job.objective.loss({}, x, y, key=jax.random.key(2))
    assert loss == jdml.potential_field_loss(x, y, alpha=1.0)


def test_fields_are_as_the_study_found_and_the_paper_s_is_an_option_away():
    field = {"labels": "parity", "loss": "potential_field"}
    found = resolve(Train(**field))
    assert (found.loss_setting, found.proxies_start) == (("alpha=1.0",), "samples")
    assert found.proxies_per_class == 3
    assert resolve(Train(**field, proxies_per_class=1)).proxies_per_class == 1
    assert Job(found).start().keywords == {"seed": 0}
    paper = resolve(Train(**field, loss_setting=("alpha=4", "delta=0.3"), proxies_start="random"))
    assert (paper.loss_setting, paper.proxies_start) == (("alpha=4", "delta=0.3"), "random")
    assert Job(paper).start() is None
    other = resolve(Train(labels="parity", loss="proxy_anchor"))
    assert (other.loss_setting, other.proxies_start) == ((), None)
    for options, message in (
        ({"loss": "triplet", "proxies_start": "random"}, "--proxies-start is for proxy losses"),
        ({**field, "proxies_per_class": 0, "proxies_start": "samples"}, "needs proxies that are"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve(Train(**options))


def test_schedules():
    def rates(**options):
        rate = learning_rate(Train(steps=4, **options), 1.0)
        return [round(float(rate(step)), 4) for step in range(5)]

    assert learning_rate(Train(), 0.5) == 0.5
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
    job = Job(resolve(options))
    parts = (job.model, job.objective, job.optimizer)
    images = job.train.images[:8]
    state = training.create_state(*parts, images, seed=0)
    assert set(state.params) == {"model", "proxies", "flow"}
    step = training.make_train_step(*parts, preprocess=job.preprocess)
    after, metrics = step.eval_shape(state, images, job.train.labels[:8])
    assert "nir_loss" in metrics
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_what_goes_on_in_a_field_is_logged_where_its_pairs_are_few():
    def logged(each):
        options = Train(loss="potential_field", dim=4, proxies_per_class=each)
        objective = Job(resolve(options)).objective
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
    assert config["alternation"]["patience"] == 1
    assert (config["normalize"], config["embedding"]["normalize"]) == ("ball", "ball")
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
    found = json.loads((tmp_path / "metrics.json").read_text())
    mean = np.mean([rows["ours"]["R@1"] for rows in found["seeds"]])
    assert found["ours"]["R@1"] == pytest.approx(mean)
    steps = [training.load(tmp_path / f"seed{seed}").step for seed in (0, 1)]
    assert steps == [1, 1]
