"""Trials: a run or a command is killed or refused, goes on, and is compared with one that nobody stopped."""

import errno
import json
import os
import random
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import killed_runs
from comparison import differing, files, last, sentence
from processes import Moment, child, wait_for, within

MOMENTS = {"time": 2, "operation": 3, "evaluation": 1, "save": 2, "problem": 6, "beginning": 1}
"""When a process is killed, and how often that is drawn where it can be."""
REFUSALS = {"full": errno.ENOSPC, "file too large": errno.EFBIG, "not writable": errno.EACCES}
COMPILED = 0.35
"""The share of a whole run's time that a run takes whose programs are compiled."""
PATIENT = 60
"""Seconds that the rest of several processes has to notice that one was killed."""


class Runs:
    """Trials, each in a folder of its own next to the whole runs that they are compared with.

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

    def whole(self, name: str, run: Callable[[], None] | None) -> Path:
        """The folder of a run that nobody kills, trained once; of two processes where `run` is None."""
        place = self.work / re.sub(r"\W+", "_", f"whole {name}")
        if (place / "told").exists():
            return place
        place, begun = self.place(f"whole {name}"), time.monotonic()
        wrong = self.ends(place, run)
        if wrong:
            raise RuntimeError(f"{name}: {wrong}")
        (place / "took").write_text(str((time.monotonic() - begun) * COMPILED))
        return place

    def moment(self, whole: Path, at: str = "", going_on: int = 0) -> Moment:
        """Draw when to kill, early in a run that has been killed before."""
        most = 0.5**going_on
        calls = [json.loads(line) for line in (whole / "seen").read_text().splitlines()]
        of = {moment["at"] for moment in calls} | {"time", "operation"}
        kinds = {kind: weight for kind, weight in MOMENTS.items() if kind in of}
        at = at or self.draw.choices(list(kinds), list(kinds.values()))[0]
        if at == "operation":
            number = len((whole / "operations").read_text().splitlines())
            return Moment(at=at, number=self.draw.randint(1, max(1, int(most * number))))
        if at == "time":
            took = float((whole / "took").read_text())
            return Moment(at=at, after=self.draw.uniform(0, most * took))
        met = [moment for moment in calls if moment["at"] == at]
        one = self.draw.choice(met[: max(1, int(most * len(met)))])
        return Moment(at=at, number=one["number"], after=self.draw.uniform(0, one["seconds"]))

    def changes(self, whole: Path) -> list[Moment]:
        """Draw moments within a change of problem, or of what is written from there to the end of the next save."""
        calls = [json.loads(line) for line in (whole / "seen").read_text().splitlines()]
        at = self.draw.choice([n for n, moment in enumerate(calls) if moment["at"] == "problem"])
        saved = next((moment for moment in calls[at:] if moment["at"] == "save"), calls[-1])
        if self.draw.random() < 0.5:
            number = self.draw.randint(calls[at]["from"] + 1, saved["to"])
            moments = [Moment(at="operation", number=number, after_problem=calls[at]["number"])]
        else:
            long = calls[at]["seconds"] * COMPILED**2
            after = self.draw.uniform(0, long)
            moments = [Moment(at="problem", number=calls[at]["number"], after=after)]
        again = self.draw.random() < 0.4
        return moments + [Moment(at="problem", number=0, after=self.draw.uniform(0, 0.1))] * again

    def problems(self, name: str, run: Callable[[], None] | None) -> dict:
        """Kill where CCP's problem changes; two processes without a run."""
        if run is None:
            return self.pair(name, self.changes(self.whole(name, None)))
        return self.trial(name, run, self.changes(self.whole(name, run)))

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
            kills.append({**moment, "killed": code == -signal.SIGKILL, **within(place, moment)})
            if code not in (0, -signal.SIGKILL):
                return self.report(name, kills, [f"ended with {code}: {last(place / 'printed')}"])
        return self.report(name, kills, self.ends_as(run, whole, place))

    def ends(self, place: Path, run: Callable[[], None] | None) -> list[str]:
        """Let a run go on to its end."""
        if run is None:
            return self.end_pair(place)
        code = wait_for(child(place, run, report="told"))
        return [f"going on ended with {code}: {last(place / 'printed')}"] if code else []

    def ends_as(self, run: Callable[[], None] | None, whole: Path, place: Path) -> list[str]:
        """Let a run go on to its end, and say in what it is not as the whole one."""
        wrong = self.ends(place, run)
        return wrong or differing(
            "", *(json.loads((p / "told").read_text()) for p in (whole, place))
        )

    def refused(self, name: str, run: Callable[[], None]) -> dict:
        """A disk that from some operation on is full, or may not be written: told, and nothing is damaged."""
        whole = self.whole(name, run)
        place = self.place(f"refused {name}")
        moment = self.moment(whole, "operation")
        reason = self.draw.choice(list(REFUSALS))
        code = wait_for(child(place, run, moment, refusal=REFUSALS[reason]))
        shutil.copy(place / "printed", place / "refused")
        wrong = sentence(place / "refused", "jdml" in name) if code else []
        wrong += self.ends_as(run, whole, place)
        return self.report(name, [{**moment, "refused": reason, "ended": code}], wrong)

    def report(self, name: str, kills: list[dict], wrong: list[str]) -> dict:
        """A trial as the record has it."""
        return {
            "run": name,
            "kills": kills,
            "agrees": not wrong,
            **({"wrong": wrong} if wrong else {}),
        }

    def pair(self, name: str, moments: list[Moment] | None = None) -> dict:
        """The same of two processes, of which one or both are killed."""
        whole = self.whole(name, None)
        place = self.place(f"killed {name}")
        kills, aimed = [], moments is not None
        if moments is None:
            number = self.draw.choices((1, 2), (3, 1))[0]
            moments = [self.moment(whole, going_on=n) for n in range(number)]
        for moment in moments:
            writing = aimed and moment["at"] == "operation"
            dies = self.draw.choice((0, 2) if writing else (0, 1, 2))
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
            killed = codes[dying] == -signal.SIGKILL
            kills.append({**chosen, "who": who, "killed": killed, **within(place, chosen)})
            if codes[other] == -signal.SIGALRM:
                return self.report(name, kills, ["the other process did not end"])
        wrong = self.ends_as(None, whole, place)
        report = [name for name in ("told0.json", "told1.json") if not wrong]
        wrong += [f for f in report if (whole / f).read_bytes() != (place / f).read_bytes()]
        return self.report(name, kills, wrong)

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
        wait_for(child(place, lambda: None, Moment(at="never"), report="told"))
        return []

    def killed_while_writing(
        self, name: str, moments: list[Moment] | None = None, refusal: int = 0
    ) -> dict:
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
        return self.report(name, kills, wrong)

    def refused_while_writing(self, name: str) -> dict:
        """The same on a disk that is full, or may not be written."""
        reason = self.draw.choice(list(REFUSALS))
        moment = Moment(at="operation", number=self.draw.randint(1, self.operations_of(name)))
        return {**self.killed_while_writing(name, [moment], REFUSALS[reason]), "refused": reason}

    def operations_of(self, name: str) -> int:
        """How many operations it takes to write what a command writes."""
        whole = self.work / re.sub(r"\W+", "_", f"whole {name} new")
        if not (whole / "took").exists():
            self.killed_while_writing(name)
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
