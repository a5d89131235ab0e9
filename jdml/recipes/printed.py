"""What the papers print, for the row beside ours: their tables, and which row a run is beside."""

from collections.abc import Mapping

Row = Mapping[str, float]


def as_row(names: tuple[str, ...], values: str) -> Row:
    """Read numbers in a row; a dash is none.

    Args:
        names: of the metrics.
        values: of the first of them or all, in percent, with blanks between them.

    Returns:
        Values by metric.
    """
    return {n: float(v) for n, v in zip(names, values.split(), strict=False) if v != "-"}


RANKED = ("R@1", "R@2", "R@4", "R@8", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R")
RANKED_SOP = ("R@1", "R@10", "R@100", "nDCG@10", "nDCG@100", "MAP@R")
CONVENTIONAL: dict[tuple[str, str], dict[str, str]] = {
    # (method, backbone), of the names above: the tables of PFML and MPA
    ("pfml", "resnet50"): {"cub": "73.4", "cars": "92.7", "sop": "82.9"},
    ("pfml", "bn_inception"): {"cub": "71.5", "cars": "90.1", "sop": "80.6"},
    ("pfml", "vit_s16"): {"cub": "87.8", "cars": "91.5", "sop": "88.2"},
    ("pfml", "vit_s16_dino"): {"cub": "83.1", "cars": "94.7", "sop": "86.5"},
    ("cpml", "resnet50"): {"cub": "68.3", "cars": "85.2", "sop": "79.4"},
    ("proxy_anchor", "resnet50"): {"cub": "69.7", "cars": "87.7"},
    ("proxy_anchor", "bn_inception"): {
        "cub": "68.4 79.2 86.8 91.6",
        "cars": "86.1 91.7 95.0 97.3",
        "sop": "79.1 90.8 96.2",
    },
    ("soft_triple", "bn_inception"): {
        "cub": "67.6 78.0 85.8 91.1 65.4 62.9 59.4 25.5",
        "cars": "86.0 91.8 95.2 97.2 84.1 81.3 77.1 27.5",
        "sop": "79.0 90.7 96.0 64.4 70.7 51.7",
    },
    ("mpa_proxy_anchor", "bn_inception"): {
        "cub": "68.6 78.7 86.1 91.7 66.7 64.1 60.9 26.7",
        "cars": "86.1 91.6 95.0 97.2 84.3 81.6 77.6 28.8",
        "sop": "77.6 90.2 95.9 62.7 69.2 49.7",
    },
    ("mpa", "bn_inception"): {
        "cub": "69.2 79.4 86.6 91.6 67.3 64.7 61.3 26.6",
        "cars": "86.8 92.0 95.1 97.2 84.9 82.1 78.0 28.4",
        "sop": "77.5 90.0 95.8 62.5 69.0 49.6",
    },
    ("mpa_dw", "bn_inception"): {
        "cub": "68.9 79.0 86.5 91.9 66.9 64.3 61.1 26.3",
        "cars": "86.6 91.8 95.2 97.2 84.8 82.1 78.0 28.1",
        "sop": "78.4 90.1 95.5 63.2 69.2 50.5",
    },
    ("mpa_ap", "bn_inception"): {
        "cub": "69.1 79.1 86.3 91.7 67.1 64.6 61.3 26.6",
        "cars": "87.1 92.4 95.5 97.5 85.3 82.7 78.8 28.6",
        "sop": "78.1 90.1 95.6 62.9 69.1 50.2",
    },
}
CLUSTERED = ("R@1", "R@2", "R@4", "NMI", "NMI+")
EPS: dict[tuple[str, str], dict[str, str]] = {
    # (method, backbone): EPS's tables
    ("triplet", "resnet50"): {
        "cub": "61.5 73.4 82.5 66.2 68.1",
        "cars": "76.1 84.4 90.0 65.1 68.5",
    },
    ("proxy_nca", "resnet50"): {
        "cub": "63.1 74.8 83.8 67.2 68.7",
        "cars": "77.1 85.2 91.2 65.6 68.9",
    },
    ("margin", "resnet50"): {"cub": "63.6 74.4 83.1 69.0 68.7", "cars": "79.6 86.5 91.9 69.1 70.4"},
    ("multi_similarity", "resnet50"): {
        "cub": "62.3 73.3 82.1 59.8 68.0",
        "cars": "81.2 89.1 93.5 60.5 71.1",
    },
    ("eps_triplet", "resnet50"): {
        "cub": "61.8 73.6 82.4 62.4 68.0",
        "cars": "78.3 85.9 91.4 59.8 69.8",
    },
    ("eps_margin", "resnet50"): {
        "cub": "64.7 75.2 84.3 68.2 69.4",
        "cars": "83.6 89.5 93.6 67.3 72.4",
    },
    ("eps", "resnet50"): {"cub": "63.3 74.2 82.5 61.2 68.2", "cars": "82.9 89.4 93.2 60.0 72.0"},
}
RECALLED = ("R@1", "R@2", "R@4", "R@8")
EPS_INCEPTION: dict[str, dict[str, str]] = {
    # BN-Inception, 512-D, batches of 260: EPS's Table 6
    "multi_similarity": {"cub": "65.7 77.0 86.3 91.2", "cars": "84.1 90.4 94.0 96.5"},
    "eps": {"cub": "66.7 77.2 86.4 90.9", "cars": "85.5 90.7 94.3 96.7"},
}
CCP: dict[tuple[str, str], str] = {
    # (backbone, loss): CUB, Cars196, SOP, In-shop, R@1: Tables 1 and 2
    ("bn_inception", "similarity_contrastive"): "67.74 83.74 79.86 90.98",
    ("bn_inception", "contrastive"): "69.87 83.90 80.01 91.72",
    ("bn_inception", "multi_similarity"): "69.09 86.01 79.75 91.84",
    ("resnet50", "similarity_contrastive"): "69.87 87.12 81.74 92.07",
    ("resnet50", "contrastive"): "71.04 85.93 81.66 92.46",
    ("resnet50", "multi_similarity"): "70.37 89.02 81.59 92.71",
}
SEPARATED = ("P@1", "RP", "MAP@R")
MLRC: dict[str, dict[str, str]] = {
    # CCP's Tables 3 and 4: P@1, RP and MAP@R of 512-D concatenated, then of 128-D separated
    "similarity_contrastive": {
        "cub": "63.67 33.77 23.08 56.21 29.65 19.06",
        "cars": "77.75 33.69 23.50 64.17 26.50 16.13",
        "sop": "68.84 43.28 40.25 64.96 39.68 36.54",
        "inshop": "80.12 53.11 50.15 76.08 49.61 46.51",
    },
    "ccp/similarity_contrastive": {
        "cub": "68.11 37.85 27.11 59.56 32.06 21.27",
        "cars": "83.76 37.78 28.32 72.05 28.74 18.96",
        "sop": "79.53 55.11 52.73 76.24 50.07 48.07",
        "inshop": "88.52 62.54 59.67 85.50 58.51 55.56",
    },
    "contrastive": {
        "cub": "67.49 37.18 26.47 59.73 31.86 21.01",
        "cars": "81.04 34.97 24.73 69.17 27.70 17.22",
        "sop": "74.87 49.88 46.94 71.15 45.77 42.66",
        "inshop": "86.32 62.36 59.42 83.04 58.27 55.13",
    },
    "ccp/contrastive": {
        "cub": "69.73 38.69 28.02 62.39 33.49 22.67",
        "cars": "82.89 36.27 26.27 72.16 28.98 18.52",
        "sop": "78.95 55.01 52.19 75.92 51.14 48.18",
        "inshop": "88.52 63.94 61.07 86.11 60.16 57.24",
    },
    "multi_similarity": {
        "cub": "64.65 34.84 24.15 57.24 30.29 19.64",
        "cars": "80.88 36.45 26.23 69.27 28.93 18.25",
        "sop": "72.74 47.07 44.10 68.96 43.25 40.18",
        "inshop": "88.37 63.53 60.65 85.39 59.65 56.61",
    },
    "ccp/multi_similarity": {
        "cub": "68.84 38.19 27.44 61.10 33.23 22.40",
        "cars": "86.26 38.97 29.14 74.97 30.44 19.85",
        "sop": "78.96 54.71 51.85 75.80 50.48 47.97",
        "inshop": "90.24 66.31 63.59 87.10 61.74 59.15",
    },
    "triplet": {
        "cub": "64.01 34.55 23.43 55.51 29.38 18.51",
        "cars": "78.44 33.83 23.11 64.57 26.52 15.68",
        "sop": "75.40 50.13 47.03 70.41 44.32 41.03",
        "inshop": "86.71 63.81 60.60 82.58 58.74 55.25",
    },
    "ccp/triplet": {
        "cub": "65.36 35.42 24.53 56.65 30.17 19.31",
        "cars": "81.84 35.61 25.21 68.75 28.21 17.43",
        "sop": "77.09 52.42 49.33 72.21 46.38 43.11",
        "inshop": "89.44 67.23 64.28 86.00 62.24 59.04",
    },
    "proxy_anchor": {
        "cub": "68.43 37.36 26.53 60.61 32.36 21.48",
        "cars": "85.29 37.53 27.73 75.79 29.91 19.56",
        "sop": "77.10 51.95 49.01 73.86 47.94 44.89",
        "inshop": "88.08 60.91 58.09 85.87 57.80 54.95",
    },
    # their -L, 10 centres, on CUB and Cars196; their -S, one centre, on SOP and In-shop
    "soft_triple": {
        "cub": "68.12 36.98 26.02 57.94 30.63 19.86",
        "cars": "84.90 37.69 27.80 73.16 29.60 19.18",
        "sop": "78.48 53.68 50.77 74.66 48.79 45.75",
        "inshop": "88.37 62.56 59.56 85.71 58.74 55.68",
    },
}
CENTRES = {"cub": 10, "cars": 10, "sop": 1, "inshop": 1}
"""Of the rows of SoftTriple."""
PFML_MLRC: dict[str, str] = {"cub": "62.4 33.8 23.1", "cars": "81.2 33.6 22.9"}
RELATIVE = ("R@1", "NMI", "MAP@1000")
NIR: dict[tuple[str, str], dict[str, str]] = {
    # (method, loss), ResNet-50, 128-D: NIR's Table 1
    ("nir_baseline", "proxy_anchor"): {
        "cub": "64.4 68.4 33.2",
        "cars": "82.4 69.0 34.2",
        "sop": "78.0 90.1 45.5",
    },
    ("nir", "proxy_anchor"): {
        "cub": "66.0 69.6 34.2",
        "cars": "85.2 71.6 36.4",
        "sop": "78.9 90.4 46.5",
    },
    ("nir_baseline", "proxy_nca_margin"): {
        "cub": "64.2 68.6 33.1",
        "cars": "82.1 68.2 32.4",
        "sop": "78.3 90.0 45.5",
    },
    ("nir", "proxy_nca_margin"): {
        "cub": "66.1 69.8 34.3",
        "cars": "84.3 70.6 34.5",
        "sop": "79.1 90.2 46.2",
    },
    ("nir_baseline", "soft_triple"): {
        "cub": "62.3 68.2 31.6",
        "cars": "80.7 66.4 30.4",
        "sop": "76.9 89.6 43.5",
    },
    ("nir", "soft_triple"): {
        "cub": "63.8 68.5 34.0",
        "cars": "83.4 68.8 35.5",
        "sop": "77.6 90.0 44.9",
    },
}
LITERATURE = ("R@1", "R@2", "NMI")
LITERATURE_SOP = ("R@1", "R@10", "NMI")
NIR_LITERATURE: dict[tuple[str, int, str], dict[str, str]] = {
    # (backbone, dim, pooling), over ProxyAnchor: NIR's Table 2
    ("resnet50", 128, "average+max"): {
        "cub": "67.9 78.3 71.4",
        "cars": "86.5 92.0 72.7",
        "sop": "79.4 90.7 90.6",
    },
    ("bn_inception", 512, "average"): {
        "cub": "69.4 79.7 71.1",
        "cars": "87.1 92.5 73.1",
        "sop": "79.4 90.5 90.3",
    },
    ("bn_inception", 512, "average+max"): {
        "cub": "70.1 80.1 71.0",
        "cars": "87.9 92.8 73.7",
        "sop": "79.3 90.4 90.2",
    },
    ("resnet50", 512, "average"): {
        "cub": "69.1 79.6 72.0",
        "cars": "87.7 92.5 74.2",
        "sop": "80.7 91.5 90.9",
    },
    ("resnet50", 512, "average+max"): {
        "cub": "70.5 80.6 72.5",
        "cars": "89.1 93.4 75.0",
        "sop": "80.4 91.4 90.6",
    },
}


def printed(
    protocol: str,
    method: str,
    backbone: str,
    dataset: str,
    *,
    loss: str | None = None,
    dim: int = 128,
    pooling: str = "average",
    per_class: int = 1,
) -> dict[str, Row]:
    """What a paper reports of a run, in percent by metric, by row; empty where none reports that.

    Args:
        protocol: of ``jdml benchmark``, as are the method, the backbone and the data set.
        method: see ``protocol``.
        backbone: see ``protocol``.
        dataset: see ``protocol``.
        loss: the base loss of CCP and NIR.
        dim: of the embeddings: NIR and EPS have tables for several.
        pooling: of the head, as ``dim``.
        per_class: centres per class: of SoftTriple the MLRC tables have one row of each data set.

    Example:
        >>> printed("mlrc", "ccp", "bn_inception", "cub", loss="multi_similarity")["paper, separated"]["MAP@R"]
        22.4
    """
    if protocol == "mlrc":
        if backbone != "bn_inception":
            return {}
        if method == "pfml":
            return _rows({"paper, separated": as_row(SEPARATED, PFML_MLRC.get(dataset, ""))})
        if method == "soft_triple" and per_class != CENTRES.get(dataset):
            return {}
        values = MLRC.get(f"ccp/{loss}" if method == "ccp" else method, {}).get(dataset, "")
        both = values.split()
        return _rows(
            {
                "paper, separated": as_row(SEPARATED, " ".join(both[3:])),
                "paper, concatenated": as_row(SEPARATED, " ".join(both[:3])),
            }
        )
    if method == "ccp":
        recalls = as_row(("cub", "cars", "sop", "inshop"), CCP.get((backbone, str(loss)), ""))
        return {"paper": {"R@1": recalls[dataset]}} if dataset in recalls else {}
    names: tuple[str, ...]
    if (method, backbone) in EPS:
        names, table = CLUSTERED, EPS[method, backbone]
    elif method in EPS_INCEPTION and (backbone, dim) == ("bn_inception", 512):
        names, table = RECALLED, EPS_INCEPTION[method]
    elif method not in ("nir", "nir_baseline"):
        names = RANKED_SOP if dataset == "sop" else RANKED
        table = CONVENTIONAL.get((method, backbone), {})
    elif (backbone, dim, pooling) == ("resnet50", 128, "average"):
        names, table = RELATIVE, NIR.get((method, str(loss)), {})
    else:
        names = LITERATURE_SOP if dataset == "sop" else LITERATURE
        over_anchor = (method, loss) == ("nir", "proxy_anchor")
        table = NIR_LITERATURE.get((backbone, dim, pooling), {}) if over_anchor else {}
    return _rows({"paper": as_row(names, table.get(dataset, ""))})


def _rows(rows: Mapping[str, Row]) -> dict[str, Row]:
    return {name: row for name, row in rows.items() if row}
