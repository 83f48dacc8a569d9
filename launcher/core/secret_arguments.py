"""Arguments that are secret by position: ``sshpass -p X``, ``curl -u me:X``, ``wandb login X``."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Span = tuple[int, int]

# Programs, and the option with a secret argument, attached or as the next word
_OPTIONS = {
    **dict.fromkeys(
        ("sshpass", "mongo", "mongosh", "mongodump", "mongorestore", "mongoexport", "mongoimport"), "-p"
    ),
    **dict.fromkeys(("sqlcmd", "bcp", "ipmitool", "zip", "unzip", "mosquitto_pub", "mosquitto_sub"), "-P"),
    **dict.fromkeys(("ldapsearch", "ldapadd", "ldapmodify", "ldapwhoami"), "-w"),
    "redis-cli": "-a",
}
# Only attached: the word after "-p" is a database
_ATTACHED = dict.fromkeys(
    (
        "mysql",
        "mysqldump",
        "mysqladmin",
        "mysqlimport",
        "mariadb",
        "mariadb-dump",
        "mariadb-admin",
        "7z",
        "7za",
    ),
    "-p",
)
# Only with the word "login"
_LOGINS = dict.fromkeys(
    (
        *("apptainer", "az", "buildah", "cf", "crane", "docker", "helm"),
        *("nerdctl", "oc", "oras", "podman", "singularity", "skopeo"),
    ),
    "-p",
)
# The part after the user name and its separator
_USERS = {
    "curl": ("-u", "-U", "--user", "--proxy-user"),
    "lftp": ("-u",),
    "smbclient": ("-U",),
    "rpcclient": ("-U",),
    "http": ("-a",),
}
# The first argument after this word that is not an option
_PLACES = {
    "wandb": "login",
    "vault": "login",
    "ngrok": "authtoken",
    "rclone": "obscure",
}
PROGRAMS = frozenset((*_OPTIONS, *_ATTACHED, *_LOGINS, *_USERS, *_PLACES))
_PROGRAM = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(sorted(PROGRAMS, key=lambda name: (-len(name), name)))})(?![\w.=:@-])"
)
_WORD = re.compile(r""""((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|([^\s"',\[\]`()]+)""")
_GAP = re.compile(r"""(?:[ \t,\[\]]|\\\r?\n[ \t]{0,32})+""")
SWITCHES = ("--relogin", "--verify", "--cloud", "-no-print")
WORDS_MAX = 40
_USER = re.compile(r"[^:%,]{0,64}[:%,](?!\d+\Z)(?=.)")


def find_arguments(text: str) -> Iterator[Span]:
    """Yield the (start, end) of arguments in a text that are secret by position."""
    for match in _PROGRAM.finditer(text):
        at = match.end() + (text[match.end() : match.end() + 1] in ("'", '"'))
        words: list[str] = []
        starts: list[int] = []
        while len(words) < WORDS_MAX:
            gap = _GAP.match(text, at)
            word = _WORD.match(text, gap.end() if gap else at)
            if word is None or (gap is None and words) or word[0] in ("|", "||", "&&", ";", "&"):
                break
            words.append(word[word.lastindex or 0])
            starts.append(word.start(word.lastindex or 0))
            at = word.end()
            if word[0].endswith(";"):
                break
        for index, offset in find_words(match[0], words):
            yield starts[index] + offset, starts[index] + len(words[index])


def find_words(program: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (index, offset) of each secret argument of a program: it is secret from that character on."""
    option = _OPTIONS.get(program) or (_LOGINS.get(program) if "login" in words else None)
    attached = option or _ATTACHED.get(program)
    users = _USERS.get(program, ())
    place = _PLACES.get(program)
    for index, (before, word) in enumerate(zip(("", *words), words, strict=False)):
        if option and before == option:
            yield index, 0
        elif attached and word.startswith(attached) and len(word) > len(attached):
            yield index, len(attached)
        elif before in users:
            user = _USER.match(word)
            if user:
                yield index, user.end()
        elif word[:2] in users and word[:2] != "--":
            user = _USER.match(word, 2)
            if user:
                yield index, user.end()
        elif place in words[:index] and not word.startswith("-") and _ends_options(before):
            yield index, 0
            return


def _ends_options(word: str) -> bool:
    """Return whether the next word cannot be an option's argument."""
    return not word.startswith("-") or "=" in word or word in SWITCHES
