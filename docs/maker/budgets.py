"""Count the words of every written page, and list the pages over budget: ``python docs/maker/budgets.py``."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
BUDGETS = {"README.md": 800, "CHANGELOG.md": 600, "docs/choose.md": 1300}
"""Words that a page may have; of a changelog, each version. Every other page may have OTHERS."""
OTHERS = 900
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "experiments/**/README.md")


def words(text: str) -> int:
    """Count words as ``wc -w`` does, without front matter and comments."""
    return len(re.sub(r"\A---\n.*?\n---\n|<!--.*?-->", "", text, flags=re.DOTALL).split())


def counted() -> Iterator[tuple[str, int, int]]:
    """Give each page, or version of the changelog, with its words and its budget."""
    for pattern in PAGES:
        for file in sorted(REPOSITORY.glob(pattern)):
            name, text = str(file.relative_to(REPOSITORY)), file.read_text()
            budget = BUDGETS.get(name, OTHERS)
            if name == "CHANGELOG.md":
                for part in text.split("\n## ")[1:]:
                    yield f"{name} {part.split()[0]}", words(part), budget
            else:
                yield name, words(text), budget


def over_budget() -> list[tuple[str, int, int]]:
    """List the pages with more words than their budget."""
    return [page for page in counted() if page[1] > page[2]]


def main() -> None:
    """Print the pages over budget, or with ``--all`` every page; fail if one is over."""
    over = over_budget()
    for name, count, budget in sorted(counted()) if "--all" in sys.argv else over:
        print(f"{count:6,} of {budget:5,} words  {name}")
    sys.exit(f"{len(over)} pages are over budget" if over else None)


if __name__ == "__main__":
    main()
