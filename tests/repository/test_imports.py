"""The order of packages: which may import which, what `import jdml` costs, and where public names live."""

import ast
import graphlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import jdml

PACKAGE = Path(jdml.__file__).parent

# Modules that need no other package: paths, optional libraries, names of objects.
SHARED = {"_optional_imports", "_paths"}
# package -> the packages that it may import (its own modules, `SHARED` and the records of `registry` always).
NUMERICS = {"ops", "mining", "memory", "fields", "losses", "metrics"}
METHODS = NUMERICS | {"flows", "ccp", "objectives", "optim"}
METHODS |= {"adapt", "distributed", "models", "data"}
SAVED = METHODS | {"recipes", "runs", "gallery"}
ALLOWED = {
    "registry": {"ops"},
    "ops": set(),
    "mining": {"ops"},
    "gallery": {"ops", "metrics"},
    "memory": {"ops"},
    "metrics": {"ops"},
    "fields": {"ops"},
    "losses": {"ops", "mining", "fields"},
    "flows": {"ops"},
    "ccp": {"ops", "mining", "metrics"},
    "objectives": {"ops", "mining", "memory", "losses", "flows", "ccp"},
    "optim": {"ops"},
    "adapt": {"ops"},
    "compilation_cache": set(),
    "distributed": {"ops"},
    "models": {"ops", "adapt", "data", "distributed"},
    "data": {"ops"},
    "testing": {"ops", "mining", "losses"},
    "recipes": METHODS,
    "runs": METHODS | {"recipes", "gallery"},
    "training": SAVED,
    "report": SAVED,
    "studies": SAVED | {"training", "report"},
    "cli": SAVED | {"training", "studies", "report", "compilation_cache"},
    "__main__": {"cli"},
}
# jdml's own file imports nothing, but names all packages for type checkers.
ALLOWED["__init__"] = set(ALLOWED) - {"__main__"}
ALLOWED |= {name: set() for name in SHARED}
# Packages that use arrays only: no modules, no optimizers, not even inside a function.
PURE_ROOMS = {"ops", "mining", "memory", "metrics", "fields", "losses"}
NOT_PURE = {"flax", "optax", "distrax", "orbax", "grain", "tensorflow_datasets", "tyro"}
# The imports that a module may have at its top; all others belong inside the functions that use them.
LIGHT = {"jax", "numpy", "flax", "optax", "jdml"} | set(sys.stdlib_module_names)
# What a package is made of: flows of distrax, commands, which are imported when they are called, of tyro.
OWN = {("flows", "distrax"), ("cli", "tyro")}


class Import(NamedTuple):
    """One import: the module, its line, and whether it is at the top level."""

    module: str
    line: int
    at_top: bool


def imports(node: ast.AST, at_top: bool = True) -> Iterator[Import]:
    """Return all imports of a module; relative ones, which there are none of, begin with a dot."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, at_top)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield Import(f"{'.' * node.level}{node.module}.{alias.name}", node.lineno, at_top)
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, at_top and not inside and not typing_only)


def wrong_imports(package: Path) -> list[str]:
    """Return every import under ``package`` that is not allowed, as ``file:line: why``."""
    wrong = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        room = parts[1]
        if room not in ALLOWED:
            wrong.append(f"{path}:1: the room {room!r} has no row in ALLOWED")
            continue
        for name, line, at_top in imports(ast.parse(path.read_text())):
            root, target = name.split(".")[0], name.split(".")[1] if "." in name else ""
            why = ""
            if root == "jdml":
                if not target:
                    why = "imports the flat names of jdml: name the room"
                elif target in ALLOWED.keys() - {room, "registry", *SHARED, *ALLOWED[room]}:
                    why = f"{room} imports the room {target}"
                elif target not in ALLOWED and room != "__init__":
                    why = f"imports jdml.{target}: name the room"
            elif room in PURE_ROOMS and root in NOT_PURE:
                why = f"{room} is pure and imports {root}"
            elif root == "distrax" and room != "flows":
                why = f"{room} imports distrax, which only jdml.flows does"
            elif at_top and root not in LIGHT and (room, root) not in OWN:
                why = f"{root} is imported when jdml.{room} is: import it where it is used"
            if why:
                wrong.append(f"{path}:{line}: {why}")
    return wrong


def test_packages_import_in_one_direction():
    assert wrong_imports(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "code", "why"),
    [
        ("losses/pairs.py", "from jdml.training import loop", "losses imports the room training"),
        ("losses/pairs.py", "from .. import models", "import it where it is used"),
        ("mining.py", "import jdml", "imports the flat names"),
        ("metrics/retrieval.py", "def f():\n    import flax.linen", "metrics is pure"),
        ("data/digits.py", "from PIL import Image", "PIL is imported when jdml.data is"),
        ("data/digits.py", "try:\n    import grain\nexcept ImportError: pass", "grain is imported"),
        ("objectives.py", "def f():\n    import distrax", "only jdml.flows"),
        ("attic.py", "", "no row in ALLOWED"),
    ],
)
def test_wrong_import_is_found(tmp_path, file, code, why):
    path = tmp_path / "jdml" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    (problem,) = wrong_imports(tmp_path / "jdml")
    assert why in problem
    assert file in problem


# No circular imports between files of `jdml/`: at the top, inside functions, for type checkers only.


def in_order(package: Path) -> list[str]:
    """Return all files of a package, each after those that it imports; any other name is in a package's own file."""
    paths = sorted(package.rglob("*.py"))
    files = {".".join(p.relative_to(package.parent).with_suffix("").parts): p for p in paths}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        modules = {each.module for each in imports(ast.parse(path.read_text()))}
        graph[name] = {
            module if module in files else module.rpartition(".")[0] for module in modules
        } & files.keys() - {name}
    return list(graphlib.TopologicalSorter(graph).static_order())


def test_no_circular_imports():
    assert "jdml.losses.pairs" in in_order(PACKAGE)


def test_circular_imports_at_any_level_are_found(tmp_path):
    path = tmp_path / "jdml"
    path.mkdir()
    (path / "ops.py").write_text("def f():\n    from jdml.losses import g")
    (path / "losses.py").write_text("if TYPE_CHECKING:\n    from jdml import ops")
    with pytest.raises(graphlib.CycleError):
        in_order(path)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new interpreter where every warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


HEAVY = {
    "PIL", "chex", "distrax", "faiss", "flax", "grain", "matplotlib", "optax", "orbax", "pandas",
    "rich", "safetensors", "sklearn", "tensorboardX", "tensorflow", "tensorflow_datasets", "torch",
    "tqdm", "tyro",
}  # fmt: skip


def test_import_jdml_imports_nothing_else():
    """`import jdml` and `jdml --help` are quick: JAX and everything else are imported when used."""
    done = python("""
        import sys
        import jdml
        from jdml.cli import main
        own = {name for name in sys.modules if name.startswith("jdml.")}
        light = {"cli", "ops", "registry", "_optional_imports", "_paths"}
        assert {name.split(".")[1] for name in own} <= light, own
        assert main(["--help"]) == 0
        brought = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
        assert not brought & {"jax", "jaxlib", "numpy", "tyro"}, sorted(brought)
        assert len(sys.modules) < 200, len(sys.modules)
    """)
    assert done.returncode == 0, done.stderr


def test_losses_import_only_jax_open_only_code_and_touch_no_device():
    """The flat names and their packages need JAX and NumPy; with a platform that does not exist, devices fail."""
    nowhere = {"JAX_PLATFORMS": "no_such_platform"}
    assert python("import jax; jax.devices()", **nowhere).returncode != 0
    done = python(
        f"""
        import sys
        import jax, numpy
        opened, before = [], set(sys.modules)
        def audit(event, arguments):
            name = str(arguments[0]) if event == "open" else ".py"
            if not name.endswith((".py", ".pyc")) and ".pyc." not in name:
                opened.append(name)
        sys.addaudithook(audit)
        from jdml import *
        assert not opened, opened
        added = set(sys.modules) - before
        heavy = {{name.split(".")[0] for name in added}} & {HEAVY}
        assert not heavy, sorted(heavy)
        assert sum(not name.startswith("jdml") for name in added) < 30, sorted(added)
        """,
        **nowhere,
    )
    assert done.returncode == 0, done.stderr


def test_packages_resolve_on_first_use():
    """`jdml.training` and the other packages need no separate import statement."""
    rooms = sorted(set(ALLOWED) - {"__init__", "__main__", "flows", *SHARED})
    done = python(f"import jdml; print([getattr(jdml, room).__name__ for room in {rooms}])")
    assert done.returncode == 0, done.stderr
    assert set(rooms) <= set(dir(jdml))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_loss"):
        _ = jdml.no_such_loss
