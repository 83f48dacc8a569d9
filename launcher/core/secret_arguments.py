"""Arguments that are secret by position: ``sshpass -p X``, ``curl -u me:X``, ``wandb login X``."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Span = tuple[int, int]

# Programs, and their options with a secret argument, attached or as the next word. "+": only with one of
# these words; "[": only attached, because the word after "-p" is a database; "]": never attached.
_OPTIONS = {
    name: rule
    for names, rule in {
        "sshpass mongo mongosh mongodump mongorestore mongoexport mongoimport twine cqlsh useradd usermod"
        " rdesktop beeline racadm": "-p",
        "sqlcmd bcp ipmitool zip unzip mosquitto_pub mosquitto_sub": "-P",
        "ldapsearch ldapadd ldapmodify ldapwhoami": "-w",
        "apptainer buildah crane docker helm nerdctl oc oras podman singularity skopeo": "-p +login",
        "az": "-p --value +login|secret",
        "aws": "--value +SecureString",
        "bx cf ibmcloud": "-p +login",
        "mysql mysqldump mysqladmin mysqlimport mysqlsh mariadb mariadb-dump mariadb-admin": "[-p",
        "7z 7za unrar": "[-p",
        "rar": "[-hp [-p",
        "redis-cli": "-a",
        "ldappasswd": "-s",
        "ssh-keygen": "-N -P",
        "snowsql": "-p",
        "smbpasswd kadmin kadmin.local": "-w",
        "security": "-w +add-generic-password",
        "doctl hcloud": "-t]",
        "airflow": "-p] +users",
        "doveadm": "-p +pw",
        "signtool": "/p]",
        "certutil": "-p]",
        "openssl": "-k]",
        "snmpwalk snmpget snmpset snmpbulkwalk": "-A -X -c",
        "xfreerdp": "[/p:",
        "wandb": "--key",
        "clearml-init": "--key",
        "gh": "-b --body +secret",
    }.items()
    for name in names.split()
}
# Options with "user:X", where the secret is what follows the user
_USERS = {
    "curl": ("-u", "-U", "--user", "--proxy-user", "-E", "--cert", "-b", "--cookie"),
    "etcdctl": ("--user",),
    "lftp": ("-u",),
    "smbclient": ("-U",),
    "rpcclient": ("-U",),
    "http": ("-a",),
    "https": ("-a",),
    "xh": ("-a",),
}
# Words that are no options: X is secret, _ is any, and k=X is a value after any name
_PLACES = (
    *("cargo login X", "htpasswd _ X", "mc alias set _ _ _ X", "mc host add _ _ _ X", "mc user add _ _ X"),
    *(
        "net use _ _ X",
        "ngrok authtoken X",
        "poetry config _ _ X",
        "poetry config pypi-token.pypi X",
        "rabbitmqctl add_user _ X",
    ),
    *("rabbitmqctl change_password _ X", "rclone obscure X", "vault login X", "vault kv put _ k=X"),
    *("vault write _ k=X", "wandb login X", "wpa_passphrase _ X", "fly secrets set k=X", "sqlplus u/X"),
    *("mysqladmin password X", "grafana-cli admin reset-admin-password X", "bw login _ X", "bw unlock X"),
    *("flyctl secrets set k=X", "kubectl create secret generic _ k=X"),
)
_PLACES_OF: dict[str, list[list[str]]] = {}
for _row in _PLACES:
    _PLACES_OF.setdefault(_row.split()[0], []).append(_row.split()[1:])
PROGRAMS = frozenset((*_OPTIONS, *_USERS, *_PLACES_OF))
_PROGRAM = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(sorted(PROGRAMS, key=lambda name: (-len(name), name)))})(?![\w.=:@-])"
)
_WORD = re.compile(r""""((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|((?:[^\s"',\[\]`()]|,(?=[^\s"',]))+)""")
_GAP = re.compile(r"""(?:[ \t,\[\]]|\\\r?\n[ \t]{0,32})+""")
SWITCHES = ("--relogin", "--verify", "--cloud", "-no-print")
WORDS_MAX = 40
_USER = re.compile(r"[^:%,=]{0,64}[:%,=](?!\d+\Z)(?=.)")


def find_arguments(text: str) -> Iterator[Span]:
    """Yield the (start, end) of arguments in a text that are secret by position."""
    for match in _PROGRAM.finditer(text):
        at = match.end() + (text[match.end() : match.end() + 1] in ("'", '"'))
        words: list[str] = []
        places: list[list[int]] = []
        while len(words) < WORDS_MAX:
            gap = _GAP.match(text, at)
            word = _WORD.match(text, gap.end() if gap else at)
            if word is None or word[0] in ("|", "||", "&&", ";", "&"):
                break
            at = word.end()
            if gap is None and words:
                if not word[0].startswith(("'", '"')):
                    break
                words[-1] += word[0]  # -p'X'
                places[-1][1] = at
            else:
                words.append(word[word.lastindex or 0])
                places.append(list(word.span(word.lastindex or 0)))
            if word[0].endswith(";"):
                break
        for index, offset in find_words(match[0], words):
            start, end = places[index]
            start += offset
            if text[start] in "'\"" and text[start] == text[end - 1] and end - start > 2:
                start, end = start + 1, end - 1
            yield start, end


def find_words(program: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (index, offset) of each secret argument of a program: it is secret from that character on."""
    rule = _OPTIONS.get(program, "").split()
    options = rule if not rule or rule[-1][0] != "+" or {*rule[-1][1:].split("|")} & {*words} else []
    users = _USERS.get(program, ())
    for index, (before, word) in enumerate(zip(("", *words), words, strict=False)):
        attached = next((o.lstrip("[") for o in options if word.startswith(o.lstrip("["))), "")
        name, equals, _ = word.partition("=")
        short = re.match(r"-[a-zA-Z]{0,8}(?=.)", word) if word[:2] != "--" else None
        if before in options or f"{before}]" in options:
            yield index, 0
        elif attached[:2] != "--" and 0 < len(attached) < len(word):
            yield index, len(attached)
        elif equals and word[:2] == "--" and name in options:
            yield index, len(name) + 1
        elif before in users or (re.fullmatch(r"-[a-zA-Z]{1,8}", before) and f"-{before[-1]}" in users):
            yield from _find_user(index, word, 0)
        elif equals and name in users:
            yield from _find_user(index, word, len(name) + 1)
        elif short is not None and word[:2] in users:
            yield from _find_user(index, word, 2)
        elif program == "kubectl" and "--from-literal" in (before, name):
            yield index, word.find("=", len(name) + 1 if name == "--from-literal" else 0) + 1
    for place in _PLACES_OF.get(program, ()):
        yield from _find_place(place, words)


def _find_user(index: int, word: str, start: int) -> Iterator[tuple[int, int]]:
    user = _USER.match(word, start)
    if user:
        yield index, user.end()


def _find_place(place: list[str], words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the secret words of a row of `_PLACES`."""
    named = [
        (index, word)
        for index, (before, word) in enumerate(zip(("", *words), words, strict=False))
        if not word.startswith("-") and _ends_options(before)
    ]
    fixed = next((count for count, part in enumerate(place) if part[-1] in "_X"), len(place))
    for first in range(len(named)):
        if [word for _, word in named[first : first + fixed]] != place[:fixed]:
            continue
        rest = zip(place[fixed:], named[first + fixed :], strict=False)
        for part, (index, word) in rest:
            if part == "X":
                yield index, 0
            elif part == "u/X" and "/" in word:
                yield index, word.index("/") + 1
        if place[-1] == "k=X":
            yield from (
                (index, word.index("=") + 1) for index, word in named[first + len(place) - 1 :] if "=" in word
            )
        return


def _ends_options(word: str) -> bool:
    """Return whether the next word cannot be an option's argument."""
    return not word.startswith("-") or "=" in word or word in SWITCHES
