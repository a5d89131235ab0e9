"""The papers' results: each row is found by the run it reports and by no other; a run's differences are listed."""

import dataclasses
import re
from typing import Any

import pytest

from jdml.recipes import DATASETS, RECIPES, Recipe, recipe
from jdml.recipes.beside import Beside, beside, of_entry
from jdml.recipes.printed import ENTRIES, inferred
from jdml.registry import NETWORKS


def test_row_is_found_only_by_its_own_run() -> None:
    """A changed run finds another row or none, also where a table varies only what is changed here."""
    together = set()
    for entry in ENTRIES:
        run, noise = of_entry(entry)
        asked: dict[str, Any] = {"method": entry.method, "dataset": entry.dataset}
        asked |= {"protocol": entry.protocol, "backbone": entry.backbone, "label_noise": noise}
        found = beside(run, **asked)
        own = Beside(entry.table, entry.rows, (entry.note,) if entry.note else ())
        assert [each for each in found if each.table == entry.table] == [own]
        together.add(tuple(each.table for each in found))
        for change in (
            {"dim": run.dim + 1},
            {"pooling": "max" if run.pooling == "cubic" else "cubic"},
        ):
            rows = [each.rows for each in beside(dataclasses.replace(run, **change), **asked)]
            assert entry.rows not in rows, (entry.table, entry.method, entry.dataset, change)
        others: tuple[dict[str, Any], ...] = (
            {"label_noise": noise + 0.1},
            {"crop": 112},
            {"dataset": DATASETS[DATASETS.index(entry.dataset) - 1]},
            {"backbone": "resnet18"},
            {"protocol": "mlrc" if entry.protocol == "conventional" else "conventional"},
        )
        for other in others:
            rows = [each.rows for each in beside(run, **{**asked, **other})]
            assert entry.rows not in rows, (entry.table, entry.method, entry.dataset, other)
    # Two tables may report one task: NIR prints its main one with constant and with decaying rates.
    assert {tables for tables in together if len(tables) > 1} == {("NIR, Table 1", "NIR, Table 2")}


def test_values_are_consistent_percentages() -> None:
    """Recall grows with the number of neighbours; P@1, RP and MAP@R do not increase in this order."""
    for entry in ENTRIES:
        assert entry.method in RECIPES
        assert entry.backbone.removesuffix("_dino") in NETWORKS
        for row in entry.rows.values():
            assert row
            assert all(0 < value < 100 for value in row.values()), entry
            recalls = [value for name, value in row.items() if name.startswith("R@")]
            assert recalls == sorted(recalls), entry
            falling = [row[name] for name in ("P@1", "RP", "MAP@R") if name in row]
            assert falling == sorted(falling, reverse=True), entry


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ccp", {"single": True}),
        ("nir", {"shape": "identity"}),
        ("nir", {"loss": "soft_triple", "pooling": "average+max"}),
        ("nir", {"blocks": 15}),
        ("nir", {"conditioning": "embedded"}),
        ("nir_baseline", {"pooling": "average+max"}),
        ("mpa", {"proxies_per_class": 2}),
        ("xbm", {"size": "S", "protocol": "mlrc"}),
    ],
)
def test_unreported_task_finds_no_row(method: str, settings: dict[str, Any]) -> None:
    fields = {name: settings[name] for name in ("proxies_per_class",) if name in settings}
    given = {name: value for name, value in settings.items() if name not in fields}
    protocol = given.pop("protocol", "conventional")
    for backbone in ("resnet50", "bn_inception"):
        made = recipe(method, "cub", backbone=backbone, protocol=protocol, **given)
        made = dataclasses.replace(made, **fields)
        assert beside(made, method, "cub", backbone=backbone, protocol=protocol) == []


def names(row: Beside, setting: str, ours: str, paper: str = "") -> bool:
    """Return whether a difference begins with the setting's name and has both values."""
    pattern = rf"{re.escape(setting)} {re.escape(ours)}\b.*{re.escape(paper)}\b"
    return any(re.match(pattern, line) for line in row.unlike)


@pytest.mark.parametrize(
    ("method", "preset", "difference"),
    [
        ("pfml", "found", ("alpha", "1", "4")),
        ("nir", "released", ("flow", "released", "paper")),
        ("nir_baseline", "released", ("rate of proxies", "0.02", "0.04")),
        ("ccp", "released", ("in_batch_weight", "0.1", "0")),
    ],
)
def test_default_preset_is_the_papers_and_another_differs(
    method: str, preset: str, difference: tuple[str, ...]
) -> None:
    assert recipe(method, "cars") == recipe(method, "cars", preset="paper")
    (printed, *_), (ours, *_) = (
        beside(recipe(method, "cars", preset=name), method, "cars") for name in ("paper", preset)
    )
    assert (printed.rows, printed.unlike) == (ours.rows, ())
    assert names(ours, *difference)


def test_differences_of_a_run_are_listed_with_both_values() -> None:
    run = dataclasses.replace(recipe("eps", "cub"), batch=(8, 4), rate=1e-3, steps=2)
    (row,) = beside(run, "eps", "cub")
    assert len(row.unlike) == 4
    assert names(row, "rate of beta", "0.05", "0.0005")
    assert names(row, "batch", "8x4", "20x8")
    assert names(row, "rate", "0.001", "1e-05")
    assert names(row, "steps", "2")
    large = dataclasses.replace(recipe("eps", "cub", backbone="bn_inception"), dim=512)
    for batch, count in (((20, 8), 1), ((20, 13), 0)):
        run = dataclasses.replace(large, batch=batch)
        (row,) = beside(run, "eps", "cub", backbone="bn_inception")
        assert len(row.unlike) == names(row, "batch", "20x8", "20x13") == count


def test_value_that_a_paper_does_not_print_is_a_note() -> None:
    """NIR's rates of Table 2 decayed stepwise, and a row of its Table 4 had clipped gradients."""
    run = recipe("nir", "cub", decay_every=40, decay_factor=0.2)
    first, second = beside(run, "nir", "cub")
    assert names(first, "decay_every", "40", "none")
    assert names(first, "decay_factor", "0.2", "0.5")
    (cut,) = beside(recipe("nir", "cub", max_norm=3.0), "nir", "cub")
    for row in (second, cut):
        (note,) = {entry.note for entry in ENTRIES if entry.rows == row.rows}
        assert row.unlike == (note,)


def test_columns_depend_on_data_set_and_protocol() -> None:
    def row(method: str, dataset: str, protocol: Any) -> Beside:
        made = recipe(method, dataset, backbone="bn_inception", protocol=protocol)
        return beside(made, method, dataset, backbone="bn_inception", protocol=protocol)[0]

    assert list(row("pfml", "sop", "conventional").values) == ["R@1", "R@10", "R@100"]
    assert list(row("pfml", "cub", "conventional").values) == ["R@1", "R@2", "R@4"]
    # One table has the separated models first, the other the concatenated ones.
    for method in ("pfml", "ccp"):
        found = row(method, "cub", "mlrc")
        for part in ("separated", "concatenated"):
            own = found.rows[f"{found.table}, {part}"]
            assert list(own) == ["P@1", "RP", "MAP@R"]
            assert {name: found.values[f"{part} {name}"] for name in own} == own
        assert found.values["separated P@1"] < found.values["concatenated P@1"]


def test_inferred_settings_depend_on_method_and_protocol() -> None:
    """Under MLRC the protocol sets batches, rates and pooling."""
    assert inferred("proxy_anchor") == ""
    assert "10" in inferred("ccp")
    assert "256" in inferred("contrastive", "mlrc")
    assert inferred("multi_similarity", "mlrc") == inferred("contrastive", "mlrc")
    for protocol, rate in (("conventional", True), ("mlrc", False)):
        assert "α = 4" in inferred("pfml", protocol)
        assert ("1e-4" in inferred("pfml", protocol)) is rate
    made: Recipe = recipe("pfml", "cub", protocol="mlrc")
    assert (made.rate, made.pooling) == (1e-5, "average")
    assert "γ" in inferred("soft_triple", "mlrc")


@pytest.mark.parametrize("wrong", [{"protocol": "mlcr"}, {"backbone": "resnet-50"}])
def test_unknown_protocol_and_backbone_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}\b"):
        beside(recipe("pfml", "cub"), "pfml", "cub", **wrong)
