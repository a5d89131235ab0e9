"""The gallery of the first page: pictures that other pages make, each a link to its page."""

import html
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PICTURES = (
    ("_static/pictures/collapse.svg", "Class collapse, and easy positives", "papers/eps"),
    (
        "experiments/eps_mnist/scatter.png",
        "Even and odd digits in the plane",
        "experiments/eps_mnist/README",
    ),
    (
        "_static/pictures/potential_field_loss.svg",
        "Forces of a potential field",
        "losses/potential_field_loss",
    ),
    (
        "experiments/potential_fields/fields.png",
        "Fields with wrong labels",
        "experiments/potential_fields/README",
    ),
    ("experiments/mpa/proxies.png", "How many proxies per class?", "experiments/mpa/README"),
    ("experiments/nir/isotropy.png", "A flow around each proxy", "experiments/nir/README"),
    (
        "experiments/ccp_mnist/panels_mnist.png",
        "CCP: new proxies in each problem",
        "experiments/ccp_mnist/README",
    ),
    ("experiments/cub_crops/map.png", "A map of bird photographs", "experiments/cub_crops/README"),
    ("_static/pictures/neighbours.svg", "Queries and their neighbours", "look"),
    ("_static/report.png", "A report: runs, intervals, neighbours", "look"),
    (
        "experiments/letters/factors/wrong.png",
        "Wrong labels, loss by loss",
        "experiments/letters/README",
    ),
    ("_static/pictures/circle_loss.svg", "Every loss as a picture", "losses/index"),
)
"""File, title and page."""


def copies() -> dict[str, bytes]:
    """Give the pictures of studies by their places on the site: Sphinx copies none that only HTML names."""
    files = [file for file, _, _ in PICTURES if file.startswith("experiments/")]
    return {place(file): (REPOSITORY / file).read_bytes() for file in files}


def place(file: str) -> str:
    """Return a picture's place on the site."""
    return file if file.startswith("_static/") else f"_static/gallery/{file.replace('/', '-')}"


def tiles() -> str:
    """Make the gallery."""
    cells = [
        f'<a href="{page}.html"><img src="{place(file)}" alt="{html.escape(title)}"><span>{html.escape(title)}</span></a>'
        for file, title, page in PICTURES
    ]
    return "\n".join(['<div class="gallery">', *cells, "</div>"])
