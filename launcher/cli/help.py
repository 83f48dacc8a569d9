"""The overview of all commands: ``launcher``, ``launcher help``, ``launcher --help``."""

from __future__ import annotations

from launcher.cli.stdout import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GROUPS = {
    "start a job": {
        "run": "launcher run train.py",
        "serve": "launcher serve --hosts node0,node1",
        "rehearse": "launcher rehearse --nodes 2 -- launcher run train.py",
        "requeue": "launcher requeue --limit 3",
    },
    "look at a plan or a job": {
        "plan": "launcher plan -- python train.py",
        "env": "launcher env --format json",
        "topology": "launcher topology",
        "status": "launcher status",
        "stacks": "launcher stacks",
        "exec": "launcher exec --all -- nvidia-smi",
        "debug": "launcher debug --rank 3",
        "snapshot": "launcher snapshot -o node.json",
    },
    "check a machine": {
        "check": "launcher check --strict",
        "bandwidth": "launcher bandwidth",
    },
    "plumbing": {
        "hook": "launcher hook install",
        "tf-server": "launcher tf-server",
    },
}
"""The commands by purpose, each with an example."""


def render_overview(descriptions: Mapping[str, str]) -> str:
    """Return the commands in groups, what each does, and an example of each."""
    lines = [
        "usage: launcher COMMAND [options] [--] ...",
        "",
        "Run distributed training on any platform: find the nodes and ranks, and start the processes.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, example in commands.items():
            lines += [f"  {name:<10} {descriptions[name]}", f"  {'':<10}   $ {example}"]
    lines += [
        "",
        "launcher help COMMAND lists a command's options; launcher --help-all adds those of run.",
        "launcher --version prints the version; man launcher has everything.",
    ]
    return "\n".join(lines) + "\n"


def show_help(
    words: Sequence[str], descriptions: Mapping[str, str], dispatch: Callable[[Sequence[str]], int]
) -> int:
    """Print the overview, or the help of the command that is named first; return the exit status.

    ``--help-all`` prints the overview and all flags of ``launcher run``.
    """
    if words and words[0] != "--help-all":
        return dispatch([words[0], "--help-all" if "--help-all" in words and words[0] == "run" else "--help"])
    write(render_overview(descriptions))
    if words:
        write("\n")
        return dispatch(["run", "--help-all"])
    return 0
