"""The documentation as a site: it builds without a warning, the search finds pages, nothing is fetched."""

from __future__ import annotations

import json
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
LIBRARIES = ("mkdocs==1.6.1", "mkdocs-material==9.8.1", "mini-racer==0.14.1")
"""What the environment has, with pins; tools/setup.sh installs the same list."""
DEADLINE_S = 180.0
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""Where an element names what a browser fetches by itself."""
FIRST = {
    "install": "installing.html",
    "out of memory": "troubleshooting.html#out-of-memory-exit-code-137",
    "exit code 137": "troubleshooting.html#out-of-memory-exit-code-137",
    "port already in use": "troubleshooting.html#port-already-in-use",
    "address already in use": "troubleshooting.html#port-already-in-use",
    "resume from checkpoint": "restarts.html#resume-from-a-checkpoint",
    "slurm": "platforms.html#slurm",
    "kubernetes": "platforms.html#kubernetes-and-kubeflow",
    "breakpoint": "debugging.html#a-breakpoint-in-one-rank",
    "job hangs": "hangs.html",
    "nccl timeout": "troubleshooting.html#nccl-and-the-network",
}
"""What newcomers search for, and what the search finds first."""
ASK = """
import json, os, sys
from pathlib import Path
from py_mini_racer import MiniRacer

site, *queries = sys.argv[1:]
(worker,) = Path(site).glob("assets/javascripts/workers/search.*.min.js")
index = json.loads(Path(site, "search/search_index.json").read_text())
engine = MiniRacer()
engine.eval("var self = globalThis, console = {warn() {}}, ask, answer;")
engine.eval("addEventListener = (_, handler) => { ask = data => handler({data}) };")
engine.eval("postMessage = data => { answer = data };")
engine.eval(worker.read_text())
engine.eval("ask({type: 0, data: %s})" % json.dumps({**index, "options": {}}))
for query in queries:
    engine.eval("ask({type: 2, data: %s})" % json.dumps(query))
    print(engine.eval("answer.data.items[0][0].location"))
sys.stdout.flush()
os._exit(0)  # the engine's thread would keep this process
"""
"""Runs the program with which a browser searches the site; the items of a page are sorted by their weight."""
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


def test_every_code_has_an_address(built: tuple[Path, str], pages: dict[Path, Page]) -> None:
    """With LAUNCHER_DOCS_URL each error and each failure report prints it."""
    lines = (CHECKOUT / "tests/unit/promises.txt").read_text(encoding="utf-8").split("\n")
    for kind, page in (("error", "errors"), ("cause", "failures")):
        codes = {line.split()[1] for line in lines if line.startswith(f"{kind} ")}
        assert len(codes) > 50
        assert codes - pages[built[0] / f"{page}.html"].names == set()


def test_nothing_is_fetched_from_another_host(built: tuple[Path, str], pages: dict[Path, Page]) -> None:
    """No font, no script, no picture: who reads it tells nobody."""
    fetched = {link for page in pages.values() for link in page.fetched}
    for path in built[0].rglob("*.css"):
        found = STYLE_URL.findall(path.read_text(encoding="utf-8"))
        fetched |= {first or second for first, second in found}
    assert len(fetched) > 5
    assert [link for link in sorted(fetched) if urlsplit(link).netloc] == []


def test_the_search_finds_the_right_page_first(built: tuple[Path, str]) -> None:
    """By the program that a browser runs, with the index that it loads."""
    done = subprocess.run(
        [site_python(), "-c", ASK, built[0], *FIRST],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert dict(zip(FIRST, done.stdout.splitlines(), strict=True)) == FIRST


def test_files_of_the_checkout_are_not_searched(built: tuple[Path, str]) -> None:
    """Examples, manifests and Dockerfiles are pages, since pages link to them; none is an answer."""
    entries = json.loads((built[0] / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    found = {entry["location"].partition("#")[0] for entry in entries}
    assert (built[0] / "files/examples/train_ddp.py.html").exists()
    assert {page for page in found if page.startswith("files/")} == set()
    assert {"security.html", "platforms.html", ""} & {page.replace("index.html", "") for page in found}


def test_the_first_part_of_the_menu_is_for_newcomers(
    pages: dict[Path, Page], built: tuple[Path, str]
) -> None:
    """A landing page, and six more."""
    menu = [link for link in pages[built[0] / "index.html"].menu if link.endswith(".html")]
    expected = ["tutorial", "coming-from", "platforms", "troubleshooting", "hangs", "images"]
    places = [menu.index(f"{name}.html") for name in expected]
    assert places == sorted(places) and menu[places[0] : places[-1] + 1] == [
        f"{name}.html" for name in expected
    ]


@pytest.mark.parametrize(
    ("page", "source"),
    [("hangs.html", "docs/hangs.md"), ("index.html", "README.md"), ("security.html", "SECURITY.md")],
)
def test_a_page_links_to_its_source(
    built: tuple[Path, str], pages: dict[Path, Page], page: str, source: str
) -> None:
    """And to the repository, by the address that the package has; the version is in the head."""
    (address,) = re.findall(r"^url = (.+)$", (CHECKOUT / "setup.cfg").read_text(), re.MULTILINE)
    (version,) = re.findall(r'"(.+)"', (CHECKOUT / "launcher/core/version.py").read_text())[-1:]
    links = pages[built[0] / page].links
    assert f"{address}/edit/main/{source}" in links and address in links
    text = (built[0] / page).read_text(encoding="utf-8")
    assert f"cluster-launcher {version}" in text
    assert 'data-md-component="source"' not in text  # which asks GitHub how many stars it has


def test_an_unknown_address_leads_to_the_search(built: tuple[Path, str]) -> None:
    text = (built[0] / "404.html").read_text(encoding="utf-8")
    article = text[text.index("<article") : text.index("</article>")]
    assert "Search for" in article and "troubleshooting.html" in article


def test_prompts_and_output_are_not_copied(built: tuple[Path, str]) -> None:
    """A block with prompts is copied as its commands, a block without as it is."""
    text = (built[0] / "hangs.html").read_text(encoding="utf-8")
    assert 'data-copy="launcher stacks"' in text and '<span class="prompt">$ </span>launcher stacks\n' in text
    for path in built[0].glob("*.html"):
        assert not re.search(r"<code>\$ ", path.read_text(encoding="utf-8")), path.name
        assert not re.search(r'data-copy="\$', path.read_text(encoding="utf-8")), path.name
