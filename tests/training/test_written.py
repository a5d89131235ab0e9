"""A user's function is known by what it computes, not by how its text is laid out, nor by a library's version."""

import functools
import importlib.util

import pytest

from jdml import recipes
from jdml.recipes.optimizer import learning_rate
from jdml.training.fingerprint import fingerprint


def module(path, code):
    """A module of its own file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


PLAIN = "def f(x):\n    return 2 * x"


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ('def f(x: float) -> float:\n    """Twice."""\n\n    return (2*x)  # as it was', True),
        ("def f(x):\n    return 3 * x", False),
        ("def f(x):\n    return 2.0 * x", False),
        ("def f(x):\n    return x + x", False),
    ],
)
def test_meaning_counts_and_layout_does_not(tmp_path, code, same):
    files = tmp_path / "one" / "net.py", tmp_path / "other" / "net.py"
    one, other = (module(*written).f for written in zip(files, (PLAIN, code), strict=True))
    assert (fingerprint(one) == fingerprint(other)) == same


def test_a_function_without_its_source_is_known_by_its_program():
    one, again, other = (
        eval(f"lambda x: x in {{'a', 'b'}} or [{n} * i for i in x]") for n in (2, 2, 3)
    )
    assert fingerprint(one) == fingerprint(again) != fingerprint(other)


def test_a_file_that_was_changed_since_is_not_believed(tmp_path):
    path = tmp_path / "changing.py"
    changing = module(path, PLAIN)
    path.write_text(PLAIN.replace("2", "3"))
    after = fingerprint(changing.f)
    path.unlink()
    assert fingerprint(changing.f) == after
    assert after != fingerprint(module(tmp_path / "now.py", PLAIN.replace("2", "3")).f)


def test_a_wrapper_of_a_library_counts_by_what_it_wraps(tmp_path):
    """However a library is written in its next version."""
    functions = module(tmp_path / "wrapped.py", f"{PLAIN}\n\ndef g(x):\n    return 3 * x\n")
    wrapper = "def wraps(inner):\n    def call(x):\n        return inner(x){}\n    return call\n"
    marks = []
    for number, (name, more) in enumerate([("f", ""), ("f", " + 0"), ("g", "")]):
        library = module(tmp_path / f"flax{number}.py", wrapper.format(more))
        library.__name__ = "flax.wrapping"
        function = getattr(functions, name)
        marks.append(fingerprint(functools.wraps(function)(library.wraps(function))))
    assert marks[0] == marks[1] != marks[2]


def test_a_recipe_makes_the_same_schedule_again():
    """Another process resumes a run by it."""
    one, again, other = (
        fingerprint(learning_rate(recipes.Recipe(decay_every=n), 0.1, steps=9)) for n in (2, 2, 3)
    )
    assert one == again != other
