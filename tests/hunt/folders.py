"""What users hand to the doors, drawn: trees of folders, lists, arrays, parts of a run's folder, words of a command."""

import contextlib
import csv
import io
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hunt.counting import CASES, counted
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from PIL import Image

FREELY: Any = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.reuse, Phase.generate),  # cases are small as they are drawn
}


def cases(few: int, many: int) -> Any:
    """How many cases are drawn: by the tests a few, always the same; by a hunt so many of its 100,000, and others."""
    few_alike = settings(max_examples=few, derandomize=True, database=None, **FREELY)
    others = settings(max_examples=max(1, many * CASES // 100_000), print_blob=True, **FREELY)

    def decorate(test: Any) -> Any:
        test.hypothesis.inner_test = counted(test.hypothesis.inner_test)
        return (others if CASES else few_alike)(test)

    return decorate


CAFE = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
ODD = [
    "-dash", "--help", "a b", " lead", "trail ", "new\nline", "tab\tname", 'q"uote', "o'ne", "a,b", "a;b", "[0]",
    "%41", "$HOME", "~", "*", "?", "<script>alert(1)</script>", "back\\slash", "a:b", "a.b:c", "nan", "#no", "=1+1",
    "\u202eright", "\U0001f426", "\udcff", "ſ", "ﬁ", "x.png", "t.csv", "t.parquet", "t.parquet[0]", "con", "é" * 80,
]  # fmt: skip
PLACES = [
    "ant", "bee", "cat", "Ant", "10", "9", "train", "test", "val", "valid", "query", "gallery", "Training", "images",
    "data", "unlabeled", ".hidden", "__MACOSX", *CAFE, *ODD,
]  # fmt: skip
NAMES = [
    "0.png",
    "1.png",
    "2.PNG",
    "3.jpg",
    "4.jpeg",
    "no-suffix",
    ".png",
    "n.txt",
    "h.heic",
    "l.csv",
    "Thumbs.db",
]
NAMES += [f"{name}.png" for name in (*CAFE, *ODD)]


class Entry(NamedTuple):
    """What lies at a path: of a kind, with a number that tells its content."""

    path: tuple[str, ...]
    kind: str
    number: int


KINDS = ["png", "png", "png", "png", "jpeg", "broken", "empty", "text"]
_places = st.sampled_from(PLACES[:14]) | st.sampled_from(PLACES)
_names = st.sampled_from(NAMES[:6]) | st.sampled_from(NAMES)
_files = st.builds(
    Entry,
    st.builds(lambda above, name: (*above, name), st.lists(_places, max_size=3).map(tuple), _names),
    st.sampled_from(KINDS),
    st.integers(0, 5),
)
_links = st.builds(
    Entry,
    st.builds(
        lambda above, name: (*above, name),
        st.lists(_places, max_size=2).map(tuple),
        _places | _names,
    ),
    st.sampled_from(
        [
            "link to an entry",
            "link to its folder",
            "link above",
            "link to nowhere",
            "link to itself",
        ]
    ),
    st.integers(0, 5),
)
_folders = st.builds(
    Entry, st.lists(_places, min_size=1, max_size=2).map(tuple), st.just("folder"), st.just(0)
)


@st.composite
def trees(draw: Any) -> list[Entry]:
    """Entries of a tree: mostly classes with images, sometimes in parts, and whatever else lies there."""
    entries = []
    parts = draw(
        st.sampled_from(
            [[()], [()], [("train",), ("test",)], [("train",), ("val",), ("test",)], [("images",)]]
        )
    )
    names = draw(st.lists(_places, min_size=1, max_size=4, unique=True))
    for part in parts:
        for name in names:
            for file in draw(st.lists(_names, min_size=1, max_size=3, unique=True)):
                number = draw(st.integers(0, 40))
                entries.append(Entry((*part, name, file), draw(st.sampled_from(KINDS)), number))
    return entries + draw(st.lists(_files | _links | _folders, max_size=4))


def content(kind: str, number: int) -> bytes:
    """The bytes of a file of a kind."""
    if kind in ("png", "jpeg"):
        file = io.BytesIO()
        Image.new("RGB", (8 + number % 3, 9), (6 * number, 90, 7)).save(file, kind)
        return file.getvalue()
    return {"broken": b"\x89PNG\r\n\x1a\n" + bytes([number]) * 20, "empty": b"", "text": b"words"}[
        kind
    ]


def build(root: Path, entries: list[Entry]) -> None:
    """Lay a tree out; what cannot be laid there (a file within a file) is left."""
    for entry in entries:
        path = root.joinpath(*entry.path)
        with contextlib.suppress(OSError):
            if entry.kind == "folder":
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if not entry.kind.startswith("link"):
                with path.open("xb") as file:
                    file.write(content(entry.kind, entry.number))
                continue
            other = root.joinpath(*entries[entry.number % len(entries)].path)
            path.symlink_to(
                {
                    "link to an entry": other,
                    "link to its folder": other.parent,
                    "link above": path.parent,
                    "link to nowhere": root / "nowhere",
                    "link to itself": path,
                }[entry.kind]
            )


class Listed(NamedTuple):
    """A list as it is meant, and as it is written."""

    rows: list[tuple[str, str, str]]
    text: bytes
    suffix: str


LABELS = [
    "ant",
    "bee",
    "Ant",
    "10",
    "9",
    "nan",
    "a,b",
    'q"uote',
    "two\nlines",
    "-1",
    "=1+1",
    *CAFE,
    "\U0001f426",
    "0x",
]


@st.composite
def lists(draw: Any, files: list[str]) -> Listed:
    """A list of some of the files, written in one of the ways of spreadsheets and programs."""
    chosen = draw(st.lists(st.sampled_from(files), min_size=1, max_size=6, unique=True))
    split = draw(
        st.sampled_from(
            [(), ("train", "test"), ("train", "val", "test"), ("query", "gallery", "train")]
        )
    )
    rows = [
        (file, draw(st.sampled_from(LABELS)), draw(st.sampled_from(split)) if split else "")
        for file in chosen
    ]
    separator = draw(st.sampled_from([",", ",", ";", "\t"]))
    names = ["file", "label", *(["split"] if split else [])]
    order = draw(st.permutations(range(len(names))))
    out = io.StringIO(newline="")
    end = draw(st.sampled_from(["\n", "\r\n"]))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer = csv.writer(out, delimiter=separator, lineterminator=end, quoting=quoting)
    if draw(st.booleans()) and draw(st.booleans()):
        out.write(f"sep={separator}{end}")
    cased = draw(st.sampled_from([str, str.upper, str.title, lambda name: f" {name} "]))
    writer.writerow([cased(names[n]) for n in order])
    for row in rows:
        if draw(st.integers(0, 5)) == 0:
            out.write(end)
        writer.writerow([row[n] for n in order])
    text = out.getvalue()
    if draw(st.booleans()):
        text = text.removesuffix(end)
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return Listed(rows, mark + text.encode(), draw(st.sampled_from([".csv", ".tsv", ".CSV"])))


@st.composite
def spoilt(draw: Any, content: bytes) -> bytes:
    """Bytes that were cut, or of which some were changed, doubled or left out."""
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    way = draw(st.sampled_from(["cut", "change", "leave", "double", "put", "nothing"]))
    other = draw(st.sampled_from([b"\0", b"\xff", b'"', b"\n", b"\r", b",", b"{", b"9", b"\xc3"]))
    return {
        "cut": content[:place],
        "change": content[:place] + other + content[place + 1 :],
        "leave": content[:place] + content[place + 1 :],
        "double": content[:place] * 2 + content[place:],
        "put": content[:place] + other + content[place:],
        "nothing": b"",
    }[way]


JUNK: Any = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1e308,
        float("nan"),
        "",
        "x",
        "../../etc",
        "1" * 30,
        [],
        [1],
        [[]],
        {},
        {"x": {}},
        10**30,
    ]
)


@st.composite
def changed(draw: Any, value: Any) -> Any:
    """JSON of which one part is another, absent, or one more."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 3)) == 0:
        return draw(JUNK)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    made = value.copy()
    if draw(st.integers(0, 3)) == 0:
        del made[key]
    else:
        made[key] = draw(changed(value[key]))
    return made


SHAPES = [(), (0,), (1,), (4,), (4, 0), (4, 3), (3, 4), (4, 1), (4, 2, 2), (0, 3)]


@st.composite
def arrays(draw: Any) -> np.ndarray:
    """An array of any kind that a program may have saved."""
    shape = draw(st.sampled_from(SHAPES))
    random = np.random.default_rng(draw(st.integers(0, 9)))
    numbers = random.normal(size=shape)
    kind = draw(st.sampled_from("f f2 >f8 i u1 i8 b c U S O M nan inf neg huge".split()))
    if kind in ("nan", "inf"):
        return np.where(random.random(shape) < 0.4, {"nan": np.nan, "inf": np.inf}[kind], numbers)
    if kind == "neg":
        return random.integers(-2, 2, shape)
    if kind == "huge":
        return random.integers(2**62, 2**63 - 1, shape)
    if kind == "U":
        return np.array(["ant", "bee", "<b>", ""])[random.integers(0, 4, shape)]
    if kind == "S":
        return np.array([b"ant", b"\xff"])[random.integers(0, 2, shape)]
    if kind == "O":
        return np.array(random.integers(0, 2, shape), object)
    if kind == "M":
        return random.integers(0, 9, shape).astype("M8[D]")
    if kind == "c":
        return numbers + 1j
    return (10 * numbers if kind[-1] in "i1" else numbers).astype(kind if kind[-1] != "b" else bool)


NUMBERS = ["1", "0", "-1", "2.5", "nan", "1e99", "x", "", "9" * 30]
NAMED = [
    "class",
    "labels",
    "embeddings",
    "R@1",
    "none",
    "sphere",
    "all",
    "train",
    "test",
    "nobody",
    "é",
]
WRITTEN = [
    "new.npz",
    "new.json",
    "new.html",
    "new.csv",
    "new.md",
    "new.png",
    "-",
    "photos",
    "no/where.json",
    "e.npz/x.json",
]
COMMANDS: dict[str, dict[str, list[str]]] = {
    "evaluate e.npz": {
        "recall-at": NUMBERS, "map-at": NUMBERS, "normalize": NAMED, "embeddings": NAMED, "labels": NAMED,
        "ignore-same": [*NAMED, "t.csv:label"], "rerank": ["none", "expand", "reciprocal", "x"], "json": WRITTEN,
        "nmi": [],
    },
    "data check folder photos": {
        "sample": NUMBERS, "json": WRITTEN, "within": NUMBERS, "by": ["RUN", "nowhere"], "quiet": [], "no-quiet": [],
    },
    "embed RUN photos": {
        "out": WRITTEN, "split": NAMED, "labels": NAMED, "which": ["best", "last", "first"], "quiet": [],
        "on-bad-image": ["skip", "stop", "x"], "data-dir": ["photos", "nowhere"],
    },
    "search RUN photos/ant/0.png": {
        "gallery": ["photos", "e.npz", "t.csv", "nowhere", "cub:photos"], "k": NUMBERS,
        "max-distance": [*NUMBERS, "auto"],
        "rerank": ["none", "augment", "x"], "json": WRITTEN, "out": WRITTEN, "quiet": [],
    },
    "compare r.jsonl": {
        "metric": NAMED, "baseline": ["a", "b", "c"], "confidence": NUMBERS, "csv": WRITTEN, "markdown": WRITTEN,
    },
    "report e.npz": {
        "out": WRITTEN, "labels": NAMED, "most": NUMBERS, "thumbnails": NUMBERS, "looked": NUMBERS,
        "title": ["", "<b>", "é"],
        "map": ["pca", "x"], "metric": NAMED, "baseline": ["e", "c"],
    },
    "train --data-dir photos": {
        "loss": ["triplet", "proxy_anchor", "x"], "batch": ["2x2", "0x2", "3", "x", "99x99"], "steps": NUMBERS,
        "lr": NUMBERS,
        "dim": NUMBERS, "split": ["none", "images", "classes", "x"], "validation": NUMBERS, "seed": NUMBERS,
        "image-size": ["8", *NUMBERS], "model": ["small", "eps", "x"], "miner": ["easy", "easy+hard", "x"],
        "classes-file": ["names.txt", "e.npz", "nowhere"], "test-share": NUMBERS, "labels": NAMED, "memory": NUMBERS,
        "weight-decay": NUMBERS, "label-noise": NUMBERS, "train-classes": NUMBERS, "quiet": [],
    },
}  # fmt: skip
"""Commands with words that they need, and values of their options, right and wrong."""


@st.composite
def command_lines(draw: Any) -> tuple[list[str], list[list[str]]]:
    """A command's words, and its options with their values, in some order."""
    command = draw(st.sampled_from(list(COMMANDS)))
    known = COMMANDS[command]
    names = draw(st.lists(st.sampled_from(list(known)), max_size=4, unique=True))
    options = []
    for name in names:
        flag = "-k" if name == "k" else f"--{draw(st.sampled_from([name, name.replace('-', '_')]))}"
        options.append([flag, *([draw(st.sampled_from(known[name]))] if known[name] else [])])
    if draw(st.integers(0, 9)) == 0:
        options.append(
            [draw(st.sampled_from(["--nothing", "--epochs=3", "-x", "--quiet=maybe", "extra"]))]
        )
    return command.split(), options
