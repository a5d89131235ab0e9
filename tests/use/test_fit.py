"""`fit` at its door: what it takes, what it refuses; a folder's results are its own run's; `load` of its runs."""

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

pytestmark = pytest.mark.slow

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
    ("arguments", "error", "match"),
    [
        ({}, ValueError, r"Mlp, is not one of jdml.models: load\(run, model=…\)"),
        ({"which": "newest"}, ValueError, 'which must be "best" or "last", got \'newest\''),
        (
            {"model": Mlp(7)},
            ValueError,
            r"model is not the run.s: params/Dense_0/kernel is \[5, 3\] in .* and \[7, 3\] in the m",
        ),
    ],
)
def test_what_cannot_be_loaded(run, arguments, error, match):
    with pytest.raises(error, match=match):
        training.load(run.folder, **arguments)


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        training.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is not the folder of a run: it has no config.json"):
        training.load(tmp_path)
    for fold in ("fold0", "fold1"):
        (tmp_path / fold).mkdir()
        (tmp_path / fold / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds 2 runs: load one of fold0, fold1"):
        training.load(tmp_path)
    with pytest.raises(ValueError, match="has no parameters yet"):
        training.load(tmp_path / "fold0")


def test_what_cannot_be_embedded(run):
    trained = training.load(run.folder, model=Mlp())
    with pytest.raises(ValueError, match=r"images must have shape \[N, 6\], got \[2, 5\]"):
        trained.embed(np.zeros((2, 5), np.float32))
    with pytest.raises(TypeError, match="source must be paths, a jdml.data.Dataset or an array"):
        trained.embed(3)
    with pytest.raises(ValueError, match=r"trained on inputs of shape \[6\], not on images"):
        trained.embed(__file__)


def test_a_folder_that_says_nothing_of_its_embeddings_is_refused(tmp_path):
    from jdml.training.checkpoint import RunFolder

    model = jdml.models.create("small", dim=2)
    state = training.create_state(
        model, PARTS["objective"], PARTS["optimizer"], np.zeros((1, 8, 8, 1), np.uint8), seed=0
    )
    folder = RunFolder(tmp_path, {"fit": {"seed": 0}})
    folder.save(5, {"state": state, "best": ()}, {"best": [-1.0, 0, 0]})
    folder.close()
    with pytest.raises(ValueError, match="does not say what its images and network were"):
        training.load(tmp_path)


# What is taken


def test_an_nnx_module(tmp_path):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.norm = nnx.Linear(6, 5, rngs=rngs), nnx.BatchNorm(5, rngs=rngs)
            self.drop, self.last = nnx.Dropout(0.1, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

        def __call__(self, x):
            return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))

    net = Net(nnx.Rngs(0))
    before = np.array(net.last.kernel[...])
    result = fit(tmp_path, model=net, evaluate=spread)
    np.testing.assert_array_equal(net.last.kernel[...], before)
    assert not np.allclose(result.best_params["model"]["last"]["kernel"], before)
    assert np.abs(result.state.batch_stats["norm"]["mean"]).max() > 0
    trained = training.load(tmp_path, model=Net(nnx.Rngs(1)))
    np.testing.assert_array_equal(trained.embed(FEATURES), result.embedder(FEATURES))


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


class Equinox:
    """Stands for a module of Equinox, which is not installed."""

    def __call__(self, x):
        return x


Equinox.__module__ = "equinox.nn"


def generator():
    while True:
        yield np.arange(8)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model": Equinox()}, TypeError, "got an Equinox module .*: wrap it in an object with init"),
        ({"model": Mlp}, TypeError, "model must be a module, got the class Mlp: call it first"),
        ({"model": spread}, TypeError, "got the function spread: wrap it in an object with init"),
        (
            {"objective": jdml.triplet_loss},
            TypeError,
            r"got the function triplet_loss: write jdml.objectives.pair\(triplet_loss\)",
        ),
        (
            {"objective": jdml.proxy_anchor_loss},
            TypeError,
            r"write jdml.objectives.proxy\(proxy_anchor_loss, num_classes, dim\)",
        ),
        ({"optimizer": 1e-3}, TypeError, r"such as optax.adam\(1e-3\), got float"),
        ({"optimizer": optax.adam}, TypeError, r"such as optax.adam\(1e-3\), got adam"),
        (
            {"train": (FEATURES, LABELS)},
            TypeError,
            r'got a tuple of 2: write jdml.data.Dataset\("name", images, labels\)',
        ),
        ({"train": FEATURES}, TypeError, "train must be a data set with images and labels, got a nd"),
        (
            {"train": SimpleNamespace(images=FEATURES, labels=LABELS[:5])},
            ValueError,
            r"must have the same number of rows, got \[24\] and \[5\]",
        ),
        (
            {"train": SimpleNamespace(images=np.zeros((24, 3, 8, 8), np.uint8), labels=LABELS)},
            ValueError,
            r"got \[24, 3, 8, 8\], which looks like \[N, C, H, W\]: write numpy.moveaxis",
        ),
        ({"seed": 2**32}, ValueError, "seed must be an integer from 0 to 4294967295, got 42"),
        ({"seed": -1}, ValueError, "seed must be an integer .* 4294967295, got -1"),
        ({"seed": 2**64}, ValueError, "seed must be an integer from 0"),
        ({"seed": jax.random.key(0)}, TypeError, "seed must be an integer .*, got a [A-Z]"),
        ({"sampler": 64}, TypeError, r"an iterator of row indices \[B\], got 64: write jdml.data.Rand"),
        ({"sampler": [LABELS]}, TypeError, "an iterator of row indices .*, got a list"),
        (
            {"sampler": generator(), "out_dir": "run"},
            TypeError,
            r"must have get_state\(\) and set_state\(\) .*, got a generator: write jdml.data.Random",
        ),
        (
            {"sampler": data.RandomBatchSampler(30, 8)},
            ValueError,
            "sampler must be over the 24 rows of train, got one over 30",
        ),
        (
            {"objective": objectives.proxy(jdml.proxy_anchor_loss, 3, 3)},
            ValueError,
            r"proxies of 3 classes, train has labels up to 3: write .*num_classes=4, dim=…\)",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_sentence(changes, error, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match) as caught:
        fit(**changes)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def of(library, name, bases=(), **methods):
    """Stands for an object of a library that need not be installed."""
    return type(name, bases, {**methods, "__module__": f"{library}.data"})()


LOADER = {"__iter__": lambda self: iter(())}


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            of("torch.utils", "DataLoader", **LOADER),
            "PyTorch DataLoader, which has drawn its batches",
        ),
        (
            of("torchvision", "ImageFolder"),
            r"PyTorch ImageFolder: write jdml.data.from_torch\(dataset\)",
        ),
        (
            of("datasets", "Dataset"),
            r"Hugging Face Dataset: write jdml.data.from_huggingface\(dataset\)",
        ),
        (
            of("datasets", "DatasetDict", (dict,)),
            r'from_huggingface\(dataset\["train"\], one of its',
        ),
        (of("grain", "MapDataset"), "a MapDataset of Grain: .*from_rows.*before batches are made"),
        (of("tensorflow.python", "_PrefetchDataset"), "of TensorFlow: .*as_numpy_iterator"),
        (of("pandas.core", "DataFrame"), "got a pandas DataFrame: write"),
        ({"image": FEATURES, "label": LABELS}, "got a dictionary of image, label: write"),
        ("photos", r"got the path 'photos': write jdml.data.load\(.folder., data_dir=path\)"),
        ("a.parquet", r"got the path 'a.parquet': write jdml.data.from_parquet\(path\)"),
        (generator(), "got a generator, which gives each batch once"),
    ],
)
def test_data_of_other_libraries_has_its_own_sentence(train, message):
    with pytest.raises(TypeError, match=f"train must be a data set, .*{message}") as caught:
        fit(train=train)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (
            of("torch.utils", "DataLoader", **LOADER),
            "a DataLoader of PyTorch, which yields examples",
        ),
        (
            of("torch.utils", "BatchSampler", **LOADER),
            r"a PyTorch BatchSampler: .*numpy.asarray\(rows\)",
        ),
        (of("grain", "DataLoader", **LOADER), "a DataLoader of Grain, which yields examples"),
        (of("datasets", "IterableDataset"), "an? IterableDataset of Hugging Face, which yields"),
        (iter([(FEATURES, LABELS)]), r"got a tuple of arrays \[24, 6\], \[24\]: images and labels"),
        (iter([FEATURES]), r"row indices \[B\], integers, got float32 \[24, 6\]"),
        (iter([LABELS == 0]), "a mask: write numpy.flatnonzero"),
        (iter([{"image": FEATURES}]), r"got a dict"),
        (iter([np.array([3, 24])]), r"rows 0 … 23 of train, got 3 … 24"),
        (iter([np.array([], int)]), r"rows 0 … 23 of train, got none"),
        (iter([np.arange(8)]), r"but has ended: let it begin again"),
    ],
)
def test_samplers_that_yield_no_rows(sampler, message):
    with pytest.raises((TypeError, ValueError), match=f"sampler must .*{message}") as caught:
        fit(sampler=sampler)
    assert "\n" not in str(caught.value)


def test_the_first_step_says_that_it_compiles(capsys):
    training.fit(*PARTS.values(), data.RandomBatchSampler(24, 8), steps=1)
    assert "compiling" in capsys.readouterr().err


def test_a_generator_trains_without_a_folder():
    assert fit(sampler=generator()).stopped == "steps"


def test_channels_first_is_told_by_data_sets_too():
    with pytest.raises(ValueError, match=r"which looks like \[N, C, H, W\]"):
        data.Dataset("nchw", np.zeros((2, 3, 8, 8), np.uint8), np.zeros(2, int))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: objectives.pair(jdml.triplet_loss, margn=0.3),
            "triplet_loss has no setting 'margn'; did you mean margin",
        ),
        (
            lambda: objectives.proxy(jdml.proxy_anchor_loss, 2, 2, detla=0.3),
            "proxy_anchor_loss has no setting 'detla'; did you mean delta",
        ),
        (
            lambda: objectives.pair(jdml.triplet_loss, mine=jdml.easy_positive),
            r"got the function easy_positive, which makes one: write mine=easy_positive\(\)",
        ),
        (
            lambda: objectives.pair(jdml.triplet_loss, mine="hard"),
            r"mine must be a function \(key, distances, pairs\) -> Pairs, got 'hard'",
        ),
    ],
)
def test_objectives_check_their_settings(make, match):
    with pytest.raises(TypeError, match=match):
        make()


def test_losses_tell_what_they_were_given():
    x, y = jnp.eye(4), np.array([0, 0, 1, 1])
    with pytest.raises(TypeError, match=r"write mine=easy_positive\(\)"):
        jdml.triplet_loss(x, y, mine=jdml.easy_positive)
    with pytest.raises(TypeError, match="labels must be integers, got strings: write numpy.unique"):
        jdml.triplet_loss(x, np.array(["a", "a", "b", "b"]))
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"got Tensor: write embeddings.detach\(\)"):
        jdml.triplet_loss(torch.eye(4), y)


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
    with pytest.raises(
        ValueError, match=f"holds a run of another configuration: .*{part} is anoth"
    ):
        fit(
            run.folder, steps=3, evaluate=spread, evaluate_every=1, monitor="score",
            normalize=jdml.sphere, **changes,
        )  # fmt: skip
    assert (run.folder / "metrics.json").read_text() == before


def test_a_refused_run_leaves_its_folder_to_the_next(tmp_path):
    """What was wrong shows in the first step: nothing is kept but what the run was to be."""
    with pytest.raises(ValueError, match="proxies must have the dimension of embeddings"):
        fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 4, 7))
    right = fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 4, 3))
    assert right.stopped == "steps"
    with pytest.raises(ValueError, match="the objective is another"):
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


def test_fingerprints_tell_settings_apart(monkeypatch):
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
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(scaled) != before
