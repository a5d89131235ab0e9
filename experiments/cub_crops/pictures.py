"""Queries and what was found for them; all test images in the plane."""

from pathlib import Path

import numpy as np

import jdml
from jdml import data

QUERIES, FOUND = 6, 6
COLOURS = {True: "tab:green", False: "tab:red"}


def draw_gallery(photos: data.Dataset, vectors: np.ndarray, method: str, path: Path) -> None:
    """A row per query, of classes spread over the test classes: the query, then its nearest, framed green if right."""
    from matplotlib.figure import Figure

    _, indices = jdml.nearest(vectors, vectors, FOUND, exclude_self=True)
    classes = np.linspace(0, photos.num_classes - 1, QUERIES).astype(int)
    queries = [int(np.flatnonzero(photos.labels == of_class)[0]) for of_class in classes]
    figure = Figure(figsize=(1.4 * (FOUND + 1), 1.4 * QUERIES), layout="constrained")
    panels = figure.subplots(QUERIES, FOUND + 1)
    for query, row in zip(queries, panels, strict=True):
        for axes, image in zip(row, [query, *np.asarray(indices)[query]], strict=True):
            axes.imshow(photos.images[int(image)])
            axes.set(xticks=[], yticks=[])
            right = bool(photos.labels[image] == photos.labels[query])
            for spine in axes.spines.values():
                spine.set(linewidth=4, color="black" if axes is row[0] else COLOURS[right])
    panels[0, 0].set_title("query", fontsize=9)
    panels[0, 1].set_title("nearest", fontsize=9)
    figure.suptitle(method)
    figure.savefig(path, dpi=110)


def draw_map(test: data.Dataset, vectors: np.ndarray, method: str, path: Path) -> None:
    """t-SNE of the test images, a colour per class."""
    from matplotlib.figure import Figure
    from sklearn.manifold import TSNE

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    points = TSNE(init="pca", perplexity=15, random_state=0).fit_transform(unit)
    figure = Figure(figsize=(6, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.scatter(*points.T, c=test.labels, cmap="tab20", s=14)
    axes.set(xticks=[], yticks=[], title=f"20 species that were not trained on ({method}, t-SNE)")
    figure.savefig(path, dpi=110)
