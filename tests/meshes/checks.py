"""Checks by name, which a script with eight devices tries one after the other."""

import time
import traceback
from collections.abc import Callable, Iterable

Check = Callable[[], None]


class Checks(dict[str, Check]):
    """Functions without arguments that raise where something does not hold."""

    def add(self, function: Check) -> Check:
        """Decorate a check, whose name is the function's."""
        self[function.__name__.replace("_", " ")] = function
        return function

    def holding(self, words: Iterable[str]) -> "Checks":
        """Those whose names hold one of some words; all without any."""
        words = tuple(words)
        return Checks({n: c for n, c in self.items() if not words or any(w in n for w in words)})

    def run(self) -> tuple[dict[str, str], dict[str, float]]:
        """Try all: by name the empty string or what does not hold, and the seconds that it took."""
        results, seconds = {}, {}
        for name, function in self.items():
            started = time.perf_counter()
            try:
                function()
                results[name] = ""
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            seconds[name] = time.perf_counter() - started
            print(f"{seconds[name]:6.1f} s  {name}  {results[name][:3000]}", flush=True)
        return results, seconds
