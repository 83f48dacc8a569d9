"""The documentation as a site: it builds without a warning, links lead somewhere, nothing is fetched."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.process.starting import ROOT, clean_environ

pytestmark = [pytest.mark.xdist_group("site"), pytest.mark.thorough]
CHECKOUT = Path(ROOT)
LIBRARIES = ("mkdocs==1.6.1", "mkdocs-material==9.8.1")
"""What the environment has, with pins; tools/setup.sh installs the same list."""
DEADLINE_S = 180.0
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""Where an element names what a browser fetches by itself."""
STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """What a page refers to.

    Attributes:
        names: Anchors that links can name.
        links: Where its links lead, as they are written.
        fetched: What a browser loads with it.
        menu: Links of the menu.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.menu: list[str] = []
        self._depth_of_menu = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the element names."""
        found = {name: value or "" for name, value in attrs}
        self.names |= {found[name] for name in ("id", "name") if name in found}
        self._depth_of_menu += tag == "nav"
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
            if self._depth_of_menu:
                self.menu.append(found["href"])
        elif tag in FETCHED and FETCHED[tag] in found:
            self.fetched.append(found[FETCHED[tag]])
        self.fetched += [first or second for first, second in STYLE_URL.findall(found.get("style", ""))]

    def handle_endtag(self, tag: str) -> None:
        """Leave the menu."""
        self._depth_of_menu -= tag == "nav"


def site_python() -> str:
    """Return the Python that has MkDocs, as tools/setup.sh names its folder.

    Raises:
        FileNotFoundError: It has not been installed.
    """
    given = os.environ.get("LAUNCHER_TEST_SITE")
    if given:
        return f"{given}/bin/python"
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(os.environ.get("LAUNCHER_CACHE") or os.path.join(home_cache, "cluster-launcher"))
    recipes = sorted(cache.glob("site-*/.recipe"))
    made = [path.parent for path in recipes if set(LIBRARIES) <= set(path.read_text().split())]
    if not made:
        raise FileNotFoundError(f"no {cache}/site-* of {' '.join(LIBRARIES)}: run bash tools/test.sh")
    return f"{made[-1]}/bin/python"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Build the site once; return its folder and what MkDocs said."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [site_python(), "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=CHECKOUT,
        env={**clean_environ(), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stderr


@pytest.fixture(scope="module")
def pages(built: tuple[Path, str]) -> dict[Path, Page]:
    """Return every page of the site by its path."""
    folder, _ = built
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}


def targets(pages: dict[Path, Page]) -> Iterator[tuple[Path, str, Path, str]]:
    """Yield (page, link, file, anchor) of every link within the site."""
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # it is shown at any address, and so links from the root
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            yield path, link, target / "index.html" if target.is_dir() else target, unquote(parts.fragment)


def test_it_builds_without_a_warning(built: tuple[Path, str]) -> None:
    """--strict stops at MkDocs' own warnings; this is about all others."""
    assert [line for line in built[1].splitlines() if not line.startswith("INFO ")] == []


def test_every_page_is_in_the_menu(built: tuple[Path, str], pages: dict[Path, Page]) -> None:
    """A page that nothing leads to is not read."""
    folder, _ = built
    listed = {(folder / link).resolve() for link in pages[folder / "index.html"].menu}
    sections = {
        target for _, _, target, _ in targets({path: pages[path] for path in listed if path in pages})
    }
    written = {folder / f"{path.stem}.html" for path in (CHECKOUT / "docs").glob("*.md")}
    assert written - listed - sections == set()


def test_every_link_leads_to_a_page_and_an_anchor(pages: dict[Path, Page]) -> None:
    """Also those of the menu, and from and to the files outside of docs/."""
    lost = set()
    for path, link, target, anchor in targets(pages):
        known = pages.get(target)
        if not target.exists() or (anchor and known is not None and anchor not in known.names):
            lost.add(f"{path.name}: {link}")
    assert lost == set()


def test_nothing_is_fetched_from_another_host(built: tuple[Path, str], pages: dict[Path, Page]) -> None:
    """No font, no script, no picture: who reads it tells nobody."""
    fetched = {link for page in pages.values() for link in page.fetched}
    for path in built[0].rglob("*.css"):
        found = STYLE_URL.findall(path.read_text(encoding="utf-8"))
        fetched |= {first or second for first, second in found}
    assert len(fetched) > 5
    assert [link for link in sorted(fetched) if urlsplit(link).netloc] == []
