"""The papers' rows: each method, data set and setting that a table varies has the row that is printed, or none."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from jdml.recipes import DATASETS, RECIPES, Recipe, recipe
from jdml.recipes.beside import Beside, beside, of_entry
from jdml.recipes.printed import ENTRIES, inferred
from jdml.registry import NETWORKS

pytestmark = pytest.mark.slow

PRINTED = {
    # Of each task its first number on CUB, Cars196, SOP and In-shop; mlrc: the separated P@1. Two tables: with a +.
    "conventional": """
    pfml resnet50 512: 73.4 92.7 82.9 -
    pfml bn_inception 512: 71.5 90.1 80.6 -
    pfml vit_s16 384: 87.8 91.5 88.2 -
    pfml vit_s16_dino 384: 83.1 94.7 86.5 -
    cpml resnet50 512: 68.3 85.2 79.4 -
    proxy_anchor resnet50 512: 69.7 87.7 - -
    proxy_anchor bn_inception 512: 68.4 86.1 79.1 91.5
    pfml resnet50 512 noise=0.2: 66.7 84.5 - -
    triplet resnet50 512 noise=0.2: 55.1 67.5 - -
    multi_similarity resnet50 512 noise=0.2: 58.9 70.4 - -
    proxy_nca resnet50 512 noise=0.2: 60.1 74.3 - -
    proxy_anchor resnet50 512 noise=0.2: 60.7 76.9 - -
    pfml resnet50 64: 63.9 83.4 79.5 -
    proxy_anchor resnet50 64: 61.7 78.8 76.5 -
    soft_triple bn_inception 512: 67.6 86.0 79.0 -
    mpa_proxy_anchor bn_inception 512: 68.6 86.1 77.6 -
    mpa bn_inception 512: 69.2 86.8 77.5 -
    mpa_dw bn_inception 512: 68.9 86.6 78.4 -
    mpa_ap bn_inception 512: 69.1 87.1 78.1 -
    mpa bn_inception 512 proxies=1: 68.4 86.0 - -
    mpa bn_inception 512 proxies=4: 69.0 86.1 - -
    mpa bn_inception 512 proxies=8: 69.1 86.6 - -
    mpa bn_inception 512 proxies=12: 69.3 86.5 - -
    mpa bn_inception 512 proxies=16: 67.6 86.4 - -
    triplet resnet50 128: 61.5 76.1 - -
    proxy_nca resnet50 128: 63.1 77.1 - -
    margin resnet50 128: 63.6 79.6 - -
    multi_similarity resnet50 128: 62.3 81.2 - -
    eps_triplet resnet50 128: 61.8 78.3 - -
    eps_margin resnet50 128: 64.7 83.6 - -
    eps resnet50 128: 63.3 82.9 - -
    multi_similarity bn_inception 512: 65.7 84.1 - -
    eps bn_inception 512: 66.7 85.5 - -
    ccp bn_inception 512: 69.87 83.90 80.01 91.72
    ccp bn_inception 512 loss=similarity_contrastive: 67.74 83.74 79.86 90.98
    ccp bn_inception 512 loss=multi_similarity: 69.09 86.01 79.75 91.84
    ccp resnet50 512: 71.04 85.93 81.66 92.46
    ccp resnet50 512 loss=similarity_contrastive: 69.87 87.12 81.74 92.07
    ccp resnet50 512 loss=multi_similarity: 70.37 89.02 81.59 92.71
    nir_baseline resnet50 128: 64.4 82.4 78.0 -
    nir_baseline resnet50 128 loss=proxy_nca_margin: 64.2 82.1 78.3 -
    nir_baseline resnet50 128 loss=soft_triple: 62.3 80.7 76.9 -
    nir resnet50 128: 66.0+66.9 85.2+85.3 78.9+79.6 -
    nir resnet50 128 loss=proxy_nca_margin: 66.1 84.3 79.1 -
    nir resnet50 128 loss=soft_triple: 63.8 83.4 77.6 -
    nir resnet50 128 pooling=average+max: 67.9 86.5 79.4 -
    nir bn_inception 512: 69.4 87.1 79.4 -
    nir bn_inception 512 pooling=average+max: 70.1 87.9 79.3 -
    nir resnet50 512: 69.1 87.7 80.7 -
    nir resnet50 512 pooling=average+max: 70.5 89.1 80.4 -
    nir resnet50 128 shape=softplus: 66.3 85.1 - -
    nir resnet50 128 temperature=0.3: 66.1 85.0 - -
    nir resnet50 128 temperature=3.0: 65.8 84.8 - -
    nir resnet50 128 max_norm=1.0: 65.9 85.3 - -
    nir resnet50 128 stop_proxy_gradient=True: 66.2 85.0 - -
    nir resnet50 128 wrong_class_weight=1.0: 64.9 83.5 - -
    nir resnet50 128 weight=0.0: 60.0 73.5 - -
    nir resnet50 128 blocks=15 width=64: 66.5 85.1 - -
    nir resnet50 128 blocks=5 width=512: 66.1 84.9 - -
    nir resnet50 128 blocks=3 width=1024: 65.8 85.3 - -
    nir resnet50 128 conditioning=start: 66.4 85.1 - -
    nir resnet50 128 conditioning=mid: 66.1 84.9 - -
    nir resnet50 128 conditioning=end: 65.7 84.8 - -
    nir resnet50 128 self_regularization=generate: 64.8 84.6 - -
    nir resnet50 128 self_regularization=match: 63.2 83.4 - -
    nir resnet50 128 self_regularization=both: 63.5 83.9 - -
    """,
    "mlrc": """
    similarity_contrastive bn_inception 128: 56.21 64.17 64.96 76.08
    xbm bn_inception 128: 57.57 72.13 75.37 85.75
    ccp bn_inception 128 loss=similarity_contrastive: 59.56 72.05 76.24 85.50
    contrastive bn_inception 128: 59.73 69.17 71.15 83.04
    xbm bn_inception 128 loss=contrastive: 60.18 70.01 73.47 84.58
    ccp bn_inception 128: 62.39 72.16 75.92 86.11
    multi_similarity bn_inception 128: 57.24 69.27 68.96 85.39
    ccp bn_inception 128 loss=multi_similarity: 61.10 74.97 75.80 87.10
    triplet bn_inception 128: 55.51 64.57 70.41 82.58
    ccp bn_inception 128 loss=triplet: 56.65 68.75 72.21 86.00
    proxy_anchor bn_inception 128: 60.61 75.79 73.86 85.87
    proxy_nca_pp bn_inception 128: 58.49 72.45 72.89 84.79
    soft_triple bn_inception 128: 57.94 73.16 74.66 85.71
    pfml bn_inception 128: 62.4 81.2 - -
    """,
}
BACKBONES = ("resnet18", "resnet50", "bn_inception", "vit_s16", "vit_s16_dino")
DIMS = (64, 128, 384, 512)
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    # by method, what else its paper's tables vary, and what none does
    "ccp": (
        *({"loss": loss} for loss in ("similarity_contrastive", "multi_similarity", "triplet")),
        {"single": True},
    ),
    "xbm": ({"loss": "contrastive"}, {"size": "S"}),
    "nir_baseline": (
        {"loss": "proxy_nca_margin"},
        {"loss": "soft_triple"},
        {"pooling": "average+max"},
    ),
    "nir": (
        {"loss": "proxy_nca_margin"},
        {"loss": "soft_triple"},
        {"loss": "soft_triple", "pooling": "average+max"},
        {"pooling": "average+max"},
        {"shape": "softplus"},
        {"shape": "softplus", "pooling": "average+max"},
        {"shape": "identity"},
        *({"temperature": value} for value in (0.3, 0.5, 3.0)),
        {"max_norm": 1.0},
        {"stop_proxy_gradient": True},
        {"wrong_class_weight": 1.0},
        {"wrong_class_weight": 0.5},
        {"weight": 0.0},
        {"blocks": 15, "width": 64},
        {"blocks": 5, "width": 512},
        {"blocks": 3, "width": 1024},
        {"blocks": 15},
        *({"conditioning": place} for place in ("start", "mid", "end", "embedded")),
        *({"self_regularization": kind} for kind in ("generate", "match", "both")),
    ),
}
NUMBERS = {"mpa": (1, 2, 4, 8, 12, 16), "mpa_dw": (1, 4), "soft_triple": (3,), "pfml": (5,), "ccp": (1,)}  # fmt: skip


def record(protocol: str) -> dict[tuple[str, str], list[float]]:
    """By task and data set, the first numbers of the rows."""
    rows = {}
    for line in filter(None, map(str.strip, PRINTED[protocol].splitlines())):
        task, _, numbers = line.partition(": ")
        for dataset, values in zip(DATASETS, numbers.split(), strict=True):
            if values != "-":
                rows[task, dataset] = [float(value) for value in values.split("+")]
    return rows


def made(
    method: str, dataset: str, protocol: Any, backbone: str, changes: Mapping[str, Any]
) -> Recipe:
    network, known = backbone.removesuffix("_dino"), {"max_norm", "dim", "proxies_per_class"}
    settings = {name: value for name, value in changes.items() if name not in known}
    own = recipe(method, dataset, protocol=protocol, backbone=network, **settings)
    return dataclasses.replace(own, **{k: v for k, v in changes.items() if k in known})


def tasks(protocol: str, method: str) -> Iterator[tuple[str, str, dict[str, Any], float]]:
    """Backbones, data sets, changes and shares of wrong labels: more than any table has."""
    for backbone, dataset in itertools.product(BACKBONES, DATASETS):
        for dim in DIMS:
            yield backbone, dataset, {"dim": dim}, 0.0
        for dim, noise in ((512, 0.2), (512, 0.1), (64, 0.2)):
            yield backbone, dataset, {"dim": dim}, noise
        for settings in SETTINGS.get(method, ()) if backbone in BACKBONES[1:3] else ():
            for dim in (128, 512):
                yield backbone, dataset, {"dim": dim, **settings}, 0.0
        for number in NUMBERS.get(method, ()):
            if number != made(method, dataset, protocol, backbone, {}).num_proxies:
                yield backbone, dataset, {"proxies_per_class": number}, 0.0


def first_numbers(found: list[Beside], protocol: str) -> list[float]:
    part = ", separated" if protocol == "mlrc" else ""
    return [next(iter(each.rows[each.table + part].values())) for each in found]


@pytest.mark.parametrize("protocol", PRINTED)
def test_the_row_shown_is_the_one_that_the_papers_print(protocol: str) -> None:
    """All methods, data sets, backbones, widths, shares of wrong labels, proxies, losses, heads and ablations."""
    rows, seen = record(protocol), set()
    for method in RECIPES:
        for backbone, dataset, changes, noise in tasks(protocol, method):
            run = made(method, dataset, protocol, backbone, changes)
            task = f"{method} {backbone} {run.dim}"
            words = {name: value for name, value in changes.items() if name != "dim"}
            if "proxies_per_class" in words:
                words = {"proxies": words["proxies_per_class"]}
            words |= {"noise": noise} if noise else {}
            task = " ".join([task, *(f"{name}={value}" for name, value in words.items())])
            found = beside(
                run, method, dataset, protocol=protocol, backbone=backbone, label_noise=noise
            )
            assert first_numbers(found, protocol) == rows.get((task, dataset), []), (task, dataset)
            seen.add((task, dataset))
    assert seen >= rows.keys()


def test_every_row_of_the_record_is_the_row_of_its_own_run_and_of_no_other_s() -> None:
    for entry in ENTRIES:
        run, noise = of_entry(entry)
        asked = (run, entry.method, entry.dataset)
        where = {"protocol": entry.protocol, "backbone": entry.backbone, "label_noise": noise}
        own = [each for each in beside(*asked, **where) if each.table == entry.table]
        assert own == [Beside(entry.table, entry.rows, (entry.note,) if entry.note else ())]
        assert beside(*asked, **where, crop=112) == []
        assert all(row for row in entry.rows.values())
        assert entry.method in RECIPES
        assert entry.backbone.removesuffix("_dino") in NETWORKS


@pytest.mark.parametrize(
    ("method", "preset", "unlike"),
    [
        ("pfml", "found", "alpha 1 (paper: 4)"),
        ("nir", "released", "flow released (paper: paper)"),
        ("nir_baseline", "released", "rate of proxies 0.02 (paper: 0.04)"),
        ("ccp", "released", "in_batch_weight 0.1 (paper: 0)"),
    ],
)
def test_the_paper_s_settings_are_the_default_and_ours_say_that_they_are_not(
    method: str, preset: str, unlike: str
) -> None:
    assert recipe(method, "cars") == recipe(method, "cars", preset="paper")
    (printed, *_), (ours, *_) = (
        beside(recipe(method, "cars", preset=name), method, "cars") for name in ("paper", preset)
    )
    assert (printed.rows, printed.unlike) == (ours.rows, ())
    assert unlike in ours.unlike


def test_what_was_changed_is_told_beside_the_row() -> None:
    run = dataclasses.replace(recipe("eps", "cub"), batch=(8, 4), rate=1e-3, steps=2)
    assert beside(run, "eps", "cub")[0].unlike == (
        "rate of beta 0.05 (paper: 0.0005)",
        "batch 8x4 (paper: 20x8)",
        "rate 0.001 (paper: 1e-05)",
        "steps 2",
    )
    large = recipe("eps", "cub", backbone="bn_inception")
    for batch, unlike in (((20, 8), ("batch 20x8 (paper: 20x13)",)), ((20, 13), ())):
        run = dataclasses.replace(large, dim=512, batch=batch)
        assert beside(run, "eps", "cub", backbone="bn_inception")[0].unlike == unlike


def test_the_weight_of_the_loss_is_told_beside_the_method_s() -> None:
    run = dataclasses.replace(recipe("nir", "cub", weight=0.5), weight=3.0)
    told = beside(run, "nir", "cub")[0].unlike
    assert "weight 3 (paper: 1)" in told
    assert any(one.startswith("weight of nir 0.5 (paper: ") for one in told)


def test_what_a_paper_has_of_unknown_values_is_told_as_such() -> None:
    """NIR's rates of Table 2 went down stepwise, and a row of its Table 4 had gradients cut."""
    run = recipe("nir", "cub", decay_every=40, decay_factor=0.2)
    first, second = beside(run, "nir", "cub")
    assert first.unlike == ("decay_every 40 (paper: none)", "decay_factor 0.2 (paper: 0.5)")
    assert second.unlike == ("rates went down there in at most two steps, when is not printed",)
    (cut,) = beside(recipe("nir", "cub", max_norm=3.0), "nir", "cub")
    assert cut.unlike == ("at which norm gradients were cut is not printed",)


def test_the_tables_have_all_their_columns() -> None:
    def row(method: str, dataset: str, **where: Any) -> dict[str, Mapping[str, float]]:
        made = recipe(method, dataset, backbone="bn_inception", protocol=where["protocol"])
        return dict(beside(made, method, dataset, backbone="bn_inception", **where)[0].rows)

    one = row("pfml", "sop", protocol="conventional")
    assert one == {"PFML, Table 1": {"R@1": 80.6, "R@10": 91.8, "R@100": 96.4}}
    assert row("pfml", "cub", protocol="mlrc") == {
        "PFML, Tables 6 and 7, separated": {"P@1": 62.4, "RP": 33.8, "MAP@R": 23.1},
        "PFML, Tables 6 and 7, concatenated": {"P@1": 70.1, "RP": 39.9, "MAP@R": 29.4},
    }
    mpa = row("mpa", "sop", protocol="conventional")["MPA, Tables 4 to 6"]
    assert list(mpa) == ["R@1", "R@10", "R@100", "nDCG@10", "nDCG@100", "MAP@R"]


def test_what_is_inferred_is_said() -> None:
    assert "α = 4, of the printed range {0, 6}" in inferred("pfml")
    assert "norm 10 at most, which are the program's" in inferred("ccp")
    assert "between 40 and 256" in inferred("contrastive", "mlrc")
    assert inferred("proxy_anchor") == ""


def test_what_is_inferred_is_of_the_protocol() -> None:
    """Under MLRC batches, rates and pooling are the protocol's."""
    assert inferred("multi_similarity", "mlrc") == inferred("contrastive", "mlrc")
    field, made = inferred("pfml", "mlrc"), recipe("pfml", "cub", protocol="mlrc")
    assert "α = 4" in field
    assert "rate 1e-4" not in field
    assert "maximum" not in field
    assert (made.rate, made.pooling) == (1e-5, "average")
    assert "γ divides" in inferred("soft_triple", "mlrc")


def test_a_note_on_other_methods_is_not_beside_the_paper_s_own() -> None:
    for method, unlike in (("pfml", 0), ("proxy_anchor", 1)):
        (row,) = beside(recipe(method, "cub"), method, "cub", label_noise=0.2)
        assert row.table == "PFML, Table 2"
        assert len(row.unlike) == unlike


def test_the_parts_of_a_row_have_their_own_numbers() -> None:
    made = recipe("ccp", "cub", backbone="bn_inception", protocol="mlrc")
    (row,) = beside(made, "ccp", "cub", backbone="bn_inception", protocol="mlrc")
    assert row.values["separated P@1"] == 62.39
    assert row.values["concatenated P@1"] == 69.73
    (plain,) = beside(recipe("pfml", "cub"), "pfml", "cub")
    assert plain.values == plain.rows[plain.table]


@pytest.mark.parametrize("wrong", [{"protocol": "mlcr"}, {"backbone": "resnet-50"}])
def test_what_no_run_has_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of"):
        beside(recipe("pfml", "cub"), "pfml", "cub", **wrong)
