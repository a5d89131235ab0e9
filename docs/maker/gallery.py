"""All pictures, computed on all cores and kept until a loss or the way of drawing changes."""

import hashlib
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from maker.drawing import draw, draw_collapse
from maker.scene import move
from maker.subjects import subjects

COLLAPSE = "collapse"
JDML, MAKER = Path(__file__).parents[2] / "jdml", Path(__file__).parent


def pictures(folder: Path) -> list[Path]:
    """Compute those pictures of the folder that are not there, or out of date."""
    stamp, now = folder / "stamp", fingerprint()
    if not stamp.is_file() or stamp.read_text() != now:
        shutil.rmtree(folder, ignore_errors=True)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(picture, folder), [*subjects(), COLLAPSE]))
        stamp.write_text(now)
    return sorted(folder.glob("*.svg"))


def picture(folder: Path, name: str) -> None:
    """Compute one picture."""
    of, file = subjects(), folder / f"{name}.svg"
    if name == COLLAPSE:
        draw_collapse(move(of["triplet_loss"]), move(of["easy_positive"]), file)
    else:
        draw(move(of[name]), file)


def fingerprint() -> str:
    """Tell whether anything has changed that pictures are made of."""
    files = [*(JDML / "losses").glob("*.py"), *(JDML / "ops").glob("*.py"), JDML / "mining.py"]
    files += [MAKER / f"{name}.py" for name in ("scene", "subjects", "drawing", "gallery")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
