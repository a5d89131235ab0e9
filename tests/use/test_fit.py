"""`fit`: accepted and refused arguments, results that belong to their run, and `load`."""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training

FEATURES = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
LABELS = np.arange(24) % 4
SET = data.Dataset("features", FEATURES, LABELS, {"class": LABELS}, {"class": tuple("abcd")})


class Mlp(nn.Module):
    """A network without the argument `train`."""

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


def fit(run=None, *, steps=2, sampler=None, **changes):
    settings = {name: changes.pop(name) for name in tuple(changes) if name not in PARTS}
    parts = {**PARTS, **changes}
    if sampler is None:
        sampler = data.RandomBatchSampler(24, 8)
    return training.fit(
        parts["model"], parts["objective"], parts["optimizer"], parts["train"], sampler,
        steps=steps, run=run, progress=False, **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run whose best step is not its last."""
    folder = tmp_path_factory.mktemp("fit")
    values = iter([0.1, 0.9, 0.2])
    result = fit(
        training.RunConfig(folder, normalize=jdml.sphere),
        steps=3,
        evaluation=training.Evaluation(lambda embed: {"score": next(values)}, 1, monitor="score"),
    )
    return SimpleNamespace(folder=folder, result=result)


# load


def test_load_returns_the_step_that_metrics_json_scores(run):
    trained = training.load(run.folder, model=Mlp())
    assert (trained.step, trained.metrics) == (2, {"step": 2, "score": 0.9})
    jax.tree.map(np.testing.assert_array_equal, trained.params, run.result.best_params["model"])
    expected = jdml.sphere(jnp.asarray(run.result.embedder(FEATURES)))
    np.testing.assert_array_equal(trained.embed(FEATURES), expected)
    np.testing.assert_array_equal(trained.embed(SET), expected)
    assert trained.class_names == tuple("abcd")
    trained = training.load(run.folder, which="last", model=Mlp())
    assert (trained.step, trained.metrics) == (3, {"score": run.result.history[-1]["score"]})
    jax.tree.map(np.testing.assert_array_equal, trained.params, run.result.state.params["model"])


def test_load_and_embed_refuse_wrong_arguments(run, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    trained = training.load(run.folder, model=Mlp())
    for call, error, name in (
        (lambda: training.load(run.folder), ValueError, "model"),
        (lambda: training.load(run.folder, which="newest"), ValueError, "which"),
        (lambda: training.load(run.folder, model=Mlp(7)), ValueError, "Dense_0/kernel"),
        (lambda: training.load(tmp_path / "nowhere"), FileNotFoundError, "nowhere"),
        (lambda: training.load(tmp_path), ValueError, "config.json"),
        (lambda: training.load(tmp_path / "begun"), ValueError, "parameters"),
        (lambda: trained.embed(np.zeros((2, 5), np.float32)), ValueError, r"images .*\[N, 6\]"),
        (lambda: trained.embed(3), TypeError, "source"),
    ):
        with pytest.raises(error, match=name):
            call()


# Accepted arguments


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


# Refusals


def generator():
    while True:
        yield np.arange(8)


CHANNELS_FIRST = SimpleNamespace(images=np.zeros((24, 3, 8, 8), np.uint8), labels=LABELS)
SHORT = SimpleNamespace(images=FEATURES, labels=LABELS[:5])


@pytest.mark.parametrize(
    ("argument", "value", "error", "names"),
    [
        ("objective", jdml.triplet_loss, TypeError, "triplet_loss"),
        ("objective", objectives.proxy(jdml.proxy_anchor_loss, 3, 3), ValueError, "num_classes=4"),
        ("seed", 2**32, ValueError, "4294967295"),
        ("train", FEATURES, TypeError, "ndarray"),
        ("train", SHORT, ValueError, r"\[24\].*\[5\]"),
        ("train", CHANNELS_FIRST, ValueError, "numpy.moveaxis"),
        ("train", {"image": FEATURES, "label": LABELS}, TypeError, "dict.*Dataset"),
        ("sampler", 64, TypeError, "jdml.data.Random"),
        ("sampler", [LABELS], TypeError, "list"),
        ("sampler", data.RandomBatchSampler(12, 4), ValueError, "24 rows.*12"),
        ("sampler", iter([FEATURES]), ValueError, r"float32 \[24, 6\]"),
        ("sampler", iter([LABELS == 0]), ValueError, "bool"),
        ("sampler", iter([np.array([3, 24])]), ValueError, "23.*24"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(argument, value, error, names):
    with pytest.raises(error, match=rf"^{argument}\b.*{names}") as caught:
        fit(**{argument: value})
    assert "\n" not in str(caught.value)


def test_data_of_one_class_are_refused():
    """Also with proxies; tests/training/test_pairs_in_batches.py has pairs."""
    one = data.Dataset("one", FEATURES, np.zeros(24, int))
    with pytest.raises(ValueError, match=r"^train\b.*two classes"):
        fit(train=one, objective=objectives.proxy(jdml.normalized_softmax_loss, 1, 3), steps=30)


def test_generator_trains_only_without_a_folder(tmp_path):
    assert fit(sampler=generator()).stop_reason == "steps"
    with pytest.raises(TypeError, match=r"^sampler\b.*get_state"):
        fit(tmp_path / "run", sampler=generator())
    assert not list(tmp_path.iterdir())


# Results belong to their run


def test_folder_of_a_refused_run_can_be_reused(tmp_path):
    """The refusal comes in the first step, when the folder has only the configuration."""
    with pytest.raises(ValueError, match=r"^proxies\b"):
        fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 4, 7))
    right = fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 4, 3))
    assert right.stop_reason == "steps"
    with pytest.raises(ValueError, match=r"\bobjective\b"):
        fit(tmp_path, objective=objectives.proxy(jdml.proxy_anchor_loss, 5, 3))
