"""Hooks of MkDocs: files outside of docs/ that its pages link to become pages of the site.

The site contains these files: Markdown as a page with its own name, a picture as it is, any other file as a
page with its text, a directory as a list of its files. Only the named pages are in the search index. On disk
the links stay as they are, for readers of the checkout.
"""

from __future__ import annotations

import html as escapes
import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
NAMED = {
    "README.md": "index.md",
    "benchmarks/RESULTS.md": "results.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files outside of docs/ that have a place in the menu."""
FIRST = {"boost": 2}
"""Weight in the search of the first part of the menu, for newcomers."""
LAST = {"boost": 0.1}
SEARCHED_LAST = (
    "changes.md",
    "contributing.md",
    "architecture.md",
    "internals.md",
    "causes.md",
    "day.md",
    "environments.md",
    "variables.md",
)
"""Pages that mention everything, and answer few questions."""
UNSEARCHED = ("results.md",)
"""Measurements: they mention every word that a reader may search for."""
WIDE = ("troubleshooting.md",)
"""Pages whose tables need the room of the table of contents."""
LANGUAGES = {".py": "python", ".yml": "yaml", ".json": "json", ".sh": "bash"}
PICTURE = ".svg"
VERSION = re.compile(r'__version__ = "(.+)"')
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
CODE = re.compile(r"<pre.*?</pre>|<code>([^<]*)</code>", re.DOTALL)
WHOLE = '<span class="whole">{}</span>'
WHOLE_LENGTH = 36
TABLE_CODE = re.compile(r"`[^`\n]*`")
BLOCK = re.compile(r'<div class="highlight"><pre>(.*?)</pre></div>', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
CODED = ("errors.md", "failures.md")
"""Pages with tables of codes."""
ROW = re.compile(r"<tr>\s*<td[^>]*><code>([a-z0-9-]+)</code></td>")
PROMPT = "$ "
SHOWN_PROMPT = re.compile(r"(^|<code>)\$ ", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the version to the name of the site, which is in the head of every page."""
    (version,) = VERSION.findall((ROOT / "launcher/core/version.py").read_text(encoding="utf-8"))
    config.site_name = f"{config.site_name} {version}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages for all files that are linked to, and for the files that these link to."""
    from mkdocs.structure.files import File

    todo = [*NAMED, *(f"{DOCS}/{file.src_uri}" for file in files.documentation_pages())]
    done: set[str] = set()
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        text = page_text(path)
        if not path.startswith(f"{DOCS}/"):
            file = File.generated(config, page_name(path), content=text)
            file.edit_uri = f"../{path}"
            files.append(file)
        if path.endswith(PICTURE):
            continue
        todo.extend(target for target in linked(text, path) if not target.startswith(f"{DOCS}/"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the pages of the site, unescape pipes in tables, and weigh the page for the search."""
    uri = page.file.src_uri
    if uri in WIDE:
        page.meta["hide"] = ["toc"]
    path = next((path for path in NAMED if page_name(path) == uri), f"{DOCS}/{uri}")
    if uri.startswith("files/"):
        path = uri.removeprefix("files/").removesuffix(".md")
        page.meta["search"] = {"exclude": True}
    elif uri in UNSEARCHED:
        page.meta["search"] = {"exclude": True}
    elif uri in SEARCHED_LAST:
        page.meta["search"] = LAST
    elif uri in newcomers(config):
        page.meta["search"] = FIRST
    return plain_pipes(relink(markdown, path))


def newcomers(config: MkDocsConfig) -> list[str]:
    """Return the pages of the first part of the menu."""
    (pages,) = config.nav[0].values()
    return [uri for page in pages for uri in page.values()]


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let inline code wrap after pipes and spaces, not in --flags; copy commands without their output.

    Messages lead to the rows of codes, see `launcher.core.errors.name_page`.
    """
    if page.file.src_uri in CODED:
        named: set[str] = set()
        html = ROW.sub(lambda match: name_row(match, named), html)
    html = CODE.sub(lambda match: break_words(match[1]) if match[1] else match[0], html)
    return BLOCK.sub(add_commands, html)


def name_row(match: re.Match[str], named: set[str]) -> str:
    """Return the begin of a table's row, as an anchor with the name of its code if that is the first one."""
    code = match[1]
    if code in named:
        return match[0]
    named.add(code)
    return match[0].replace("<td", f'<td id="{code}"', 1)


def add_commands(match: re.Match[str]) -> str:
    """Return a block with what its copy button copies, if it has prompts."""
    commands = typed(escapes.unescape(TAG.sub("", match[1])))
    if not commands:
        return match[0]
    shown = SHOWN_PROMPT.sub(r'\1<span class="prompt">$ </span>', match[1])
    return f'<div class="highlight" data-copy="{escapes.escape(commands)}"><pre>{shown}</pre></div>'


def typed(text: str) -> str:
    """Return the commands of a block: the lines after a prompt, with the lines that continue them."""
    found: list[str] = []
    continued = False
    for line in text.splitlines():
        if line.startswith(PROMPT) or continued:
            found.append(line.removeprefix(PROMPT))
            continued = line.endswith("\\")
    return "\n".join(found)


def break_words(text: str) -> str:
    """Return inline code that keeps flags whole, and may wrap between alternatives."""
    words = text.replace("|", "|<wbr>").split(" ")
    return f"<code>{' '.join(WHOLE.format(word) if is_whole(word) else word for word in words)}</code>"


def is_whole(word: str) -> bool:
    """Whether a word could wrap at a hyphen, and is short enough to be kept whole."""
    return "-" in word and "|" not in word and len(word) <= WHOLE_LENGTH


def linked(text: str, path: str) -> list[str]:
    """Return the files and folders of the checkout that a text links to, from its root."""
    found = [resolve(target, path) for target in LINK.findall(text)]
    return [target for target in found if (ROOT / target).exists()]


def resolve(target: str, path: str) -> str:
    """Return the target of a link in a file of the checkout, from the root of the checkout."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def page_name(path: str) -> str:
    """Return the name of the page that shows a file of the checkout."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if path.endswith(PICTURE):
        return f"files/{path}"
    return NAMED.get(path, f"files/{path}.md")


def relink(text: str, path: str) -> str:
    """Return a file's text with its links as the site needs them; links without a target stay as they are."""

    def lead(match: re.Match[str]) -> str:
        target = resolve(match[1], path)
        if not (ROOT / target).exists():
            return match[1]
        return posixpath.relpath(page_name(target), posixpath.dirname(page_name(path)) or ".")

    return LINK.sub(lead, text)


def page_text(path: str) -> str:
    """Return the Markdown that shows a file or folder of the checkout; for a picture its own text."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(f"{folder}/{name}" for folder, _, names in os.walk(place) for name in names)
        rows = [posixpath.relpath(name, place) for name in names if "__pycache__" not in name]
        base = posixpath.basename(path)
        return f"# {path}\n\n" + "".join(f"- [{row}]({base}/{row})\n" for row in rows)
    text = place.read_text(encoding="utf-8")
    if place.suffix in (".md", PICTURE):
        return text
    language = LANGUAGES.get(place.suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def plain_pipes(text: str) -> str:
    r"""Return a text with ``|`` for ``\|`` in code in tables; only GitHub needs the backslash."""
    lines = [
        TABLE_CODE.sub(lambda match: match[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in text.split("\n")
    ]
    return "\n".join(lines)
