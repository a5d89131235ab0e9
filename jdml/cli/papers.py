"""What the papers report, for the row beside ours."""

from collections.abc import Mapping

from jdml.cli.tables import (
    CCP,
    CENTRES,
    LITERATURE,
    MLRC,
    NIR,
    NIR_LITERATURE,
    PFML_MLRC,
    R1,
    RELATIVE,
    SEPARATED,
    Row,
    as_row,
)

PRINTED: dict[tuple[str, str, str], dict[str, Row]] = {
    # (protocol, method, backbone): data set -> percent
    ("conventional", "pfml", "resnet50"): {
        "cub": {"R@1": 73.4},
        "cars": {"R@1": 92.7},
        "sop": {"R@1": 82.9},
    },
    ("conventional", "pfml", "bn_inception"): {
        "cub": {"R@1": 71.5},
        "cars": {"R@1": 90.1},
        "sop": {"R@1": 80.6},
    },
    ("conventional", "pfml", "vit_s16"): {
        "cub": {"R@1": 87.8},
        "cars": {"R@1": 91.5},
        "sop": {"R@1": 88.2},
    },
    ("conventional", "pfml", "vit_s16_dino"): {
        "cub": {"R@1": 83.1},
        "cars": {"R@1": 94.7},
        "sop": {"R@1": 86.5},
    },
    ("conventional", "cpml", "resnet50"): {
        "cub": {"R@1": 68.3},
        "cars": {"R@1": 85.2},
        "sop": {"R@1": 79.4},
    },
    ("conventional", "proxy_anchor", "resnet50"): {"cub": {"R@1": 69.7}, "cars": {"R@1": 87.7}},
    ("conventional", "proxy_anchor", "bn_inception"): {
        "cub": {"R@1": 68.4, "R@2": 79.2, "R@4": 86.8, "R@8": 91.6},
        "cars": {"R@1": 86.1, "R@2": 91.7, "R@4": 95.0, "R@8": 97.3},
        "sop": {"R@1": 79.1, "R@10": 90.8, "R@100": 96.2},
    },
    ("conventional", "soft_triple", "bn_inception"): {
        "cub": {
            "R@1": 67.6,
            "R@2": 78.0,
            "R@4": 85.8,
            "R@8": 91.1,
            "nDCG@2": 65.4,
            "nDCG@4": 62.9,
            "nDCG@8": 59.4,
            "MAP@R": 25.5,
        },
        "cars": {
            "R@1": 86.0,
            "R@2": 91.8,
            "R@4": 95.2,
            "R@8": 97.2,
            "nDCG@2": 84.1,
            "nDCG@4": 81.3,
            "nDCG@8": 77.1,
            "MAP@R": 27.5,
        },
        "sop": {
            "R@1": 79.0,
            "R@10": 90.7,
            "R@100": 96.0,
            "nDCG@10": 64.4,
            "nDCG@100": 70.7,
            "MAP@R": 51.7,
        },
    },
    ("conventional", "mpa_proxy_anchor", "bn_inception"): {
        "cub": {
            "R@1": 68.6,
            "R@2": 78.7,
            "R@4": 86.1,
            "R@8": 91.7,
            "nDCG@2": 66.7,
            "nDCG@4": 64.1,
            "nDCG@8": 60.9,
            "MAP@R": 26.7,
        },
        "cars": {
            "R@1": 86.1,
            "R@2": 91.6,
            "R@4": 95.0,
            "R@8": 97.2,
            "nDCG@2": 84.3,
            "nDCG@4": 81.6,
            "nDCG@8": 77.6,
            "MAP@R": 28.8,
        },
        "sop": {
            "R@1": 77.6,
            "R@10": 90.2,
            "R@100": 95.9,
            "nDCG@10": 62.7,
            "nDCG@100": 69.2,
            "MAP@R": 49.7,
        },
    },
    ("conventional", "mpa", "bn_inception"): {
        "cub": {
            "R@1": 69.2,
            "R@2": 79.4,
            "R@4": 86.6,
            "R@8": 91.6,
            "nDCG@2": 67.3,
            "nDCG@4": 64.7,
            "nDCG@8": 61.3,
            "MAP@R": 26.6,
        },
        "cars": {
            "R@1": 86.8,
            "R@2": 92.0,
            "R@4": 95.1,
            "R@8": 97.2,
            "nDCG@2": 84.9,
            "nDCG@4": 82.1,
            "nDCG@8": 78.0,
            "MAP@R": 28.4,
        },
        "sop": {
            "R@1": 77.5,
            "R@10": 90.0,
            "R@100": 95.8,
            "nDCG@10": 62.5,
            "nDCG@100": 69.0,
            "MAP@R": 49.6,
        },
    },
    ("conventional", "mpa_dw", "bn_inception"): {
        "cub": {
            "R@1": 68.9,
            "R@2": 79.0,
            "R@4": 86.5,
            "R@8": 91.9,
            "nDCG@2": 66.9,
            "nDCG@4": 64.3,
            "nDCG@8": 61.1,
            "MAP@R": 26.3,
        },
        "cars": {
            "R@1": 86.6,
            "R@2": 91.8,
            "R@4": 95.2,
            "R@8": 97.2,
            "nDCG@2": 84.8,
            "nDCG@4": 82.1,
            "nDCG@8": 78.0,
            "MAP@R": 28.1,
        },
        "sop": {
            "R@1": 78.4,
            "R@10": 90.1,
            "R@100": 95.5,
            "nDCG@10": 63.2,
            "nDCG@100": 69.2,
            "MAP@R": 50.5,
        },
    },
    ("conventional", "mpa_ap", "bn_inception"): {
        "cub": {
            "R@1": 69.1,
            "R@2": 79.1,
            "R@4": 86.3,
            "R@8": 91.7,
            "nDCG@2": 67.1,
            "nDCG@4": 64.6,
            "nDCG@8": 61.3,
            "MAP@R": 26.6,
        },
        "cars": {
            "R@1": 87.1,
            "R@2": 92.4,
            "R@4": 95.5,
            "R@8": 97.5,
            "nDCG@2": 85.3,
            "nDCG@4": 82.7,
            "nDCG@8": 78.8,
            "MAP@R": 28.6,
        },
        "sop": {
            "R@1": 78.1,
            "R@10": 90.1,
            "R@100": 95.6,
            "nDCG@10": 62.9,
            "nDCG@100": 69.1,
            "MAP@R": 50.2,
        },
    },
    ("conventional", "triplet", "resnet50"): {
        "cub": {"R@1": 61.5, "R@2": 73.4, "R@4": 82.5, "NMI": 66.2, "NMI+": 68.1},
        "cars": {"R@1": 76.1, "R@2": 84.4, "R@4": 90.0, "NMI": 65.1, "NMI+": 68.5},
    },
    ("conventional", "proxy_nca", "resnet50"): {
        "cub": {"R@1": 63.1, "R@2": 74.8, "R@4": 83.8, "NMI": 67.2, "NMI+": 68.7},
        "cars": {"R@1": 77.1, "R@2": 85.2, "R@4": 91.2, "NMI": 65.6, "NMI+": 68.9},
    },
    ("conventional", "margin", "resnet50"): {
        "cub": {"R@1": 63.6, "R@2": 74.4, "R@4": 83.1, "NMI": 69.0, "NMI+": 68.7},
        "cars": {"R@1": 79.6, "R@2": 86.5, "R@4": 91.9, "NMI": 69.1, "NMI+": 70.4},
    },
    ("conventional", "multi_similarity", "resnet50"): {
        "cub": {"R@1": 62.3, "R@2": 73.3, "R@4": 82.1, "NMI": 59.8, "NMI+": 68.0},
        "cars": {"R@1": 81.2, "R@2": 89.1, "R@4": 93.5, "NMI": 60.5, "NMI+": 71.1},
    },
    ("conventional", "eps_triplet", "resnet50"): {
        "cub": {"R@1": 61.8, "R@2": 73.6, "R@4": 82.4, "NMI": 62.4, "NMI+": 68.0},
        "cars": {"R@1": 78.3, "R@2": 85.9, "R@4": 91.4, "NMI": 59.8, "NMI+": 69.8},
    },
    ("conventional", "eps_margin", "resnet50"): {
        "cub": {"R@1": 64.7, "R@2": 75.2, "R@4": 84.3, "NMI": 68.2, "NMI+": 69.4},
        "cars": {"R@1": 83.6, "R@2": 89.5, "R@4": 93.6, "NMI": 67.3, "NMI+": 72.4},
    },
    ("conventional", "eps", "resnet50"): {
        "cub": {"R@1": 63.3, "R@2": 74.2, "R@4": 82.5, "NMI": 61.2, "NMI+": 68.2},
        "cars": {"R@1": 82.9, "R@2": 89.4, "R@4": 93.2, "NMI": 60.0, "NMI+": 72.0},
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
        dim: of the embeddings: NIR has tables for several.
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
        of = dict(
            zip(
                ("cub", "cars", "sop", "inshop"),
                CCP.get((backbone, str(loss)), "").split(),
                strict=False,
            )
        )
        return _rows({"paper": as_row(R1, of.get(dataset, ""))})
    if method in ("nir", "nir_baseline"):
        if (backbone, dim, pooling) == ("resnet50", 128, "average"):
            return _rows(
                {"paper": as_row(RELATIVE, NIR.get((method, str(loss)), {}).get(dataset, ""))}
            )
        found = NIR_LITERATURE.get((backbone, dim, pooling), {}) if method == "nir" else {}
        names = ("R@1", "R@10", "NMI") if dataset == "sop" else LITERATURE
        of_loss = found.get(dataset, "") if loss == "proxy_anchor" else ""
        return _rows({"paper": as_row(names, of_loss)})
    return _rows({"paper": PRINTED.get((protocol, method, backbone), {}).get(dataset, {})})


def _rows(found: Mapping[str, Row]) -> dict[str, Row]:
    return {name: row for name, row in found.items() if row}
