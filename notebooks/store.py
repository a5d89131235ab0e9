"""Run the notebooks and store their outputs, without what is different at each run.

    python notebooks/store.py           # all of them
    python notebooks/store.py eps_mnist

A notebook's text is its .py file beside it (`jupytext`); this makes the .ipynb of it.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NOTEBOOKS = sorted(file.stem for file in HERE.glob("*.ipynb"))
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def execute(name: str, timeout: int = 600) -> Any:
    """Run a notebook from its text, in its folder, and give it with outputs that could be the same again."""
    notebook = jupytext.read(HERE / f"{name}.py")
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
    known = sorted({file.stem for file in HERE.glob("*.py")} - {"store", "test_notebooks"})
    parser.add_argument("names", nargs="*", default=known, metavar="NAME")
    for name in parser.parse_args().names:
        nbformat.write(execute(name), HERE / f"{name}.ipynb")
        print(f"{name}: stored", flush=True)


if __name__ == "__main__":
    main()
