"""The page's data on embeddings equals its definition: neighbours, structure, maps, a method's picture."""

from collections import Counter

import numpy as np
import pytest
import threadpoolctl
from report.files import content
from scipy.spatial.distance import pdist, squareform

import jdml
from jdml import report
from jdml.data import Dataset, ImageFiles
from jdml.report import Run
from jdml.report.embedding_stats import potential_fields
from jdml.report.images import thumbnails

Image = pytest.importorskip("PIL.Image", reason="thumbnails are drawn with Pillow")


@pytest.fixture(scope="module")
def shown(cloud, tmp_path_factory):
    """The page's data of the cloud, with two proxies of each class."""
    x, labels = cloud
    proxies = np.eye(3, 8)[:, None].repeat(2, 1)
    proxies[:, 1, 7] = 1
    data = Dataset("d", np.zeros((24, 4, 4, 1), np.uint8), labels, {"class": labels})
    more = {"proxies": proxies, "train": Dataset("t", x, labels), "train_embeddings": x}
    run = Run("a", embeddings=x, data=data, **more)
    page = report.html_report(run, tmp_path_factory.mktemp("page") / "r.html")
    return content(page)["embeddings"][0], proxies


def test_neighbours_classes_and_hubs_equal_their_definitions(cloud, shown):
    x, labels = cloud
    page, _ = shown
    apart = squareform(pdist(x)) + np.diag([np.inf] * len(x))
    near = apart.argsort(1)[:, :8]
    wide = len(page["near"][0])
    assert page["near"] == near[page["queries"], :wide].tolist()
    scores = jdml.evaluate_retrieval(x, labels, recall_at=(1,), per_query=True)
    first, quality = (np.asarray(scores[name], np.float64) for name in ("R@1", "MAP@R"))
    view = page["views"]["class"]
    np.testing.assert_allclose(view["quality"], quality[page["queries"]], rtol=1e-3)
    assert view["nearest"] == "".join(str(int(right == 0)) for right in first)
    for label, count, *means in view["classes"]:
        assert count == 8
        expected = [values[labels == label].mean() for values in (first, quality)]
        np.testing.assert_allclose(means, expected, rtol=1e-3)
    counts = Counter(near.reshape(-1).tolist())
    assert all(counts[row] == count > 8 for row, count in page["hubs"])
    times = np.array([counts[row] for row in range(len(x))])
    skew = np.mean(((times - times.mean()) / times.std()) ** 3)
    assert page["skew"] == pytest.approx(skew, abs=0.01)
    assert view["confused"]
    for one, other, count, share in view["confused"]:
        wrong = (labels[near] == other)[labels == one].sum()
        wrong += (labels[near] == one)[labels == other].sum()
        assert (count, share) == (wrong, pytest.approx(wrong / (16 * 8), rel=1e-3))


def test_structure_equals_the_metrics(cloud, shown):
    x, labels = cloud
    page, _ = shown
    same = pdist(labels[:, None]) == 0
    expected = {
        "within": pdist(x)[same].mean(),
        "between": pdist(x)[~same].mean(),
        "density": float(jdml.metrics.class_density(x, labels)),
    }
    assert {name: page["structure"][name] for name in expected} == pytest.approx(expected, rel=1e-3)
    histogram = page["histogram"]
    assert sum(histogram["within"]) == pytest.approx(1, abs=0.01)
    middles = np.convolve(histogram["edges"], [0.5, 0.5], "valid")
    assert np.dot(middles, histogram["between"]) == pytest.approx(expected["between"], abs=0.03)
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(page["spectrum"], values / values.sum(), rtol=1e-2)


def test_proxies_are_measured_against_their_class(cloud, shown):
    x, labels = cloud
    page, proxies = shown
    units = proxies / np.linalg.norm(proxies, axis=-1, keepdims=True)
    apart = [np.linalg.norm(units[c] - x[labels == c].mean(0), axis=1).mean() for c in range(3)]
    _, to_mean, distance, together = page["proxies"].values()
    assert to_mean == pytest.approx(np.mean(apart), rel=1e-3)
    spread = np.linalg.norm(units[0, 0] - units[0, 1])
    assert distance == pytest.approx(spread, rel=1e-3)
    assert together == 0
    assert len(page["maps"]["pca"]["proxies"]) == 6


def test_labels_that_disagree_with_unanimous_neighbours_are_suspects(tmp_path):
    rng = np.random.default_rng(0)
    sizes = [9, 8, 4, 9]
    labels = np.repeat([3, 5, 8, -1], sizes)
    x = 9 * np.eye(4)[np.repeat(range(4), sizes)] + rng.normal(size=(30, 4))
    wrong = labels.copy()
    wrong[[2, 20]] = 5  # one among eight, one in a small class of four
    wrong[12:16] = 3  # half of a class: neighbours do not agree
    wrong[29] = 3  # among rows without a class, which do not count
    found = {}
    for name, of in (("right", labels), ("wrong", wrong)):
        np.savez(tmp_path / f"{name}.npz", embeddings=x, labels=of)
        page = content(report.html_report(tmp_path / f"{name}.npz", tmp_path / "r.html"))
        found[name] = page["embeddings"][0]["views"]["class"]["suspects"]
    assert (found["wrong"]["count"], sorted(found["wrong"]["rows"])) == (2, [2, 20])
    assert found["right"]["count"] == 0


def test_rows_without_a_class_are_ignored(tmp_path):
    line = np.array([[0.0], [1.0], [3.0], [10.0], [11.0], [14.0]])
    classes = np.array([0, 0, 1, 1, 1, 0])
    x = np.concatenate([line, line + 0.4])
    labels = np.stack([np.r_[classes, np.full(6, -1)], np.r_[np.full(6, -2), classes - 1]], 1)
    np.savez(tmp_path / "e.npz", embeddings=x, labels=labels)
    page = content(report.html_report(tmp_path / "e.npz", tmp_path / "r.html"))
    view = page["sets"][0]["views"]["level 1"]
    assert (view["names"], view["none"]) == (["(no class)", "0"], 0)
    of = page["embeddings"][0]["views"]["level 0"]
    assert [row[:2] for row in of["classes"]] == [[1, 3], [2, 3]]
    assert {n for pair in of["confused"] for n in pair[:2]} == {1, 2}
    assert of["nearest"] == "111111222222"  # 0: right, 1: wrong, 2: no match
    apart = pdist(line)[pdist(classes[:, None]) == 0]
    assert page["embeddings"][0]["structure"]["within"] == pytest.approx(apart.mean(), rel=1e-3)


# Maps


def map_points(x, method, others=None):
    """Return the points of a map, those of the proxies on it, and its axis label."""
    with threadpoolctl.threadpool_limits(1):  # OpenMP's threads block each other on busy cores
        figure = report.embedding_map(x, np.arange(len(x)), method=method, proxies=others)
    (axes,) = figure.axes
    points = np.concatenate([np.asarray(group.get_offsets()) for group in axes.collections])
    return points[: len(x)], points[len(x) :], axes.get_xlabel()


def test_maps_place_neighbours_together(cloud):
    x, labels = cloud
    points, others, words = map_points(x, "pca", x[:2])
    np.testing.assert_allclose(points[:2], others, atol=1e-6)
    variance = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    assert f"{100 * variance[:2].sum() / variance.sum():.0f} %" in words
    np.testing.assert_allclose((points**2).sum(), variance[:2].sum(), rtol=1e-5)
    clear = np.eye(3, 8)[labels] + 0.01 * x
    laid, none, words = map_points(clear, "tsne")
    assert words.startswith("t-SNE")
    assert none.shape == (0, 2)
    assert jdml.evaluate_retrieval(laid, labels, recall_at=(1,))["R@1"] > 0.9


def test_map_of_equal_or_narrow_rows(cloud):
    """scikit-learn's own start fails on them, and its distances on large ones."""
    for x in (np.ones((12, 3)), cloud[0][:, :1], 1e30 * cloud[0]):
        laid, stars, _ = map_points(x, "tsne", x[:1])
        assert (laid.shape, stars.shape) == ((len(x), 2), (1, 2))
        assert np.isfinite(laid).all()


# Pictures


def test_thumbnails_of_every_image_type(tmp_path):
    grey = np.arange(4 * 4, dtype=np.uint8).reshape(1, 4, 4, 1)
    floats = np.zeros((1, 4, 4, 3), np.float32)
    floats[0, 0, 0] = 1
    for images in (grey, floats):
        assert thumbnails(images, [0])[0].startswith("data:image/webp;base64,")
    assert thumbnails(np.zeros((3, 5), np.float32), [0]) == {}
    Image.effect_noise((96, 96), 64).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    files = ImageFiles([tmp_path / name for name in ("a.png", "b.png", "c.png")])
    assert list(thumbnails(files, [0, 1, 2])) == [0]
    sizes = [len(thumbnails(files, [0] + [2] * count)[0]) for count in (0, 1000, 2500)]
    assert sizes == sorted(set(sizes), reverse=True)  # of many pictures each is small


def test_field_is_drawn_with_its_charges(cloud):
    loss = {"name": "potential_field", "settings": {"alpha": 2.0}}
    drawn = list(potential_fields(loss, np.eye(3, 8)[:, None], *cloud, "012"))
    assert len(drawn) == 3
    for label, panel in enumerate(drawn):
        assert str(label) in panel["title"]
        x0, x1, y0, y1 = panel["extent"]
        assert all(x0 <= a <= x1 and y0 <= b <= y1 for a, b, _ in panel["points"] + panel["stars"])
        assert sum(own for *_, own in panel["stars"]) == 1
    assert not list(potential_fields({"name": "triplet"}, np.eye(3, 8)[:, None], *cloud, "012"))
