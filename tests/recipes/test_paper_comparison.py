"""The papers' rows: each is found by the run that it reports and by no other, and a run's differences are named."""

import re
from dataclasses import replace
from typing import Any

import pytest

from jdml.recipes import DATASETS, RECIPES, recipe
from jdml.recipes.paper_comparison import (
    PAPER_RESULTS,
    PaperRow,
    find_paper_rows,
    unspecified_settings,
)
from jdml.registry import NETWORKS

POOLED = {"network": {"pooling": "average+max"}}
TASK: dict[str, Any] = {"protocol": "conventional", "backbone": "resnet50", "label_noise": 0.0}


def test_each_row_is_found_by_its_own_run_alone() -> None:
    """Also where a table varies nothing but what is changed here: then another row is found, or none."""
    together = set()
    for result in PAPER_RESULTS:
        run, noise = result.reported_run
        asked: dict[str, Any] = {"method": result.method, "dataset": result.dataset}
        asked |= {"protocol": result.protocol, "backbone": result.backbone, "label_noise": noise}
        found = find_paper_rows(run, **asked)
        own = replace(result, differences=(result.note,) if result.note else ())
        assert [row for row in found if row.table == result.table] == [own]
        together.add(tuple(row.table for row in found))
        if result.dataset not in ("cub", "inshop"):  # every row is on one of them
            continue
        changes: tuple[dict[str, Any], ...] = (
            {"dim": run.network.dim + 1},
            {"pooling": "max" if run.network.pooling == "cubic" else "cubic"},
        )
        others: tuple[dict[str, Any], ...] = (
            {"label_noise": noise + 0.1},
            {"crop": 112},
            {"dataset": DATASETS[DATASETS.index(result.dataset) - 1]},
            {"backbone": "resnet18"},
            {"protocol": "mlrc" if result.protocol == "conventional" else "conventional"},
        )
        for change, other in (*((each, {}) for each in changes), *(({}, each) for each in others)):
            rows = find_paper_rows(run.replace(network=change), **asked | other)
            assert result.values not in [row.values for row in rows], (result, change, other)
    # Two tables may report one task: NIR prints its main one with constant and with falling rates.
    assert {tables for tables in together if len(tables) > 1} == {("NIR, Table 1", "NIR, Table 2")}


def test_the_tables_hold_percentages_that_go_together() -> None:
    """More neighbours find more; precision bounds what is averaged over its ranks; concatenation helps."""
    for result in PAPER_RESULTS:
        assert result.method in RECIPES
        assert result.backbone.removesuffix("_dino") in NETWORKS
        assert result.rows
        for row in result.rows.values():
            assert all(0 < value < 100 for value in row.values()), result
            recalls = [value for name, value in row.items() if name.startswith("R@")]
            assert recalls == sorted(recalls), result
            falling = [row[name] for name in ("P@1", "RP", "MAP@R") if name in row]
            assert falling == sorted(falling, reverse=True), result
        parts = {name.rpartition(", ")[2]: row for name, row in result.rows.items()}
        if "separated" in parts:
            assert parts["separated"]["P@1"] < parts["concatenated"]["P@1"]


@pytest.mark.parametrize(
    ("method", "settings", "changes"),
    [
        ("ccp", {"single": True}, {}),
        ("nir", {"shape": "identity"}, {}),
        ("nir", {"loss": "soft_triple"}, POOLED),
        ("nir", {"blocks": 15}, {}),
        ("nir", {"conditioning": "embedded"}, {}),
        ("nir_baseline", {}, POOLED),
        ("mpa", {}, {"loss": {"proxies": {"per_class": 2}}}),
        ("xbm", {"size": "S", "protocol": "mlrc"}, {}),
    ],
)
def test_a_task_that_no_table_has_finds_no_row(
    method: str, settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    for backbone in ("resnet50", "bn_inception"):
        run = recipe(method, "cub", backbone=backbone, **settings).replace(**changes)
        task = {**TASK, "protocol": settings.get("protocol", "conventional"), "backbone": backbone}
        assert find_paper_rows(run, method, "cub", **task) == []


def names(row: PaperRow, setting: str, ours: str, paper: str = "") -> bool:
    """Whether a difference begins with the setting's name and has both values."""
    pattern = rf"{re.escape(setting)} {re.escape(ours)}\b.*{re.escape(paper)}\b"
    return any(re.match(pattern, line) for line in row.differences)


@pytest.mark.parametrize(
    ("method", "preset"),
    [("pfml", "tuned"), ("nir", "released"), ("nir_baseline", "released"), ("ccp", "released")],
)
def test_the_paper_s_settings_are_the_default_and_another_preset_differs(
    method: str, preset: str
) -> None:
    assert recipe(method, "cars") == recipe(method, "cars", preset="paper")
    (paper, *_), (ours, *_) = (
        find_paper_rows(recipe(method, "cars", preset=name), method, "cars", **TASK)
        for name in ("paper", preset)
    )
    assert paper.values == ours.values
    assert () == paper.differences != ours.differences


def test_each_change_of_a_run_is_named_with_both_values() -> None:
    batch = {"classes": 8, "samples_per_class": 4, "steps": 2}
    run = recipe("eps", "cub").replace(batch=batch, optimizer={"learning_rate": 1e-3})
    (row,) = find_paper_rows(run, "eps", "cub", **TASK)
    assert len(row.differences) == 4
    assert names(row, "learning_rate of beta", "0.05", "0.0005")
    assert names(row, "batch", "8x4", "20x8")
    assert names(row, "learning_rate", "0.001", "1e-05")
    assert "steps 2" in row.differences
    large = recipe("eps", "cub", backbone="bn_inception").replace(network={"dim": 512})
    for samples, count in ((8, 1), (13, 0)):
        run = large.replace(batch={"classes": 20, "samples_per_class": samples})
        (row,) = find_paper_rows(run, "eps", "cub", **TASK | {"backbone": "bn_inception"})
        assert len(row.differences) == names(row, "batch", "20x8", "20x13") == count


def test_a_value_that_a_paper_does_not_print_is_no_difference_but_a_note() -> None:
    """NIR's rates of Table 2 went down stepwise, and a row of its Table 4 had gradients cut."""
    nir = recipe("nir", "cub")
    run = nir.replace(optimizer={"schedule": "step:every=40,factor=0.2"})
    first, second = find_paper_rows(run, "nir", "cub", **TASK)
    assert names(first, "schedule", "step:every=40,factor=0.2", "constant")
    clipped = nir.replace(optimizer={"clip_global_norm": 3.0})
    (cut,) = find_paper_rows(clipped, "nir", "cub", **TASK)
    for row in (second, cut):
        (note,) = {result.note for result in PAPER_RESULTS if result.values == row.values}
        assert note
        assert row.differences == (note,)


def test_columns_are_those_of_the_data_set() -> None:
    for dataset, metrics in (("sop", ["R@1", "R@10", "R@100"]), ("cub", ["R@1", "R@2", "R@4"])):
        row, *_ = find_paper_rows(recipe("pfml", dataset), "pfml", dataset, **TASK)
        assert list(row.values) == metrics


def test_what_a_paper_leaves_open_is_said_by_method_and_protocol() -> None:
    assert unspecified_settings("proxy_anchor", "conventional") == ""
    for protocol, rate in (("conventional", True), ("mlrc", False)):
        assert ("1e-4" in unspecified_settings("pfml", protocol)) is rate
