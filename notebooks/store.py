"""Run the notebooks and store their outputs, without what is different at each run.

    python notebooks/store.py           # all of them
    python notebooks/store.py eps_mnist
    python notebooks/store.py --start   # the first cell alone; what the others show stays

A notebook's text is its .py file beside it (`jupytext`); this makes the .ipynb of it. The first cell is start.py in all
of them, with the repository's address from pyproject.toml, which gives the link to Colab as well.
"""

import argparse
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NOTEBOOKS = sorted(file.stem for file in HERE.glob("*.ipynb"))
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
TEXTS = sorted({file.stem for file in HERE.glob("*.py")} - {"start", "store", "test_notebooks"})
START = 2  # cells: the title, and that of start.py


def repository() -> str:
    """Read the repository's address, "" before there is one."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    return project["urls"]["Repository"].removesuffix("/").removesuffix(".git")


def first_cell(address: str) -> str:
    """Give the code that every notebook begins with."""
    source = f"git+{address}" if address else ""
    code = (HERE / "start.py").read_text().strip()
    return re.sub('^ADDRESS = ".*?"', lambda _: f'ADDRESS = "{source}"', code, flags=re.M)


def badge(name: str, address: str) -> str:
    """Give the link that opens a notebook of a GitHub repository in Colab; "" of any other."""
    if not (place := re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", address)):
        return ""
    colab = "https://colab.research.google.com"
    page = f"{colab}/github/{place[1]}/blob/main/notebooks/{name}.ipynb"
    return f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({page})"


def begin(name: str, text: str, address: str) -> str:
    """Write into a notebook's text the link below its title, and its first cell."""
    head, _, rest = text.partition("\n# %%\n")
    rest = rest[rest.index("\n# %%") :]
    head = re.sub(r"# \[!\[Open in Colab\].*\n#\n", "", head)
    if link := badge(name, address):
        head = re.sub(r"(?m)^# # .*\n#\n", lambda title: f"{title[0]}# {link}\n#\n", head, count=1)
    return f"{head}\n# %%\n{first_cell(address)}\n{rest}"


def execute(name: str, timeout: int = 600, cells: int | None = None) -> Any:
    """Run a notebook from its text, in its folder, and give it with outputs that could be the same again."""
    notebook = jupytext.read(HERE / f"{name}.py")
    notebook.cells = notebook.cells[:cells]
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(HERE)}}).execute()
    return tidy(notebook)


def tidy(notebook: Any) -> Any:
    """Leave out counts, times, warnings and addresses; join what is printed piece by piece."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = tidy_outputs(cell.outputs)
    return notebook


def tidy_outputs(outputs: list[Any]) -> list[Any]:
    """Keep what is printed, and of what is shown the picture, or else the text."""
    kept: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stdout" and kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
            elif output.name == "stdout":
                kept.append(output)
        elif "data" in output:
            picture = {kind: data for kind, data in output.data.items() if kind == "image/png"}
            text = {kind: data for kind, data in output.data.items() if kind == "text/plain"}
            kept.append(nbformat.v4.new_output("display_data", data=picture or text))
    return kept


def printed(notebook: Any) -> str:
    """Give all that a notebook's cells print."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def main() -> None:
    """Run and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=TEXTS, metavar="NAME")
    parser.add_argument("--start", action="store_true", help="run and store the first cell alone")
    options = parser.parse_args()
    for name in options.names:
        text = HERE / f"{name}.py"
        text.write_text(begin(name, text.read_text(), repository()))
        file = HERE / f"{name}.ipynb"
        notebook = execute(name, cells=START if options.start else None)
        if options.start:
            notebook.cells += nbformat.read(file, 4).cells[START:]
        nbformat.write(notebook, file)
        print(f"{name}: stored", flush=True)


if __name__ == "__main__":
    main()
