"""Processes that are begun, watched, and killed at a moment or refused what they write."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from ctypes import CDLL, c_char_p, c_int, c_long
from functools import partial
from pathlib import Path
from typing import Any

from comparison import digests

LIBRARY = "JDML_KILLS_LIBRARY"
LIMIT = 600
"""Seconds after which a process counts as hanging."""


def library() -> Any:
    """The preloaded library."""
    loaded = CDLL(os.environ[LIBRARY])
    loaded.plan.argtypes = [c_char_p, c_long, c_int, c_int]
    loaded.operations.restype = c_long
    return loaded


class Moment(dict):
    """When, and what then: `{"at": "operation", "number": 17}`, of what was seen of the whole run."""


def watch(moment: Moment | None, calls: Path) -> None:
    """Tell when what begins and how long it takes; kill this process within one of them."""
    from jdml.runs.checkpoint import RunFolder
    from jdml.training.alternation import AlternatingProblems
    from jdml.training.trainer import Trainer

    begun = time.monotonic()
    met: dict[str, int] = {}
    within: list[str] = []
    die_in = partial(_die_in, within, calls.with_name("within"))

    def wrap(kind: type, name: str, called: str) -> None:
        inner = getattr(kind, name)

        def outer(*args: Any, **kwargs: Any) -> Any:
            number = met[called] = met.get(called, -1) + 1
            if moment is not None and (moment["at"], moment.get("number")) == (called, number):
                threading.Thread(target=die_in, args=(moment["after"],), daemon=True).start()
            start, first = time.monotonic(), library().operations()
            within.append(called)
            result = inner(*args, **kwargs)
            within.remove(called)
            if moment is None:
                with calls.open("a") as file:
                    report = {"at": called, "number": number, "seconds": time.monotonic() - start}
                    report |= {"from": first, "to": library().operations()}
                    file.write(json.dumps(report) + "\n")
            return result

        setattr(kind, name, outer)

    wrap(RunFolder, "__init__", "beginning")
    wrap(Trainer, "_evaluate", "evaluation")
    wrap(Trainer, "save", "save")
    wrap(AlternatingProblems, "_next_problem", "problem")
    if moment is not None and moment["at"] == "time":
        threading.Thread(
            target=die_in, args=(moment["after"] - (time.monotonic() - begun),), daemon=True
        ).start()


def _die_in(within: list[str], report: Path, seconds: float) -> None:
    time.sleep(max(0.0, seconds))
    report.write_text(" ".join(within))
    os.kill(os.getpid(), signal.SIGKILL)


def child(
    place: Path,
    run: Callable[[], None],
    moment: Moment | None = None,
    watched: str = "run",
    report: str = "",
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
        if report:
            (place / report).write_text(
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


def within(place: Path, moment: Mapping[str, Any]) -> dict[str, str]:
    """Return the work that was under way when a process was killed during a change of problem."""
    report = place / "within"
    if moment["at"] != "problem" or not report.exists():
        return {}
    within = report.read_text()
    report.unlink()  # the next one may not be met
    return {"within": within}
