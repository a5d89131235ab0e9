"""The pages' code, run before Sphinx reads them: as many pages at a time as there are cores, kept for it."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT = 600
"""Seconds that a cell may take."""
QUIET = ["--IPKernelApp.log_level=ERROR"]


def run_pages(source: Path, store: Path) -> int:
    """Run the pages that have code, and that this version of the library has not run yet.

    Args:
        source: Sphinx's folder.
        store: the folder in which Sphinx looks for printed outputs.

    Returns:
        How many were run.

    Raises:
        SystemExit: pages that fail, with what they said; the others are kept.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    cache = get_cache(str(store))
    new = [(file, page) for file, page in notebooks(source) if not _known(cache, page)]
    failures = asyncio.run(_run_all(new))
    for file, page in new:
        if file not in failures:
            join_streams(page)
            bundle = CacheBundleIn(page, str(file))
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    if failures:
        sys.exit("\n".join(f"{file}: {said}" for file, said in failures.items()))
    return len(new)


def notebooks(source: Path) -> Sequence[tuple[Path, Any]]:
    """Give the pages that run code, the longest first, as the notebooks that Sphinx reads them as."""
    from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook

    notebooks = []
    for file in source.rglob("*.md"):
        text = file.read_text()
        if not file.is_symlink() and is_myst_markdown_notebook(text):
            notebooks.append((file, read_myst_markdown_notebook(text, path=file)))

    def length(page: Any) -> int:
        return sum(len(cell.source) for cell in page.cells if cell.cell_type == "code")

    return sorted(notebooks, key=lambda pair: -length(pair[1]))


def join_streams(page: Any) -> None:
    """Put what a cell printed into one piece, as it was printed: a kernel sends it in pieces of any length."""
    for cell in page.cells:
        first: dict[str, Any] = {}
        store = []
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name in first:
                first[output.name].text += output.text
                continue
            if output.output_type == "stream":
                first[output.name] = output
            store.append(output)
        if "outputs" in cell:
            cell.outputs = store


def _known(cache: Any, page: Any) -> bool:
    try:
        cache.match_cache_notebook(page)
    except KeyError:
        return False
    return True


async def _run_all(pages: Sequence[tuple[Path, Any]]) -> dict[Path, Exception]:
    """Run each in a kernel of its own, in the folder where it lies; give those that fail."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    places = asyncio.Semaphore(os.cpu_count() or 1)
    failures: dict[Path, Exception] = {}

    async def run(file: Path, page: Any) -> None:
        async with places:
            client = NotebookClient(
                page,
                timeout=TIMEOUT,
                record_timing=False,  # it would be part of what Sphinx looks it up by
                extra_arguments=QUIET,
                resources={"metadata": {"path": str(file.parent)}},
            )
            try:
                await client.async_execute()
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                failures[file] = error

    await asyncio.gather(*(run(file, page) for file, page in pages))
    return failures
