"""The two protocols on small images: what trains, what is held out, what is scored, and going on after a stop."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

import jdml
from jdml import data, training
from jdml.models import SmallConvNet
from jdml.recipes import Recipe, make_sampler, with_problems
from jdml.training import by_recipe, protocols
from jdml.training.protocols import Plan, Retrieval, _parts, ablation, conventional, mlrc

pytestmark = pytest.mark.slow

DIM = 8


def stripes(classes=8, images=6, seed=0):
    """Classes of noisy stripes: the class is the stripes' width."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    columns = np.arange(8) // (1 + labels[:, None] % 4) + labels[:, None]
    clean = np.broadcast_to((columns % 2)[:, None, :], (len(labels), 8, 8))
    pixels = np.clip(200 * clean + rng.integers(0, 50, clean.shape), 0, 255)
    return data.Dataset("stripes", pixels[..., None].astype(np.uint8), labels)


PAIRS = Recipe(loss="contrastive", batch=(3, 3), rate=1e-3, dim=DIM, nmi=True)
RECIPES = {
    "pairs": PAIRS,
    "proxies": Recipe(loss="proxy_anchor", batch=9, rate=1e-3, dim=DIM),
    "alternating": dataclasses.replace(
        with_problems(PAIRS, pool_size=4), proxies_per_class=2, nmi=False
    ),
}


def plan(kind, **settings):
    given = {"steps": 4, "evaluate_every": 2, "progress": False, "recall_at": (1,), **settings}
    return Plan(RECIPES[kind], SmallConvNet(DIM, (8,)), **given)


@pytest.mark.parametrize("kind", RECIPES)
def test_conventional_scores_classes_that_were_not_seen(kind, tmp_path):
    metrics = conventional(plan(kind), stripes(), Retrieval(stripes(seed=1)), tmp_path)
    assert set(metrics) >= {"R@1", "RP", "MAP@R", "nDCG@8", "MAP@1000"}
    assert metrics["queries"] == 48
    assert ("NMI" in metrics) == RECIPES[kind].nmi
    again = conventional(plan(kind), stripes(), Retrieval(stripes(seed=1)), tmp_path)
    assert again == metrics


def test_queries_can_have_a_gallery_of_their_own():
    queries, gallery = stripes(seed=1), stripes(seed=2).select(np.arange(48) % 6 < 2)
    metrics = conventional(plan("pairs"), stripes(), Retrieval(queries, gallery))
    assert metrics["queries"] == 48
    with_all = conventional(plan("pairs"), stripes(), Retrieval(queries))
    assert metrics["MAP@R"] != with_all["MAP@R"]


def test_mlrc_trains_four_models_and_scores_them_apart_and_together(tmp_path, monkeypatch):
    trained = []
    fit = by_recipe.fit

    def watched(*arguments, **settings):
        trained.append((arguments[3], settings))
        return fit(*arguments, **settings)

    monkeypatch.setattr(by_recipe, "fit", watched)
    metrics = mlrc(plan("proxies"), stripes(), Retrieval(stripes(seed=1)), tmp_path)
    assert len(trained) == 4
    for train, settings in trained:
        assert train.num_classes == len(np.unique(train.labels)) == 6
        assert settings["monitor"] == "MAP@R"
    assert len({settings["seed"] for _, settings in trained}) == 4
    assert set(metrics) == {"separated", "concatenated", "std"}
    assert metrics["std"]["MAP@R"] > 0
    assert metrics["separated"]["step"] == 4
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [f"fold{i}" for i in range(4)]


def test_an_ablation_is_one_model_on_two_thirds_of_the_classes(tmp_path, monkeypatch):
    trained, fit = [], by_recipe.fit

    def watched(*arguments, **settings):
        trained.append((arguments[3], settings))
        return fit(*arguments, **settings)

    monkeypatch.setattr(by_recipe, "fit", watched)
    metrics = ablation(plan("alternating"), stripes(9), Retrieval(stripes(seed=1)), tmp_path)
    ((train, settings),) = trained
    assert train.num_classes == 6
    assert settings["monitor"] == "MAP@R"
    assert (metrics["queries"], metrics["step"]) == (48, 4)
    assert (tmp_path / "config.json").is_file()
    with pytest.raises(ValueError, match="ablations a third: at least 3 classes must train, got 2"):
        ablation(plan("pairs"), stripes(2), Retrieval(stripes(seed=1)))


def test_embeddings_side_by_side_are_normalized_as_each_is():
    x = np.random.default_rng(0).normal(scale=0.2, size=(24, 2, DIM)).astype(np.float32)
    test = Retrieval(stripes(4))
    vectors = [(jdml.ball(x[:, i]), None) for i in range(2)]
    labels = test.queries.labels
    actual = protocols._score(plan("alternating"), vectors, test)
    short = jdml.evaluate_retrieval(np.asarray(jdml.ball(x.reshape(24, -1))), labels)
    unit = jdml.evaluate_retrieval(np.asarray(jdml.sphere(x.reshape(24, -1))), labels)
    assert actual["MAP@R"] == pytest.approx(short["MAP@R"])
    assert actual["MAP@R"] != pytest.approx(unit["MAP@R"], abs=1e-4)


def test_the_four_folds_share_a_compiled_step():
    by_recipe._parts_of_step.cache_clear()
    mlrc(plan("proxies"), stripes(), Retrieval(stripes(seed=1)))
    assert by_recipe._parts_of_step.cache_info().misses == 1


def test_pretrained_variables_are_what_training_begins_with():
    begun = []

    def pretrained(variables):
        begun.append(variables)
        return jax.tree.map(lambda leaf: leaf * 0, variables)

    still = dataclasses.replace(RECIPES["pairs"], rate=1e-30)
    of_zeros = dataclasses.replace(plan("pairs", pretrained=pretrained), recipe=still)
    metrics = conventional(of_zeros, stripes(), Retrieval(stripes(seed=1)))
    assert set(begun[0]) == {"params", "batch_stats"}
    assert metrics["MAP@R"] < 0.2  # all embeddings are one point


def test_proxies_begin_where_the_recipe_says(monkeypatch):
    begun = {}

    def fit(model, objective, optimizer, train, sampler, *, start, **settings):
        begun[len(begun)] = start
        raise KeyboardInterrupt

    monkeypatch.setattr(by_recipe, "fit", fit)
    still = {"steps": 1, "progress": False}
    for kind, start in (("proxies", "random"), ("proxies", "samples"), ("pairs", "random")):
        recipe = dataclasses.replace(RECIPES[kind], start=start)
        with pytest.raises(KeyboardInterrupt):
            conventional(Plan(recipe, SmallConvNet(DIM, (8,)), seed=5, **still), stripes(), None)
    assert begun[0] is None
    assert (begun[1].func, begun[1].keywords) == (training.start_on_samples, {"seed": 5})
    assert begun[2] is None


def test_as_many_classes_as_folds_are_enough():
    train = data.Dataset("toy", np.zeros((8, 2, 2, 1), np.uint8), np.arange(8) % 4)
    assert [len(part) for part, _ in _parts(train)] == [6] * 4
    with pytest.raises(ValueError, match="at least 4 classes must train, got 3"):
        list(_parts(train.select(train.labels < 3)))


def test_a_fold_without_two_images_of_a_class_is_refused():
    lonely = stripes().select(np.arange(48) % 6 == 0)
    with pytest.raises(ValueError, match="fold 0: validation needs a class with at least 2 images"):
        mlrc(plan("proxies"), lonely, Retrieval(stripes(seed=1)))


def test_places_that_no_sample_fills_do_not_count():
    """Padded batches give the loss of the rows they hold."""
    from jdml.training.feed import RowFeed
    from jdml.training.spec import StepSpec

    images = stripes().images
    labels = np.repeat(np.arange(16), 3)
    train = data.Dataset("threes", images, labels)
    recipe = dataclasses.replace(RECIPES["pairs"], batch=(4, 5))
    sampler = make_sampler(recipe, labels, seed=0)
    objective, optimizer = by_recipe.parts_of_step(recipe, 16, 1, 1)
    parts = (SmallConvNet(DIM, (8,)), objective, optimizer)
    feed = RowFeed(StepSpec(*parts, protocols.to_float), train, sampler)
    state = training.create_state(*parts, images[:1], seed=0)
    rows = sampler.batch_at(0)
    assert (rows < 0).sum() == 8
    _, metrics = feed.step(state)
    again = training.create_state(*parts, images[:1], seed=0)
    apply = partial(SmallConvNet(DIM, (8,)).apply, train=True, mutable=["batch_stats"])
    x = jax.jit(apply)(
        {"params": again.params["model"], "batch_stats": again.batch_stats},
        protocols.to_float(images[np.maximum(rows, 0)]),
    )[0]
    kept = rows >= 0
    expected = objective.loss({}, x[kept], jax.numpy.asarray(labels[rows[kept]]))[0]
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-4)


def test_a_folder_knows_what_was_trained(tmp_path):
    test = Retrieval(stripes(seed=1))
    conventional(plan("pairs", config={"method": "a"}), stripes(), test, tmp_path)
    with pytest.raises(ValueError, match="method"):
        conventional(plan("pairs", config={"method": "b"}), stripes(), test, tmp_path)
