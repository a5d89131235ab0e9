"""Put faults into the library, one at a time, and see which test of the room notices.

``make mutants`` draws them, evenly by the rooms' lines of code, and runs what is not on record in ``record.jsonl``.
"""

import argparse
import json
import os
import random
import runpy
import select
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import accumulate
from operator import or_
from pathlib import Path

from changes import Change, changes, code_lines

ROOMS = (
    *("ops", "losses", "mining", "metrics", "optim", "ccp", "flows", "fields", "objectives"),
    *("training", "data"),
)
HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
RECORD = HERE / "record.jsonl"
BUILD = REPOSITORY / "build" / "mutants"
# What nearly all tests import: once, in the process that others are forked from.
IMPORTED = (
    "jax.numpy",
    "flax.linen",
    "flax.nnx",
    "hypothesis",
    "optax",
    "scipy.stats",
    "PIL.Image",
    "orbax.checkpoint",
    "grain",
)


def files_of(room: str) -> list[str]:
    """The room's source files, relative to the repository."""
    folder = REPOSITORY / "jdml" / room
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [path.relative_to(REPOSITORY).as_posix() for path in paths]


def drawn(count: int, seed: int) -> list[Change]:
    """``count`` changes: rooms by their lines of code, then a line, a place on it, and what can go wrong there."""
    lines = {room: sum(code_lines(REPOSITORY, file) for file in files_of(room)) for room in ROOMS}
    candidates = []
    for room in ROOMS:
        random_ = random.Random(f"{seed} {room}")
        places = defaultdict(lambda: defaultdict(list))
        for file in files_of(room):
            for change in changes(REPOSITORY, room, file):
                places[file, change.line][change.span].append(change)
        share = max(3, round(count * lines[room] / sum(lines.values())))
        for at in random_.sample(sorted(places), min(share, len(places))):
            spans = places[at]
            candidates.append(random_.choice(spans[random_.choice(sorted(spans))]))
    return candidates


def key_of(record: dict) -> tuple:
    """Return the key of a record's change."""
    return tuple(
        record[name] for name in ("file", "where", "kind", "statement", "before", "after", "count")
    )


def recorded() -> dict[tuple, dict]:
    """Return the recorded changes, the last line of each."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return {key_of(record): record for record in map(json.loads, lines)}


def put(record: dict) -> None:
    """Append a line to the record."""
    with RECORD.open("a") as out:
        out.write(json.dumps(record) + "\n")


class Copy:
    """A copy of the repository, in which one file at a time is changed."""

    def __init__(self, name: str) -> None:
        self.root = BUILD / f"copy-{name}"
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        for path in REPOSITORY.iterdir():
            if path.name in {"jdml", "tests", "pyproject.toml"}:
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                copy(path, self.root / path.name)
            elif path.name not in {"build", ".git", ".venv"}:
                (self.root / path.name).symlink_to(path)

    def put(self, change: Change) -> None:
        """Make the change."""
        source = (REPOSITORY / change.file).read_bytes()
        (self.root / change.file).write_bytes(change.apply(source))

    def restore(self, change: Change) -> None:
        """Undo it, times too: what is compiled of the file is still good."""
        shutil.copy2(REPOSITORY / change.file, self.root / change.file)


class Chosen:
    """Runs what it is told, in that order, and says what fails first."""

    def __init__(self, order: list[str] | None, tell) -> None:
        self.order, self.tell = order, tell

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.tell(killed=report.nodeid)

    def pytest_collection_modifyitems(self, items: list) -> None:
        if self.order is not None:
            place = {name: i for i, name in enumerate(self.order)}
            items[:] = sorted(
                (item for item in items if item.nodeid in place), key=lambda i: place[i.nodeid]
            )

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.tell(killed=report.nodeid)
        self.tell(test=report.nodeid, seconds=report.duration, when=report.when)


class Listed:
    """Says what is there."""

    def __init__(self, tell) -> None:
        self.tell = tell

    def pytest_collection_modifyitems(self, items: list) -> None:
        for item in items:
            self.tell(listed=item.nodeid)


class Contexts:
    """Names the test that runs to what measures the lines."""

    def __init__(self, coverage) -> None:
        self.coverage = coverage

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)


def in_child(root: Path, work, limit: float) -> tuple[list[dict], bool]:
    """Run ``work(report)`` in a forked process: its reports, and whether it ended within ``limit`` seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(reader)
            os.chdir(root)
            sys.path.insert(0, str(root))
            sys.dont_write_bytecode = True  # which is told from a fault's by a second and a size
            os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
            out = os.open(root / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            work(lambda **said: os.write(writer, (json.dumps(said) + "\n").encode()))
        except BaseException as error:
            os.write(2, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text, end, whole = b"", time.monotonic() + limit, False
    while (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                whole = True
                break
            text += piece
    os.close(reader)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    return [json.loads(line) for line in text.splitlines()], whole


def pytest_in(paths: Iterable[str], plugins: list, first: bool) -> None:
    import pytest

    options = ["-q", "-p", "no:cacheprovider", "--tb=line", *["-x"] * first]
    pytest.main([*options, *paths], plugins=plugins)


def prepare() -> None:
    """Import what all tests import, as they do."""
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(BUILD / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    os.environ.setdefault("JDML_SHARED_DATA", str(REPOSITORY.parent / "shared" / "data"))
    sys.path.append(str(REPOSITORY / "tests"))
    runpy.run_path(str(REPOSITORY / "tests" / "conftest.py"))
    for name in IMPORTED:
        __import__(name)


class Map:
    """Which tests touch which lines, and how long each takes."""

    def __init__(self, room: str) -> None:
        self.seconds: dict[str, float] = {}
        self.new: list[str] = []
        self.lines: dict[str, dict[str, list[str]]] = {}
        for file in sorted((BUILD / "maps" / room).glob("*.json")):
            coverage_file = json.loads(file.read_text())
            self.seconds |= coverage_file["seconds"]
            for name, lines in coverage_file["lines"].items():
                mine = self.lines.setdefault(name, {})
                for line, tests in lines.items():
                    mine.setdefault(line, []).extend(tests)

    def note(self, test: str, changed: Iterable[str]) -> None:
        """Know of a test that was not there, or was another, when the lines of its file were watched."""
        file = test.partition("::")[0]
        known = any(known.startswith(file) for known in self.seconds)
        if (known and test not in self.seconds) or any(part in test for part in changed):
            self.new.append(test)
            self.seconds.setdefault(test, 0.1)

    @staticmethod
    def make(room: str, test_file: Path, copy: Copy) -> None:
        """Run a file of the room's tests once, with every line watched."""
        coverage_file = BUILD / "maps" / room / f"{test_file.stem}.json"
        if coverage_file.exists():
            return
        coverage_file.parent.mkdir(parents=True, exist_ok=True)
        raw = copy.root / "lines.json"

        def watched(tell) -> None:
            from coverage import Coverage

            coverage = Coverage(
                data_file=None, include=[f"{copy.root}/jdml/*"], config_file=False, messages=False
            )
            coverage.start()
            plugins = [Chosen(None, tell), Contexts(coverage)]
            pytest_in([f"tests/{room}/{test_file.name}"], plugins, first=False)
            coverage.stop()
            data = coverage.get_data()
            lines = {
                str(Path(name).relative_to(copy.root)): {
                    line: tests
                    for line, contexts in data.contexts_by_lineno(name).items()
                    if (tests := [test for test in contexts if test])
                }
                for name in data.measured_files()
            }
            raw.write_text(json.dumps(lines))

        said, _ = in_child(copy.root, watched, 3600)
        failing = {one["killed"] for one in said if "killed" in one}
        for test in failing:
            print("fails without a change:", test)
        seconds: Counter[str] = Counter()
        for one in said:
            if "test" in one and one["test"] not in failing:
                seconds[one["test"]] += one["seconds"]
        coverage_file.write_text(
            json.dumps({"seconds": seconds, "lines": json.loads(raw.read_text())})
        )
        raw.unlink()
        total = sum(seconds.values())
        print(f"{room}/{test_file.name}: {len(seconds)} tests, {total:.0f} s", flush=True)

    def touching(self, file: str, lines: Iterable[int]) -> set[str]:
        """The tests that run one of these lines."""
        of_file = self.lines.get(file, {})
        return {test for line in lines for test in of_file.get(str(line), ())} & set(self.seconds)

    def likely(self, change: Change) -> set[str]:
        """The tests that run its statement; where that runs at import, its function or its file."""
        for span in (change.statement_lines, change.function_lines, (1, 10_000)):
            tests = self.touching(change.file, range(span[0], span[1] + 1)) if span else set()
            if tests:
                return tests
        return set()

    def order(self, tests: set[str]) -> list[str]:
        """One of each function first, the quickest; then the second of each."""
        alike = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            alike[test.partition("[")[0]].append(test)
        ranks = {test: rank for group in alike.values() for rank, test in enumerate(group)}
        return sorted(tests, key=lambda test: (self.seconds[test] * (1 + ranks[test] / 8), test))


def stages(
    change: Change, maps: dict[str, Map], most: float, wide: bool, before: str | None
) -> Iterator[dict[str, float]]:
    """Tests and their seconds, likeliest first: the one that noticed it before; the room's; others and examples."""
    own = maps[change.room]
    if before in own.seconds:
        yield {before: own.seconds[before]}
    likely = own.likely(change)
    new = [test for map_ in maps.values() for test in map_.new] if wide else own.new
    first = fitting(own, likely, most) | {test: own.seconds.get(test, 0.1) for test in new}
    yield dict(sorted(first.items(), key=lambda item: item[1]))
    if not wide:
        return
    rest = fitting(own, own.touching(change.file, range(10_000)) - likely, most)
    others = (
        fitting(map_, map_.likely(change), most / 4) for map_ in maps.values() if map_ is not own
    )
    module = change.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    examples = {f"tests/repository/test_docs.py::test_examples_run[{module}]": 5.0}
    names = {"tests/repository/test_api.py::test_signatures_are_those_on_file": 2.0}
    yield reduce(or_, others, {}) | rest | names | examples


def fitting(map_: Map, tests: set[str], most: float) -> dict[str, float]:
    """The first that fit into ``most`` seconds, at least one."""
    ordered = map_.order(tests)
    total = accumulate(map_.seconds[test] for test in ordered)
    fit = [test for test, sum_ in zip(ordered, total, strict=True) if sum_ <= most]
    return {test: map_.seconds[test] for test in fit or ordered[:1]}


def tried(
    change: Change, copy: Copy, maps: dict[str, Map], most: float, wide: bool, before: str | None
) -> dict:
    """The change's record: what noticed it first."""
    begin, ran = time.monotonic(), 0
    record = change.record() | {"status": "survived", "by": None}
    copy.put(change)
    try:
        for tests in filter(None, stages(change, maps, most, wide, before)):
            by, count = noticed(copy, tests)
            ran += count
            if by:
                record |= {"status": "killed", "by": by}
                break
    finally:
        copy.restore(change)
    return record | {"ran": ran, "seconds": round(time.monotonic() - begin, 1)}


def noticed(copy: Copy, tests: dict[str, float]) -> tuple[str | None, int]:
    """The first test that fails, "time" where they do not end, "end" where the process does; and how many ran."""
    functions = list(dict.fromkeys(test.partition("[")[0] for test in tests))

    def run(tell) -> None:
        sys.dont_write_bytecode = True
        pytest_in(functions, [Chosen(list(tests), tell)], first=True)

    said, whole = in_child(copy.root, run, 60 + 6 * sum(tests.values()))
    ran = sum(one.get("when") == "call" for one in said)
    first = next((one["killed"] for one in said if "killed" in one), None)
    return first or ("time" if not whole else None if said else "end"), ran


def find(record: dict) -> Change | None:
    """The change of a record, in the files as they are."""
    alike = (
        c for c in changes(REPOSITORY, record["room"], record["file"]) if c.key == key_of(record)
    )
    return next(alike, None)


def work(records: list[dict], most: float, wide: bool, changed: list[str]) -> None:
    """Try these, in a copy of its own."""
    copy = Copy(str(os.getpid()))
    maps = {room: Map(room) for room in ROOMS}
    # What Python and pytest compile of the tests is kept for all; tests that no map knows yet come first.
    collect = [*(f"tests/{room}" for room in {record["room"] for record in records}), "--co"]
    listed, _ = in_child(
        copy.root, lambda tell: pytest_in(collect, [Listed(tell)], first=False), 600
    )
    for test in (one["listed"] for one in listed):
        maps[test.split("/")[1]].note(test, changed)
    for record in records:
        change = find(record)
        if change is None:
            put(record | {"status": "gone"})
            continue
        new = tried(change, copy, maps, most, wide, record.get("by"))
        put(new)
        print(
            f"{new['status']:9} {new['seconds']:6.1f} s {change.file}:{change.line} {change.kind}"
            f"  by {new['by']}",
            flush=True,
        )


def table() -> None:
    """Print the record by package."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in recorded().values():
        counts[record["room"]][record["status"]] += 1
        counts["all"][record["status"]] += 1
    kinds = "killed", "equivalent", "gone", "survived", "drawn"
    print(f"{'':10}" + "".join(f"{kind:>12}" for kind in ("changes", *kinds)))
    for room in (*ROOMS, "all"):
        row = counts[room].total(), *(counts[room][kind] for kind in kinds)
        print(f"{room:10}" + "".join(f"{number:12}" for number in row))


def main() -> None:
    """Draw, try what is left, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=430)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument(
        "--again", action="store_true", help="try those that survived, on more tests"
    )
    parser.add_argument(
        "--changed", nargs="*", default=[], help="tests (parts of names) to run first"
    )
    parser.add_argument("--map", nargs="*", help="watch the rooms' tests (of these files), once")
    parser.add_argument("--most", type=float, default=60.0, help="seconds of tests in each stage")
    parser.add_argument("--table", action="store_true", help="only print what is on record")
    args = parser.parse_args()
    if args.table:
        table()
        return
    if not RECORD.exists():
        for change in drawn(args.count, args.seed):
            put(change.record() | {"status": "drawn"})
    BUILD.mkdir(parents=True, exist_ok=True)
    prepare()
    wanted = {"drawn", "survived"} if args.again else {"drawn"}
    left = [
        record
        for record in recorded().values()
        if record["status"] in wanted and record["room"] in args.rooms
    ]
    if args.map is not None:
        copy = Copy(str(os.getpid()))
        for room in args.rooms:
            for file in sorted((REPOSITORY / "tests" / room).glob("test_*.py")):
                if not args.map or file.stem.removeprefix("test_") in args.map:
                    Map.make(room, file, copy)
        return
    children = []
    for number in range(args.workers):
        child = os.fork()
        if child == 0:
            work(left[number :: args.workers], args.most, args.again, args.changed)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    table()


if __name__ == "__main__":
    main()
