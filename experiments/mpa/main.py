"""Multi-proxies anchor losses: how many proxies per class, and nDCG@k next to recall and MAP@R."""

import dataclasses
from typing import Any, Literal

from experiments.potential_fields.main import LOSSES, TASKS, base_of, run
from experiments.smoke import small
from experiments.study import (
    PAPER,
    FolderOptions,
    cells,
    folder_study,
    over_seeds,
    start,
    with_seeds,
)
from jdml.report import markdown_table, mean_std

NUMBERS = small((1, 4, 8, 12, 16), (1, 2))
FAMILY = small(("SoftTriple", "MPA", "MPA-DW", "MPA-AP"), ("MPA",))
SHOWN = small(12, 2)  # proxies per class in the nDCG table
QUALITY = ("R@1", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R")


@dataclasses.dataclass(frozen=True)
class Settings(FolderOptions):
    """Settings of the study."""

    data: Literal["digits", "mnist", "omniglot"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist, omniglot: the full sets in --data-dir.
    300, 500 and 1200 steps, unless --steps are given."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run of the study by name."""
    runs: dict[str, dict[str, Any]] = {"ProxyAnchor": {"method": "ProxyAnchor", "settings": {}}}
    for method in FAMILY:
        for number in NUMBERS:
            own = {**LOSSES[method][1], "proxies_per_class": number}
            runs[f"{method} {number}"] = {"method": method, "settings": own}
    return with_seeds(base_of(settings), runs, settings.seeds)


def report(results: dict[str, Any], settings: Settings) -> str:
    """Return both tables as Markdown."""
    view = TASKS[settings.data].views[0]
    sweep = [
        [method, *(mean_std(over_seeds(results, f"{method} {k}", f"{view} R@1")) for k in NUMBERS)]
        for method in FAMILY
    ]
    quality = []
    for method, paper in PAPER["mpa"]["quality"].items():
        name = method if method == "ProxyAnchor" else f"{method} {SHOWN}"
        scores = cells(results, name, [f"{view} {m}" for m in QUALITY])  # older runs had fewer
        quality.append([method, *scores, paper])
    sections = [f"{view} R@1 by the number of proxies per class:\n"]
    sections += [markdown_table(["method", *map(str, NUMBERS)], sweep)]
    sections += [f"{SHOWN} proxies per class (ProxyAnchor: 1):\n"]
    return "\n".join(
        [*sections, markdown_table(["method", *QUALITY, "paper, CUB, K = 10"], quality)]
    )


main = folder_study(__file__, run, make_jobs, report)


if __name__ == "__main__":
    start(main, Settings, __doc__)
