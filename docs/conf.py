"""Sphinx's settings; `python docs/maker` puts this file next to the pages that it gathers and makes."""

import importlib.util
import os
import re
import shutil
import tomllib
from pathlib import Path

import jdml

FORMULAS = tomllib.loads(
    (Path(jdml.__file__).resolve().parents[1] / "docs/maker/formulas.toml").read_text()
)

project = "jdml"
author = "the authors of jdml"
copyright = "the authors of jdml, Apache-2.0"
version = release = jdml.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["jdml", "benchmarks"]
nitpicky = True
# Types are told in the docstrings' words; what those name of other libraries is not linked, as the site builds offline.
nitpick_ignore_regex = [
    (r"py:exc", r"MissingLibraryError"),  # a ModuleNotFoundError that names the extra
    (r"py:.*", r"(jax|flax|optax|numpy|orbax|collections|distrax|pathlib)\b.*"),
    # Modules and parts that docstrings name for those who read the code; they are no names for users.
    (
        r"py:.*",
        r"jdml\.(ops\.(checks|meshes|pairwise)|runs\.checkpoint|models\.(adapters|base_adapter)|metrics\.ranking|data\.(dataset|duplicates|integrity|protocols)|losses\.\w+)\b.*",
    ),
]
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
toc_object_entries = False  # each has a heading of its own
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_custom_sections = [
    "Formula",
    "Implementation notes",
    "Paper settings",
    "Reference",
    "Reference settings",
]
napoleon_use_rtype = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_dmath_allow_space = False
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = os.environ.get("JDML_DOCS_CACHE", "cache")
# The notebooks show the outputs that are stored in them; `make notebooks` runs them.
nb_execution_excludepatterns = ["notebooks/*"]
nb_execution_raise_on_error = True
nb_execution_timeout = 600
suppress_warnings = ["mystnb.unknown_mime_type"]

# MathJax is served from the site: of the package only what it loads. (Its extension would keep Sphinx on one core.)
mathjax_path = "mathjax/tex-chtml.js"
html_theme = "furo"
html_title = "jdml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_copy_source = html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def function_names(text: str) -> str:
    """Write the functions among a signature's defaults by their names."""

    def named(match: re.Match[str]) -> str:
        return f"jdml.{match[1]}" if hasattr(jdml, match[1]) else match[1]

    return re.sub(r"<function (?:\w+\.)*(\w+)(?: at 0x\w+)?>", named, text)


def tidy_signature(app, what, name, obj, options, signature, returns):  # noqa: D103
    return (function_names(signature) if signature else signature), returns


def resolve_flat_names(app, env, node, contnode):  # noqa: D103
    # `jdml.sphere` is declared where it lives, as `jdml.ops.sphere`.
    name = node.get("reftarget", "").removeprefix("jdml.")
    if node.get("refdomain") != "py" or "." in name:
        return None
    domain = env.domains["py"]
    for room in ("losses", "metrics", "mining", "ops"):
        if (target := f"jdml.{room}.{name}") in domain.objects:
            kind = node["reftype"]
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, kind, target, node, contnode
            )
    return None


def source_of(app, room, name):  # noqa: D103
    # What a room takes over from another one has its source there, and is linked from there. A class's attributes have
    # theirs next to it: a function that is an attribute's default would give its own module the room's name.
    value = getattr(importlib.import_module(room), name.partition(".")[0], None)
    module = getattr(value, "__module__", "")
    return module if module.startswith(room) else room


def with_formula(app, what, name, obj, options, lines):  # noqa: D103
    # The docstring's formula is for the terminal; the site shows the LaTeX of docs/maker/formulas.toml in its place.
    formula = FORMULAS.get(name.removeprefix("jdml.losses."))
    if formula is None or "Formula:" not in lines:
        return
    start = lines.index("Formula:") + 1
    end = next((i for i in range(start, len(lines)) if lines[i][:1].strip()), len(lines))
    math = ["    .. math::", ""]
    for equation in re.split(r",? \\q?quad ", formula["tex"]):  # one below the other
        math += [f"        {equation}", ""]
    lines[start:end] = [*math, *([f"    {formula['where']}", ""] if formula["where"] else [])]


TREES = {}


def share_navigation(app, pagename, templatename, context, doctree):  # noqa: D103
    # Making a page's tree of all pages takes half of the time. Source pages, nearly half, share their folder's.
    if pagename.startswith("_modules/"):
        make, folder = context["toctree"], pagename.rpartition("/")[0]

        def tree(**options):
            if folder not in TREES:
                TREES[folder] = make(**options)
            return TREES[folder]

        context["toctree"] = tree


def copy_mathjax(app, exception):  # noqa: D103
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    package, target = (
        Path(spec.origin).parent / "static" / "mathjax",
        Path(app.outdir) / "_static" / "mathjax",
    )
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(package / "tex-chtml.js", target)
    shutil.copytree(
        package / "output/chtml/fonts", target / "output/chtml/fonts", dirs_exist_ok=True
    )


def setup(app):  # noqa: D103
    app.connect("build-finished", copy_mathjax)
    app.connect("html-page-context", share_navigation, priority=100)  # before furo
    app.connect("autodoc-process-docstring", with_formula, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", tidy_signature)
    app.connect("viewcode-follow-imported", source_of)
    app.connect("missing-reference", resolve_flat_names)
