"""All pictures, computed on all cores and kept until a loss or the way of drawing changes."""

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from maker import stamps
from maker.drawing import draw, draw_collapse
from maker.scene import move
from maker.subjects import subjects

COLLAPSE = "collapse"


def pictures(folder: Path) -> list[Path]:
    """Compute those pictures of the folder that are not there, or out of date."""
    stamp, now = folder / "stamp", stamps.of_pictures()
    if not stamp.is_file() or stamp.read_text() != now:
        shutil.rmtree(folder, ignore_errors=True)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(picture, folder), [*subjects(), COLLAPSE]))
        stamp.write_text(now)
    return sorted(folder.glob("*.svg"))


def picture(folder: Path, name: str) -> None:
    """Compute one picture."""
    shown, file = subjects(), folder / f"{name}.svg"
    if name == COLLAPSE:
        draw_collapse(move(shown["triplet_loss"]), move(shown["easy_positive"]), file)
    else:
        draw(move(shown[name]), file)
