"""Draws docs/images/flow.svg, from variables to processes: ``python tools/render_picture.py [--check]``.

It shows what the launcher plans for the second node from the first card's variables, on a node with 8 GPUs.
The other cards describe the same job in the variables of other platforms. They are planned, too; different
processes are an error. With ``--check`` nothing is written; the exit status is 1 if the picture would change.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run from anywhere, installed or not

from drawing import Drawing  # noqa: E402

from launcher.core.model import Plan  # noqa: E402
from launcher.options.reading import read_options  # noqa: E402
from launcher.planning.plan import plan_job  # noqa: E402
from launcher.planning.recorded import replay  # noqa: E402
from launcher.planning.settings import render_environ  # noqa: E402

TARGET = ROOT / "docs" / "images" / "flow.svg"
WIDTH, HEIGHT, MARGIN = 1060, 510, 20
HEADS_Y, TOP = 34, 52
CARDS_WIDTH, CARD_HEIGHT, CARD_GAP = 290, 100, 12
MIDDLE_X, MIDDLE_WIDTH = 370, 330
RIGHT_X, ROW_HEIGHT = 770, 40
GPUS = 8
SHARED = ("WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
SHOWN = ("RANK", "LOCAL_RANK", *SHARED)
STYLE = """
.page{fill:#ffffff}.card{fill:#f3f5f8;stroke:#cfd6de}.us{fill:#e8f1fd;stroke:#8fb3ee}.rank{fill:#1d4ed8}
.row{fill:#ffffff;stroke:#dde3e9}.gpu{fill:#eef7e2;stroke:#76b900}.wire{stroke:#9aa6b2;fill:none}
.strong{fill:#1c2128}.weak{fill:#59636e}.on{fill:#ffffff}
@media (prefers-color-scheme: dark){
.page{fill:#0d1117}.card{fill:#161b22;stroke:#30363d}.us{fill:#14294a;stroke:#31589c}.rank{fill:#2f66e8}
.row{fill:#0d1117;stroke:#2a3038}.gpu{fill:#1b2a0e;stroke:#76b900}.wire{stroke:#5b6570}
.strong{fill:#e8edf2}.weak{fill:#a1abb5}}
"""
BATCH = {
    "AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5",
    "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5",
    "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
    "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "10.0.0.[4-5]",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
PERSON = {"LAUNCHER_HOSTS": "10.0.0.4,10.0.0.5"}


class Card(NamedTuple):
    """How one platform describes a job: its name, and its variables, of which the first four are shown."""

    name: str
    environ: Mapping[str, str]


CARDS = (
    Card("Azure Batch", BATCH),
    Card("Azure ML, mpirun", MPI),
    Card("Slurm", SLURM),
    Card("A person (or --hosts)", PERSON),
)
STEPS = (
    ("who started us, and where?", "every platform is a source of claims"),
    ("once per node, or per process?", "what was started here, against its GPUs"),
    ("what is in this node?", "GPUs, InfiniBand, the way to the master"),
    ("is it all true?", "a contradiction stops the job, by name"),
    ("who is who?", "each value with where it came from"),
)


def main(argv: Sequence[str]) -> int:
    """Draw the picture, or compare it."""
    drawn = draw([plan_card(card) for card in CARDS])
    if list(argv) == ["--check"]:
        return int(TARGET.read_text(encoding="utf-8") != drawn)
    TARGET.write_text(drawn, encoding="utf-8")
    return 0


def plan_card(card: Card) -> Plan:
    """Plan node 1 of the job that a card describes."""
    addresses = {"eth0": ["10.0.0.5"]}
    host = replay({"environ": dict(card.environ), "addresses": addresses, "gpus": GPUS})
    return plan_job(host.environ, host, read_options({}, host.environ), ["python", "train.py"])


def draw(plans: Sequence[Plan]) -> str:
    """Return the picture.

    Raises:
        ValueError: Two cards lead to different processes.
    """
    processes = [read_processes(plan) for plan in plans]
    if any(found != processes[0] for found in processes):
        raise ValueError(f"the cards are not the same job: {processes}")
    drawing = Drawing()
    drawing.rectangle("page", 0, 0, WIDTH, HEIGHT, radius=0)
    middle = TOP + (len(CARDS) * (CARD_HEIGHT + CARD_GAP) - CARD_GAP) / 2
    for x, width, title in (
        (MARGIN, CARDS_WIDTH, "any of these, on node 1"),
        (MIDDLE_X, MIDDLE_WIDTH, "launcher run -- python train.py"),
        (RIGHT_X, WIDTH - MARGIN - RIGHT_X, "what every process sees"),
    ):
        drawing.text("strong", x, HEADS_Y, title, width, size=14, bold=True)
    for place, card in enumerate(CARDS):
        y = TOP + place * (CARD_HEIGHT + CARD_GAP)
        draw_wire(drawing, MARGIN + CARDS_WIDTH, y + CARD_HEIGHT / 2, MIDDLE_X, middle)
        draw_card(drawing, card, y)
    draw_steps(drawing, len(CARDS) * (CARD_HEIGHT + CARD_GAP) - CARD_GAP)
    for place, process in enumerate(processes[0]):
        y = TOP + place * (ROW_HEIGHT + 10)
        draw_wire(drawing, MIDDLE_X + MIDDLE_WIDTH, middle, RIGHT_X, y + ROW_HEIGHT / 2)
        draw_process(drawing, process, place, y)
    foot, room = TOP + GPUS * (ROW_HEIGHT + 10) + 12, WIDTH - MARGIN - RIGHT_X
    size, node, master = (f"{name}={processes[0][0][name]}" for name in SHARED)
    drawing.text("weak", RIGHT_X, foot, f"{size}  {node}", room)
    drawing.text("weak", RIGHT_X, foot + 16, f"{master}  MASTER_PORT ...", room)
    drawing.text("weak", RIGHT_X, foot + 32, "and what NCCL, MPI, TF want", room)
    return drawing.render(WIDTH, HEIGHT, "From the variables of a platform to the processes of a node", STYLE)


def read_processes(plan: Plan) -> list[dict[str, str]]:
    """Return the variables of each process of the node, as far as the picture shows them."""
    found = []
    for process in plan.processes:
        environ = render_environ(plan, process, {})
        found.append({name: environ[name] for name in SHOWN})
    return found


def draw_wire(drawing: Drawing, x: float, y: float, to_x: float, to_y: float) -> None:
    """Draw a bent line from left to right."""
    half = (x + to_x) / 2
    drawing.path("wire", f"M{x:g} {y:g} C{half:g} {y:g} {half:g} {to_y:g} {to_x:g} {to_y:g}", 1.5)


def draw_card(drawing: Drawing, card: Card, y: float) -> None:
    """Draw the variables of one platform."""
    drawing.rectangle("card", MARGIN, y, CARDS_WIDTH, CARD_HEIGHT)
    room = CARDS_WIDTH - 24
    drawing.text("strong", MARGIN + 12, y + 22, card.name, room, size=13, bold=True)
    for line, (name, value) in enumerate(list(card.environ.items())[:4]):
        drawing.text("weak", MARGIN + 12, y + 42 + 16 * line, f"{name}={value}", room)


def draw_steps(drawing: Drawing, height: float) -> None:
    """Draw the launcher's questions, in order."""
    drawing.rectangle("us", MIDDLE_X, TOP, MIDDLE_WIDTH, height)
    for place, (question, answer) in enumerate(STEPS):
        y = TOP + 40 + place * 68
        drawing.text("strong", MIDDLE_X + 18, y, question, MIDDLE_WIDTH - 36, size=13, bold=True)
        drawing.text("weak", MIDDLE_X + 18, y + 18, answer, MIDDLE_WIDTH - 30)
    last = TOP + height - 44
    drawing.text(
        "strong", MIDDLE_X + 18, last, "then: one process per GPU,", MIDDLE_WIDTH - 36, size=13, bold=True
    )
    drawing.text(
        "strong",
        MIDDLE_X + 18,
        last + 18,
        "one verdict, one exit status",
        MIDDLE_WIDTH - 36,
        size=13,
        bold=True,
    )


def draw_process(drawing: Drawing, process: Mapping[str, str], place: int, y: float) -> None:
    """Draw one process and its GPU."""
    drawing.rectangle("row", RIGHT_X, y, WIDTH - MARGIN - RIGHT_X, ROW_HEIGHT)
    drawing.rectangle("rank", RIGHT_X + 8, y + 8, 62, ROW_HEIGHT - 16)
    drawing.text("on", RIGHT_X + 39, y + 24, f"rank {process['RANK']}", 60, bold=True, centre=True)
    words = f"LOCAL_RANK={process['LOCAL_RANK']}"
    drawing.text("weak", RIGHT_X + 80, y + 24, words, 140)
    drawing.rectangle("gpu", WIDTH - MARGIN - 62, y + 8, 54, ROW_HEIGHT - 16)
    drawing.text("strong", WIDTH - MARGIN - 35, y + 24, f"GPU {place}", 52, centre=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
