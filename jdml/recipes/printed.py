"""What the papers report, for the row beside ours."""

from collections.abc import Mapping

from jdml.recipes.paper_tables import (
    CCP,
    CENTRES,
    CLUSTERED,
    CONVENTIONAL,
    EPS,
    EPS_INCEPTION,
    LITERATURE,
    LITERATURE_SOP,
    MLRC,
    NIR,
    NIR_LITERATURE,
    PFML_MLRC,
    RANKED,
    RANKED_SOP,
    RECALLED,
    RELATIVE,
    SEPARATED,
    Row,
    as_row,
)


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
        of = as_row(("cub", "cars", "sop", "inshop"), CCP.get((backbone, str(loss)), ""))
        return {"paper": {"R@1": of[dataset]}} if dataset in of else {}
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


def _rows(found: Mapping[str, Row]) -> dict[str, Row]:
    return {name: row for name, row in found.items() if row}
