"""The same benchmark on this code and on another checkout of it, in turn: what a change costs.

    git worktree add ../before HEAD~20
    python benchmarks/compare_commits.py ../before --of losses
    python benchmarks/compare_commits.py ../before --of image_training --only small eps

Three processes take turns at each case: this code, the other, and this code once more, whose ratio to the first says
how much is noise. Ratios are medians over the rounds. Other programs of the machine should rest. With --out they are
written to the line commits_OF, with both commits, after what was measured of the same two before.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).parents[1]
PAUSE, WARM = machine.small((0.1, 0.03), (0.0, 0.0))


def cases_of_losses() -> Iterator[tuple[str, Callable[[], Any]]]:
    """A step of each loss, of pairs and with few and many classes."""
    import jax.numpy as jnp
    import losses

    def made(name: str, loss: Any, classes: int | None) -> Callable[[], Any]:
        x, y, p = losses.arrays(loss, classes)
        return losses.step(name, loss, jnp.asarray(x), jnp.asarray(y), p)

    for name, loss, classes in losses.cases():
        what = name if classes is None else f"{name}, {classes} classes"
        yield what, partial(made, name, loss, classes)


def cases_of_image_training() -> Iterator[tuple[str, Callable[[], Any]]]:
    """A training step and an embedding pass of each network."""
    import image_training

    def made(case: Any, part: str) -> Callable[[], Any]:
        return image_training.ours(case, 1)[part]

    for case in image_training.CASES:
        for part in ("step", "embedding"):
            yield f"{case.network}, {case.size}², {part}", partial(made, case, part)


CASES = {"losses": cases_of_losses, "image_training": cases_of_image_training}


def child(root: str, of: str) -> None:
    """Names its cases, then makes the one that it is told, and times calls of it."""
    sys.path.insert(0, root)  # its library, and the benchmark next to this file
    import jdml

    if not Path(jdml.__file__).is_relative_to(root):
        raise SystemExit(f"jdml of {root} is hidden by {jdml.__file__}")
    from jdml.training import disable_malloc_trim

    disable_malloc_trim()
    made = dict(CASES[of]())
    print(json.dumps(list(made)), flush=True)
    for line in sys.stdin:
        call = made[json.loads(line)]()
        call()
        print(json.dumps("made"), flush=True)
        for calls in map(int, iter(sys.stdin.readline, "\n")):
            until = time.perf_counter() + WARM
            while time.perf_counter() < until:
                call()
            seconds = []
            for _ in range(calls):
                start = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - start)
            print(json.dumps(statistics.median(seconds)), flush=True)


class Side:
    """A process with one of the checkouts."""

    def __init__(self, root: Path, of: str) -> None:
        command = [sys.executable, __file__, "--child", str(root.resolve()), of]
        command += ["--smoke"] * machine.SMOKE
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.cases: list[str] = self._answer()

    def ask(self, question: str) -> Any:
        """Send a line, and wait for what it prints."""
        self.tell(question)
        return self._answer()

    def tell(self, line: str) -> None:
        """Send a line."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End the process: there are no more questions."""
        self._process.communicate()

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("one of the checkouts failed: see above")
        return json.loads(line)


def measure(case: str, sides: dict[str, Side], rounds: int, calls: int) -> dict[str, Any]:
    """Time a case on all sides in turn; print a line, return medians and ratios."""
    for side in sides.values():
        side.ask(json.dumps(case))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        first = turn % len(sides)
        for name in [*sides][first:] + [*sides][:first]:
            time.sleep(PAUSE)
            seconds[name].append(sides[name].ask(str(calls)))
    for side in sides.values():
        side.tell("")
    now, before, again = seconds.values()
    ratio, noise = (
        statistics.median(a / b for a, b in zip(now, other, strict=True))
        for other in (before, again)
    )
    took, took_before = (1e3 * statistics.median(side) for side in (now, before))
    print(
        f"{case:42} {took:9.2f} ms, before {took_before:9.2f}: {ratio:5.2f}  (with itself {noise:5.2f})",
        flush=True,
    )
    return {
        "what": case,
        "rounds": rounds,
        "milliseconds": round(took, 4),
        "before": round(took_before, 4),
        "ratio": round(ratio, 4),
        "with_itself": round(noise, 4),
    }


def commit(root: Path) -> str | None:
    """The commit of a checkout, if it has one, and nothing but that."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    described = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return None if described.endswith("-dirty") else described or None


def main() -> None:
    """Take turns, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "before",
        type=Path,
        nargs="?" if machine.SMOKE else None,
        default=HERE,
        help="another checkout",
    )
    parser.add_argument("--of", choices=CASES, default="losses", help="which (default losses)")
    parser.add_argument(
        "--only",
        nargs="*",
        default=machine.small([], ["sup_con"]),
        help="parts of cases' names (default all)",
    )
    parser.add_argument(
        "--rounds", type=int, default=machine.small(15, 1), help="turns of each (default 15)"
    )
    parser.add_argument(
        "--calls", type=int, default=machine.small(5, 1), help="timed calls of a turn (default 5)"
    )
    parser.add_argument("--out", type=Path, help=machine.OUT)
    asked = machine.arguments(parser)
    roots = {"now": HERE, "before": asked.before, "again": HERE}
    sides = {name: Side(root, asked.of) for name, root in roots.items()}
    both = [case for case in sides["now"].cases if case in sides["before"].cases]
    chosen = [case for case in both if any(word in case for word in asked.only or [""])]
    if not chosen:
        raise SystemExit(f"no case has {' or '.join(asked.only)} in its name: {', '.join(both)}")
    record, commits = f"commits_{asked.of}", {"now": commit(HERE), "before": commit(asked.before)}
    known = machine.read(asked.out, record) or {}
    same = all(commits.values()) and {name: known.get(name) for name in commits} == commits
    rows = list(known["rows"]) if same else []
    ratios = []
    for case in chosen:
        rows.append(measure(case, sides, asked.rounds, asked.calls))
        ratios.append(rows[-1]["ratio"])
        machine.write(asked.out, rows, record, **commits)
    for side in sides.values():
        side.close()
    print(
        f"{len(ratios)} cases: {min(ratios):.2f} to {max(ratios):.2f}, "
        f"geometric mean {statistics.geometric_mean(ratios):.3f}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4])
    else:
        main()
