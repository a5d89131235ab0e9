"""Generated files and command lines: trees of folders, lists, arrays, damaged bytes, JSON and options."""

import contextlib
import csv
import io
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from PIL import Image

CAFE = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
ODD = [
    "-dash", "--help", "a b", " lead", "trail ", "new\nline", "tab\tname", 'q"uote', "o'ne", "a,b", "a;b", "[0]",
    "%41", "$HOME", "~", "*", "?", "<script>alert(1)</script>", "back\\slash", "a:b", "a.b:c", "nan", "#no", "=1+1",
    "\u202eright", "\U0001f426", "\udcff", "ſ", "ﬁ", "x.png", "t.csv", "t.parquet", "t.parquet[0]", "con", "é" * 80,
]  # fmt: skip
FOLDERS = [
    "ant", "bee", "cat", "Ant", "10", "9", "train", "test", "val", "valid", "query", "gallery", "Training", "images",
    "data", "unlabeled", ".hidden", "__MACOSX", *CAFE, *ODD,
]  # fmt: skip
FILES = "0.png 1.png 2.PNG 3.jpg 4.jpeg no-suffix .png n.txt h.heic l.csv Thumbs.db".split()
FILES += [f"{name}.png" for name in (*CAFE, *ODD)]
LABELS = [*'ant bee Ant 10 9 nan a,b q"uote -1 =1+1 0x \U0001f426'.split(), "two\nlines", *CAFE]


class Entry(NamedTuple):
    """A file, a folder or a link: its path, its kind, and a number that decides its content."""

    path: tuple[str, ...]
    kind: str
    number: int


IMAGES = ["png", "png", "png", "png", "jpeg", "broken", "empty", "text"]
LINKS = [f"link to {place}" for place in ("an entry", "its folder", "its own folder", "nowhere")]
_folders = st.sampled_from(FOLDERS[:14]) | st.sampled_from(FOLDERS)
_files = st.sampled_from(FILES[:6]) | st.sampled_from(FILES)


def _entries(kinds: list[str], names: st.SearchStrategy[str]) -> st.SearchStrategy[Entry]:
    above = st.lists(_folders, max_size=3)
    path = st.builds(lambda above, name: (*above, name), above, names)
    return st.builds(Entry, path, st.sampled_from(kinds), st.integers(0, 5))


@st.composite
def trees(draw: Any) -> list[Entry]:
    """Generate a tree: mostly classes with images, sometimes in parts, and other files."""
    entries = []
    splits = [[()], [()], [("train",), ("test",)], [("train",), ("val",), ("test",)], [("images",)]]
    parts = draw(st.sampled_from(splits))
    names = draw(st.lists(_folders, min_size=1, max_size=4, unique=True))
    for part in parts:
        for name in names:
            for file in draw(st.lists(_files, min_size=1, max_size=3, unique=True)):
                kind, number = draw(st.sampled_from(IMAGES)), draw(st.integers(0, 40))
                entries.append(Entry((*part, name, file), kind, number))
    others = _entries(IMAGES, _files) | _entries(LINKS, _folders | _files)
    return entries + draw(st.lists(others | _entries(["folder"], _folders), max_size=4))


def content(kind: str, number: int) -> bytes:
    """Return the bytes of a file of a kind."""
    if kind in ("png", "jpeg"):
        file = io.BytesIO()
        Image.new("RGB", (8 + number % 3, 9), (6 * number, 90, 7)).save(file, kind)
        return file.getvalue()
    broken = b"\x89PNG\r\n\x1a\n" + bytes([number]) * 20
    return {"broken": broken, "empty": b"", "text": b"words"}[kind]


def build(root: Path, entries: list[Entry]) -> None:
    """Write a tree; an entry that cannot exist (a file within a file, a name in another locale) is skipped."""
    for entry in entries:
        path = root.joinpath(*entry.path)
        with contextlib.suppress(OSError, UnicodeError):
            if entry.kind == "folder":
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.kind not in LINKS:
                with path.open("xb") as file:
                    file.write(content(entry.kind, entry.number))
                continue
            other = root.joinpath(*entries[entry.number % len(entries)].path)
            targets = [other, other.parent, path.parent, root / "nowhere"]
            path.symlink_to(targets[LINKS.index(entry.kind)])


class FileList(NamedTuple):
    """A list of images: its rows of file, label and split, and its bytes."""

    rows: list[tuple[str, str, str]]
    text: bytes
    suffix: str


@st.composite
def file_lists(draw: Any, files: list[str]) -> FileList:
    """Generate a list of some of the files in the dialect of some spreadsheet or program."""
    splits = [(), ("train", "test"), ("train", "val", "test"), ("query", "gallery", "train")]
    split = draw(st.sampled_from(splits))
    rows = [
        (file, draw(st.sampled_from(LABELS)), draw(st.sampled_from(split)) if split else "")
        for file in draw(st.lists(st.sampled_from(files), min_size=1, max_size=6, unique=True))
    ]
    names = ["file", "label", *(["split"] if split else [])]
    order = draw(st.permutations(range(len(names))))
    separator = draw(st.sampled_from([",", ",", ";", "\t"]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator, lineterminator=end, quoting=quoting)
    cased = draw(st.sampled_from([str, str.upper, str.title, lambda name: f" {name} "]))
    writer.writerow([cased(names[n]) for n in order])
    for row in rows:
        if draw(st.integers(0, 5)) == 5:
            out.write(end)
        writer.writerow([row[n] for n in order])
    text = out.getvalue()
    if draw(st.booleans()):
        text = text.removesuffix(end)
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return FileList(rows, mark + text.encode(), draw(st.sampled_from([".csv", ".tsv", ".CSV"])))


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """Generate truncated bytes, or bytes of which one was replaced, removed or inserted."""
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    other = draw(st.sampled_from([b"\0", b"\xff", b'"', b"\n", b"\r", b",", b"{", b"9", b"\xc3"]))
    before, after = content[:place], content[place:]
    ways = [before, before + other + after[1:], before + after[1:], before + other + after, b""]
    return draw(st.sampled_from(ways))


OTHER_VALUES = [
    None, True, -1, 0, 1e308, float("nan"), "", "x", "../../etc", "1" * 30, [], [1], [[]], {}, {"x": {}}, 10**30,
]  # fmt: skip


@st.composite
def altered(draw: Any, value: Any) -> Any:
    """Generate JSON with one part changed or missing."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 3)) == 3:
        return draw(st.sampled_from(OTHER_VALUES))
    key = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    new = value.copy()
    if draw(st.integers(0, 3)) == 3:
        del new[key]
    else:
        new[key] = draw(altered(value[key]))
    return new


SHAPES = [(), (0,), (1,), (4,), (4, 0), (4, 3), (3, 4), (4, 1), (4, 2, 2), (0, 3)]
CASTS = "f f2 >f8 i u1 i8 ?".split()


@st.composite
def arrays(draw: Any) -> np.ndarray:
    """Generate an array of any shape and type that a program may have saved."""
    shape = draw(st.sampled_from(SHAPES))
    random = np.random.default_rng(draw(st.integers(0, 9)))
    numbers = 10 * random.normal(size=shape)
    holes = random.random(shape) < 0.4
    choices = {
        "nan": np.where(holes, np.nan, numbers),
        "inf": np.where(holes, np.inf, numbers),
        "negative": random.integers(-2, 2, shape),
        "huge": random.integers(2**62, 2**63 - 1, shape),
        "text": np.array(["ant", "bee", "<b>", ""])[random.integers(0, 4, shape)],
        "bytes": np.array([b"ant", b"\xff"])[random.integers(0, 2, shape)],
        "objects": np.array(random.integers(0, 2, shape), object),
        "dates": random.integers(0, 9, shape).astype("M8[D]"),
        "complex": numbers + 1j,
    }
    kind = draw(st.sampled_from([*CASTS, *choices]))
    return numbers.astype(kind) if kind in CASTS else choices[kind]


NAMES_OF_ARRAYS = "labels files model x gallery_embeddings gallery_labels self_index".split()


@st.composite
def sets_of_arrays(draw: Any) -> dict[str, np.ndarray]:
    """Generate arrays under the names that a file of embeddings may have, of any shapes and types."""
    names = draw(st.lists(st.sampled_from(NAMES_OF_ARRAYS), max_size=3, unique=True))
    return {name: draw(arrays()) for name in ("embeddings", *names)}


@st.composite
def consistent_arrays(draw: Any) -> dict[str, np.ndarray]:
    """Generate arrays with equal numbers of rows and the types that their names require."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    rows, dim = draw(st.integers(3, 6)), draw(st.sampled_from([2, 2, 1, 3]))
    x = random.normal(size=(rows, dim)) * draw(st.sampled_from([1.0, 1e-3, 1e3]))
    labels = random.permutation(np.arange(rows) % 2)
    kinds = {"numbers": labels - 1, "unsigned": labels.astype("u1"), "bytes": labels.astype("S")}
    kinds |= {"texts": np.array(["<b>", "nan"])[labels], "levels": np.stack([labels, labels], 1)}
    made = {
        "embeddings": x.astype(draw(st.sampled_from("f4 f2 f8 >f4".split()))),
        "labels": kinds[draw(st.sampled_from(list(kinds)))],
        "files": np.array([f"{row}.png" for row in range(rows)]),
    }
    for name in draw(st.lists(st.sampled_from(["labels", "files"]), max_size=1)):
        del made[name]
    return made


NUMBERS = ["1", "0", "-1", "2.5", "nan", "1e99", "x", "", "9" * 30]
NAMES = "class labels embeddings R@1 none sphere all train test nobody é".split()
OUTPUTS = [
    "new.npz", "new.json", "new.html", "new.csv", "new.md", "new.png", "-", "photos", "no/where.json", "e.npz/x.json",
]  # fmt: skip
COMMANDS: dict[str, dict[str, list[str]]] = {
    "evaluate e.npz": {
        "recall-at": NUMBERS, "map-at": NUMBERS, "normalize": NAMES, "embeddings": NAMES, "labels": NAMES,
        "ignore-same": [*NAMES, "t.csv:label"], "rerank": ["none", "expand", "reciprocal", "x"], "json": OUTPUTS,
        "nmi": [],
    },
    "data check folder photos": {
        "sample": NUMBERS, "json": OUTPUTS, "within": NUMBERS, "by": ["run", "nowhere"], "quiet": [], "no-quiet": [],
    },
    "embed run photos": {
        "out": OUTPUTS, "split": NAMES, "labels": NAMES, "which": ["best", "last", "first"], "quiet": [],
        "on-bad-image": ["skip", "stop", "x"], "data-dir": ["photos", "nowhere"],
    },
    "search run photos/ant/0.png": {
        "gallery": ["photos", "e.npz", "t.csv", "nowhere", "cub:photos"], "k": NUMBERS,
        "max-distance": [*NUMBERS, "auto"], "rerank": ["none", "augment", "x"], "json": OUTPUTS, "out": OUTPUTS,
        "quiet": [],
    },
    "compare r.jsonl": {
        "metric": NAMES, "baseline": ["a", "b", "c"], "confidence": NUMBERS, "csv": OUTPUTS, "markdown": OUTPUTS,
    },
    "report e.npz": {
        "out": OUTPUTS, "labels": NAMES, "most": NUMBERS, "thumbnails": NUMBERS, "looked": NUMBERS,
        "title": ["", "<b>", "é"], "map": ["pca", "x"], "metric": NAMES, "baseline": ["e", "c"],
    },
    # The folder has another run: all options are read and checked, and nothing is trained.
    "train --data-dir photos --out run": {
        "loss": ["triplet", "proxy_anchor", "x"], "batch-size": ["3", *NUMBERS], "steps": NUMBERS,
        "classes-per-batch": ["2", *NUMBERS], "samples-per-class": ["2", *NUMBERS],
        "lr": NUMBERS, "dim": NUMBERS, "split": ["none", "images", "classes", "x"], "validation": NUMBERS,
        "seed": NUMBERS, "image-size": ["8", *NUMBERS], "model": ["small", "eps", "x"],
        "miner": ["easy", "easy+hard", "x"], "classes-file": ["names.txt", "e.npz", "nowhere"], "test-share": NUMBERS,
        "labels": NAMES, "memory-size": NUMBERS, "weight-decay": NUMBERS, "label-noise": NUMBERS,
        "quiet": [],
    },
}  # fmt: skip
"""Commands with the arguments that they need, and right and wrong values of their options."""


@st.composite
def command_lines(draw: Any, command: str) -> list[list[str]]:
    """Generate options of a command in some order."""
    known = COMMANDS[command]
    options = []
    for name in draw(st.lists(st.sampled_from(list(known)), max_size=4, unique=True)):
        flag = "-k" if name == "k" else f"--{draw(st.sampled_from([name, name.replace('-', '_')]))}"
        options.append([flag, *([draw(st.sampled_from(known[name]))] if known[name] else [])])
    if draw(st.integers(0, 9)) == 9:
        unknown = ["--nothing", "--batch=3", "-x", "--quiet=maybe", "extra"]
        options.append([draw(st.sampled_from(unknown))])
    return options
