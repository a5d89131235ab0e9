"""Check the site after it is built: links, symbols and search."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

FINDABLE = (
    "InfoNCE",
    "NT-Xent",
    "class collapse",
    "GradCache",
    "hard negatives",
    "EPS",
    "pgvector",
    "NaN",
    "hit rate",
    "DataLoader",
    "gradient accumulation",
)


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        """Read it."""
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect a tag's links and anchors."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


def dead_links(site: Path) -> list[str]:
    """List the links inside the site that lead nowhere."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    dead = []
    for file, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z][a-z+.-]*:|//", link):
                continue
            address, anchor = urldefrag(unquote(link))
            address = address.partition("?")[0]
            target = (file.parent / address).resolve() if address else file
            if target.is_dir():
                target = target / "index.html"
            known = pages.get(target)
            if not target.is_file() or (anchor and known and anchor not in known.anchors):
                dead.append(f"{file.relative_to(site)}: {link}")
    return dead


def undocumented(site: Path, symbols: list[str]) -> list[str]:
    """List the public symbols that no page declares."""
    declared: set[str] = set()
    for file in site.rglob("*.html"):
        declared |= Page(file.read_text()).anchors
    return [symbol for symbol in symbols if symbol not in declared]


def unfindable(site: Path) -> list[str]:
    """List the words that the site's search would not find."""
    return [words for words in FINDABLE if not search_results(site, words)]


def search_results(site: Path, words: str) -> set[str]:
    """Find the pages that hold all the words, as the site's search does: by stems, in titles and texts."""
    from sphinx.search.en import SearchEnglish

    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    language = SearchEnglish({})
    pages: set[str] | None = None
    for word in re.findall(r"\w+", words.lower()):
        stem = language.stem(word)
        hits = set(places(index["terms"].get(stem, []))) | set(
            places(index["titleterms"].get(stem, []))
        )
        names = {index["docnames"][hit] for hit in hits}
        pages = names if pages is None else pages & names
    return pages or set()


def places(entry: int | list[int]) -> Iterator[int]:
    """Unpack an entry of the index: one page, or several."""
    yield from [entry] if isinstance(entry, int) else entry


def problems(site: Path, symbols: list[str]) -> list[str]:
    """Collect all that is wrong with a built site."""
    return [
        *(f"dead link: {link}" for link in dead_links(site)),
        *(f"no page declares {symbol}" for symbol in undocumented(site, symbols)),
        *(f"search does not find {words!r}" for words in unfindable(site)),
    ]
