"""Parser for shell scripts that start training: finds commands, their words, and whether each certainly runs.

It runs and looks up nothing. It recognizes functions, loops and conditions, but does not evaluate them. It
stops at text that it cannot parse.

Source: POSIX, Shell Command Language, 2.2 Quoting, 2.7 Redirection, 2.9 Shell Commands.
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

WORD, REDIRECTION = "word", "redirection"
ENDS_WORD = frozenset(" \t\n;&|()<>")
OPERATORS = (";;&", ";;", ";&", ";", "&&", "&", "||", "|&", "|", "(", ")")
REDIRECTIONS = ("&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", "<>", ">|", ">", "<")
HERE_DOCUMENTS = ("<<", "<<-")
PATTERNS = frozenset("*?[]~{}")
OPENS, CLOSES = ("if", "for", "while", "until", "case", "select", "{"), ("fi", "done", "esac", "}")
HEADED = ("for", "case", "select")
"""Keywords followed by words that are not a command."""
PASSED = ("then", "do", "else", "elif", "!", "time")
"""Keywords followed by a command."""
JOINS = ("&&", "||", "|", "|&")
"""Operators after which the command may begin on the next line."""
NEEDY = (";", "&", *JOINS)
"""Operators that need a command before them."""
FUNCTION = "function"
STEPS = ("cd", "pushd", "export", "set", "source", ".", "mkdir", "ulimit", "module")
"""Commands that are expected to succeed: ``&&`` after them does not make the next command conditional."""


class UnreadableError(Exception):
    """A text that cannot be parsed."""


@frozen
class Line:
    """A simple command.

    Attributes:
        words: Its words without quotes; variables and patterns stay as written. Empty if the line only sets
            variables or creates files.
        replaced: Indices of the words that a shell would expand: variables, patterns.
        is_certain: Whether it runs unconditionally, provided that nothing before it fails.
        is_plain: Whether it is certain and consists of plain words, so that a shell would only start it.
    """

    words: tuple[str, ...]
    replaced: tuple[int, ...] = ()
    is_certain: bool = True
    is_plain: bool = True


def read_lines(text: str) -> list[Line]:
    """Return the simple commands of a shell's text, in order, up to text that cannot be parsed."""
    found: list[Line] = []
    reader = _Reader()
    try:
        for kind, word, is_replaced in _split(text):
            line = reader.take(kind, word, is_replaced)
            if line is not None:
                found.append(line)
            if reader.has_ended:
                return found
        if reader.is_open:
            raise UnreadableError
    except UnreadableError:
        return [Line(line.words, line.replaced, line.is_certain, False) for line in found]
    return found


class _Reader:
    """Builder of commands from words and operators; tracks what may keep a command from running."""

    def __init__(self) -> None:
        self.has_ended = False
        self._words: list[tuple[str, bool]] = []
        self._is_bare = True
        self._before = ""
        self._blocks = self._parentheses = 0
        self._is_asked = self._may_have_ended = self._has_target = False

    @property
    def is_open(self) -> bool:
        """Whether a block, parenthesis or operator is still open."""
        return self._blocks > 0 or self._parentheses > 0 or self._before in JOINS

    def take(self, kind: str, word: str, is_replaced: bool) -> Line | None:
        """Take the next token; return the command that it completes, if any."""
        if kind == REDIRECTION:
            self._has_target, self._is_bare = True, False
        elif kind != WORD:
            return self._end(word)
        elif self._has_target:
            self._has_target = False
        elif not self._words and (self._is_keyword(word) or _is_assignment(word)):
            self._is_bare = False
        elif word == "{" and self._words and self._words[0][0] == FUNCTION:
            self._blocks, self._words = self._blocks + 1, []
        else:
            self._words.append((word, is_replaced))
        return None

    def _is_keyword(self, word: str) -> bool:
        if word in OPENS:
            self._blocks += 1
            if word in HEADED:
                self._words.append((word, False))
        elif word in CLOSES:
            self._blocks -= 1
            if self._blocks < 0:
                raise UnreadableError
        return word in OPENS or word in CLOSES or word in PASSED

    def _end(self, operator: str) -> Line | None:
        if operator == "\n" and not self._words and self._before in JOINS:
            return None
        if operator in NEEDY and not self._words and self._is_bare:
            raise UnreadableError
        if operator == "(" and self._words:
            self._words = []  # the name of a function
        is_certain = not (self._blocks or self._parentheses or self._is_asked or self._may_have_ended)
        line = self._make(is_certain, operator) if self._words or not self._is_bare else None
        name = self._words[0][0] if self._words else ""
        if operator == "(":
            self._parentheses += 1
        elif operator == ")":
            self._parentheses = max(0, self._parentheses - 1)
        if operator == "||" or (operator == "&&" and name not in STEPS):
            self._is_asked = True
        elif operator not in ("&&", "|", "|&", "(", ")"):
            self._is_asked = False
        self._words, self._is_bare, self._has_target = [], operator in ("\n", ";"), False
        self._before = operator
        if line is not None and line.words:
            self._note_end(line)
        return line

    def _make(self, is_certain: bool, operator: str) -> Line:
        is_bare = self._is_bare and operator in ("\n", ";")
        words = tuple(word for word, _ in self._words)
        replaced = tuple(place for place, (_, is_replaced) in enumerate(self._words) if is_replaced)
        return Line(words, replaced, is_certain, is_certain and is_bare and not replaced)

    def _note_end(self, line: Line) -> None:
        """Note that the text ends, or may end, with this command.

        A conditional ``exit 1`` does not count: the job fails then.
        """
        ends = line.words[0] == "exit" or (line.words[0] == "exec" and len(line.words) > 1)
        is_failure = line.words[0] == "exit" and "".join(line.words[1:2]).strip("0").isdecimal()
        if ends and line.is_certain:
            self.has_ended = True
        elif ends and not is_failure:
            self._may_have_ended = True


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.removesuffix("+").isidentifier()


def _split(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (kind, text, is replaced) for words, redirections, and operators, whose kind is the operator."""
    place, awaited = 0, list[tuple[str, bool]]()
    while place < len(text):
        char = text[place]
        if char in " \t":
            place += 1
        elif char == "#":
            place = _find(text, "\n", place)
        elif text.startswith("\\\n", place):
            place += 2
        elif char == "\n":
            yield char, char, False
            place = _skip_documents(text, place + 1, awaited)
            awaited = []
        elif char in "<>" and text[place + 1 : place + 2] == "(":
            place = _skip_nested(text, place + 1)
            yield WORD, "<()", True
        elif operator := next((one for one in REDIRECTIONS if text.startswith(one, place)), ""):
            place += len(operator)
            if operator in HERE_DOCUMENTS:
                place += len(text[place:]) - len(text[place:].lstrip(" \t"))
                end, _, place = _read_word(text, place)
                awaited.append((end, operator == "<<-"))
                yield REDIRECTION, operator, False
                yield WORD, end, False
            else:
                yield REDIRECTION, operator, False
        elif operator := next((one for one in OPERATORS if text.startswith(one, place)), ""):
            place += len(operator)
            yield operator, operator, False
        else:
            word, is_replaced, place = _read_word(text, place)
            if not (word.isdecimal() and text[place : place + 1] in ("<", ">")):
                yield WORD, word, is_replaced
    yield "\n", "\n", False


def _find(text: str, what: str, place: int) -> int:
    found = text.find(what, place)
    return found if found >= 0 else len(text)


def _skip_documents(text: str, place: int, awaited: list[tuple[str, bool]]) -> int:
    """Return the index after the here-documents that end with these lines."""
    for end, is_indented in awaited:
        line = ""
        while place < len(text):
            stop = _find(text, "\n", place)
            line, place = text[place:stop], stop + 1
            if (line.lstrip("\t") if is_indented else line) == end:
                break
        else:
            raise UnreadableError
    return place


def _read_word(text: str, place: int) -> tuple[str, bool, int]:
    """Return the word at an index, whether a shell expands something in it, and where it ends."""
    word, is_replaced = "", False
    while place < len(text) and text[place] not in ENDS_WORD:
        char = text[place]
        if char == "\\":
            word += text[place + 1 : place + 2].replace("\n", "")
            is_replaced = is_replaced or text[place + 1 : place + 2] != "\n"
            place += 2
        elif char == "'":
            stop = _close(text, "'", place)
            word += text[place + 1 : stop]
            place = stop + 1
        elif char == '"':
            inner, has_variable, place = _read_quoted(text, place)
            word, is_replaced = word + inner, is_replaced or has_variable
        elif char in "$`":
            stop = _skip_replaced(text, place)
            word, is_replaced, place = word + text[place:stop], True, stop
        else:
            is_replaced = is_replaced or char in PATTERNS
            word += char
            place += 1
    return word, is_replaced and word not in ("{", "}", "[", "]", "[[", "]]"), place


def _close(text: str, what: str, place: int) -> int:
    stop = text.find(what, place + 1)
    if stop < 0:
        raise UnreadableError
    return stop


def _read_quoted(text: str, place: int) -> tuple[str, bool, int]:
    """Return the text in double quotes, whether a shell expands something in it, and the index after it."""
    word, is_replaced = "", False
    place += 1
    while place < len(text) and text[place] != '"':
        char = text[place]
        if char == "\\" and text[place + 1 : place + 2] in ("$", "`", '"', "\\", "\n"):
            word += text[place + 1].replace("\n", "")
            is_replaced = is_replaced or text[place + 1] != "\n"
            place += 2
        elif char in "$`":
            stop = _skip_replaced(text, place)
            word, is_replaced, place = word + text[place:stop], True, stop
        else:
            word += char
            place += 1
    if place >= len(text):
        raise UnreadableError
    return word, is_replaced, place + 1


def _skip_replaced(text: str, place: int) -> int:
    """Return the index after a variable or a command substitution."""
    if text[place] == "`":
        return _close(text, "`", place) + 1
    after = text[place + 1 : place + 2]
    if after in ("(", "{"):
        return _skip_nested(text, place + 1)
    if after == "'":
        return _close(text, "'", place + 1) + 1
    stop = place + 1
    while stop < len(text) and (text[stop].isalnum() or text[stop] == "_"):
        stop += 1
    return stop if stop > place + 1 else place + 1 + (after != "" and after in "@*#?$!-")


def _skip_nested(text: str, place: int) -> int:
    """Return the index after a text in parentheses or braces."""
    opening, closing, depth = text[place], ")" if text[place] == "(" else "}", 0
    while place < len(text):
        char = text[place]
        if char == "\\":
            place += 1
        elif char == "'" and opening == "(":
            place = _close(text, "'", place)
        elif char == '"':
            place = _read_quoted(text, place)[2] - 1
        elif char in (opening, closing):
            depth += 1 if char == opening else -1
            if depth == 0:
                return place + 1
        place += 1
    raise UnreadableError
