"""Where the package starts programs: few places, and a Python of ours by `launcher.machine.pythons` only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import launcher
from tools.reference import find_nodes

pytestmark = pytest.mark.xdist_group("source")
PACKAGE = Path(launcher.__file__).parent
PYTHONS = {
    "hook/install.py": "looks who can change it, starts nothing",
    "machine/pythons.py": "the rule itself",
    "cli/status.py": "pdb in a rank, by the rank's own Python",
    "agent/template.py": "the user's own command line, with -c in place of the script",
    "command/line.py": "the user's command: -m NAME",
    "command/launchers.py": "what a launcher starts in each process, to read it",
    "command/words.py": "the user's command: -m and NAME as separate words",
    "frameworks/script.py": "what a console script stands for: reads its module, starts nothing",
    "engines/mpirun.py": "a rank's wrapper: -I, with the packages that choose the Python of a script",
    "engines/torchrun.py": "torch's agent with --run-path: the user's script, inside of it",
    "hook/enter.py": "runs in any Python, where it can import nothing else",
    "machine/host.py": "compares, starts nothing",
    "remote/ssh.py": "ssh, and the launcher of node 0",
    "rehearse/job.py": "the launcher itself, by its path",
    "rehearse/platforms.py": "stands in for a platform's torchrun",
}
"""Files with a command line of a Python, and why each is not a call of `own_program` or `isolate`."""
STARTS = {
    "cli/requeue.py": "Slurm's scontrol",
    "cli/status.py": "asks the Python of a rank for its version",
    "inprocess/template.py": "becomes the command of the ranks",
    "hook/enter.py": "asks hook/child.py",
    "hook/place.py": "asks the Python of an environment for its folders",
    "machine/mpi.py": "mpirun --version",
    "machine/names.py": "a fork that looks up names",
    "mpi/placeholder.py": "a fork that waits",
    "process/execute.py": "becomes the user's command",
    "process/kernel.py": "a fork for helpers and the watchdog",
    "process/program.py": "the user's health command, and the program of `launcher exec`",
    "process/refused.py": "a fork",
    "process/spawn.py": "a rank",
    "process/tool.py": "py-spy, and the reader of dumps",
    "remote/programs.py": "what node 0 runs on another node",
    "remote/rsh.py": "becomes the shell of this node",
    "remote/ssh.py": "ssh, and the launcher of node 0",
    "remote/started.py": "becomes the launcher of a node",
    "rehearse/job.py": "the launchers of a rehearsal",
    "rehearse/cluster.py": "the nodes of a rehearsal",
    "rehearse/node.py": "what a node of a rehearsal was asked to run",
    "servers/tf_server.py": "the user's command",
    "servers/torchrun_agent.py": "becomes torch's agent",
}
"""Files that start a program or a fork, and which."""
CALLS = ("fork", "forkpty", "popen", "system", "posix_spawn", "posix_spawnp", "run_module", "run_path")


def walk() -> Iterator[tuple[str, ast.AST]]:
    """Yield all nodes of the package, with the file of each."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for node in find_nodes(path):
            yield name, node


def is_python_line(node: ast.AST) -> bool:
    """Whether this is a list of words with a Python, or with an option that says what it runs."""
    if not isinstance(node, ast.Tuple | ast.List) or len(node.elts) < 2:
        return False
    words = [word.value for word in node.elts if isinstance(word, ast.Constant)]
    pythons = [word for word in node.elts if isinstance(word, ast.Attribute) and word.attr == "executable"]
    options = [word for word in words if word in ("-I", "-IS", "-S", "-P", "-E", "-c", "-m")]
    is_shell = "/bin/sh" in words or '"shell"' in ast.unparse(node) or "shell" in ast.unparse(node)
    return bool(pythons) or (bool(options) and len(node.elts) > len(words) and not is_shell)


def starts(node: ast.AST) -> bool:
    """Whether this call starts a program, or a fork of this one."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name, of = node.func.attr, ast.unparse(node.func.value)
    return (of in ("os", "runpy") and (name in CALLS or name.startswith(("exec", "spawn")))) or of in (
        "subprocess",
        "multiprocessing",
        "pty",
    )


def test_a_python_of_ours_is_started_by_the_rule() -> None:
    """Isolated from the working directory and PYTHONPATH; a new place for another way needs a reason here."""
    assert {file for file, node in walk() if is_python_line(node)} == set(PYTHONS)


def test_the_places_that_start_a_program_are_known() -> None:
    """Each is in a test of tests/process/test_shadowing.py, or starts no Python of ours."""
    assert {file for file, node in walk() if starts(node)} == set(STARTS)


def test_these_look_at_what_they_say() -> None:
    """A line that breaks the rule is found."""
    for text in ("[python, '-c', code]", "(sys.executable, path)", "[python, '-m', 'launcher']"):
        assert is_python_line(ast.parse(text, mode="eval").body), text
    for text in ("os.posix_spawn(path, argv, {})", "subprocess.run(argv)", "os.execvp(path, argv)"):
        assert starts(ast.parse(text, mode="eval").body), text
