"""Build the site, strictly and offline: ``python docs/maker`` writes build/docs/html and fails on any warning."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
sys.path[:0] = [str(DOCS), str(REPOSITORY)]  # `maker`, `experiments`
sys.path.append(str(REPOSITORY / "tests"))  # `quick`
BUILD = REPOSITORY / "build" / "docs"
SOURCE, SITE = BUILD / "source", BUILD / "html"


def gather() -> Iterator[tuple[str, bytes]]:
    """Give every file of Sphinx's source folder but the pictures: written, taken over or generated."""
    from maker import compiled, every_table, gallery, links, pages, records, speed
    from maker.subjects import subjects

    names = pages.linked_names()
    filled = {
        "docs/index.md": {"gallery": gallery.tiles, "menu": more_pages},
        "docs/results.md": {"best": records.best},
    }
    source_pages = sorted(DOCS.rglob("*.md"))
    source_pages += [REPOSITORY / "CHANGELOG.md", REPOSITORY / "benchmarks" / "RECORD.md"]
    for file in source_pages:
        path = str(file.relative_to(REPOSITORY))
        text = links.on_site(path, file.read_text(), names)
        for mark, content in filled.get(path, {}).items():
            text = text.replace(f"<!-- {mark} -->", content())
        yield links.site_place(path)[0], compiled.filled(text).encode()
    for path, text in pages.study_pages():
        yield path, links.on_site(path, text, names).encode()
    for file in sorted(DOCS.rglob("*")):
        if file.is_file() and file.suffix != ".md" and DOCS / "maker" not in file.parents:
            yield str(file.relative_to(DOCS)), file.read_bytes()
    for folder, pattern in (
        ("notebooks", "*.ipynb"),
        ("experiments", "*.png"),
        ("experiments", "*.jsonl"),
    ):
        for file in sorted((REPOSITORY / folder).rglob(pattern)):
            yield str(file.relative_to(REPOSITORY)), file.read_bytes()
    yield from gallery.copies().items()
    shown = subjects()
    texts = {
        "losses/index.md": pages.sheet(shown),
        "api/index.md": pages.api_index(),
        "api/command_line.md": pages.command_line_page(),
        "speed.md": speed.page(),
        "every_table.md": every_table.page(),
        "compiled.md": compiled.page(),
        **{f"api/{room}.md": pages.room_page(room) for room in pages.ROOMS},
        **{
            f"losses/{name}.md": (pages.miner_page if subject.miner else pages.loss_page)(subject)
            for name, subject in shown.items()
        },
    }
    yield from ((name, text.encode()) for name, text in texts.items())


def more_pages() -> str:
    """Make a menu of the pages of docs/ that the first page does not name."""
    named = (DOCS / "index.md").read_text().split() + ["index"]
    more = "\n".join(sorted({file.stem for file in DOCS.glob("*.md")} - {*named}))
    return f"```{{toctree}}\n:hidden:\n:caption: More\n\n{more}\n```" if more else ""


def stage() -> None:
    """Put the sources together, touching only what has changed."""
    from maker.drawing import pictures

    wanted = dict(gather())
    wanted |= {
        f"_static/pictures/{file.name}": file.read_bytes() for file in pictures(BUILD / "pictures")
    }
    for name, content in wanted.items():
        file = SOURCE / name
        if not file.is_file() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    for file in [file for file in SOURCE.rglob("*") if file.is_file() and not file.is_symlink()]:
        relative = str(file.relative_to(SOURCE))
        if relative not in wanted and not relative.startswith(("jdml/", "benchmarks/")):
            file.unlink()
    for folder in sorted(SOURCE.rglob("*"), reverse=True):  # a page that was interrupted left them
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()
    for name in ("jdml", "benchmarks"):  # pages show code and results as they are there
        if not (SOURCE / name).exists():
            (SOURCE / name).symlink_to(REPOSITORY / name)


def page_cache() -> Path:
    """Choose the folder that keeps what pages ran with this version of the library; forget those of others."""
    from maker import stamps

    folder = BUILD / "cache" / stamps.of_pages()
    for other in (BUILD / "cache").glob("*"):
        if other != folder:
            shutil.rmtree(other)
    return folder


def main() -> None:
    """Gather, build, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="forget what earlier builds made")
    if parser.parse_args().fresh:
        shutil.rmtree(BUILD, ignore_errors=True)
    begun = time.perf_counter()
    from quick import QUICK

    os.environ.update(QUICK)  # programs of pictures and pages run a few times
    stage()
    print(f"pictures: {time.perf_counter() - begun:.0f} s", flush=True)
    cache = page_cache()
    os.environ["JDML_DOCS_CACHE"] = str(cache)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The pages' kernels share compiled programs, with tests and notebooks, too.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / "build" / "programs"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
    from maker.running import run_pages

    number = run_pages(SOURCE, cache)
    print(f"{number} pages run: {time.perf_counter() - begun:.0f} s", flush=True)
    shutil.rmtree(
        SITE / "_modules", ignore_errors=True
    )  # sources link back to pages that may have moved
    if not (SITE / "searchindex.js").is_file():  # a build that was killed, or none
        shutil.rmtree(BUILD / "doctrees", ignore_errors=True)
    # In a process of its own, as it forks one for each core, and JAX that has computed must not be forked.
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    options = ["-q", "-W", "--keep-going", "-j", "auto", "-d", str(BUILD / "doctrees")]
    sphinx = [sys.executable, "-m", "sphinx", *options, str(SOURCE), str(SITE)]
    if code := subprocess.run(sphinx, check=False).returncode:
        sys.exit(code)
    from maker.budgets import over_budget
    from maker.checks import problems
    from maker.pages import symbols

    wrong = problems(SITE, symbols())
    wrong += [f"{name}: {count} words, {budget} allowed" for name, count, budget in over_budget()]
    print("\n".join(wrong))
    pages = len(list(SITE.rglob("*.html")))
    print(f"{pages} pages, {len(symbols())} symbols, {len(wrong)} problems: {SITE}/index.html")
    print(f"{time.perf_counter() - begun:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
