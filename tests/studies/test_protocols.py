"""The evaluation protocols on small images: training, held-out classes, scores, and repeated calls."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import data, training
from jdml.models import SmallConvNet
from jdml.recipes import CCPConfig, Recipe
from jdml.studies.protocols import Retrieval, run_protocol

DIM = 8


def stripes(classes=8, images=6, seed=0):
    """Return classes of noisy stripes, which differ by the stripes' width."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    columns = np.arange(8) // (1 + labels[:, None] % 4) + labels[:, None]
    clean = np.broadcast_to((columns % 2)[:, None, :], (len(labels), 8, 8))
    pixels = np.clip(200 * clean + rng.integers(0, 50, clean.shape), 0, 255)
    return data.Dataset("stripes", pixels[..., None].astype(np.uint8), labels)


TEST = Retrieval(stripes(seed=1), recall_at=(1,))
PLAIN = Recipe().replace(
    network={"dim": DIM},
    batch={"steps": 4},
    optimizer={"learning_rate": 1e-3},
    evaluation={"every": 2},
)
PAIRS = PLAIN.replace(
    loss={"name": "contrastive"},
    batch={"classes": 3, "samples_per_class": 3},
    evaluation={"nmi": True},
)
PROXIES = PLAIN.replace(loss={"name": "proxy_anchor"}, batch={"size": 9})
PROBLEMS = CCPConfig.onto(PAIRS, pool_size=4).replace(
    loss={"proxies": {"per_class": 2}}, evaluation={"nmi": False}
)


class Counted(SmallConvNet):
    """Records the mode of each trace."""

    modes = []

    def __call__(self, images, *, train=False):
        self.modes.append(train)
        return super().__call__(images, train=train)


def trained(protocol, recipe, *arguments, **parts):
    parts = {"model": SmallConvNet(DIM, (8,)), "progress": False, **parts}
    train = partial(training.train, **parts)
    return run_protocol(protocol, recipe, *arguments, train=train)


# Several runs.
@pytest.mark.parametrize("recipe", [PAIRS, pytest.param(PROBLEMS, marks=pytest.mark.slow)])
def test_conventional_scores_unseen_classes_and_repeats(recipe, tmp_path):
    rows = trained("conventional", recipe, stripes(), TEST, tmp_path)
    (metrics,) = rows.values()
    assert set(metrics) >= {"R@1", "RP", "MAP@R", "nDCG@8", "MAP@1000"}
    assert metrics["queries"] == 48
    assert ("NMI" in metrics) == recipe.evaluation.nmi
    assert trained("conventional", recipe, stripes(), TEST, tmp_path) == rows


def test_queries_with_a_separate_gallery():
    queries, gallery = stripes(seed=1), stripes(seed=2).select(np.arange(48) % 6 < 2)
    metrics = trained("conventional", PAIRS, stripes(), Retrieval(queries, gallery))["ours"]
    assert metrics["queries"] == 48
    with_all = trained("conventional", PAIRS, stripes(), Retrieval(queries))["ours"]
    assert metrics["MAP@R"] != with_all["MAP@R"]


def watching():
    """Return a list of each model's data and number of earlier traces, and the parts that fill it."""
    seen = []
    Counted.modes.clear()

    def batches(dataset, sampler):
        seen.append((dataset, Counted.modes.count(True)))
        return sampler

    return seen, {"sampler": batches, "model": Counted(DIM, (8,))}


def fit_settings(folder):
    return json.loads((folder / "config.json").read_text())["fit"]


@pytest.mark.slow  # trains four models
def test_mlrc_scores_four_models_separately_and_concatenated(tmp_path):
    """With one class per fold; embeddings shorter than 1 are not lengthened, also when concatenated."""
    seen, watched = watching()
    ball = PROXIES.replace(loss={"normalize": "ball"})
    shrunk = training.pretrained(partial(jax.tree.map, lambda leaf: 0.3 * leaf))
    metrics = trained("mlrc", ball, stripes(4), TEST, tmp_path, state=shrunk, **watched)
    folders = sorted(tmp_path.iterdir())
    assert [folder.name for folder in folders] == [f"fold{i}" for i in range(4)]
    assert [len(np.unique(part.labels)) for part, _ in seen] == [3] * 4
    assert {part.num_classes for part, _ in seen} == {3}
    assert len({part.images.tobytes() for part, _ in seen}) == 4
    first, *later = np.diff([count for _, count in seen])
    assert max(later) < first  # the models share a compiled step
    assert len({fit_settings(folder)["seed"] for folder in folders}) == 4
    assert {fit_settings(folder)["monitor"] for folder in folders} == {"MAP@R"}
    assert set(metrics) == {"separated", "concatenated", "std"}
    assert metrics["std"]["MAP@R"] > 0
    assert metrics["separated"]["step"] == 4
    models = [training.load(folder, model=watched["model"]) for folder in folders]
    parts = [jdml.ball(jnp.asarray(model.embed(TEST.queries.images))) for model in models]
    joined, labels = jnp.concatenate(parts, axis=1), TEST.queries.labels
    short, unit = (jdml.evaluate_retrieval(f(joined), labels) for f in (jdml.ball, jdml.sphere))
    assert metrics["concatenated"]["MAP@R"] == pytest.approx(short["MAP@R"])
    assert metrics["concatenated"]["MAP@R"] != pytest.approx(unit["MAP@R"], abs=1e-4)


def test_ablation_trains_one_model_on_two_thirds_of_the_classes(tmp_path):
    seen, watched = watching()
    metrics = trained("ablation", PROXIES, stripes(3), TEST, tmp_path, **watched)["ours"]
    ((part, _),) = seen
    assert part.num_classes == 2
    assert fit_settings(tmp_path)["monitor"] == "MAP@R"
    assert (metrics["queries"], metrics["step"]) == (48, 4)


def test_fold_of_single_images_is_refused():
    singles = stripes().select(np.arange(48) % 6 == 0)
    with pytest.raises(ValueError, match=r"^fold 0: validation\b.*\b2\b"):
        trained("mlrc", PROXIES, singles, TEST)
