"""A user's function counts by what is written in it: the same under every Python, another with another meaning."""

import functools
import hashlib
import importlib.util
import textwrap

import pytest

import jdml
from jdml import objectives, recipes
from jdml.recipes.objective import loss_settings
from jdml.recipes.optimizer import learning_rate
from jdml.training.fingerprint import fingerprint
from jdml.training.written import written

SAMPLE = '''
GAP = 0.5

def scaled(x):
    return GAP * x

def loss(x, y, *, margin: float = 0.1, mode="hinge"):
    """Docstring."""
    def inner(a: int, b=GAP):
        return [i + b for i in range(a) if i in {"a", "b", 3}]
    try:
        f = f"{x!r:>{margin}} {{}} a" "b" f"{mode=}"
    except* ValueError as e:
        pass
    match y:
        case {"k": [1, *rest], **more}: return rest
        case None: pass
    first, *others = inner(3), *inner(4)
    with open("a") as g, open("b"): g.read()
    z = {**{"a": 1}, "b": -2, "c": 1_000_000, "d": 0x10, "e": 1e-3, "g": None, "h": ...}
    return (lambda q: q[1:2, ..., ::3] @ x)(z) if margin < y <= 3 else scaled(y) or not z

several = (lambda x: x + 1, lambda x: x - 1, lambda x: (lambda y: x * y))
'''


def module(path, code):
    """A module of its own file."""
    path.write_text(textwrap.dedent(code))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def digest(function):
    return hashlib.sha256(repr(written(function)).encode()).hexdigest()[:8]


def test_words_are_the_same_under_every_python(tmp_path):
    """The suite runs on 3.11, 3.12 and 3.13: what one of them reads is what all read."""
    sample = module(tmp_path / "sample.py", SAMPLE)
    assert written(sample.loss).names == ("GAP", "ValueError", "open", "range", "scaled")
    assert digest(sample.loss) == "cb710f43"
    assert digest(sample.scaled) == "0f82bb2f"
    assert [digest(function) for function in sample.several] == ["c1bcd45b", "40720acb", "f80d949c"]
    inner = sample.several[2](1)
    assert written(inner).words == written(lambda y: x * y).words  # noqa: F821


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ("def f(x):\n    return 2 * x", True),
        ('def f(x: float) -> float:\n    """Twice."""\n    return (2*x)  # as it was', True),
        ("@decorated\ndef f(x):\n\n    return 2 * x", True),
        ("def f(x):\n    return 3 * x", False),
        ("def f(x):\n    return 2.0 * x", False),
        ("def f(x):\n    return x * 2", False),
        ("def f(x):\n    return -(2 * x)", False),
        ("def f(y):\n    return 2 * x", False),
    ],
)
def test_meaning_counts_and_layout_does_not(tmp_path, code, same):
    wrap = "import functools\nx = 1\n\ndef decorated(f):\n    return f\n\n"
    one = module(tmp_path / "one.py", "def f(x):\n    return 2 * x").f
    other = module(tmp_path / "other.py", wrap + code).f
    assert (written(one).words == written(other).words) == same


def test_a_function_without_its_source_counts_by_its_byte_code(tmp_path):
    code = "f = lambda x: x in {'a', 'b'} or [2 * i for i in x]"
    namespace = {}
    exec(code, namespace)
    there = namespace["f"]
    again = eval(code.removeprefix("f = "))
    other = eval(code.removeprefix("f = ").replace("2", "3"))
    assert written(there) == written(again) != written(other)
    assert there.__code__.co_code.hex() in written(there).words
    assert "{'a', 'b'}" in written(there).words  # in one order, whatever the process


def test_a_file_that_was_changed_since_is_not_believed(tmp_path):
    path = tmp_path / "changing.py"
    changing = module(path, "def f(x):\n    return 2 * x\n")
    before = written(changing.f)
    path.write_text("def f(x):\n    return 2 + x * 2\n")
    after = written(changing.f)
    assert before.words[0] == "arguments"
    assert after.words[0] == changing.f.__code__.co_code.hex()
    path.unlink()
    assert written(changing.f) == after


def test_a_wrapper_of_a_library_counts_by_what_it_wraps(tmp_path):
    """However a library is written in its next version."""
    sample = module(
        tmp_path / "wrapped.py", "def f(x):\n    return 2 * x\n\ndef g(x):\n    return 3 * x\n"
    )
    wrapper = "def wraps(inner):\n    def call(x):\n        return inner(x){}\n    return call\n"
    marks = []
    for number, (function, more) in enumerate([(sample.f, ""), (sample.f, " + 0"), (sample.g, "")]):
        path = tmp_path / f"flax{number}.py"
        library = module(path, wrapper.format(more))
        library.__name__ = "flax.wrapping"
        marks.append(fingerprint(functools.wraps(function)(library.wraps(function))))
    assert marks[0] == marks[1] != marks[2]


def test_runs_that_were_begun_know_their_schedule_and_their_memory():
    """A run goes on by what its functions close over: one name more, and those of yesterday are others."""
    made = recipes.Recipe(decay_every=2)
    schedule = learning_rate(made, 0.1, steps=9)
    assert schedule.__name__ == "<lambda>"
    assert schedule.__code__.co_freevars == ("every", "rate", "recipe")
    pair = objectives.pair(jdml.contrastive_loss)
    for dtype in ({}, {"dtype": "float32"}):
        start = objectives.with_memory(pair, 8, 2, **dtype).init_state
        assert (start.__name__, start.__code__.co_freevars) == ("init_state", ("capacity", "dim"))
    made = recipes.Recipe(loss="margin", settings={"beta": (1.0, 1.5)})
    assert loss_settings(made, jdml.margin_loss)["beta"].dtype == "float64"
