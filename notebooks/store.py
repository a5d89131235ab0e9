"""Run the notebooks on MNIST and store their outputs, without what is different at each run.

    python notebooks/store.py                           # all of them
    python notebooks/store.py eps_mnist --data-dir DIR  # MNIST's files are in DIR
    python notebooks/store.py --start                   # the first cell and the text; what is shown stays

A notebook's text is the .py file next to it (`jupytext`); this makes the .ipynb of it. After the idea and the settings
comes start.py, folded, in all of them, with the repository's address from pyproject.toml, which gives the link to Colab
as well. What a notebook prints with `SMALL = True` is kept in its metadata, for the tests to compare with.
"""

import argparse
import base64
import io
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
NOTEBOOKS = sorted(file.stem for file in HERE.glob("*.ipynb"))
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
TEXTS = sorted({file.stem for file in HERE.glob("*.py")} - {"start", "store", "test_notebooks"})
START = 3  # cells: the idea, the settings, and that of start.py
INSTALL = (HERE / "start.py").read_text().partition("\n")[0]
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}  # of Colab and of JupyterLab


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
    """Write into a notebook's text the link below its title, and the cell that installs jdml."""
    head, _, rest = text.partition(f"\n# %%\n{INSTALL}")
    rest = rest[rest.index("\n# %%") :]
    head = re.sub(r"# \[!\[Open in Colab\].*\n#\n", "", head)
    if link := badge(name, address):
        head = re.sub(r"(?m)^# # .*\n#\n", lambda title: f"{title[0]}# {link}\n#\n", head, count=1)
    return f"{head}\n# %%\n{first_cell(address)}\n{rest}"


def execute(name: str, cells: int | None = None, **settings: Any) -> Any:
    """Run a notebook from its text, in its folder, and give it with outputs that could be the same again.

    Settings are lines of it, such as `SMALL`, which for this run have another value.
    """
    notebook = jupytext.read(HERE / f"{name}.py")
    notebook.cells = notebook.cells[:cells]
    sources = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        for setting, value in settings.items():
            line = f"{setting} = {value!r}"
            cell.source = re.sub(rf"(?m)^{setting} = \S+", lambda _, line=line: line, cell.source)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.pop("MPLBACKEND", None)  # which would leave plt.show() without a picture
    NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(HERE)}}).execute()
    for cell, source in zip(notebook.cells, sources, strict=True):
        cell.source = source
    return tidy(notebook)


def begin_again(name: str) -> Any:
    """Run the first cell alone, take the text, and leave what the other cells show."""
    notebook, stored = execute(name, cells=START), nbformat.read(HERE / f"{name}.ipynb", 4)
    shown = {cell.source: cell.outputs for cell in stored.cells if cell.cell_type == "code"}
    rest = jupytext.read(HERE / f"{name}.py").cells[START:]
    for cell in rest:
        if cell.cell_type == "code":
            cell.outputs = shown[cell.source]
    notebook.cells += rest
    notebook.metadata["small"] = stored.metadata["small"]
    return tidy(notebook)


def tidy(notebook: Any) -> Any:
    """Leave out counts, times, warnings and addresses; join what is printed piece by piece."""
    small = {"small": notebook.metadata["small"]} if "small" in notebook.metadata else {}
    notebook.metadata = nbformat.from_dict(METADATA | small)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict(FOLDED if cell.source.startswith(INSTALL) else {})
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = tidy_outputs(cell.outputs)
    return notebook


def tidy_outputs(outputs: list[Any]) -> list[Any]:
    """Keep what is printed, and of what is shown the picture, or else the text."""
    tidied: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stdout" and tidied and tidied[-1].output_type == "stream":
                tidied[-1].text += output.text
            elif output.name == "stdout":
                tidied.append(output)
        elif "data" in output:
            if "image/png" in output.data:
                data = {"image/png": smaller(output.data["image/png"])}
            else:
                data = {kind: text for kind, text in output.data.items() if kind == "text/plain"}
            tidied.append(nbformat.v4.new_output("display_data", data=data))
    return tidied


def smaller(picture: str) -> str:
    """Give a picture with a palette of 256 colours, a third as large; one that has it stays."""
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    if image.mode == "P":
        return picture
    file = io.BytesIO()
    image.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


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
    parser.add_argument("--data-dir", help="where MNIST is; by default where the notebooks look")
    parser.add_argument("--start", action="store_true", help="run the first cell alone")
    options = parser.parse_args()
    for name in options.names:
        text = HERE / f"{name}.py"
        text.write_text(begin(name, text.read_text(), repository()))
        if options.start:
            notebook = begin_again(name)
        else:
            small = printed(execute(name, SMALL=True))
            notebook = execute(name, DATA_DIR=options.data_dir)
            notebook.metadata["small"] = small
        nbformat.write(notebook, HERE / f"{name}.ipynb")
        print(f"{name}: stored", flush=True)


if __name__ == "__main__":
    main()
