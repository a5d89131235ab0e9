"""What the papers print of the tasks that ``jdml benchmark`` runs: a record of their tables.

Rows that a paper repeats from another are left out, but for ProxyAnchor's, whose own setting is a recipe here. CCP's
HPL-PA, a hierarchical loss of another paper, has no recipe.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jdml.recipes.words import parse_settings

Row = Mapping[str, float]


@dataclass(frozen=True)
class Entry:
    """A row of a table, on one data set.

    Attributes:
        table: the paper and the table.
        protocol: of ``jdml benchmark``, as are the three that follow.
        method: see ``protocol``.
        backbone: see ``protocol``; ``"vit_s16_dino"`` is a ``"vit_s16"`` with DINO's weights.
        dataset: see ``protocol``.
        task: in what the run differs from the method's recipe: settings of the method, see
            :func:`jdml.recipes.settings_of`, fields of the recipe, and ``label_noise``.
        rows: in percent by metric, by what they are called.
        unprinted: fields of the recipe that the row has of an unknown value.
        note: what no task can say.
    """

    table: str
    protocol: str
    method: str
    backbone: str
    dataset: str
    task: Mapping[str, Any]
    rows: Mapping[str, Row]
    unprinted: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class Table:
    """A table of a paper, or several of one form.

    Attributes:
        name: the paper and the table.
        metrics: of the columns.
        lines: one for each row, or for a part of it: method, backbone and the task, as ``name=value``; after a colon
            the data sets and their numbers in percent, where a dash is none.
        task: what all rows add to their own.
        protocol: of ``jdml benchmark``.
        on_sop: metrics of the columns on SOP, where they are others.
        parts: of which embeddings each row has its columns, one part after the other.
        unprinted: fields of the recipe that the rows have of unknown values.
        note: what no task can say of the rows.
    """

    name: str
    metrics: tuple[str, ...]
    lines: str
    task: str = ""
    protocol: str = "conventional"
    on_sop: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("",)
    unprinted: tuple[str, ...] = ()
    note: str = ""

    def __iter__(self) -> Iterator[Entry]:
        """Every row on every data set."""
        for line in filter(None, map(str.strip, self.lines.splitlines())):
            words, _, columns = line.partition(": ")
            method, backbone, *own = words.split()
            task = parse_settings((*own, *self.task.split()), self.name, words=True)
            for dataset, *numbers in map(str.split, columns.split("|")):
                what = (self.name, self.protocol, method, backbone, dataset, task)
                yield Entry(*what, self._read(dataset, numbers), self.unprinted, self.note)

    def _read(self, dataset: str, numbers: list[str]) -> dict[str, Row]:
        names = self.on_sop if dataset == "sop" and self.on_sop else self.metrics
        rows: dict[str, Row] = {}
        for place, part in enumerate(self.parts):
            own = numbers[place * len(names) : (place + 1) * len(names)]
            called = f"{self.name}, {part}" if part else self.name
            rows[called] = {n: float(v) for n, v in zip(names, own, strict=False) if v != "-"}
        return rows


RECALLS, RECALLS_SOP = ("R@1", "R@2", "R@4", "R@8"), ("R@1", "R@10", "R@100", "R@1000")
RANKED = (*RECALLS, "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R")
RANKED_SOP = (*RECALLS_SOP[:3], "nDCG@10", "nDCG@100", "MAP@R")
SEPARATED = ("P@1", "RP", "MAP@R")

TABLES: tuple[Table, ...] = (
    Table(
        "PFML, Table 1",
        RECALLS,
        """
        pfml resnet50: cub 73.4 82.4 88.8 | cars 92.7 95.5 97.6 | sop 82.9 92.5 96.8
        pfml bn_inception: cub 71.5 81.2 88.3 | cars 90.1 93.9 96.3 | sop 80.6 91.8 96.4
        pfml vit_s16: cub 87.8 92.6 95.7 | cars 91.5 95.2 97.4 | sop 88.2 95.7 98.6
        pfml vit_s16_dino: cub 83.1 89.3 94.2 | cars 94.7 96.5 97.8 | sop 86.5 95.1 98.0
        cpml resnet50: cub 68.3 78.7 86.2 | cars 85.2 91.5 95.2 | sop 79.4 90.7 96.1
        proxy_anchor resnet50: cub 69.7 80.0 87.0 | cars 87.7 92.9 95.8
        """,
        on_sop=RECALLS_SOP,
    ),
    Table(
        "PFML, Table 2",
        RECALLS,
        """
        pfml resnet50: cub 66.7 76.9 | cars 84.5 88.6
        """,
        task="label_noise=0.2 dim=512",
    ),
    Table(
        "PFML, Table 2",
        RECALLS,
        """
        triplet resnet50: cub 55.1 68.7 | cars 67.5 77.9
        multi_similarity resnet50: cub 58.9 71.8 | cars 70.4 79.8
        proxy_nca resnet50: cub 60.1 74.7 | cars 74.3 82.4
        proxy_anchor resnet50: cub 60.7 75.1 | cars 76.9 83.1
        """,
        task="label_noise=0.2 dim=512",
        note="how all methods but its own were trained there is not printed",
    ),
    Table(
        "PFML, Tables 4 and 5",
        RECALLS,
        """
        pfml resnet50: cub 63.9 74.7 83.5 90.1 | cars 83.4 89.9 94.2 97.1 | sop 79.5 90.8 96.3 98.6
        proxy_anchor resnet50: cub 61.7 73.0 81.8 88.8 | cars 78.8 87.0 92.2 95.5
        proxy_anchor resnet50: sop 76.5 89.0 95.1 98.2
        """,
        task="dim=64",
        on_sop=RECALLS_SOP,
    ),
    Table(
        "PFML, Tables 6 and 7",
        SEPARATED,
        """
        pfml bn_inception: cub 62.4 33.8 23.1 70.1 39.9 29.4 | cars 81.2 33.6 22.9 88.4 40.1 31.0
        """,
        protocol="mlrc",
        parts=("separated", "concatenated"),
    ),
    Table(
        "MPA, Tables 4 to 6",
        RANKED,
        """
        proxy_anchor bn_inception: cub 68.4 79.2 86.8 91.6 | cars 86.1 91.7 95.0 97.3
        proxy_anchor bn_inception: sop 79.1 90.8 96.2
        soft_triple bn_inception: cub 67.6 78.0 85.8 91.1 65.4 62.9 59.4 25.5
        soft_triple bn_inception: cars 86.0 91.8 95.2 97.2 84.1 81.3 77.1 27.5
        soft_triple bn_inception: sop 79.0 90.7 96.0 64.4 70.7 51.7
        mpa_proxy_anchor bn_inception: cub 68.6 78.7 86.1 91.7 66.7 64.1 60.9 26.7
        mpa_proxy_anchor bn_inception: cars 86.1 91.6 95.0 97.2 84.3 81.6 77.6 28.8
        mpa_proxy_anchor bn_inception: sop 77.6 90.2 95.9 62.7 69.2 49.7
        mpa bn_inception: cub 69.2 79.4 86.6 91.6 67.3 64.7 61.3 26.6
        mpa bn_inception: cars 86.8 92.0 95.1 97.2 84.9 82.1 78.0 28.4
        mpa bn_inception: sop 77.5 90.0 95.8 62.5 69.0 49.6
        mpa_dw bn_inception: cub 68.9 79.0 86.5 91.9 66.9 64.3 61.1 26.3
        mpa_dw bn_inception: cars 86.6 91.8 95.2 97.2 84.8 82.1 78.0 28.1
        mpa_dw bn_inception: sop 78.4 90.1 95.5 63.2 69.2 50.5
        mpa_ap bn_inception: cub 69.1 79.1 86.3 91.7 67.1 64.6 61.3 26.6
        mpa_ap bn_inception: cars 87.1 92.4 95.5 97.5 85.3 82.7 78.8 28.6
        mpa_ap bn_inception: sop 78.1 90.1 95.6 62.9 69.1 50.2
        """,
        on_sop=RANKED_SOP,
    ),
    Table(
        "MPA, Tables 7 and 8",
        ("R@1", "nDCG@2", "nDCG@4", "nDCG@8"),
        """
        mpa bn_inception proxies_per_class=1: cub 68.4 66.7 64.0 60.9 | cars 86.0 84.3 81.4 77.3
        mpa bn_inception proxies_per_class=4: cub 69.0 67.2 64.5 61.2 | cars 86.1 84.5 81.7 77.6
        mpa bn_inception proxies_per_class=8: cub 69.1 67.4 64.7 61.4 | cars 86.6 84.9 82.1 78.1
        mpa bn_inception proxies_per_class=12: cub 69.3 67.3 64.8 61.5 | cars 86.5 84.8 82.1 78.0
        mpa bn_inception proxies_per_class=16: cub 67.6 66.1 63.5 60.2 | cars 86.4 84.7 82.1 78.0
        """,
    ),
    Table(
        "EPS, Table 2",
        ("R@1", "R@2", "R@4", "NMI", "NMI+"),
        """
        triplet resnet50: cub 61.5 73.4 82.5 66.2 68.1 | cars 76.1 84.4 90.0 65.1 68.5
        proxy_nca resnet50: cub 63.1 74.8 83.8 67.2 68.7 | cars 77.1 85.2 91.2 65.6 68.9
        margin resnet50: cub 63.6 74.4 83.1 69.0 68.7 | cars 79.6 86.5 91.9 69.1 70.4
        multi_similarity resnet50: cub 62.3 73.3 82.1 59.8 68.0 | cars 81.2 89.1 93.5 60.5 71.1
        eps_triplet resnet50: cub 61.8 73.6 82.4 62.4 68.0 | cars 78.3 85.9 91.4 59.8 69.8
        eps_margin resnet50: cub 64.7 75.2 84.3 68.2 69.4 | cars 83.6 89.5 93.6 67.3 72.4
        eps resnet50: cub 63.3 74.2 82.5 61.2 68.2 | cars 82.9 89.4 93.2 60.0 72.0
        """,
    ),
    Table(
        "EPS, Table 6",
        RECALLS,
        """
        multi_similarity bn_inception: cub 65.7 77.0 86.3 91.2 | cars 84.1 90.4 94.0 96.5
        eps bn_inception: cub 66.7 77.2 86.4 90.9 | cars 85.5 90.7 94.3 96.7
        """,
        task="dim=512 batch=(20,13)",
    ),
    Table(
        "CCP, Tables 1 and 2",
        ("R@1",),
        """
        ccp bn_inception loss=similarity_contrastive: cub 67.74 | cars 83.74 | sop 79.86
        ccp bn_inception loss=similarity_contrastive: inshop 90.98
        ccp bn_inception loss=contrastive: cub 69.87 | cars 83.90 | sop 80.01 | inshop 91.72
        ccp bn_inception loss=multi_similarity: cub 69.09 | cars 86.01 | sop 79.75 | inshop 91.84
        ccp resnet50 loss=similarity_contrastive: cub 69.87 | cars 87.12 | sop 81.74 | inshop 92.07
        ccp resnet50 loss=contrastive: cub 71.04 | cars 85.93 | sop 81.66 | inshop 92.46
        ccp resnet50 loss=multi_similarity: cub 70.37 | cars 89.02 | sop 81.59 | inshop 92.71
        """,
    ),
    Table(
        "CCP, Table 1",
        ("R@1",),
        """
        proxy_anchor bn_inception: inshop 91.50
        """,
    ),
    Table(
        "CCP, Tables 3 and 4",
        SEPARATED,
        """
        similarity_contrastive bn_inception: cub 63.67 33.77 23.08 56.21 29.65 19.06
        similarity_contrastive bn_inception: cars 77.75 33.69 23.50 64.17 26.50 16.13
        similarity_contrastive bn_inception: sop 68.84 43.28 40.25 64.96 39.68 36.54
        similarity_contrastive bn_inception: inshop 80.12 53.11 50.15 76.08 49.61 46.51
        ccp bn_inception loss=similarity_contrastive: cub 68.11 37.85 27.11 59.56 32.06 21.27
        ccp bn_inception loss=similarity_contrastive: cars 83.76 37.78 28.32 72.05 28.74 18.96
        ccp bn_inception loss=similarity_contrastive: sop 79.53 55.11 52.73 76.24 50.07 48.07
        ccp bn_inception loss=similarity_contrastive: inshop 88.52 62.54 59.67 85.50 58.51 55.56
        contrastive bn_inception: cub 67.49 37.18 26.47 59.73 31.86 21.01
        contrastive bn_inception: cars 81.04 34.97 24.73 69.17 27.70 17.22
        contrastive bn_inception: sop 74.87 49.88 46.94 71.15 45.77 42.66
        contrastive bn_inception: inshop 86.32 62.36 59.42 83.04 58.27 55.13
        ccp bn_inception loss=contrastive: cub 69.73 38.69 28.02 62.39 33.49 22.67
        ccp bn_inception loss=contrastive: cars 82.89 36.27 26.27 72.16 28.98 18.52
        ccp bn_inception loss=contrastive: sop 78.95 55.01 52.19 75.92 51.14 48.18
        ccp bn_inception loss=contrastive: inshop 88.52 63.94 61.07 86.11 60.16 57.24
        multi_similarity bn_inception: cub 64.65 34.84 24.15 57.24 30.29 19.64
        multi_similarity bn_inception: cars 80.88 36.45 26.23 69.27 28.93 18.25
        multi_similarity bn_inception: sop 72.74 47.07 44.10 68.96 43.25 40.18
        multi_similarity bn_inception: inshop 88.37 63.53 60.65 85.39 59.65 56.61
        ccp bn_inception loss=multi_similarity: cub 68.84 38.19 27.44 61.10 33.23 22.40
        ccp bn_inception loss=multi_similarity: cars 86.26 38.97 29.14 74.97 30.44 19.85
        ccp bn_inception loss=multi_similarity: sop 78.96 54.71 51.85 75.80 50.48 47.97
        ccp bn_inception loss=multi_similarity: inshop 90.24 66.31 63.59 87.10 61.74 59.15
        triplet bn_inception: cub 64.01 34.55 23.43 55.51 29.38 18.51
        triplet bn_inception: cars 78.44 33.83 23.11 64.57 26.52 15.68
        triplet bn_inception: sop 75.40 50.13 47.03 70.41 44.32 41.03
        triplet bn_inception: inshop 86.71 63.81 60.60 82.58 58.74 55.25
        ccp bn_inception loss=triplet: cub 65.36 35.42 24.53 56.65 30.17 19.31
        ccp bn_inception loss=triplet: cars 81.84 35.61 25.21 68.75 28.21 17.43
        ccp bn_inception loss=triplet: sop 77.09 52.42 49.33 72.21 46.38 43.11
        ccp bn_inception loss=triplet: inshop 89.44 67.23 64.28 86.00 62.24 59.04
        proxy_anchor bn_inception: cub 68.43 37.36 26.53 60.61 32.36 21.48
        proxy_anchor bn_inception: cars 85.29 37.53 27.73 75.79 29.91 19.56
        proxy_anchor bn_inception: sop 77.10 51.95 49.01 73.86 47.94 44.89
        proxy_anchor bn_inception: inshop 88.08 60.91 58.09 85.87 57.80 54.95
        soft_triple bn_inception: cub 68.12 36.98 26.02 57.94 30.63 19.86
        soft_triple bn_inception: cars 84.90 37.69 27.80 73.16 29.60 19.18
        soft_triple bn_inception: sop 78.48 53.68 50.77 74.66 48.79 45.75
        soft_triple bn_inception: inshop 88.37 62.56 59.56 85.71 58.74 55.68
        xbm bn_inception loss=similarity_contrastive: cub 65.40 35.57 24.87 57.57 30.42 19.84
        xbm bn_inception loss=similarity_contrastive: cars 83.68 37.74 27.93 72.13 28.55 18.83
        xbm bn_inception loss=similarity_contrastive: sop 78.68 54.66 51.82 75.37 49.95 47.39
        xbm bn_inception loss=similarity_contrastive: inshop 88.39 61.33 58.64 85.75 58.13 55.37
        xbm bn_inception loss=contrastive: cub 68.62 37.53 26.83 60.18 32.25 21.41
        xbm bn_inception loss=contrastive: cars 82.40 36.07 25.99 70.01 28.49 18.01
        xbm bn_inception loss=contrastive: sop 76.66 51.91 49.04 73.47 48.18 45.15
        xbm bn_inception loss=contrastive: inshop 87.66 63.50 60.64 84.58 59.78 56.75
        proxy_nca_pp bn_inception: cub 65.48 35.60 24.85 58.49 31.73 20.96
        proxy_nca_pp bn_inception: cars 82.87 36.56 26.34 72.45 29.91 19.32
        proxy_nca_pp bn_inception: sop 76.07 51.17 48.20 72.89 47.47 44.44
        proxy_nca_pp bn_inception: inshop 87.33 60.33 57.48 84.79 57.33 54.42
        """,
        protocol="mlrc",
        parts=("concatenated", "separated"),
    ),
    Table(
        "NIR, Table 1",
        ("R@1", "NMI", "MAP@1000"),
        """
        nir_baseline resnet50 loss=proxy_anchor: cub 64.4 68.4 33.2 | cars 82.4 69.0 34.2
        nir_baseline resnet50 loss=proxy_anchor: sop 78.0 90.1 45.5
        nir resnet50 loss=proxy_anchor: cub 66.0 69.6 34.2 | cars 85.2 71.6 36.4
        nir resnet50 loss=proxy_anchor: sop 78.9 90.4 46.5
        nir_baseline resnet50 loss=proxy_nca_margin: cub 64.2 68.6 33.1 | cars 82.1 68.2 32.4
        nir_baseline resnet50 loss=proxy_nca_margin: sop 78.3 90.0 45.5
        nir resnet50 loss=proxy_nca_margin: cub 66.1 69.8 34.3 | cars 84.3 70.6 34.5
        nir resnet50 loss=proxy_nca_margin: sop 79.1 90.2 46.2
        nir_baseline resnet50 loss=soft_triple: cub 62.3 68.2 31.6 | cars 80.7 66.4 30.4
        nir_baseline resnet50 loss=soft_triple: sop 76.9 89.6 43.5
        nir resnet50 loss=soft_triple: cub 63.8 68.5 34.0 | cars 83.4 68.8 35.5 | sop 77.6 90.0 44.9
        """,
    ),
    Table(
        "NIR, Table 2",
        ("R@1", "R@2", "NMI"),
        """
        nir resnet50 dim=128 pooling=average: cub 66.9 77.7 69.8 | cars 85.3 91.1 72.1
        nir resnet50 dim=128 pooling=average: sop 79.6 90.7 90.5
        nir resnet50 dim=128 pooling=average+max: cub 67.9 78.3 71.4 | cars 86.5 92.0 72.7
        nir resnet50 dim=128 pooling=average+max: sop 79.4 90.7 90.6
        nir bn_inception dim=512 pooling=average: cub 69.4 79.7 71.1 | cars 87.1 92.5 73.1
        nir bn_inception dim=512 pooling=average: sop 79.4 90.5 90.3
        nir bn_inception dim=512 pooling=average+max: cub 70.1 80.1 71.0 | cars 87.9 92.8 73.7
        nir bn_inception dim=512 pooling=average+max: sop 79.3 90.4 90.2
        nir resnet50 dim=512 pooling=average: cub 69.1 79.6 72.0 | cars 87.7 92.5 74.2
        nir resnet50 dim=512 pooling=average: sop 80.7 91.5 90.9
        nir resnet50 dim=512 pooling=average+max: cub 70.5 80.6 72.5 | cars 89.1 93.4 75.0
        nir resnet50 dim=512 pooling=average+max: sop 80.4 91.4 90.6
        """,
        task="loss=proxy_anchor",
        on_sop=("R@1", "R@10", "NMI"),
        unprinted=("decay_every", "decay_factor"),
        note="rates went down there in at most two steps, when is not printed",
    ),
    Table(
        "NIR, Table 4",
        ("R@1", "MAP@1000"),
        """
        nir resnet50 shape=softplus: cub 66.3 34.0 | cars 85.1 36.3
        nir resnet50 temperature=0.3: cub 66.1 34.1 | cars 85.0 36.2
        nir resnet50 temperature=3.0: cub 65.8 33.8 | cars 84.8 36.1
        nir resnet50 stop_proxy_gradient=True: cub 66.2 34.1 | cars 85.0 36.3
        nir resnet50 wrong_class_weight=1.0: cub 64.9 33.8 | cars 83.5 34.9
        nir resnet50 weight=0.0: cub 60.0 30.1 | cars 73.5 27.2
        nir resnet50 blocks=15 width=64: cub 66.5 34.0 | cars 85.1 36.6
        nir resnet50 blocks=5 width=512: cub 66.1 34.1 | cars 84.9 36.1
        nir resnet50 blocks=3 width=1024: cub 65.8 34.1 | cars 85.3 36.3
        nir resnet50 conditioning=start: cub 66.4 34.1 | cars 85.1 36.2
        nir resnet50 conditioning=mid: cub 66.1 34.1 | cars 84.9 36.0
        nir resnet50 conditioning=end: cub 65.7 33.8 | cars 84.8 36.0
        """,
        task="loss=proxy_anchor",
    ),
    Table(
        "NIR, Table 4",
        ("R@1", "MAP@1000"),
        """
        nir resnet50 max_norm=10.0: cub 65.9 34.2 | cars 85.3 36.5
        """,
        unprinted=("max_norm",),
        note="at which norm gradients were cut is not printed",
    ),
    Table(
        "NIR, Table 5",
        ("R@1", "MAP@1000"),
        """
        nir resnet50 self_regularization=generate: cub 64.8 33.0 | cars 84.6 35.9
        nir resnet50 self_regularization=match: cub 63.2 31.0 | cars 83.4 32.8
        nir resnet50 self_regularization=both: cub 63.5 31.6 | cars 83.9 35.7
        """,
        task="loss=proxy_anchor",
    ),
)
"""Every table that ``jdml benchmark`` can run."""
ENTRIES: tuple[Entry, ...] = tuple(entry for table in TABLES for entry in table)
"""Every row of theirs, on every data set."""

_MPA = "α = 32 and weight decay 1e-4, which are ProxyAnchor's"
_CCP = "gradients of norm 10 at most, which are the program's"
_NIR = "ω within [.001, .01], as in the released scripts, and three layers in each net of the flow"
_EPS = "batches of 20 classes × 8 for the printed 160"
_MS = "(α, β, λ) = (2, 40, 0.5), the framework's, which its appendix says were kept (§5.2.3 prints 2, 50, 1)"
_PLAIN = "plain distances, the framework's, where §3 has squared ones"
_DELTA = "δ = 0.2, in a printed range"
_FIELD = f"{_DELTA}; rate 1e-4, of Table 8 (§4.1 prints 5e-4); average and maximum pooled"
_REACH = "α = 4, of the printed range {0, 6}"
INFERRED: dict[str, str] = {
    "ccp": _CCP,
    "cpml": f"{_FIELD}; its repulsion",
    "eps": f"{_EPS}; {_MS}",
    "multi_similarity": f"{_EPS}; {_MS}",
    **dict.fromkeys(("eps_triplet", "triplet"), _EPS),
    **dict.fromkeys(("eps_margin", "margin"), f"{_EPS}; {_PLAIN}"),
    **dict.fromkeys(("mpa", "mpa_dw", "mpa_ap", "mpa_proxy_anchor"), _MPA),
    "nir": _NIR,
    "pfml": f"{_REACH}; {_FIELD}",
}
"""By method, what its paper leaves open, or prints in two ways, and how it was filled in."""
INFERRED_UNDER_MLRC: dict[str, str] = {
    "ccp": _CCP,
    "pfml": f"{_REACH}; {_DELTA}",
    "soft_triple": "γ divides, also where 19.18 and 47.9 are printed",
}
"""The same of the runs whose batches, rates and pooling are the protocol's."""
SHARED_UNDER_MLRC = "crops of 16 to 100 % of the area, as “between 40 and 256” is read"


def inferred(method: str, protocol: str = "conventional") -> str:
    """Say what a paper leaves open, and how it was filled in.

    Args:
        method: one of ``jdml.recipes.RECIPES``.
        protocol: of ``jdml benchmark``.

    Returns:
        Words; "" where nothing was.

    Example:
        >>> print(inferred("mpa"))
        α = 32 and weight decay 1e-4, which are ProxyAnchor's
    """
    if protocol == "conventional":
        return INFERRED.get(method, "")
    return "; ".join(filter(None, [INFERRED_UNDER_MLRC.get(method), SHARED_UNDER_MLRC]))
