"""Kill training at random moments, go on with the same command, compare with a run that nobody killed: bit for bit.

    python tests/kills/kill.py [--count 100] [--seed 0] [--only WORDS] [--record FILE] [--work FOLDER] [--mode kill]

Each of `count` trials draws what is run (`killed_runs.py`) and one to three moments: after some time; at one of the
operations on the run's files (opened, half written, synchronized, renamed, removed, by a preloaded library, whatever
thread or language does it); inside an evaluation, a save, a change of problem. There the process gets SIGKILL. The same
command then goes on to the end, and what is in the folder is compared: parameters, statistics, state of optimizer and
objective in every checkpoint kept, progress, `model.safetensors`, `metrics.json`, `config.json`, the log but for its
seconds, and that nothing else lies there. Files that commands write are the old or the new ones, byte for byte.

`--mode sweep` kills at each operation in turn instead, `--only` of one run. `--mode full` lets the disk be full, or not
writable, from a random operation on: a run ends in a sentence, and goes on to the same bits when there is room again.

The record has a line for each trial; where it has those of a seed, a mode and a choice, the rest is done. The exit code
tells whether all agreed.
"""

import argparse
import errno
import hashlib
import json
import linecache
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, c_char_p, c_int, c_long
from functools import cache, partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARY = "JDML_KILLS_LIBRARY"
if LIBRARY in os.environ:
    import killed_runs
MOMENTS = {"time": 2, "operation": 3, "evaluation": 1, "save": 2, "problem": 6, "beginning": 1}
"""When a process is killed, and how often that is drawn where it can be."""
REFUSALS = {"full": errno.ENOSPC, "file too large": errno.EFBIG, "not writable": errno.EACCES}
COMPILED = 0.35
"""Of the time of a whole run, what one takes whose programs were compiled before."""
LIMIT = 600
"""Seconds after which a process counts as hanging."""
PATIENT = 60
"""Seconds that the rest of several processes has to notice that one was killed."""


def begin_again(work: Path) -> None:
    """Go on in a process with the library preloaded, which has imported everything and computed nothing."""
    library = work / "operations.so"
    words = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(HERE / "operations.c"),
        "-ldl",
    ]
    subprocess.run(words, check=True)
    environment = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(work / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "PYTHONWARNINGS": "ignore",
    }
    environment |= {"LD_PRELOAD": str(library), LIBRARY: str(library)}
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | environment)


def library() -> Any:
    """The preloaded library."""
    loaded = CDLL(os.environ[LIBRARY])
    loaded.plan.argtypes = [c_char_p, c_long, c_int, c_int]
    loaded.operations.restype = c_long
    return loaded


class Moment(dict):
    """When, and what then: `{"at": "operation", "number": 17}`, of what was seen of the whole run."""


def watch(moment: Moment | None, seen: Path) -> None:
    """Tell when what begins and how long it takes; kill this process within one of them."""
    from jdml.training.alternation import AlternatingProblems
    from jdml.training.checkpoint import RunFolder
    from jdml.training.run_in_progress import Run

    begun = time.monotonic()
    met: dict[str, int] = {}

    def wrap(kind: type, name: str, called: str) -> None:
        inner = getattr(kind, name)

        def outer(*args: Any, **kwargs: Any) -> Any:
            number = met[called] = met.get(called, -1) + 1
            if moment is not None and (moment["at"], moment.get("number")) == (called, number):
                threading.Thread(target=_die_in, args=(moment["after"],), daemon=True).start()
            start = time.monotonic()
            result = inner(*args, **kwargs)
            if moment is None:
                with seen.open("a") as file:
                    told = {"at": called, "number": number, "seconds": time.monotonic() - start}
                    file.write(json.dumps(told) + "\n")
            return result

        setattr(kind, name, outer)

    wrap(RunFolder, "__init__", "beginning")
    wrap(Run, "_evaluate", "evaluation")
    wrap(Run, "save", "save")
    wrap(AlternatingProblems, "_next_problem", "problem")
    if moment is not None and moment["at"] == "time":
        threading.Thread(
            target=_die_in, args=(moment["after"] - (time.monotonic() - begun),), daemon=True
        ).start()


def _die_in(seconds: float) -> None:
    time.sleep(max(0.0, seconds))
    os.kill(os.getpid(), signal.SIGKILL)


def child(
    place: Path,
    run: Callable[[], None],
    moment: Moment | None = None,
    watched: str = "run",
    told: str = "",
    refusal: int = 0,
    printed: str = "printed",
) -> int:
    """Begin a process: what it prints goes to `printed`, what it leaves, if asked, to `told`, as digests."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(place)
        output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        at = moment["number"] if moment is not None and moment["at"] == "operation" else 0
        log = os.open("operations", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if moment is None else -1
        watch(moment, place / "seen")
        what = refusal if refusal else -1 if at else 0
        library().plan(str(place / watched).encode(), at, what, log)
        run()
        library().plan(b"/nowhere", 0, 0, -1)
        if told:
            (place / told).write_text(
                json.dumps(digests(place / watched), sort_keys=True, indent=1)
            )
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def wait_for(process: int, limit: float = LIMIT) -> int:
    """How a process ended: its code, or minus a signal; all that it has begun ends with it."""
    end = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > end:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return -signal.SIGALRM
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(status)


def digests(run: Path) -> dict[str, str]:
    """What a run's folder holds, by name, all that must be the same as digests; a file's bytes where it is one."""
    if run.is_file():
        return {run.name: digest(run.read_bytes())}
    held: dict[str, str] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        if path.is_dir() or name.parts[0] in ("checkpoints", "resources.json"):
            continue
        content = path.read_bytes()
        if name.name.startswith(
            "decoded"
        ):  # how often two processes did, told by each life of theirs
            continue
        if path.name == "log.jsonl":
            lines = [json.loads(line) for line in content.decode().splitlines()]
            for line in lines:
                for varying in ("seconds", "input_wait"):
                    line.pop(varying, None)
            content = json.dumps(lines).encode()
        if path.name == "config.json":
            config = json.loads(content)
            config.pop("started", None)
            content = json.dumps(config).encode()
        held[str(name)] = digest(content)
    held["checkpoints"] = " ".join(sorted(path.name for path in (run / "checkpoints").glob("*")))
    for checkpoint in sorted((run / "checkpoints").glob("*")):
        held |= {f"{checkpoint.name} {name}": of for name, of in of_checkpoint(checkpoint).items()}
    return held


def of_checkpoint(path: Path) -> dict[str, str]:
    """The arrays of a checkpoint, and its progress."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        there = ocp.PyTreeCheckpointHandler().metadata(path / "state").tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), there)
        tree = checkpointer.restore(path / "state", restore_args=as_numpy)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    progress = json.loads((path / "progress" / "metadata").read_text())
    for record in progress["history"]:
        record.pop("input_wait", None)
    told = {"progress": digest(json.dumps(progress, sort_keys=True).encode())}
    for place, leaf in leaves:
        array = np.asarray(leaf)
        content = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        told[jax.tree_util.keystr(place)] = digest(content)
    return told


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def differing(name: str, whole: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """What is not as in the whole run."""
    names = sorted(whole.keys() | there.keys())
    return [f"{name}{n}" for n in names if whole.get(n) != there.get(n)]


class Runs:
    """Trials, each in a folder of its own beside the whole runs that they are compared with.

    Args:
        work: the folder.
        draw: of moments.
    """

    def __init__(self, work: Path, draw: random.Random) -> None:
        self.work, self.draw = work, draw

    def place(self, name: str) -> Path:
        """An empty folder."""
        place = self.work / re.sub(r"\W+", "_", name)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place

    def whole(self, name: str, run: Callable[[], None]) -> Path:
        """The folder of a run that nobody kills; trained once, for its programs once before."""
        place = self.work / re.sub(r"\W+", "_", f"whole {name}")
        if (place / "told").exists():
            return place
        place, begun = self.place(f"whole {name}"), time.monotonic()
        code = wait_for(child(place, run, told="told"))
        if code:
            raise RuntimeError(f"{name} ended with {code}:\n{(place / 'printed').read_text()}")
        (place / "took").write_text(str((time.monotonic() - begun) * COMPILED))
        return place

    def moment(self, whole: Path, at: str = "", going_on: int = 0) -> Moment:
        """Draw when to kill, early in a run that has been killed before."""
        most = 0.5**going_on
        seen = [json.loads(line) for line in (whole / "seen").read_text().splitlines()]
        of = {moment["at"] for moment in seen} | {"time", "operation"}
        kinds = {kind: weight for kind, weight in MOMENTS.items() if kind in of}
        at = at or self.draw.choices(list(kinds), list(kinds.values()))[0]
        if at == "operation":
            number = len((whole / "operations").read_text().splitlines())
            return Moment(at=at, number=self.draw.randint(1, max(1, int(most * number))))
        if at == "time":
            took = float((whole / "took").read_text())
            return Moment(at=at, after=self.draw.uniform(0, most * took))
        met = [moment for moment in seen if moment["at"] == at]
        one = self.draw.choice(met[: max(1, int(most * len(met)))])
        return Moment(at=at, number=one["number"], after=self.draw.uniform(0, one["seconds"]))

    def trial(
        self, name: str, run: Callable[[], None], moments: list[Moment] | None = None
    ) -> dict:
        """Kill a run, perhaps several times, let it go on, compare."""
        whole = self.whole(name, run)
        place = self.place(f"killed {name}")
        if moments is None:
            number = self.draw.choices((1, 2, 3), (6, 3, 1))[0]
            moments = [self.moment(whole, going_on=n) for n in range(number)]
        kills = []
        for moment in moments:
            code = wait_for(child(place, run, moment))
            kills.append({**moment, "killed": code == -signal.SIGKILL})
            if code not in (0, -signal.SIGKILL):
                return self.told(name, kills, [f"ended with {code}: {last(place / 'printed')}"])
        return self.told(name, kills, self.ends_as(name, run, whole, place))

    def ends_as(self, name: str, run: Any, whole: Path, place: Path) -> list[str]:
        """Let a run go on to its end, and say in what it is not as the whole one."""
        code = wait_for(child(place, run, told="told"))
        if code:
            return [f"going on ended with {code}: {last(place / 'printed')}"]
        return differing("", *(json.loads((p / "told").read_text()) for p in (whole, place)))

    def refused(self, name: str, run: Callable[[], None]) -> dict:
        """A disk that from some operation on is full, or may not be written: told, and nothing is damaged."""
        whole = self.whole(name, run)
        place = self.place(f"refused {name}")
        moment = self.moment(whole, "operation")
        reason = self.draw.choice(list(REFUSALS))
        code = wait_for(child(place, run, moment, refusal=REFUSALS[reason]))
        shutil.copy(place / "printed", place / "refused")
        wrong = sentence(place / "refused", "jdml" in name) if code else []
        wrong += self.ends_as(name, run, whole, place)
        return self.told(name, [{**moment, "refused": reason, "ended": code}], wrong)

    def told(self, name: str, kills: list[dict], wrong: list[str]) -> dict:
        """A trial as the record has it."""
        return {
            "run": name,
            "kills": kills,
            "agrees": not wrong,
            **({"wrong": wrong} if wrong else {}),
        }

    def pair(self, name: str, moments: list[Moment] | None = None) -> dict:
        """The same of two processes, of which one or both are killed."""
        whole = self.whole_pair(name)
        place = self.place(f"killed {name}")
        kills = []
        if moments is None:
            number = self.draw.choices((1, 2), (3, 1))[0]
            moments = [self.moment(whole, going_on=n) for n in range(number)]
        for moment in moments:
            dies = self.draw.choice((0, 1, 2))
            # A process that is not the first writes little: it is not killed at what it writes.
            chosen = (
                moment if dies != 1 or moment["at"] != "operation" else self.moment(whole, "time")
            )
            of_each = (chosen if dies != 1 else None, chosen if dies == 1 else None)
            processes = self.begin_pair(place, of_each)
            dying = processes[dies % 2]
            codes = {dying: wait_for(dying)}
            other = next(p for p in processes if p != dying)
            if dies == 2:
                os.killpg(other, signal.SIGKILL)
            codes[other] = wait_for(other, PATIENT)
            who = ("the first", "the second", "both")[dies]
            kills.append({**chosen, "who": who, "killed": codes[dying] == -signal.SIGKILL})
            if codes[other] == -signal.SIGALRM:
                return self.told(name, kills, ["the other process did not end"])
        wrong = self.end_pair(place)
        if not wrong:
            wrong = differing("", *(json.loads((p / "told").read_text()) for p in (whole, place)))
            wrong += [
                f
                for f in ("told0.json", "told1.json")
                if (whole / f).read_bytes() != (place / f).read_bytes()
            ]
        return self.told(name, kills, wrong)

    def begin_pair(self, place: Path, moments: Sequence[Moment | None]) -> list[int]:
        with socket.socket() as bound:
            bound.bind(("localhost", 0))
            address = f"localhost:{bound.getsockname()[1]}"
        return [
            child(
                place,
                partial(killed_runs.two, process, address),
                moment or (Moment(at="never") if process or any(moments) else None),
                printed=f"printed{process}",
            )
            for process, moment in enumerate(moments)
        ]

    def end_pair(self, place: Path) -> list[str]:
        codes = [wait_for(process) for process in self.begin_pair(place, (None, None))]
        if any(codes):
            return [f"going on ended with {codes}: {last(place / 'printed0')}"]
        # Read by one process: two would wait for each other.
        wait_for(child(place, lambda: None, Moment(at="never"), told="told"))
        return []

    def whole_pair(self, name: str) -> Path:
        place = self.work / re.sub(r"\W+", "_", f"whole {name}")
        if (place / "told").exists():
            return place
        place, begun = self.place(f"whole {name}"), time.monotonic()
        wrong = self.end_pair(place)
        if wrong:
            raise RuntimeError(f"{wrong} {(place / 'printed0').read_text()}")
        (place / "took").write_text(str((time.monotonic() - begun) * COMPILED))
        return place

    def written(self, name: str, moments: list[Moment] | None = None, refusal: int = 0) -> dict:
        """A file that a command writes, where another lay: after a kill that or the new one, and nothing in the way."""
        words, file = killed_runs.WRITERS[name]
        for number, run in enumerate(("old", "new")):
            trained = f"{killed_runs.TRAINED} {run} --seed {number}"
            if not (self.work / run / "metrics.json").exists():
                wait_for(child(self.work, partial(killed_runs.command, trained)))
        wholes = []
        for run in ("old", "new"):
            whole = self.work / re.sub(r"\W+", "_", f"whole {name} {run}")
            wholes.append(whole)
            if not (whole / "took").exists():
                self.place(whole.name)
                begun = time.monotonic()
                line = words.format(run=run, out=f"{whole.name}/out/{file}")
                (whole / "out").mkdir()
                code = self.in_work(whole, line)
                if code:
                    raise RuntimeError(f"{name}: {code} {(whole / 'printed').read_text()}")
                (whole / "took").write_text(str(time.monotonic() - begun))
        old, new = (files(whole / "out") for whole in wholes)
        place = self.place(f"killed {name}")
        there = self.draw.random() < 0.8
        shutil.copytree(wholes[0] / "out", place / "out") if there else (place / "out").mkdir()
        moments = moments or [self.moment(wholes[1])]
        line = words.format(run="new", out=f"{place.name}/out/{file}")
        kills, wrong = [], []
        for moment in moments:
            code = self.in_work(place, line, moment, refusal)
            kills.append({**moment, "old there": there, "killed": code == -signal.SIGKILL})
            if refusal:
                kills[-1] |= {"ended": code}
                if code:
                    wrong += sentence(place / "printed")
                    if refusal != errno.EACCES:  # who may not write may not remove
                        wrong += [f"left {n}" for n in files(place / "out") if n.endswith(".tmp")]
            for n, content in files(place / "out").items():
                if not n.endswith(".tmp") and content not in (old.get(n), new.get(n)):
                    wrong.append(f"{n} is neither the old nor the new one")
            now = files(place / "out")
            pairs = [{n: c for n, c in of.items() if n in now} for of in (old, new)]
            whole_now = {n: c for n, c in now.items() if not n.endswith(".tmp")}
            if whole_now not in pairs:
                wrong.append(f"{sorted(whole_now)} do not belong together")
        if not wrong:
            code = self.in_work(place, line)
            wrong += [f"again ended with {code}: {last(place / 'printed')}"] if code else []
            wrong += differing("", new, files(place / "out"))
        return self.told(name, kills, wrong)

    def written_refused(self, name: str) -> dict:
        """The same on a disk that is full, or may not be written."""
        reason = self.draw.choice(list(REFUSALS))
        moment = Moment(at="operation", number=self.draw.randint(1, self.operations_of(name)))
        return {**self.written(name, [moment], REFUSALS[reason]), "refused": reason}

    def operations_of(self, name: str) -> int:
        """How many operations it takes to write what a command writes."""
        whole = self.work / re.sub(r"\W+", "_", f"whole {name} new")
        if not (whole / "took").exists():
            self.written(name)
        return len((whole / "operations").read_text().splitlines())

    def in_work(
        self, place: Path, line: str, moment: Moment | None = None, refusal: int = 0
    ) -> int:
        """Run a command line where runs and images lie; the files that it writes are watched."""

        def run() -> None:
            os.chdir(self.work)
            # In a thread: a program tells from where it was called, which is then the same each time.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(killed_runs.command, line).result()

        if moment is None:
            (place / "seen").write_text("")
        return wait_for(child(place, run, moment, watched="out", refusal=refusal))


def files(folder: Path) -> dict[str, str]:
    """The files of a folder; a page is the same whatever minute it was written in."""
    return {
        path.name: digest(re.sub(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC", b"", path.read_bytes()))
        for path in sorted(folder.iterdir())
    }


def last(printed: Path) -> str:
    lines = printed.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-2:])


def sentence(printed: Path, typed: bool = True) -> list[str]:
    """What is wrong with how a run ended that could not write: of a command anything but a line that says so."""
    text = printed.read_text(errors="replace")
    if typed and "Traceback" in text:
        return [f"a traceback: {last(printed)}"]
    reasons = ("no space left", "no permission", "File too large", "[Errno ", "too large")
    said = last(printed).lower()
    return [] if any(reason.lower() in said for reason in reasons) else [f"not told: {said}"]


def trials(runs: Runs, only: str, mode: str) -> Iterator[Callable[[], dict]]:
    """Draw trials for ever: each run of one process in turn, two processes thrice as often, and what commands write."""
    order = runs.draw
    one = {name: run for name, run in killed_runs.ONE.items() if only in name}
    writers = [name for name in killed_runs.WRITERS if only in name]
    if mode == "sweep":
        for name, run in one.items():
            number = len((runs.whole(name, run) / "operations").read_text().splitlines())
            for at in range(1, number + 1):
                yield partial(runs.trial, name, run, [Moment(at="operation", number=at)])
        for name in writers:
            for at in range(1, runs.operations_of(name) + 1):
                yield partial(runs.written, name, [Moment(at="operation", number=at)])
        return
    if mode == "full":
        turns = [partial(runs.refused, name, run) for name, run in one.items()]
        turns += [partial(runs.written_refused, name) for name in writers]
    else:
        turns = [partial(runs.trial, name, run) for name, run in one.items()]
        turns += [partial(runs.pair, "two processes")] * 3 * (only in "two processes")
        turns += [partial(runs.written, name) for name in writers]
    while turns:
        order.shuffle(turns)
        yield from turns


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--mode", choices=("kill", "sweep", "full"), default="kill")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="jdml-kills-"))
    work.mkdir(parents=True, exist_ok=True)
    if LIBRARY not in os.environ:
        sys.argv += [] if options.work else ["--work", str(work)]
        begin_again(work.absolute())
    work = work.absolute()
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
    import_all()
    for name, drawn in (("images", killed_runs.draw_images), ("dots", killed_runs.draw_dots)):
        if not (work / name).exists():
            drawn(work / name)
    runs = Runs(work, random.Random(options.seed))
    drawn_by = {"seed": options.seed, "mode": options.mode, "only": options.only}
    before = [json.loads(line) for line in lines_of(options.record)]
    done = {told["trial"]: told["agrees"] for told in before if drawn_by.items() <= told.items()}
    drawn = trials(runs, options.only, options.mode)
    for number, trial in zip(range(options.count), drawn, strict=False):
        if number in done:
            continue
        runs.draw, begun = random.Random(f"{options.seed} {number}"), time.monotonic()
        told = {"trial": number, **drawn_by, **trial()}
        told["seconds"] = round(time.monotonic() - begun, 1)
        done[number] = told["agrees"]
        if options.record:
            with options.record.open("a") as file:
                file.write(json.dumps(told) + "\n")
        print(json.dumps(told), flush=True)
    print(f"{sum(done.values())} of {len(done)} agree")
    return not all(done.values())


def lines_of(record: Path | None) -> list[str]:
    """A record that is gone on with, if there is one."""
    return record.read_text().splitlines() if record is not None and record.exists() else []


def import_all() -> None:
    """Import what the runs need; no device is touched."""
    import flax.linen  # noqa: F401
    import grain  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import optax  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import tyro  # noqa: F401

    import jdml.cli
    import jdml.report
    import jdml.training.by_recipe
    import jdml.training.exporting  # noqa: F401
    from jdml.training import written

    # Every source that tells runs apart is read once, and not by each process again.
    written._parsed = cache(written._parsed.__wrapped__)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.partition(".")[0] in ("jdml", "optax", "killed_runs") and file.endswith(".py"):
            written._parsed("".join(linecache.getlines(file, vars(module))), file)


if __name__ == "__main__":
    sys.exit(main())
