"""Files that are damaged, hostile or odd: refused in a sentence or read rightly, in bounded memory and time."""

import os

import pytest
from hunt.bad import judge
from hunt.bad_archives import ARCHIVES
from hunt.bad_arrays import ARRAYS
from hunt.bad_folders import BOTH, FOLDERS, classes, images_of
from hunt.bad_images import IMAGES
from hunt.bad_weights import WEIGHTS

CASES = [*IMAGES, *FOLDERS, *ARCHIVES, *ARRAYS, *WEIGHTS]


@pytest.mark.parametrize("bad", CASES, ids=[bad.what for bad in CASES])
def test_bad_files(tmp_path, bad):
    place = tmp_path / "there"
    place.mkdir()
    judge(bad, bad.make(place), place)


def test_folders_within_each_other(tmp_path):
    """1,200 of them, more than Python has calls within calls."""
    root = classes(tmp_path, "ant", "bee")
    here = os.open(root / "ant", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    try:
        assert images_of(root) == BOTH
    finally:  # what removes temporary folders calls itself, too
        inner, aside = root / "ant" / "d", root / "ant" / "e"
        while (inner / "d").exists():
            (inner / "d").rename(aside)
            inner.rmdir()
            aside.rename(inner)
