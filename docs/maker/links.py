"""Translate a page of the repository into a page of the site: links between files become links between pages."""

import posixpath
import re
from collections.abc import Callable, Collection
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
GENERATED = {
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "speed.md",
    "benchmarks/RECORD.md": "accelerators_record.md",
    "benchmarks/compiled.py": "compiled.md",
    "docs/maker/every_table.toml": "every_table.md",
    "jdml/losses/__init__.py": "losses/index.md",
    "jdml/cli/commands.py": "api/command_line.md",
}
"""Pages that only the site has, by the file that stands for each in the repository."""
TARGET = re.compile(r'(\]\(|\b(?:src|href)=")([^)\s"#]*)(#[^)\s"]*)?(?=[)"])')
FENCED = re.compile(r"(^ *(`{3,}|:{3,})[^\n]*\n.*?^ *\2[`:]* *$)", re.MULTILINE | re.DOTALL)
SYMBOL = re.compile(r"(?<!\[)`(jdml(?:\.\w+)+)`")


def site_place(path: str, anchor: str = "") -> tuple[str, str]:
    """Return the site's page and anchor for a file of the repository.

    A link to ``jdml/losses/pair.py#triplet_loss`` leads to the page of that loss, one to ``jdml/models/__init__.py`` to
    the reference of that package.
    """
    if (REPOSITORY / path).is_dir():
        path = f"{path}/README.md"
    if path in GENERATED:
        return GENERATED[path], anchor
    if anchor and re.fullmatch(r"jdml/(losses|mining)/\w+\.py", path):
        return f"losses/{anchor.removeprefix('#')}.md", ""
    if package := re.fullmatch(r"jdml/(\w+)(?:/__init__)?\.py", path):
        return f"api/{package[1]}.md", anchor
    return path.removeprefix("docs/"), anchor


def on_site(path: str, text: str, symbols: Collection[str]) -> str:
    """Translate the page at ``path``: its links, and its inline code that names a public symbol."""
    folder, (page, _) = posixpath.dirname(path), site_place(path)

    def relative(link: re.Match[str]) -> str:
        opening, target, anchor = link[1], link[2], link[3] or ""
        if not target or re.match(r"[a-z][a-z+.-]*:", target):
            return link[0]
        file = posixpath.normpath(posixpath.join(folder, target))
        target, anchor = site_place(file, anchor)
        return opening + posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor

    def role(code: re.Match[str]) -> str:
        return f"{{py:obj}}`{code[1]}`" if code[1] in symbols else code[0]

    text = outside_code(text, lambda prose: TARGET.sub(relative, prose))
    return outside_code(text, lambda prose: SYMBOL.sub(role, prose))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a page's prose and leave its fenced blocks."""
    parts, at = [], 0
    for block in FENCED.finditer(text):
        parts += [change(text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(text[at:])])
