"""Values that are hard to read right: numbers, hosts, texts, JSON; for fuzzers and tests of properties."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from launcher import sources
from launcher.options.flags import FLAGS

NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)*")

NUMBERS = (
    *("0", "1", "2", "3", "4", "8", " 2 ", "-1", "+1", "1.0", "1e3", "0x10", "1_000", "007"),
    *("16777215", "16777216", "999999999", "4294967296", "9" * 30, "9" * 5000),
    *(
        *("\u0663", "\uff12", "\xb2", "\u2167", "\U0001d7da", "1\n", "1\n2", "2:2", "1:4", ":", "auto"),
        *("gpu", "cpu"),
    ),
    *("True", "2(x2)", "3,1", "1(x99999999)", "0(x1)", "(x2)"),
)
HOSTS = (
    *("10.0.0.4", "node0", "localhost", "127.0.0.1", "::1", "0.0.0.0", "fe80::1%eth0"),
    *("fd00::1", "[fd00::1]", "[fd00::1]:6000", "fd00::1:6000", "[fd00::1", "fd00::1]:1", "[]", "[]:1"),
    *("10.0.0.4:6000", "10.0.0.4:0", "10.0.0.4:65536", "host:", ":6000", "a:b:c", "-oProxy=x", "--help"),
    *("x" * 254, "x" * 100_000, "a b", "a;b", "$(id)", "nœud", "хост", "node[0-1]", "node[0-99999999]"),
    *("n[1-2][1-2]", "n[", "n]", "n[1-", "n[5-1]", "[1-3]"),
)
JSON_TEXTS = (
    *("[" * 100_000, '{"cluster":' * 20_000, "[" * 500 + "]" * 500, '{"a":1,"a":2}', "{}", "[]", "null"),
    *('"\\ud800"', "NaN", "-Infinity", "9" * 5000, '{"rank":"RANK\\u0000"}', '["algo-1","algo-1"]'),
    *('["algo-1"]', '[""]', '["\\u202ealgo"]', '[["a"]]'),
)
TEXTS = (
    *("", " ", "\t", "\n", "\r\n", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x7f", "\x85", "\u2028"),
    *("\udcff", "a\udc80b", "\u202egnp", "\u200b", "\ufeff1", "$HOME", "`id`", "'", '"', "\\", "%s"),
    *("[red]x[/red]", "[/]", "{0}", "a=b", "x" * 100_000, "7," * 50_000, "\U0010ffff", "\ue000"),
    *("GPU-1,GPU-2", "0,1,2,3", "NoDevFiles", "-1", "prterun-\n-1@1", "1.0;tcp://:1", "7.1;tcp6://[]:1"),
    *("1.99999999;", "99999999999999999999.1;tcp://a,b:1", "x@0.2;", "node[1:0-2]@0(99999999)", "@", "@0("),
    *("password=Xq7hunter2Z", "https://user:Xq7hunter2Z@host/p", "--token Xq7hunter2Z", "hf_" + "aB3" * 11),
)


def source_names() -> list[str]:
    """Return every variable that the sources name, collected from their code."""
    found: set[str] = set()
    for path in sorted(Path(sources.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if NAME.fullmatch(node.value) else set()
    return sorted(found)


OTHERS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHON_EXEC", "TORCHELASTIC_USE_AGENT_STORE", "PATH")
VARIABLES = (*source_names(), *(flag.variable for flag in FLAGS), *OTHERS)
