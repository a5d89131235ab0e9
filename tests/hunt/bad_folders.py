"""Folders and lists that are."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hunt.bad import DEEP, Bad, cut, put
from hunt.bad_images import UNKNOWN, encoded, plain

from jdml import data
from jdml.data.folder import read_folder
from jdml.data.table import read_table


def classes(place: Path, *names: str) -> Path:
    root = place / "photos"
    for shade, name in zip(("red", "blue", "green"), names, strict=False):
        (root / name).mkdir(parents=True)
        (root / name / "0.png").write_bytes(encoded(plain(shade), "png"))
    return root


def linked(place: Path) -> Path:
    root = classes(place, "ant", "bee")
    (root / "ant" / "up").symlink_to(root)
    (root / "bee" / "round").symlink_to(root / "bee" / "round")
    (root / "ant" / "other").symlink_to(root / "ant")
    return root


def with_pipes(place: Path) -> Path:
    root = classes(place, "ant", "bee")
    os.mkfifo(root / "ant" / "pipe.png")
    (root / "bee" / "device.png").symlink_to("/dev/zero")
    return root


def images_of(root: Path) -> list[str]:
    return [str(file.relative_to(root)) for file in read_folder(root).files]


BOTH = ["ant/0.png", "bee/0.png"]


def listed(text: str | bytes) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / "sub").mkdir()
        for name in ("a.png", " b.png", "sub/c.png"):
            (place / name).write_bytes(encoded(plain("red"), "png"))
        content = text.replace("HERE", str(place)).encode() if isinstance(text, str) else text
        return put("list.csv", content)(place)

    return make


def rows_of(file: Path) -> list[list[str]]:
    listing = read_table(file)
    names = listing.names["class"]
    labels = [names[n] for n in listing.views["class"].tolist()]
    return [
        [os.path.relpath(f, file.parent), label]
        for f, label in zip(listing.files, labels, strict=True)
    ]


def saved_to_disk(**files: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        for name, text in files.items():
            (place / f"{name}.json").write_text(text)
        return place

    return make


def table(**columns: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        arrow = pytest.importorskip("pyarrow", reason="reads tables: pip install 'jdml[parquet]'")
        from pyarrow import parquet

        parquet.write_table(arrow.table(columns), place / "t.parquet")
        return place / "t.parquet"

    return make


def colours_in(file: Path) -> Any:
    return data.from_parquet(file, transform=data.conventional(8)).images[:]


FOLDERS = [
    Bad("links that lead back", linked, images_of, read=BOTH),
    Bad("a pipe and a device called images", with_pipes, images_of, read=BOTH),
    Bad(
        "absolute paths and ..",
        listed("file,label\nHERE/a.png,x\nsub/../sub/c.png,y\n"),
        rows_of,
        read=[["a.png", "x"], ["sub/c.png", "y"]],
    ),
    Bad(
        "a space before a name",
        listed("file,label\n b.png,x\na.png,y\n"),
        rows_of,
        read=[[" b.png", "x"], ["a.png", "y"]],
    ),
    Bad(
        "cells that are formulas",
        listed("file,label\na.png,=1+1\nsub/c.png,@SUM(A1)\n"),
        rows_of,
        read=[["a.png", "=1+1"], ["sub/c.png", "@SUM(A1)"]],
    ),
    Bad(
        "a file by two paths",
        listed("file,label\na.png,x\nsub/../a.png,y\n"),
        rows_of,
        "there twice",
    ),
    Bad("UTF-16", listed("file,label\na.png,x\n".encode("utf-16")), rows_of, "expected UTF-8 text"),
    Bad(
        "a field of 300,000 characters",
        listed(f"file,label\n{'x' * 300_000},y\n"),
        rows_of,
        "field larger than field limit",
    ),
    Bad(
        "a quotation that does not end",
        listed('file,label\n"a.png,x\n'),
        rows_of,
        "quotation mark that does not end",
    ),
    Bad("zeros in a list", listed(b"file,label\na\0.png,x\n"), rows_of, read=None),
    Bad(
        "a table that is cut",
        lambda place: cut(table(image=[b"x"], label=[1])(place)),
        colours_in,
        "not a readable .parquet file",
    ),
    Bad(
        "a device within a table",
        table(image=[{"bytes": None, "path": "/dev/zero"}], label=[1]),
        colours_in,
        "/dev/zero is not a file",
    ),
    Bad("no image within a table", table(image=[b"nothing"], label=[1]), colours_in, UNKNOWN),
    Bad(
        "a list of splits that is none",
        saved_to_disk(dataset_dict='{"splits": 3}'),
        read_folder,
        "dataset_dict.json is not what Hugging Face's save_to_disk writes",
    ),
    Bad("a state without files", saved_to_disk(state="{}"), read_folder, "save_to_disk writes"),
    Bad(
        "a state nested without end",
        saved_to_disk(state=DEEP),
        read_folder,
        "not what Hugging Face's save_to_disk writes",
    ),
]
