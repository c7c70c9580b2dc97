"""Check the built site: pages load nothing from other hosts, and links and anchors are there.

python tools/site/check_pages.py build/site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "preconnect",
    "prefetch",
    "dns-prefetch",
    "modulepreload",
}
_STYLE = re.compile(r"(?:url\(|@import\s+)[\"']?(https?:)?//", re.IGNORECASE)


class Page(HTMLParser):
    """The resources that a page loads, its anchors, and its links."""

    def __init__(self, text: str) -> None:
        """Read a page."""
        super().__init__()
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag loads, names or links."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if tag == "a":
            self.links.append(values.get("href", ""))
        if tag in _LOADED:
            self.resources.append(values.get(_LOADED[tag], ""))
        if tag == "link" and _LINKS & set(values.get("rel", "").split()):
            self.resources.append(values.get("href", ""))


def faults(site: Path) -> list[str]:
    """Return what is wrong with the pages of a site."""
    pages = {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    found = [
        f"{path.relative_to(site)} loads {resource}"
        for path, page in pages.items()
        for resource in page.resources
        if resource.startswith(("http:", "https:", "//"))
    ]
    found += [
        f"{path.relative_to(site)} loads from another host"
        for path in (*pages, *site.rglob("*.css"))
        if _STYLE.search(path.read_text("utf-8"))
    ]
    for path, page in pages.items():
        for link in page.links if path.name != "404.html" else ():
            place, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", place):
                continue
            target = (path.parent / place).resolve() if place else path
            if not target.exists():
                found.append(f"{path.relative_to(site)} links to {link}, which is not there")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{path.relative_to(site)} links to {link}, which has no such anchor")
    return found


def main() -> None:
    """Print what is wrong."""
    site = Path(sys.argv[1]).resolve()
    wrong = faults(site)
    if wrong:
        sys.exit("\n".join(wrong))
    pages = [*site.rglob("*.html")]
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(
        f"{site.relative_to(ROOT)}: {len(pages)} pages, {size / 1e6:.1f} MB, no external resource"
    )


if __name__ == "__main__":
    main()
