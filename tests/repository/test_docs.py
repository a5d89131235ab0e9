"""The documentation is up to date: its code runs, its commands exist, docstrings match signatures."""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from _pytest.doctest import _get_checker, _get_number_flag

import jdml
from jdml._optional_imports import ALONE, EXTRAS
from jdml.recipes import NetworkConfig, Recipe
from jdml.training.train_recipe import make_network

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from maker.pages import public_names

PACKAGE = Path(jdml.__file__).parent
REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
PAGES = sorted(REPOSITORY.glob("docs/**/*.md"))
MANUALS = [
    README,
    *PAGES,
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(REPOSITORY.glob("experiments/*/R*.md")),
]
SCRIPTS = REPOSITORY / "benchmarks"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__main__"
)


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, int, str]]:
    """The language, line and text of each fenced block of ``page`` in one of ``languages``."""
    text = page.read_text()
    for match in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if match[1] in languages:
            yield match[1], text.count("\n", 0, match.start()) + 2, match[2]


DECIMAL = re.compile(r"\d+\.\d+")


def assert_prints(shown: str, printed: str) -> None:
    """Check for the same words, and scores within 0.1, as training differs slightly between machines."""
    assert DECIMAL.sub("#", printed).split() == DECIMAL.sub("#", shown).split()
    for expected, value in zip(DECIMAL.findall(shown), DECIMAL.findall(printed), strict=True):
        assert abs(float(value) - float(expected)) <= 0.1, f"the page shows {shown}, not {printed}"


CALLBACKS = REPOSITORY / "docs/guides/callbacks.md"


@pytest.fixture
def run_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Run a page's blocks in order, in one namespace, which is returned, and in an empty folder.

    A ``text`` block shows the output of the block before it.
    """
    monkeypatch.chdir(tmp_path)

    def run(page: Path, *languages: str) -> dict[str, Any]:
        namespace: dict[str, Any] = {"__name__": "page"}
        printed = ""
        for language, line, text in blocks(page, *languages, "text"):
            if language == "text":
                assert_prints(text, printed)
                continue
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)
            printed = capsys.readouterr().out
        return namespace

    return run


@pytest.mark.parametrize("page", [page for page in PAGES if page != CALLBACKS], ids=page_id)
def test_python_blocks_run(page, run_page):
    run_page(page, "python")


def test_callbacks_log_to_trackers(run_page, monkeypatch):
    """The whole guide of callbacks, with a stand-in for what each tracker logs to."""
    logged: dict[str, list[tuple[dict[str, float], int]]] = {}

    def stand_in(library: str, name: str) -> None:
        calls = logged.setdefault(library, [])
        log = lambda metrics, step: calls.append((metrics, step))  # noqa: E731
        module = SimpleNamespace(**{name: log}, init=lambda project: None)
        monkeypatch.setitem(sys.modules, library, module)

    stand_in("wandb", "log")
    stand_in("mlflow", "log_metrics")
    scalars: list[tuple[str, float, int]] = []
    writer = SimpleNamespace(add_scalar=lambda *scalar: scalars.append(scalar), flush=list)
    board = SimpleNamespace(SummaryWriter=lambda folder, purge_step: writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", board)
    namespace = run_page(CALLBACKS, "python", "py")
    for calls in logged.values():
        assert [step for _, step in calls] == [10, 20, 30]
        assert all(metrics["loss"] > 0 for metrics, _ in calls)
    assert [step for name, _, step in scalars if name == "loss"] == [10, 20, 30]
    assert int(namespace["result"].state.step) == 30


@pytest.mark.slow  # other libraries
@pytest.mark.filterwarnings("default:::")  # warnings of the libraries themselves
@pytest.mark.parametrize("library", ["equimo.models", "jaxnn", "eqx_zoo"])
def test_networks_of_other_libraries_can_be_traced(library, tmp_path, monkeypatch):
    """Trace the guide's factories (blocks of `py`) from images to embeddings, if the library is installed."""
    why = f"docs/guides/zoos.md has networks of {library}, which is not installed"
    pytest.importorskip(library, reason=why, exc_type=ImportError)
    codes = [code for _, _, code in blocks(REPOSITORY / "docs/guides/zoos.md", "py")]
    (code,) = [code for code in codes if library.split(".")[0] in code]
    name = f"zoo_of_{library.split('.')[0]}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    tokens, photographs = np.zeros((2, 12), np.int32), np.zeros((2, 32, 32, 3), np.uint8)
    inputs = tokens if library == "eqx_zoo" else photographs
    train = jdml.data.Dataset("inputs", inputs, np.arange(2))
    for factory in re.findall(r"^def (\w+)\(", code, re.MULTILINE):
        recipe = Recipe(network=NetworkConfig(f"{name}:{factory}", dim=32))
        made = make_network(recipe, train)
        assert made.factory["settings"]["dim"] == 32


def test_lancedb_finds_what_a_gallery_does(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lancedb", reason="runs docs/guides/vector_index.md's block of lancedb")
    monkeypatch.chdir(tmp_path)
    named, queries = jdml.Gallery(), np.random.default_rng(0).normal(size=(3, 8))
    named.add(
        queries.repeat(9, axis=0) + np.arange(27)[:, None], [f"{row}.png" for row in range(27)]
    )
    ((_, _, code),) = blocks(REPOSITORY / "docs/guides/vector_index.md", "py")
    exec(code, {"named": named, "queries": queries.astype(np.float32)})
    assert capsys.readouterr().out == "True\n"


def test_readme_runs_on_the_base_install(tmp_path):
    """Run README's blocks in a process without the extras' libraries, except those that Flax needs."""
    extras = {name for modules in (*EXTRAS.values(), ALONE) for name in modules}
    missing = dict.fromkeys(extras - {"orbax", "rich"})
    codes = [text for _, _, text in blocks(README, "python")]
    program = "\n".join([f"import sys; sys.modules.update({missing})", *codes])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (shown,) = [text for _, _, text in blocks(README, "text")]
    assert_prints(shown, done.stdout)


def commands(page: Path) -> Iterator[list[str]]:
    """Return every command of the page's console blocks as words, without prompts, comments and outputs."""
    for _, _, text in blocks(page, "console", "bash", "sh", "shell"):
        lines = text.replace("\\\n", " ").splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        for line in lines:
            if not prompted or line.startswith("$ "):
                for command in re.split(r"&&|;\s|\|", line.removeprefix("$ ")):
                    words = shlex.split(command, comments=True)
                    if words:
                        yield words


@cache
def help_of_jdml(*subcommand: str) -> str:
    """Return the output of ``jdml … --help``; fail if it fails."""
    with asking_for_help("jdml", *subcommand) as shown:
        jdml.cli.main([*subcommand, "--help"])
    return shown.getvalue()


@cache
def help_of_program(source: Path) -> str:
    """Return the output of ``python source --help``, or of a module's; fail if it fails."""
    forget_siblings()
    with asking_for_help(str(source)) as shown, pytest.MonkeyPatch.context() as patch:
        if not source.is_relative_to(REPOSITORY / "experiments"):
            patch.syspath_prepend(source.parent)  # like `python source`
        try:
            runpy.run_path(str(source), run_name="__main__")
        finally:
            forget_siblings()
    return shown.getvalue()


@contextlib.contextmanager
def asking_for_help(*command: str) -> Iterator[io.StringIO]:
    """Run a program with ``--help`` in this process, like in a new one."""
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.setattr(sys, "argv", [*command, "--help"])
        patch.setenv("COLUMNS", "200")
        patch.setenv("NO_COLOR", "1")
        code = None
        try:
            yield shown
        except SystemExit as stop:
            code = stop.code
    assert not code, shown.getvalue()


def forget_siblings() -> None:
    """Remove imported siblings of scripts: scripts of different folders have siblings with equal names."""
    for name, module in list(sys.modules.items()):
        if SCRIPTS in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]


def unknown_flags(help_text: str, words: list[str]) -> list[str]:
    """Return the ``--flags`` among ``words`` that the help does not mention."""
    flags = [word.split("=")[0] for word in words if word.startswith("--")]
    return [flag for flag in flags if not re.search(rf"{re.escape(flag)}(?![\w-])", help_text)]


@pytest.mark.parametrize("page", [page for page in MANUALS if page.is_file()], ids=page_id)
def test_commands_exist(page):
    """Make's targets, `jdml` subcommands, experiments and all their flags exist."""
    targets = set(
        re.findall(r"^([a-z][\w-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    )
    for words in commands(page):
        program, *arguments = words
        while "=" in program and arguments:  # VARIABLE=value before a command
            program, *arguments = arguments
        name = Path(program).name
        if name == "make":
            named = {word for word in arguments if "=" not in word and not word.startswith("-")}
            assert named <= targets, f"{page}: make has no target {named - targets}"
        elif name == "jdml" and arguments:
            count = 2 if " ".join(arguments[:2]) in jdml.cli.COMMANDS else 1
            subcommand = [] if arguments[0].startswith("-") else arguments[:count]
            unknown = unknown_flags(help_of_jdml(*subcommand), arguments)
            assert not unknown, f"{page}: `jdml {' '.join(subcommand)}` has no {unknown}"
        elif name.startswith("python") and arguments:
            source = REPOSITORY / arguments[0]
            if arguments[0] == "-m":
                assert arguments[1].startswith("experiments."), f"{page}: {' '.join(words)}"
                source = REPOSITORY.joinpath(*arguments[1].split(".")).with_suffix(".py")
            if source.suffix == ".py":
                unknown = unknown_flags(help_of_program(source), arguments)
                assert not unknown, f"{page}: {source} has no {unknown}"


@pytest.mark.parametrize("page", [page for page in MANUALS if page.is_file()], ids=page_id)
def test_links_lead_to_files_of_the_repository(page):
    """The site has other pages for some of them (`docs/maker/links.py`); its build checks these."""
    for target, anchor in re.findall(r"\]\(([^)#\s]+)#?([^)\s]*)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        place = page.parent / target
        assert place.exists(), f"{page} links to {target}, which is not there"
        if place.suffix == ".py" and anchor:
            assert f"def {anchor}(" in place.read_text(), f"{target} has no {anchor}"


def test_every_loss_has_a_formula_for_the_site():
    formulas = tomllib.loads((REPOSITORY / "docs/maker/formulas.toml").read_text())
    losses = {f"{name}_loss" for name in jdml.registry.LOSSES}
    assert losses <= set(formulas)
    for name in formulas:
        assert "\nFormula:\n" in inspect.getdoc(getattr(jdml.losses, name)), name


def test_pages_stay_within_their_budgets():
    assert not runpy.run_path(str(REPOSITORY / "docs/maker/budgets.py"))["over_budget"]()


def test_version_is_the_same_everywhere():
    assert f"\n## [{jdml.__version__}]\n" in (REPOSITORY / "CHANGELOG.md").read_text()
    assert f"\nversion: {jdml.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()


def test_actions_are_pinned_by_hash():
    for workflow in (REPOSITORY / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"uses: (.*)", workflow.read_text()):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line), (
                workflow.name,
                line,
            )


def test_notebooks_match_their_text_files():
    """Each notebook and its paired text file have the same cells."""
    jupytext = pytest.importorskip("jupytext", reason="pairs are read by jupytext (the dev extra)")
    for notebook in sorted(REPOSITORY.glob("notebooks/*.ipynb")):
        text = notebook.with_suffix(".py")
        cells = [
            [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
            for path in (notebook, text)
        ]
        assert cells[0] == cells[1], f"{notebook.name} and {text.name} differ: run jupytext --sync"


# Their examples would be whole programs: README, notebooks and `jdml demo` show these.
WITHOUT_EXAMPLE = re.compile(r"jdml\.(training|report)\.|jdml\.losses\.(compare|assign)$")


def public_functions() -> dict[str, Callable[..., object]]:
    """Return every function that a package exports, decorated or not, by its dotted name.

    The parts of `check_loss` are omitted: they all take one case, and one line says what they check.
    """
    functions: dict[str, Callable[..., object]] = {}
    for room in sorted({*jdml._ROOMS} - {"cli"}):
        for name in public_names(room):
            value = getattr(importlib.import_module(f"jdml.{room}"), name)
            is_function = callable(value) and isinstance(inspect.unwrap(value), FunctionType)
            if is_function and value not in jdml.testing.LOSS_CHECKS.values():
                functions[f"jdml.{room}.{name}"] = value
    return functions


FUNCTIONS = public_functions()


def section(documentation: str, title: str) -> str | None:
    """Return the dedented text of a docstring's section, None if it has none."""
    parts = re.split(rf"^{title}:\n", documentation, maxsplit=1, flags=re.MULTILINE)
    if len(parts) == 1:
        return None
    body = re.split(r"^\S", parts[1], maxsplit=1, flags=re.MULTILINE)[0]
    return textwrap.dedent(body).strip("\n")


def documented_arguments(documentation: str) -> list[str]:
    """Return the names that the Args section describes, in order."""
    entries = re.findall(
        r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:",
        section(documentation, "Args") or "",
        re.M,
    )
    return [name.lstrip("*") for entry in entries for name in entry.split(", ")]


def raises(function: Callable[..., object]) -> bool:
    """Return whether the function's own body raises."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_covers_the_signature(name):
    function = FUNCTIONS[name]
    documentation = inspect.getdoc(function)
    assert documentation, f"{name} has no docstring"
    signature = inspect.signature(function)
    assert documented_arguments(documentation) == list(signature.parameters)
    if signature.return_annotation not in (None, "None"):
        assert section(documentation, "Returns") or section(documentation, "Yields")
    if raises(function):
        assert section(documentation, "Raises"), f"{name} raises and does not say when"
    if not WITHOUT_EXAMPLE.match(name):
        assert ">>>" in (section(documentation, "Example") or "")


def run_examples(documentation: str, name: str, names: dict[str, object]) -> str:
    """Run a docstring's examples, decimals by the digits in them; return the report of those that failed."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | _get_number_flag()
    runner = doctest.DocTestRunner(_get_checker(), verbose=False, optionflags=flags)
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(documentation, dict(names), name, None, 0)
    runner.run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, tmp_path, monkeypatch):
    """Run the doctests of every docstring in the module, also of decorated functions."""
    monkeypatch.chdir(tmp_path)
    loaded = importlib.import_module(module)
    report = ""
    for node in ast.walk(ast.parse(inspect.getsource(loaded))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
            report += run_examples(ast.get_docstring(node) or "", name, vars(loaded))
    assert not report, report
