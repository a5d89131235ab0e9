"""Disks that are really too small or may not be written: mounted, or changed, by a user who may."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import killed_runs
from comparison import differing, files, sentence
from processes import Moment, child, wait_for

SPARE = 1024
"""Kilobytes that a run asks for besides a checkpoint's arrays before it begins to write it."""


def _call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@contextmanager
def small(folder: Path, kilobytes: int) -> Iterator[Callable[[], None]]:
    """A file system of its own in the place of a folder; yields what gives it room."""
    folder.mkdir(exist_ok=True)
    _call("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder)
    try:
        yield partial(_call, "mount", "-o", "remount,size=256m", folder)
    finally:
        _call("umount", folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder mounted onto itself, read-only."""
    folder.mkdir(exist_ok=True)
    _call("mount", "--bind", folder, folder)
    try:
        _call("mount", "-o", "remount,ro,bind", folder)
        yield
    finally:
        _call("umount", folder)


@contextmanager
def immutable(folder: Path, seconds: float) -> Iterator[list[bool]]:
    """A folder in which, after some time, no file can be made, renamed or removed; and whether that came about."""
    took: list[bool] = []

    def change() -> None:
        done = subprocess.run(["chattr", "+i", str(folder)], capture_output=True)
        took.append(done.returncode == 0)

    timer = Timer(seconds, change)
    timer.start()
    try:
        yield took
    finally:
        timer.cancel()
        timer.join()
        subprocess.run(["chattr", "-i", str(folder)], capture_output=True)


def run_on(runs: Any, name: str, run: Callable[[], None]) -> dict:
    """A run on such a disk: told in a line, and when there is room the same bits."""
    whole = runs.whole(name, run)
    place = runs.place(f"on disk {name}")
    folder = place / "run"
    how = runs.draw.choice(("small", "read-only", "immutable"))
    report: dict[str, Any] = {"at": how}

    def refused() -> list[str]:
        report["ended"] = wait_for(child(place, run, Moment(at="never")))
        shutil.copy(place / "printed", place / "refused")
        return sentence(place / "refused", "jdml" in name) if report["ended"] else []

    if how == "small":
        report["kilobytes"] = runs.draw.randint(4, SPARE + used(whole / "run"))
        with small(folder, report["kilobytes"]) as room:
            wrong = refused()
            room()
            wrong += runs.ends_as(run, whole, place)
        return runs.report(name, [report], wrong)
    moment = runs.moment(whole, "operation")
    if how == "read-only":
        # Killed there, so that there is something to go on from.
        wait_for(child(place, run, moment))
        report["number"] = moment["number"]
        with read_only(folder):
            wrong = refused()
        wrong += [] if report["ended"] else ["ended well where nothing may be written"]
    else:
        report["after"] = runs.draw.uniform(0, float((whole / "took").read_text()))
        deepest = runs.draw.choice(("run", "run/checkpoints"))
        with immutable(place / deepest, report["after"]) as took:
            wrong = refused()
        report |= {"folder": deepest, "took": took == [True]}
    return runs.report(name, [report], wrong + runs.ends_as(run, whole, place))


def fill_disk(runs: Any, name: str) -> dict:
    """A file that a command writes on such a disk: told in a line, nothing half-written, and written when it can be."""
    runs.operations_of(name)
    words, file = killed_runs.WRITERS[name]
    whole = runs.work / re.sub(r"\W+", "_", f"whole {name} new")
    place = runs.place(f"on disk {name}")
    line = words.format(run="new", out=f"{place.name}/out/{file}")
    out = place / "out"
    new = files(whole / "out")
    report: dict[str, Any] = {"at": runs.draw.choice(("small", "read-only"))}

    def refused() -> list[str]:
        report["ended"] = runs.in_work(place, line)
        wrong = sentence(place / "printed") if report["ended"] else []
        there = {n: of for n, of in files(out).items() if new.get(n) != of}
        return wrong + [f"left {n}" for n in there]

    def again() -> list[str]:
        code = runs.in_work(place, line)
        return [f"again ended with {code}"] if code else differing("", new, files(out))

    if report["at"] == "small":
        report["kilobytes"] = runs.draw.randint(1, max(1, used(whole / "out") - 4))
        with small(out, report["kilobytes"]) as room:
            wrong = refused()
            room()
            return runs.report(name, [report], wrong + again())
    with read_only(out):
        wrong = refused()
    wrong += [] if report["ended"] else ["ended well where nothing may be written"]
    return runs.report(name, [report], wrong + again())


def used(folder: Path) -> int:
    """Kilobytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1024 + 1
