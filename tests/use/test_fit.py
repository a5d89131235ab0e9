"""What `fit` takes and refuses; a folder's results are its own run's; `load` of its runs."""

import functools
import json
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training
from jdml.training.fingerprint import fingerprint

FEATURES = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
LABELS = np.arange(24) % 4
SET = data.Dataset("features", FEATURES, LABELS, {"class": LABELS}, {"class": tuple("abcd")})


class Mlp(nn.Module):
    """Without `train` among its arguments."""

    width: int = 5

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(self.width)(x)))


PARTS = {
    "model": Mlp(),
    "objective": objectives.pair(jdml.triplet_loss),
    "optimizer": optax.adam(1e-2),
    "train": SET,
}


def fit(out_dir=None, *, steps=2, sampler=None, **changes):
    settings = {name: changes.pop(name) for name in tuple(changes) if name not in PARTS}
    parts = {**PARTS, **changes}
    if sampler is None:
        sampler = data.RandomBatchSampler(24, 8)
    return training.fit(
        parts["model"], parts["objective"], parts["optimizer"], parts["train"], sampler,
        steps=steps, out_dir=out_dir, progress=False, **settings,
    )  # fmt: skip


def spread(embed):
    return {"spread": float(embed(FEATURES).std())}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose best step is not its last."""
    folder = tmp_path_factory.mktemp("fit")
    values = iter([0.1, 0.9, 0.2])
    result = fit(
        folder, steps=3, evaluate=lambda embed: {"score": next(values)}, evaluate_every=1,
        monitor="score", normalize=jdml.sphere,
    )  # fmt: skip
    return SimpleNamespace(folder=folder, result=result)


# load


def test_best_is_what_metrics_scores(run):
    trained = training.load(run.folder, model=Mlp())
    assert (trained.step, trained.metrics) == (2, {"step": 2, "score": 0.9})
    jax.tree.map(np.testing.assert_array_equal, trained.params, run.result.best_params["model"])
    expected = jdml.sphere(jnp.asarray(run.result.embedder(FEATURES)))
    np.testing.assert_array_equal(trained.embed(FEATURES), expected)
    np.testing.assert_array_equal(trained.embed(SET), expected)
    assert trained.class_names == tuple("abcd")


def test_last_is_the_last(run):
    trained = training.load(run.folder, which="last", model=Mlp())
    assert trained.step == 3
    jax.tree.map(np.testing.assert_array_equal, trained.params, run.result.state.params["model"])


def test_a_folder_without_its_model_file_loads_from_its_checkpoint(run, tmp_path):
    import shutil

    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "model.safetensors").unlink()
    best = training.load(folder, model=Mlp())
    assert best.step == 2
    jax.tree.map(np.testing.assert_array_equal, best.params, run.result.best_params["model"])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({}, "model"), ({"which": "newest"}, "which"), ({"model": Mlp(7)}, "Dense_0/kernel")],
)
def test_what_cannot_be_loaded(run, arguments, name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        training.load(run.folder, **arguments)


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        training.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="config.json"):
        training.load(tmp_path)
    for fold in ("fold0", "fold1"):
        (tmp_path / fold).mkdir()
        (tmp_path / fold / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="fold0, fold1"):
        training.load(tmp_path)
    with pytest.raises(ValueError, match=r"\bparameters\b"):
        training.load(tmp_path / "fold0")


def test_what_cannot_be_embedded(run):
    trained = training.load(run.folder, model=Mlp())
    for source, error, name in (
        (np.zeros((2, 5), np.float32), ValueError, "images .* \\[N, 6\\]"),
        (3, TypeError, "source"),
        (__file__, ValueError, "\\[6\\]"),
    ):
        with pytest.raises(error, match=name):
            trained.embed(source)


def test_a_folder_without_a_description_of_its_model_is_refused(tmp_path):
    from jdml.training.checkpoint import RunFolder

    model = jdml.models.create("small", dim=2)
    state = training.create_state(
        model, PARTS["objective"], PARTS["optimizer"], np.zeros((1, 8, 8, 1), np.uint8), seed=0
    )
    folder = RunFolder(tmp_path, {"fit": {"seed": 0}})
    folder.save(5, {"state": state, "best": ()}, {"best": [-1.0, 0, 0]})
    folder.close()
    with pytest.raises(ValueError, match=tmp_path.name):
        training.load(tmp_path)


# What is taken


def test_tokens_and_two_towers(tmp_path):
    class Towers(nn.Module):
        @nn.compact
        def __call__(self, batch, *, train=False):
            words = nn.Embed(9, 4)(batch["text"]).mean(1)
            return nn.Dense(3)(words), nn.Dense(3)(batch["picture"])

    def loss(params, embeddings, labels, *, key=None, where=None, state=None):
        texts, pictures = embeddings
        scores = texts @ pictures.T
        value = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(labels)))
        return value.mean(), {}

    tokens = np.random.default_rng(1).integers(0, 9, (24, 5))
    both = data.Dataset("pairs", {"text": tokens, "picture": FEATURES}, np.arange(24))
    assert len(both.select(np.arange(4))) == 4
    result = fit(
        tmp_path, model=Towers(), train=both, objective=objectives.Objective(lambda key: {}, loss)
    )
    texts, pictures = training.load(tmp_path, model=Towers()).embed(both)
    assert texts.shape == pictures.shape == (24, 3)
    np.testing.assert_array_equal(texts, result.embedder(both.images)[0])


# What is refused


def generator():
    while True:
        yield np.arange(8)


def images(*shape):
    return SimpleNamespace(images=np.zeros(shape, np.uint8), labels=LABELS)


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"model": spread}, TypeError, "model .*function spread"),
        ({"objective": jdml.triplet_loss}, TypeError, r"objective .*pair\(triplet_loss\)"),
        (
            {"objective": jdml.proxy_anchor_loss},
            TypeError,
            r"objective .*proxy\(proxy_anchor_loss,",
        ),
        ({"optimizer": 1e-3}, TypeError, "optimizer .*float"),
        ({"optimizer": optax.adam}, TypeError, "optimizer .*adam"),
        ({"train": (FEATURES, LABELS)}, TypeError, r"train .*jdml.data.Dataset\("),
        ({"train": FEATURES}, TypeError, "train .*ndarray"),
        (
            {"train": SimpleNamespace(images=FEATURES, labels=LABELS[:5])},
            ValueError,
            r"train.*\[24\].*\[5\]",
        ),
        ({"train": images(24, 3, 8, 8)}, ValueError, "numpy.moveaxis"),
        ({"seed": 2**32}, ValueError, "seed .*4294967295"),
        ({"seed": -1}, ValueError, "seed "),
        ({"seed": jax.random.key(0)}, TypeError, "seed "),
        ({"sampler": 64}, TypeError, "sampler .*jdml.data.Random"),
        ({"sampler": [LABELS]}, TypeError, "sampler .*list"),
        ({"sampler": generator(), "out_dir": "run"}, TypeError, "sampler .*get_state"),
        (
            {"objective": objectives.proxy(jdml.proxy_anchor_loss, 3, 3)},
            ValueError,
            "objective.*num_classes=4",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(changes, error, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=names) as caught:
        fit(**changes)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def of(library, name, bases=(), **methods):
    """Stands for an object of a library that need not be installed."""
    return type(name, bases, {**methods, "__module__": f"{library}.data"})()


LOADER = {"__iter__": lambda self: iter(())}


@pytest.mark.parametrize(
    ("train", "names"),
    [
        (of("torch.utils", "DataLoader", **LOADER), "PyTorch DataLoader"),
        (of("torchvision", "ImageFolder"), "jdml.data.from_torch"),
        (of("datasets", "Dataset"), "jdml.data.from_huggingface"),
        (of("datasets", "DatasetDict", (dict,)), r'from_huggingface\(dataset\["train"\]'),
        (of("grain", "MapDataset"), "MapDataset .*from_rows"),
        (of("tensorflow.python", "_PrefetchDataset"), "TensorFlow.*as_numpy_iterator"),
        (of("pandas.core", "DataFrame"), "pandas DataFrame"),
        ({"image": FEATURES, "label": LABELS}, "image, label"),
        ("photos", r"jdml.data.load\(.folder"),
        ("a.parquet", "jdml.data.from_parquet"),
        (generator(), "generator"),
    ],
)
def test_data_of_other_libraries_is_told_what_to_write(train, names):
    with pytest.raises(TypeError, match=f"^train .*{names}") as caught:
        fit(train=train)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sampler", "names"),
    [
        (of("torch.utils", "DataLoader", **LOADER), "DataLoader of PyTorch"),
        (of("torch.utils", "BatchSampler", **LOADER), r"BatchSampler.*numpy.asarray"),
        (of("grain", "DataLoader", **LOADER), "DataLoader of Grain"),
        (of("datasets", "IterableDataset"), "IterableDataset of Hugging Face"),
        (iter([(FEATURES, LABELS)]), r"tuple .*\[24, 6\], \[24\]"),
        (iter([FEATURES]), r"float32 \[24, 6\]"),
        (iter([LABELS == 0]), "mask.*numpy.flatnonzero"),
        (iter([{"image": FEATURES}]), "dict"),
        (iter([np.array([3, 24])]), "23.*24"),
        (iter([np.array([], int)]), "none"),
        (iter([np.arange(8)]), "ended"),
    ],
)
def test_samplers_that_yield_no_rows(sampler, names):
    with pytest.raises((TypeError, ValueError), match=f"^sampler .*{names}") as caught:
        fit(sampler=sampler)
    assert "\n" not in str(caught.value)


def test_the_first_step_says_that_it_compiles(capsys):
    training.fit(*PARTS.values(), data.RandomBatchSampler(24, 8), steps=1)
    assert "compiling" in capsys.readouterr().err


def test_a_generator_trains_without_a_folder():
    assert fit(sampler=generator()).stopped == "steps"


def test_data_sets_refuse_channels_first():
    with pytest.raises(ValueError, match=r"\bimages\b.*N, C, H, W"):
        data.Dataset("nchw", np.zeros((2, 3, 8, 8), np.uint8), np.zeros(2, int))


def test_fit_of_no_steps_returns_the_start():
    result = fit(steps=0, evaluate=lambda embed: {"mean": float(embed(FEATURES).mean())})
    assert (result.stopped, int(result.state.step), len(result.history)) == ("steps", 0, 1)
    assert result.history[0]["mean"] == pytest.approx(result.embedder(FEATURES).mean())


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: objectives.pair(jdml.triplet_loss, margn=0.3), "margn.*margin"),
        (lambda: objectives.proxy(jdml.proxy_anchor_loss, 2, 2, detla=0.3), "detla.*delta"),
        (lambda: objectives.pair(jdml.triplet_loss, mine=jdml.easy_positive), r"easy_positive\(\)"),
        (lambda: objectives.pair(jdml.triplet_loss, mine="hard"), "mine.*'hard'"),
        (
            lambda: jdml.triplet_loss(FEATURES, LABELS, mine=jdml.easy_positive),
            r"easy_positive\(\)",
        ),
        (lambda: jdml.triplet_loss(FEATURES, np.array(list("ab" * 12))), "labels.*numpy.unique"),
    ],
)
def test_objectives_and_losses_check_their_settings(make, names):
    with pytest.raises(TypeError, match=names):
        make()


def test_losses_refuse_tensors():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"embeddings.detach\(\)"):
        jdml.triplet_loss(torch.eye(4), np.array([0, 0, 1, 1]))


# No stale results


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"objective": objectives.pair(jdml.triplet_loss, margin=0.3)}, "objective"),
        ({"objective": objectives.pair(jdml.contrastive_loss)}, "objective"),
        ({"optimizer": optax.adam(2e-2)}, "optimizer"),
        ({"model": Mlp(6)}, "model"),
        ({"preprocess": jnp.sin}, "model"),
        ({"train": data.Dataset("other", FEATURES + 1, LABELS)}, "data"),
        ({"pretrained": dict}, "start"),
    ],
)
def test_another_run_is_never_this_one(run, changes, part):
    before = (run.folder / "metrics.json").read_text()
    with pytest.raises(ValueError, match=rf"\b{part} is another\b"):
        fit(
            run.folder, steps=3, evaluate=spread, evaluate_every=1, monitor="score",
            normalize=jdml.sphere, **changes,
        )  # fmt: skip
    assert (run.folder / "metrics.json").read_text() == before


def test_a_refused_run_leaves_its_folder_to_the_next(tmp_path):
    """What is wrong shows in the first step: the folder holds nothing but the configuration."""
    with pytest.raises(ValueError, match=r"^proxies\b"):
        fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 4, 7))
    right = fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 4, 3))
    assert right.stopped == "steps"
    with pytest.raises(ValueError, match=r"\bobjective is another\b"):
        fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 5, 3))


def test_the_same_run_is_its_result_again(run):
    again = fit(
        run.folder, steps=3, evaluate=spread, evaluate_every=1, monitor="score",
        normalize=jdml.sphere, objective=objectives.pair(jdml.triplet_loss), optimizer=optax.adam(1e-2),
    )  # fmt: skip
    assert again.history == run.result.history
    assert json.loads((run.folder / "metrics.json").read_text()) == {"step": 2, "score": 0.9}


SCALE = 2.0


def scaled(x):
    return SCALE * x


def test_fingerprints_differ_by_settings(monkeypatch):
    def lossy(margin):
        return lambda x: jnp.maximum(x - margin, 0)

    assert fingerprint(lossy(0.1)) == fingerprint(lossy(0.1)) != fingerprint(lossy(0.2))
    partial = functools.partial(jdml.triplet_loss, margin=0.1)
    assert fingerprint(partial) != fingerprint(functools.partial(jdml.triplet_loss, margin=0.2))
    assert fingerprint(optax.adam(1e-3)) == fingerprint(optax.adam(1e-3))
    schedules = [optax.adam(optax.cosine_decay_schedule(1e-3, n)) for n in (10, 20)]
    assert fingerprint(schedules[0]) != fingerprint(schedules[1])
    assert fingerprint(jdml.mining.easy_positive()) != fingerprint(jdml.mining.hard_positive())
    assert fingerprint(jax.random.key(0)) != fingerprint(jax.random.key(1))
    before = fingerprint(scaled)
    monkeypatch.setitem(globals(), "SCALE", 3.0)  # of this file
    assert fingerprint(scaled) != before
