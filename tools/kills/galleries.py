"""Kill additions to a gallery, and its updates from a folder, at random moments: nothing that was saved may be lost.

    python tools/kills/galleries.py [--count 50] [--seed 0]

Half of the kills hit a process that adds, replaces and saves again and again, half one that updates a gallery as
`jdml embed --update` does, in pieces of a few files, after files were changed, added and removed. After each SIGKILL
the gallery must load, hold all that was saved before, and no vector that is not one of its file's. At the end an
update that is not killed must complete it.
"""

import argparse
import hashlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from jdml import Gallery
from jdml.data import ImageFiles
from jdml.data.load import Source
from jdml.runs.embedding_io import update_gallery

DIM, FILES, PIECE = 16, 60, 4


def vector_of(content: bytes) -> np.ndarray:
    """Return the embedding of a file, in place of a network's."""
    return np.frombuffer(hashlib.shake_128(content).digest(DIM), np.uint8).astype(np.float32)


def embed(images: ImageFiles, **options: Any) -> np.ndarray:
    """Embed as a trained model does."""
    return np.stack([vector_of(file.read_bytes()) for file in images.files])


def update(gallery: Path, photos: Path) -> None:
    """Bring the gallery up to date."""
    source = Source(ImageFiles(sorted(photos.glob("*.png"))), photos)
    model: Any = SimpleNamespace(identity="digest", embed=embed)
    update_gallery(gallery, model, source, piece=PIECE)


def add(folder: Path, turn: int) -> None:
    """Add rows, replace others, and save, again and again."""
    gallery = Gallery.load(folder)
    for step in range(20):
        names = [f"{turn}-{step}-{row}" for row in range(3)] + [f"{step}"]
        gallery.add(embed_names(names, turn), names)
        gallery.save(folder)


def embed_names(names: list[str], turn: int) -> np.ndarray:
    """Embed names; those without a dash have another vector each turn."""
    return np.stack([vector_of(f"{n} {turn * ('-' not in n)}".encode()) for n in names])


def killed(work: Callable[[], None], seconds: float | None) -> bool:
    """Run in another process, and kill it after some seconds; return whether it was."""
    process = os.fork()
    if not process:
        work()
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
    return os.waitpid(process, 0)[1] == signal.SIGKILL


def rows_of(folder: Path) -> dict[str, bytes]:
    """Return the vectors of a gallery by their ids."""
    gallery = Gallery.load(folder)
    return dict(zip(gallery.ids, (row.tobytes() for row in gallery.embeddings), strict=True))


def change(photos: Path, draws: random.Random, turn: int) -> dict[str, bytes]:
    """Change, remove and add some files; return the embeddings of all."""
    for _ in range(20):
        number = draws.randrange(FILES)
        file = photos / f"{number}.png"
        if draws.random() < 0.2:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(f"{number} {turn} {draws.random()}".encode())
    return {f.name: vector_of(f.read_bytes()).tobytes() for f in photos.glob("*.png")}


def kill_updates(work: Path, count: int, draws: random.Random) -> None:
    """Kill updates until so many processes were."""
    gallery, photos = work / "updated", work / "photos"
    photos.mkdir()
    now, kills = change(photos, draws, 0), 0
    start = time.perf_counter()
    killed(lambda: update(gallery, photos), None)
    longest = time.perf_counter() - start
    assert rows_of(gallery) == now
    versions = {name: {row} for name, row in now.items()}
    turn = 0
    while kills < count:
        turn += 1
        before, now = rows_of(gallery), change(photos, draws, turn)
        for name, row in now.items():
            versions.setdefault(name, set()).add(row)
        kills += killed(lambda: update(gallery, photos), draws.random() * longest)
        after = rows_of(gallery)
        assert before.keys() & now.keys() <= after.keys()
        assert all(row in versions[name] for name, row in after.items())
    killed(lambda: update(gallery, photos), None)
    assert rows_of(gallery) == now


def kill_additions(work: Path, count: int, draws: random.Random) -> None:
    """Kill additions until so many processes were."""
    folder, kills = work / "added", 0
    names = [f"{step}" for step in range(20)]

    def begin() -> None:
        gallery = Gallery()
        gallery.add(embed_names(names, 0), names)
        gallery.save(folder)

    killed(begin, None)
    start = time.perf_counter()
    killed(lambda: add(folder, 0), None)
    longest = time.perf_counter() - start
    turn = 0
    while kills < count:
        turn += 1
        before = rows_of(folder)
        kills += killed(lambda turn=turn: add(folder, turn), draws.random() * longest)
        after = rows_of(folder)
        assert before.keys() <= after.keys()
        for name, row in after.items():
            turns = range(turn + 1) if "-" not in name else (0,)
            assert any(row == embed_names([name], t)[0].tobytes() for t in turns)


def main() -> None:
    """Kill, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    draws, half = random.Random(chosen.seed), chosen.count // 2
    with tempfile.TemporaryDirectory() as folder:
        kill_updates(Path(folder), half, draws)
        kill_additions(Path(folder), chosen.count - half, draws)
    print(f"{half} updates and {chosen.count - half} additions killed, nothing lost")


if __name__ == "__main__":
    main()
