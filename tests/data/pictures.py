"""Twelve small pictures of four classes, and photographs of several sizes."""

import io

import numpy as np
from PIL import Image

from jdml.data import Dataset, conventional

RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.integers(0, 256, (12, 10, 8, 3), np.uint8)
LABELS = np.arange(12) % 4
NAMES = ("ant", "bee", "cat", "dog")
FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": NAMES}}


def encoded(image: Image.Image | np.ndarray, kind: str = "png", **options) -> bytes:
    """Return the image encoded as a file of this kind."""
    file = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(file, kind, **options)
    return file.getvalue()


FILES = [encoded(picture) for picture in PICTURES]
PHOTOS = [encoded(RANDOM.integers(0, 256, (70 + n, 80, 3), np.uint8)) for n in range(12)]
small = conventional(8)


def check_same(data: Dataset, images=PICTURES, names: tuple[str, ...] | None = None) -> None:
    """Check the images, labels and names of classes of a data set that was read."""
    np.testing.assert_array_equal(data.images, images)
    np.testing.assert_array_equal(data.labels, LABELS)
    assert data.class_names == ({} if names is None else {"label": names})
