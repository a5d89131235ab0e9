"""The records: one per object, valid pointers; missing libraries name their extra."""

import inspect
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import jdml.cli
from jdml import data, losses, metrics, mining, models, registry, report, training
from jdml._optional_imports import ALONE, EXTRAS, MissingLibraryError, progress_bar, require_package
from jdml.data import folder as folders
from jdml.recipes import LossConfig, ProxyConfig
from jdml.registry import DATASETS, LOSSES, MINERS, NETWORKS
from jdml.runs.checkpoint import RunFolder


def test_losses_and_records_correspond():
    public = {name for name in losses.__all__ if name.endswith("_loss")}
    assert public - set(registry.REGULARIZERS) == {f"{name}_loss" for name in LOSSES}
    assert set(registry.REGULARIZERS) <= set(losses.__all__)
    pairs, proxies = registry.pair_losses(), registry.proxy_losses()
    assert list(LOSSES) == [*sorted(pairs), *sorted(proxies)]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_matches_its_record(name):
    record = LOSSES[name]
    assert record.name == name
    assert record.function is getattr(losses, f"{name}_loss")
    parameters = inspect.signature(record.function).parameters
    takes = list(parameters)
    assert takes[:2] == ["embeddings", "labels"]
    assert (takes[2] == "proxies") == (record.kind == "proxy")
    if record.kind == "proxy":
        assert (parameters["proxies"].default is None) == (not record.needs_proxies)
    assert record.monitor is None or record.monitor in losses.__all__
    if record.kind == "proxy":  # the default number in training, too
        assert LossConfig(name).num_proxies == record.proxies
        assert LossConfig(name, proxies=ProxyConfig(per_class=2)).num_proxies == 2


def test_miners_and_records_correspond():
    rules = {
        name
        for name in mining.__all__
        if inspect.isfunction(getattr(mining, name))
        and inspect.signature(getattr(mining, name)).return_annotation is mining.Miner
    }
    assert rules - {"chain"} == {miner.builder for miner in MINERS.values()}


@pytest.mark.parametrize("word", MINERS)
def test_miner_matches_its_record(word):
    record = MINERS[word]
    assert word in record.words
    takes = inspect.signature(getattr(mining, record.builder)).parameters
    assert record.settings.keys() <= takes.keys()
    assert record.needs_dim == ("dim" in takes)
    assert callable(record.build(dim=8))


def test_miner_is_built_with_its_records_settings():
    built = MINERS["multi_similarity_negative"].build(dim=2)
    assert built == mining.multi_similarity_pairs(mine_positives=False)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_matches_its_record(name):
    record = NETWORKS[name]
    assert (record.name, type(models.create(name, dim=2))) == (name, record.kind)
    takes = inspect.signature(record.kind).parameters
    assert record.settings.keys() <= takes.keys()
    assert record.pooling == ("pooling" in takes)
    assert record.batch_norm == ("freeze_batch_norm" in takes)
    pretrained = name in registry.pretrained_networks()
    assert pretrained == bool(record.weights) == (record.images is not None)
    assert not (pretrained and record.small_images)
    if pretrained:
        assert all(callable(layout.name) for layout in registry.resolve(record.weight_formats))


def test_image_statistics_cover_all_weights():
    statistics = registry.image_statistics()
    others = {name for record in NETWORKS.values() for name in record.other_images}
    assert {"vit_s16_dino", "clip_b16_laion"} <= others
    assert statistics.keys() == {*registry.pretrained_networks(), *others}
    assert statistics["vit_s16_dino"] == statistics["resnet50"] != statistics["vit_s16"]


@pytest.mark.parametrize("name", DATASETS)
def test_data_set_matches_its_record(name):
    record = DATASETS[name]
    assert record.name == name
    takes = list(inspect.signature(record.reader).parameters)
    assert takes[0] == "folder"
    assert (record.kind == "arrays") == ("split" in takes)
    assert record.sized == ("image_size" in takes)
    assert (name in data.IMAGE_FILES) == (record.kind == "files")
    assert record.labellings
    assert record.counted in ("", *record.labellings)


PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_extras_match_pyproject():
    declared = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    names = {
        extra: {re.split(r"[<>=\[]", text)[0] for text in declared[extra]} for extra in declared
    }
    for extra, modules in EXTRAS.items():
        assert set(modules.values()) <= names[extra]
    imported = set(EXTRAS["train"].values())
    assert names["train"] - imported <= {"filelock"}  # JAX imports it
    assert not set(ALONE.values()) & set().union(*(modules.values() for modules in EXTRAS.values()))


@pytest.fixture
def without(monkeypatch):
    """Make a library appear not installed."""

    def block(library):
        for module in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, library, None)

    return block


def test_library_that_does_not_load_says_why(tmp_path, monkeypatch, without):
    without("jax2onnx")
    monkeypatch.delitem(sys.modules, "jax2onnx")
    (tmp_path / "jax2onnx.py").write_text("import of_which_nobody_knows")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingLibraryError, match=r"'of_which_nobody_knows'\): pip install"):
        require_package("jax2onnx", "this")


RUN = report.Run("run", {}, 0, {"R@1": 0.5}, [{"step": 1, "loss": 2.0}])


def batches():
    files = data.ImageFiles([Path("a.png"), Path("b.png")])
    images = data.Dataset("own", files, np.arange(2))
    return next(data.ImageBatches(images, data.RandomBatchSampler(2, 2)))


@pytest.mark.parametrize(
    ("library", "use", "extra"),
    [
        ("sklearn", lambda folder: data.load("digits"), "train"),
        ("sklearn", lambda folder: metrics.nmi(np.eye(4), np.arange(4) // 2), "train"),
        ("PIL", lambda folder: data.ImageFiles([folder / "a.png"])[0:1], "train"),
        ("PIL", lambda folder: data.check("folder", folder), "train"),
        ("jinja2", lambda folder: report.html_report(RUN, folder / "run"), "train"),
        ("matplotlib", lambda folder: report.curves({"a": RUN.log}), "train"),
        ("grain", lambda folder: batches(), "train"),
        ("safetensors", lambda folder: models.load_weights(folder / "w.safetensors", {}), "train"),
        ("tqdm", lambda folder: progress_bar(True).__enter__(), "train"),
        ("orbax", lambda folder: RunFolder(folder / "run", {}), "train"),
        ("tensorboardX", lambda folder: training.TensorBoard(folder / "tensorboard"), "all"),
    ],
)
def test_missing_library_is_reported_before_any_file_is_written(
    without, library, use, extra, tmp_path
):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "w.safetensors").write_bytes(b"")
    folders.suffixes.cache_clear()
    without(library)
    with pytest.raises(ValueError, match=rf"pip install 'jdml\[{extra}\]'"):
        use(tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("library", "words"),
    [("tyro", "train --help"), ("sklearn", "train"), ("flatbuffers", "export x --out m.stablehlo")],
)
def test_command_reports_a_missing_library_in_one_line(without, capsys, library, words):
    without(library)
    assert jdml.cli.main(words.split()) == 2
    shown = capsys.readouterr()
    assert "pip install 'jdml[train]'" in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_flows_report_missing_distrax(without, monkeypatch):
    without("distrax")
    for module in [name for name in sys.modules if name.startswith("jdml.flows")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=r"distrax: pip install 'jdml\[flows\]'"):
        __import__("jdml.flows.conditional")
