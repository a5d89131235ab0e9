"""What is seen of embeddings: against definitions, by hand where it is small."""

import sys

import numpy as np
import pytest
import threadpoolctl
from matplotlib.figure import Figure
from scipy.spatial.distance import pdist

import jdml
from jdml import report
from jdml.data import Dataset, ImageFiles
from jdml.report import Run, figures, looking, seen
from jdml.report.method import panels
from jdml.report.thumbnails import address, picture_of, thumbnails

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.slow

LINE = np.array([[0.0], [1.0], [3.0], [10.0], [11.0], [14.0]])
LABELS = np.array([0, 0, 1, 1, 1, 0])


@pytest.fixture(scope="module")
def cloud():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 16)
    x = np.eye(3, 8)[labels] + 0.2 * rng.normal(size=(48, 8))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


def test_neighbours_of_a_line():
    neighbours = seen.look_up(LINE, LABELS, k=2)
    assert neighbours.indices.tolist() == [[1, 2], [0, 2], [1, 0], [4, 5], [3, 5], [4, 3]]
    assert neighbours.right[:2].tolist() == [[True, False], [True, False]]
    assert neighbours.first.tolist() == [1, 1, 0, 1, 1, 0]
    np.testing.assert_allclose(neighbours.quality[0], 1 / 2)  # R = 2: right, wrong
    assert seen.by_class(neighbours, LABELS)[0][:3] == (0, 3, pytest.approx(2 / 3))


def test_doubtful_labels_are_those_whose_neighbours_agree_on_another():
    rng = np.random.default_rng(0)
    sizes = [9, 8, 4, 9]
    labels = np.repeat([3, 5, 8, -1], sizes)
    x = 9 * np.eye(4)[np.repeat(range(4), sizes)] + rng.normal(size=(30, 4))
    wrong = labels.copy()
    wrong[[2, 20]] = 5  # one among eight, one among the three that a small class still has
    wrong[12:16] = 3  # half of a class: its neighbours do not agree
    wrong[29] = 3  # among rows without a class, which say nothing
    assert seen.look_up(x, labels).doubtful == []
    found = seen.look_up(x, wrong)
    assert sorted(found.doubtful) == [2, 20]
    nearest = found.distances[found.doubtful, 0]
    assert nearest.tolist() == sorted(nearest)
    assert seen.doubtful(np.array([[1], [0], [1]]), np.array([0, 1, 1])).tolist() == []


def test_rows_without_a_class_are_none_on_the_page(tmp_path):
    x = np.concatenate([LINE, LINE + 0.4])
    labels = np.stack([np.r_[LABELS, np.full(6, -1)], np.r_[np.full(6, -2), LABELS - 1]], 1)
    np.savez(tmp_path / "e.npz", embeddings=x, labels=labels)
    (run,) = report.read_runs(tmp_path / "e.npz")
    look = looking.look_at(run, labels=None, projections=("pca",), most=99)
    for view, own in zip(look.views, labels.T, strict=True):
        np.testing.assert_array_equal(look.views[view] < 0, own < 0)
        scores = jdml.evaluate_retrieval(x, own, recall_at=(1,))
        assert np.nanmean(look.neighbours[view].first) == pytest.approx(scores["R@1"])
    page = looking.looks_as_data([look], 0, 0)
    shown = page["sets"][0]["views"]["level 1"]
    assert shown["names"] == ["(no class)", "0"]
    assert shown["none"] == 0
    of = page["looks"][0]["views"]["level 0"]
    assert [row[:2] for row in of["classes"]] == [[1, 3], [2, 3]]
    assert {n for pair in of["confused"] for n in pair[:2]} == {1, 2}
    assert of["nearest"] == "111111222222"  # wrong; nothing to find
    labelled = seen.structure(LINE, LABELS)
    assert look.structure["within"] == pytest.approx(labelled["within"])


def test_hubs_are_counted():
    indices = np.array([[1, 2], [2, 0], [1, 0], [2, 1], [2, 1]])
    hubs, skew = seen.hubs(indices)
    assert hubs == [(1, 4), (2, 4)]
    counts = np.array([2, 4, 4, 0, 0])
    assert skew == pytest.approx(np.mean(((counts - 2) / counts.std()) ** 3))
    assert seen.hubs(np.array([[1], [0]]))[1] == 0


def test_confusions_are_counted_both_ways():
    labels = np.array([5, 5, 7, 9])
    pairs = seen.confused_pairs(np.array([[2], [1], [0], [2]]), labels)
    assert pairs == [(7, 9, 1, 0.5), (5, 7, 2, pytest.approx(2 / 3))][::-1]


def test_structure_is_that_of_the_metrics(cloud):
    x, y = cloud
    measured = seen.structure(x, y)
    same = pdist(y[:, None]) == 0
    assert measured["within"] == pytest.approx(pdist(x)[same].mean())
    assert measured["between"] == pytest.approx(pdist(x)[~same].mean())
    assert measured["density"] == pytest.approx(float(jdml.metrics.class_density(x, y)))
    histogram = seen.distance_histogram(x, y)
    assert sum(histogram["within"]) == pytest.approx(1)
    middles = np.convolve(histogram["edges"], [0.5, 0.5], "valid")
    assert np.dot(middles, histogram["between"]) == pytest.approx(measured["between"], abs=0.03)
    shares = seen.spectrum(x)
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(shares, values / values.sum(), rtol=1e-5)


def test_proxies_are_measured_against_their_class(cloud):
    x, y = cloud
    proxies = np.eye(3, 8)[:, None].repeat(2, 1)
    proxies[:, 1, 7] = 1
    measured = seen.proxy_structure(proxies, x, y)
    units = proxies / np.linalg.norm(proxies, axis=-1, keepdims=True)
    assert measured["spread of a class's proxies"] == pytest.approx(
        np.linalg.norm(units[0, 0] - units[0, 1])
    )
    expected = np.mean(
        [np.linalg.norm(units[c] - x[y == c].mean(0), axis=1).mean() for c in range(3)]
    )
    assert measured["proxy to its class's mean"] == pytest.approx(expected)
    assert measured["proxies of a class within 0.2 of each other"] == 0
    assert "spread of a class's proxies" not in seen.proxy_structure(proxies[:, :1], x, y)


def test_maps_lay_neighbours_together(cloud):
    x, y = cloud
    points, others, words = seen.project(x, others=x[:2])
    np.testing.assert_allclose(points[:2], others, atol=1e-6)
    centred = x - x.mean(0)
    variance = np.linalg.svd(centred, compute_uv=False) ** 2
    assert f"{100 * variance[:2].sum() / variance.sum():.0f} %" in words
    np.testing.assert_allclose((points**2).sum(), variance[:2].sum(), rtol=1e-5)
    with threadpoolctl.threadpool_limits(1):  # OpenMP's threads wait for each other on busy cores
        laid, none, words = seen.project(x, "tsne")
    assert words.startswith("t-SNE")
    assert none.shape == (0, 2)
    assert seen.look_up(laid, y, 1).first.mean() > 0.9
    with pytest.raises(ValueError, match='method must be "pca", "tsne" or "umap", got \'x\''):
        seen.project(x, "x")


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_embeddings_that_are_all_the_same_are_one_point(rows, width, method):
    """Scikit-learn ends the program there."""
    for value in (0.0, 0.3, 1e-30, -2e10):
        laid, stars, _ = seen.project(np.full((rows, width), value), method)
        assert (laid.shape, stars.shape) == ((rows, 2), (0, 2))
        np.testing.assert_allclose(laid, 0, atol=1e-9 * abs(value))


@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
@pytest.mark.parametrize("shape", [(2, 3), (3, 1), (12, 1), (12, 2)])
def test_maps_of_few_rows_and_dimensions(scale, shape):
    x = scale * np.random.default_rng(0).normal(size=shape)
    with threadpoolctl.threadpool_limits(1):
        laid, stars, _ = seen.project(x, "tsne", others=x[:1])
    assert (laid.shape, stars.shape) == ((len(x), 2), (1, 2))
    assert np.isfinite(laid).all()
    assert len(np.unique(laid, axis=0)) == len(x)


def test_umap_names_its_library(cloud, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ValueError, match="pip install umap-learn"):
        seen.project(cloud[0], "umap")


@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
def test_umap_lays_neighbours_together(cloud):
    pytest.importorskip("umap", reason="umap-learn is not installed (it brings a compiler)")
    x, y = cloud
    laid, others, words = seen.project(x, "umap", others=x[:2])
    assert words.startswith("UMAP")
    assert (laid.shape, others.shape) == ((len(x), 2), (2, 2))
    assert seen.look_up(laid, y, 1).first.mean() > 0.9
    again, _, _ = seen.project(x, "umap", others=x[:2])
    np.testing.assert_allclose(laid, again)


# Pictures


def test_pictures_of_every_kind(tmp_path):
    grey = np.arange(4 * 4, dtype=np.uint8).reshape(1, 4, 4, 1)
    assert picture_of(grey, 0).mode == "L"
    floats = np.zeros((1, 4, 4, 3), np.float32)
    floats[0, 0, 0] = 1
    assert picture_of(floats, 0).getpixel((0, 0)) == (255, 255, 255)
    assert picture_of(np.zeros((3, 5), np.float32), 0) is None
    Image.new("RGB", (40, 20), "red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    files = ImageFiles([tmp_path / name for name in ("a.png", "b.png", "c.png")])
    assert picture_of(files, 0).size == (40, 20)
    assert list(thumbnails(files, [0, 1, 2])) == [0]
    small = address(picture_of(grey, 0), 96)
    assert small.startswith("data:image/webp;base64,")


def test_thumbnails_fit_their_room():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 96, 96, 3)).astype(np.uint8)
    pictures = thumbnails(images, range(200), room=150_000)
    assert sum(map(len, pictures.values())) <= 160_000
    assert len(pictures) > 150


def test_figures_for_programs(cloud):
    x, y = cloud
    images = np.zeros((48, 4, 4, 1), np.uint8)
    names = ["a", "b", "c"]
    figure = report.gallery(images, x, y, queries=3, k=4, class_names=names, title="t")
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 15
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    assert titles[0].startswith("query")
    assert {title.split("\n")[0] for title in titles} <= {"query", "✓ right", "✗ wrong"}
    shown = report.gallery(images, x, y, queries=[20], k=1).axes
    assert shown[0].get_title() == "query\n1"
    for order in ("best", "random", "spread"):
        assert len(report.gallery(images, x, y, queries=2, k=1, order=order).axes) == 4
    (axes,) = report.embedding_map(x, y, proxies=np.eye(3, 8), class_names=names).axes
    assert [group.get_label() for group in axes.collections] == [*names, "proxies"]
    assert len(report.embedding_map(x[:, :2], y, max_points=10).axes[0].collections) <= 3
    mixed = np.random.default_rng(0).permutation(y)
    (axes,) = report.confusions(x, mixed, k=3, class_names=names).axes
    assert {text.get_text() for text in axes.get_yticklabels()} == {"a ↔ b", "a ↔ c", "b ↔ c"}
    assert (
        len(report.confusions(np.eye(4)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])).axes[0].patches) == 0
    )


def test_rows_without_a_class_in_figures():
    """They are no class by name, and no neighbour of theirs is wrong; where there is nothing to find comes last."""
    x = np.array([[0.0], [1.0], [10.0], [11.5], [20.0], [30.0], [31.0]])
    y = np.array([0, 0, 1, 1, 2, -1, -1])
    names, images = ["a", "b", "alone"], np.zeros((7, 4, 4, 1), np.uint8)
    (axes,) = report.embedding_map(x.repeat(2, 1), y, class_names=names).axes
    assert [group.get_label() for group in axes.collections] == ["(no class)", *names]
    figure = Figure()
    figures._legend(figure, np.unique(y), names)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["(no class)", *names]
    shown = report.gallery(images, x, y, queries=[5, 4], k=2, class_names=names).axes
    titles = [axes.get_title() for axes in shown]
    assert titles == [
        *("query\n(no class)", "\n(no class)", "\nalone"),
        *("query\nalone", "✗ wrong\nb", "✗ wrong\nb"),
    ]
    for order in ("best", "worst"):
        shown = report.gallery(images, x, y, queries=7, k=1, order=order, class_names=names).axes
        assert [axes.get_title() for axes in shown[8::2]] == [
            *("query\nalone", "query\n(no class)", "query\n(no class)")
        ]


def test_names_in_figures_are_no_formulas(cloud, tmp_path):
    """Dollars and a first underscore are text: a name is seen as it is, in legends, too."""
    x, y = cloud
    names = ["$5", "a$b$", "_$\\foo$"]
    figure = report.embedding_map(x, y, class_names=names)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [r"\$5", r"a\$b\$", r" _\$\foo\$"]  # an escaped dollar is drawn as one
    figure.savefig(tmp_path / "map.png")
    report.confusions(x, np.roll(y, 1), class_names=names).savefig(tmp_path / "c.png")
    report.gallery(np.zeros((48, 4, 4, 1), np.uint8), x, y, queries=2, class_names=names).savefig(
        tmp_path / "g.png"
    )
    report.scatter_grid([("p", x[:, :2], y)], tmp_path / "s.png", class_names=names)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, y: report.gallery(np.zeros((3, 4, 4, 1)), x, y),
            "images must have N = 48 rows, got 3",
        ),
        (lambda x, y: report.gallery(np.zeros(48), x, y, order="x"), 'order must be "best"'),
        (
            lambda x, y: report.gallery(np.zeros(48), x, y, queries=0),
            "queries must be at least one",
        ),
        (
            lambda x, y: report.confusions(x, y[:3]),
            r"labels must have shape \[N\] = \[48\], got \[3\]",
        ),
        (lambda x, y: report.embedding_map(x[0], y), r"embeddings must be \[N, D\]"),
        (lambda x, y: report.html_report([], "r.html"), "runs must hold at least one run"),
        (
            lambda x, y: report.html_report(Run("a"), "r.html", most=1),
            "most must be at least 2, got 1",
        ),
        (
            lambda x, y: report.html_report(
                Run("a", embeddings=x, data=Dataset("d", x, y)), "r.html", labels="x"
            ),
            "labels must be one of class, got 'x'",
        ),
    ],
)
def test_mistakes_are_told(cloud, call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call(*cloud)
    assert list(tmp_path.iterdir()) == []


# The methods' own pictures


def test_a_field_is_painted_where_its_charges_are(cloud):
    x, y = cloud
    proxies = np.eye(3, 8)[:, None]
    drawn = panels(
        {"recipe": {"loss": "potential_field", "settings": {"alpha": 2.0}}},
        {"proxies": proxies},
        x,
        y,
        str,
    )
    assert [panel["title"] for panel in drawn] == [f"the field that {c} feels" for c in range(3)]
    for panel in drawn:
        x0, x1, y0, y1 = panel["extent"]
        assert all(x0 <= a <= x1 and y0 <= b <= y1 for a, b, _ in panel["points"] + panel["stars"])
        assert sum(own for *_, own in panel["stars"]) == 1
    assert panels({"recipe": {"loss": "triplet"}}, {"proxies": proxies}, x, y, str) == []
    assert panels({"recipe": {"loss": "potential_field"}}, {}, x, y, str) == []


def test_the_flow_is_the_run_s_own():
    from jdml import recipes
    from jdml.report.method import _flow

    own = recipes.recipe("nir", "cub", conditioning="start", weight=0.01)
    flow = _flow(own.to_json(), 4)
    assert (flow.num_blocks, flow.conditioning, flow.dim) == (8, "start", 4)
    assert _flow(recipes.recipe("nir", "cub", preset="released").to_json(), 4).num_blocks == 5
    assert _flow({}, 4).conditioning == "dense"


def test_a_flows_density_is_drawn_around_its_proxy(cloud, monkeypatch):
    pytest.importorskip("distrax")
    import jax
    import jax.numpy as jnp

    from jdml import flows

    x, y = cloud
    flow = flows.ConditionalFlow(8, 8, num_blocks=1, hidden=8, depth=1)
    monkeypatch.setattr(flows, "preset", lambda name, dim, condition_dim: flow)
    params = flow.init(jax.random.key(0), jnp.zeros((2, 8)), jnp.zeros((2, 8)))["params"]
    learned = {"proxies": np.eye(3, 8)[:, None], "flow": params}
    first, *_ = panels({}, learned, x, y, str)
    assert first["heat"]["kind"] == "level"
    assert first["stars"] == [[0.0, 0.0, 1]]
    assert {own for *_, own in first["points"]} >= {1}
