"""The documentation says what the code does: names that stand in both must be the same names."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import __version__, sources
from launcher.cli.entry import main
from launcher.cli.help import COMMANDS
from launcher.cli.main import dispatch
from launcher.core.blocks import read_blocks
from launcher.core.errors import EnvironmentUntrusted, LauncherError
from launcher.core.model import Claim
from launcher.options.flags import FLAGS
from launcher.options.parser import Parser, read_run
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.rehearse.platforms import PLATFORMS
from launcher.sources import TABLE, SourceRow, gather, make_row
from tests.golden.jobs import case_names, read_case, snapshots
from tests.process.starting import ROOT
from tools import platform_table
from tools.reference import find_nodes

pytestmark = pytest.mark.xdist_group("source")
DOCS = Path(ROOT) / "docs"
CODE = Path(ROOT) / "launcher"
VARIABLE = re.compile(r"[A-Z]{2,}[A-Z0-9]*(_[A-Za-z0-9]+)*")
WORDS = {"RANK"}  # of one part; every other word of one part in capitals is no variable
SHOWN_WRONG = "mistakes.md"
"""Its commands are wrong on purpose, and typed by `tests/process/test_mistakes.py`."""
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *(f"docs/{page.name}" for page in sorted(DOCS.glob("*.md"))),
)
MISSPELT = "--nporc"
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


def read(name: str) -> str:
    """Return a page of the documentation."""
    return (DOCS / name).read_text(encoding="utf-8")


def pages() -> list[str]:
    """Return the names of all pages."""
    return sorted(path.name for path in DOCS.glob("*.md"))


def constants(path: Path) -> Iterator[str]:
    """Yield every text that stands in quotes in a module, less its docstrings' own sentences."""
    for node in find_nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def variables(path: Path) -> set[str]:
    """Return the names of variables that stand in quotes in a module."""
    found = {text for text in constants(path) if VARIABLE.fullmatch(text)}
    return {name for name in found if "_" in name or name in WORDS}


def codes() -> Iterator[tuple[str, str]]:
    """Yield (code, file) of every problem that the launcher can report."""
    for row in read_blocks("core/errors.txt"):
        yield row.fields.get("code", row.name), "errors.txt"
    for path in sorted(CODE.rglob("*.py")):
        for node in find_nodes(path):
            if isinstance(node, ast.Call) and node.args and _reports(node.func):
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value, path.name


def _reports(function: ast.expr) -> bool:
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return name in ("Problem", "problem")


def sections(page: str) -> dict[str, str]:
    """Return the text under each heading of the second level."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("path", sorted((CODE / "sources").glob("*.py")), ids=lambda path: path.stem)
def test_every_variable_that_a_source_reads_is_documented(path: Path) -> None:
    """A variable named in a module stands in the sections of its sources, or anywhere if it is shared."""
    page = read("environments.md")
    own = [row.name for row in TABLE if row.read.partition(".")[0] == path.stem]
    text = "".join(sections(page)[name] for name in own) or page
    missing = {name for name in variables(path) if f"`{name}`" not in text}
    assert missing == set()


def test_every_source_has_a_section_in_the_order_of_the_table() -> None:
    """The order is the meaning: inner before outer."""
    expected = [row.name for row in TABLE]
    assert expected == [name for name in sections(read("environments.md")) if name in expected]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_markers_of_a_source_are_in_its_section(row: SourceRow) -> None:
    """When a source is asked is part of what a reader must know."""
    section = sections(read("environments.md"))[row.name]
    assert {marker for marker in row.markers if f"`{marker}`" not in section} == set()


def test_every_flag_and_its_variable_are_documented() -> None:
    """Each flag by its name, and by the variable that gives the same."""
    page = read("flags.md")
    names = [name for flag in FLAGS for name in (flag.name, flag.variable)]
    assert [name for name in names if not re.search(rf"`{re.escape(name)}\b", page)] == []


@pytest.mark.slow
def test_the_tables_of_flags_are_as_the_program_has_them() -> None:
    """If this fails: ``python tools/render_docs.py``, and read the difference."""
    done = subprocess.run(
        [sys.executable, str(Path(ROOT) / "tools" / "render_docs.py"), "--check"], check=False
    )
    assert done.returncode == 0, "a generated page is not up to date: run python tools/render_docs.py"


def test_every_recorded_job_and_every_source_is_in_the_table_of_platforms() -> None:
    """Each job counts once, or is of no platform; what a row names is there."""
    tables = [*(row.cases for row in platform_table.ROWS), platform_table.OF_NO_PLATFORM]
    counts = {name: sum(platform_table.matches(name, one) for one in tables) for name in case_names()}
    assert {name for name, count in counts.items() if count != 1} == set()
    named = {source for row in platform_table.ROWS for source in row.sources}
    assert named == {row.name for row in TABLE} - {"signs"}  # those that it does not understand
    likes = [like for row in platform_table.ROWS for like in row.like]
    assert sorted(likes) == sorted(PLATFORMS)
    assert all(Path(ROOT, "tests", row.real).exists() for row in platform_table.ROWS)


@pytest.mark.slow
def test_every_error_code_is_documented_once() -> None:
    """Each code has a row of its own in docs/errors.md, and each row is a code that exists."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", read("errors.md"), flags=re.MULTILINE)
    assert sorted(rows) == sorted({code for code, _ in codes()})


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A link names a file that is there, and a heading that is in it."""
    path = Path(ROOT, page)
    for target, heading in LINK.findall(path.read_text(encoding="utf-8")):
        other = path.parent / target if target else path
        assert other.exists(), f"{page}: {target}"
        if heading:
            assert heading in anchors(other.read_text(encoding="utf-8")), f"{page}: {target}#{heading}"


def anchors(page: str) -> set[str]:
    """Return what headings are called in links, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    kept = re.findall(r'^<a id="([\w-]+)"></a>$', page, flags=re.MULTILINE)  # of headings that were renamed
    return {re.sub(r"[^\w -]", "", text.lower()).strip().replace(" ", "-") for text in headings} | {*kept}


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(page), flags=re.MULTILINE | re.DOTALL)


def test_the_example_of_a_plan_is_a_real_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The snapshot in docs/snapshot.md gives the plan in docs/plan-json.md, field by field."""
    (recorded,), (expected,) = blocks("snapshot.md", "json"), blocks("plan-json.md", "json")
    file = tmp_path / "node.json"
    file.write_text(recorded, encoding="utf-8")
    assert main(["plan", "--format", "json", "--replay", str(file), "--", "./train"], {}) == 0
    version = json.loads(expected)["launcher"]
    assert json.loads(expected.replace(version, __version__)) == json.loads(capfd.readouterr().out)


def test_every_key_of_a_plan_is_documented() -> None:
    """The example has all keys of the top level, and the page explains each."""
    (example,) = blocks("plan-json.md", "json")
    text = read("plan-json.md").replace(example, "")
    keys = {key for key in _keys(json.loads(example)) if not re.search(rf"[`.]{key}`", text)}
    assert keys == set()


def _keys(document: dict[str, object]) -> Iterator[str]:
    yield from document
    for part in ("topology", "machine"):
        yield from document[part]  # type: ignore[misc]
    facts = document["facts"]
    assert isinstance(facts, dict)
    for name, fact in facts.items():
        yield name
        yield from fact
        for lost in fact["lost"]:
            yield from lost
    assert isinstance(document["settings"], list) and isinstance(document["processes"], list)
    for item in (*document["settings"], *document["processes"]):
        yield from item


def test_the_example_of_a_source_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source in docs/extending.md gives the example's job its ranks, and a login shell a sign."""
    code = types.ModuleType("launcher.sources.acme")
    exec(blocks("extending.md", "python")[0], code.__dict__)
    monkeypatch.setitem(sys.modules, code.__name__, code)
    (block,) = blocks("extending.md", "text")[:1]
    markers = tuple(block.partition("markers")[2].split())
    monkeypatch.setattr(sources, "TABLE", (make_row("acme", markers, "acme.read"), *TABLE))
    case = json.loads(blocks("extending.md", "json")[0])
    options = read_options({}, {})
    for rank, process in enumerate(case["processes"]):
        host = replay({**process, "environ": {**case["environ"], **process["environ"]}})
        topology = plan_job(host.environ, host, options, ()).topology
        assert (topology.rank, topology.node_rank, topology.world_size) == (rank, rank // 2, 4)
        assert (topology.master_addr, topology.local_size) == ("10.0.0.4", 2)
    with pytest.raises(EnvironmentUntrusted, match="no-identity"):
        plan_job(case["environ"], replay({}), options, ())


def claims() -> Iterator[Claim]:
    """Yield every claim that any source makes on any process of the golden cases."""
    for name in case_names():
        for snapshot in snapshots(read_case(name)):
            host = replay(snapshot)
            for evidence in gather(host.environ, host).evidence:
                yield from evidence.claims


def documented() -> set[tuple[str, str, str, str]]:
    """Return (source, variable, fact, trust) of every row in the tables of docs/environments.md."""
    found = set()
    for source, text in sections(read("environments.md")).items():
        names: list[str] = []
        for line in re.findall(r"^\|(.+)\|$", text, flags=re.MULTILINE):
            cells = [cell.strip() for cell in line.split("|")]
            names = re.findall(r"`(\w+)`", cells[0]) or names
            facts, trusts = cells[1].split(";"), cells[2].split(";") if len(cells) > 2 else []
            for fact, trust in zip(facts, trusts, strict=False):
                words = [re.sub(r" [01]\Z", "", word.strip()) for word in fact.split(",")]
                found |= {(source, name, word, trust.strip()) for name in names for word in words}
    return found


def test_sources_claim_what_the_tables_say() -> None:
    """Over all golden cases: no variable gives another fact, or with another trust, than documented."""
    table, seen = documented(), set()
    for claim in claims():
        name, equals, _ = claim.origin.partition("='")
        if equals and name.isidentifier():
            fact = claim.fact.value.replace("_", " ").replace("addr", "address")
            seen.add((claim.source, name, fact, claim.trust.name))
    assert len(seen) > 60
    assert seen - table == set()


def test_the_picture_is_what_is_planned() -> None:
    """If this fails: ``python tools/render_picture.py``, and look at it in a browser."""
    done = subprocess.run(
        [sys.executable, str(Path(ROOT) / "tools" / "render_picture.py"), "--check"], check=False
    )
    assert done.returncode == 0, "docs/images/flow.svg is not up to date: run python tools/render_picture.py"


def test_each_promise_of_security_is_held_by_tests() -> None:
    """Each row of the table names files of tests, and all of them are there."""
    text = (Path(ROOT) / "SECURITY.md").read_text(encoding="utf-8")
    table = text.partition("## What is promised")[2].partition("## What is not promised")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")][2:]
    held = [(promise, re.findall(r"`(tests/[^`]*)`", files)) for promise, _, files in rows]
    assert len(held) > 10 and all(files for _, files in held), held
    missing = [name for _, files in held for name in files if not (Path(ROOT) / name).is_file()]
    assert not missing
    named = re.findall(r"\*\*(.+?)\*\*", table.partition("|")[0])
    assert {against.strip() for _, against, _ in rows} == set(named)
    assert re.search(r"^### Security$", (Path(ROOT) / "CHANGELOG.md").read_text(), re.MULTILINE)


INSIDE = ("architecture.md", "internals.md")
"""Pages about the code: there is nothing to type."""


@pytest.mark.parametrize("page", [page for page in pages() if page not in INSIDE])
def test_a_page_begins_with_a_sentence_and_a_command(page: str) -> None:
    """What the reader gets, then what to type: before any other heading, list or table."""
    title, sentence, *parts = read(page).split("\n\n")
    assert title.startswith("# ") and sentence[0] not in "#-|<! ", sentence
    assert sentence.endswith(".") and len(sentence) < 240, sentence
    blocks = [index for index, part in enumerate(parts) if part.startswith(("    ", "```", "!["))]
    assert blocks and blocks[0] <= 1, parts[:2]


class Parsed(Exception):
    """The words were understood; nothing has been done yet."""


def lines(page: str) -> Iterator[str]:
    """Yield the lines of a page's blocks, continued lines in one piece."""
    text = Path(ROOT, page).read_text(encoding="utf-8").replace("\\\n", " ")
    for block in FENCED.findall(text):
        yield from block.splitlines()
    yield from re.findall(r"^    (.*)$", FENCED.sub("", text), re.MULTILINE)


def typed(page: str) -> Iterator[list[str]]:
    """Yield the words of each call of the launcher, from the name of its command on."""
    for line in lines(page):
        if "launcher " not in line or line.startswith(("launcher:", "[rank")):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue  # no line of a shell: a quotation of something else
        for index, word in enumerate(words[:-1]):
            if word == "launcher" and words[index + 1] in COMMANDS:
                rest = words[index + 1 :]
                end = next((place for place, one in enumerate(rest) if set(one) <= set("|&;<>")), len(rest))
                yield rest[:end]


ALL = [
    (page, words)
    for page in PAGES
    if SHOWN_WRONG not in page
    for words in typed(page)
    if MISSPELT not in words
]


@pytest.mark.parametrize(
    ("page", "words"), ALL, ids=[f"{page}-{' '.join(words)[:60]}" for page, words in ALL]
)
def test_a_command_on_a_page_is_understood(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flag that is not there, and no value that is none."""
    real = Parser.parse_args

    def parse(self: Parser, *given: object) -> None:
        real(self, *given)  # type: ignore[call-overload]
        raise Parsed

    monkeypatch.setattr(Parser, "parse_args", parse)
    try:
        if words[0] == "run":
            read_run(words[1:], {})
        else:
            dispatch(words, {})
    except (Parsed, SystemExit):
        return
    except LauncherError as error:
        pytest.fail(f"{page}: launcher {' '.join(words)}: {error}")


def test_the_pages_have_commands() -> None:
    assert len(ALL) > 120 and len({page for page, _ in ALL}) > 20
