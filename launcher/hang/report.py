"""Reports where each rank waits, and for which others: a few lines for users, all details in a file. Pure."""

from __future__ import annotations

from launcher.core.files import create_file
from launcher.core.frozen import frozen
from launcher.core.ranks import name_ranks
from launcher.core.redact import printable
from launcher.hang.stacks import Spot, find_spot, is_starter, is_tracker
from launcher.machine.calls import RUNNING
from launcher.output.folder import REPORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.hang.model import Answer

LINES_FOR_CHILDREN = 4
PIDS_PER_LINE = 8
STOPPED, STUCK = "is stopped (state T)", "waits for a device or a file system (state D)"
STATES = {"T": STOPPED, "t": STOPPED, "D": STUCK}
"""States in which other ranks may wait for a rank, by their letters in ps."""
RUNS = "R"


@frozen
class Group:
    """Processes in one and the same place; ``spot`` is None if the place is unknown."""

    answers: tuple[Answer, ...]
    spot: Spot | None

    @property
    def ranks(self) -> list[int]:
        """The ranks of the processes, sorted, each once."""
        return sorted({answer.rank for answer in self.answers})

    @property
    def state(self) -> str:
        """A state that explains why others wait, in words; empty for processes that run or wait."""
        return STATES.get(self.answers[0].state, "")

    @property
    def in_collective(self) -> bool:
        """Whether they wait for other processes."""
        return self.spot is not None and self.spot.in_collective and not self.state

    @property
    def runs(self) -> bool:
        """Whether all of them use a CPU."""
        return all(answer.call == RUNNING or answer.state == RUNS for answer in self.answers)

    def render(self, names: str) -> str:
        """Return what they do, e.g. ``ranks 0, 2 wait in all_reduce (...) <- train.py:47``."""
        first = self.answers[0]
        if self.spot is None:
            why = f": {first.why}" if first.why else ""
            return f"{names}: no Python stack ({describe_process(first)}){why}"
        many = len(self.answers) > 1
        if self.state:
            verb = self.state.replace("is ", "are ", 1).replace("waits ", "wait ", 1) if many else self.state
            return f"{names} {verb} {self.spot.render('')}"
        verb = "run" if all(answer.call == RUNNING for answer in self.answers) else "wait"
        return f"{names} {verb}{'' if many else 's'} {self.spot.render(first.call)}"

    def say(self) -> str:
        """Return what one of them does, for a sentence: ``waits in sleep (train.py:40 in train)``."""
        if self.spot is not None:
            return Group(self.answers[:1], self.spot).render("").strip()
        if self.state:
            return self.state
        first = self.answers[0]
        return f"{'runs' if self.runs else 'waits'} ({describe_process(first)})"


TO_ARM = "call launcher.setup() in the script, or run launcher hook install for its Python"
"""Two ways beside py-spy: the first one needs the launcher in the script's own Python, which an image may not
have."""


def render_report(answers: Sequence[Answer], world_size: int | None = None) -> list[str]:
    """Return lines that say where each rank waits, and for which one the others probably wait.

    Args:
        answers: Processes of each rank, from the started process downwards.
        world_size: Number of ranks on all nodes; None if unknown.
    """
    speakers = find_speakers(answers)
    groups = group(speakers)
    suspects, reason = find_suspects(groups)
    lines = []
    for item in sorted(groups, key=lambda item: (item in suspects, item.answers[0].rank)):
        lines.append(item.render(name_ranks(item.ranks)) + (f": {reason}" if item in suspects else ""))
    lines += explain_collectives(groups, world_size)
    known = set(map(id, speakers))
    lines += render_children([answer for answer in answers if id(answer) not in known])
    if any(answer.is_python and not answer.threads for answer in speakers):
        lines.append(f"for Python stacks {TO_ARM}")
    return lines


def name_suspect(answers: Sequence[Answer], places: Mapping[int, str]) -> tuple[int, str]:
    """Return the rank that differs from the others and a phrase on what it does; -1 if none does.

    Args:
        answers: Processes of each rank, from the started process downwards.
        places: Node of each rank in words; empty on one node.
    """
    groups = group(find_speakers(answers))
    suspects, _ = find_suspects(groups)
    if not suspects:
        return -1, ""
    ranks = suspects[0].ranks
    where = {places[rank] for rank in ranks if rank in places}
    on = f" on {where.pop()}" if len(where) == 1 else ""
    others = len(suspects) - 1
    more = f" ({others} more in other places)" if others else ""
    verb = suspects[0].say()
    if len(ranks) > 1:
        verb = "each " + verb
    return ranks[0], f"{name_ranks(ranks)}{on} {verb}, and the others wait{more}"


def find_speakers(answers: Sequence[Answer]) -> list[Answer]:
    """Return the process that represents each rank: the first Python process that does work of its own.

    A shell around it does not count, nor does a Python process that only waits for another one that it
    started.
    """
    speakers = []
    families: dict[int, list[Answer]] = {}
    for answer in answers:
        families.setdefault(answer.rank, []).append(answer)
    for _, family in sorted(families.items()):
        known = [answer for answer in family if answer.frames and not is_tracker(answer)]
        working = [answer for answer in known if not is_starter(answer)]
        pythons = [answer for answer in family if answer.is_python]
        speakers.append((working or known or pythons or family)[0])
    return speakers


def group(answers: Sequence[Answer]) -> list[Group]:
    """Return the processes by place and state; those whose place is unknown by what the kernel knows.

    Those that wait for each other in one call of the user's code are in one place: inside of a call such as
    init_process_group, rank 0 does something else than the others.
    """
    found: dict[object, list[Answer]] = {}
    spots: dict[object, Spot | None] = {}
    for answer in answers:
        known = (answer.frames, answer.folder)  # a thousand ranks have few stacks
        if known not in spots:
            spots[known] = find_spot(answer)
        spot = spots[known]
        place = (_program(answer), answer.call, answer.kernel) if spot is None else spot.call
        found.setdefault((place, STATES.get(answer.state, "")), []).append(answer)
    groups = []
    for members in found.values():
        spot, *others = {spots[answer.frames, answer.folder]: None for answer in members}
        groups.append(Group(tuple(members), spot.without_inside() if spot and others else spot))
    return groups


def _program(answer: Answer) -> str:
    return answer.command.partition(" ")[0].rpartition("/")[2]


def find_suspects(groups: Sequence[Group]) -> tuple[list[Group], str]:
    """Return the groups for which the others probably wait, the most certain first, and a phrase for it.

    A stopped process is more certain than one that waits for a device, that one more than one that is not in
    the collective in which the others wait, and that one more than one that runs while the others do not.
    """
    waiting = [item for item in groups if item.in_collective]
    elsewhere = [item for item in groups if not item.in_collective]
    for state in (STOPPED, STUCK):
        held = [item for item in groups if item.state == state]
        if held and len(held) < len(groups):
            rest = [item for item in elsewhere if item not in held] if waiting else []
            return [*held, *rest], _probably([*held, *rest])
    if waiting and elsewhere:
        return elsewhere, _probably(elsewhere)
    running = [item for item in groups if item.runs]
    if running and not waiting and 2 * _count(running) < _count(groups):
        return running, _probably(running)
    most = max(groups, key=lambda item: len(item.answers), default=None)
    rest = [item for item in groups if item is not most]
    # On a GPU a process waits where the script next needs a result (loss.item()), not in a collective.
    if most and len(most.answers) > max(1, _count(rest)):
        return rest, "not where the others are"
    return [], ""


def _count(groups: Sequence[Group]) -> int:
    return sum(len(item.answers) for item in groups)


def _probably(groups: Sequence[Group]) -> str:
    return f"probably {'those' if _count(groups) > 1 else 'the one'} that the others wait for"


def explain_collectives(groups: Sequence[Group], world_size: int | None) -> list[str]:
    """Return what follows if all processes of this node wait for others; empty if not all do."""
    if not groups or not all(item.in_collective for item in groups):
        return []
    if len(groups) > 1:
        return ["they wait in different collective calls for each other: compare the order of their calls"]
    if world_size is not None and len(groups[0].answers) >= world_size:
        return [
            "all ranks of the job have reached this call: the network or a GPU does not answer, or "
            f"it waits for more processes than the {world_size} of this job (does the script name a number?)"
        ]
    return ["all ranks of this node have reached this call: see what the other nodes report"]


def render_children(answers: Sequence[Answer]) -> list[str]:
    """Return lines about Python processes that represent no rank, e.g. DataLoader workers."""
    groups = group([answer for answer in answers if answer.frames and not is_tracker(answer)])
    lines = []
    for item in groups[:LINES_FOR_CHILDREN]:
        pids = ", ".join(str(answer.pid) for answer in item.answers[:PIDS_PER_LINE])
        more = len(item.answers) - PIDS_PER_LINE
        ranks = name_ranks(sorted({answer.rank for answer in item.answers}))
        names = f"with {ranks}: pid {pids}" + (f" and {more} more" if more > 0 else "")
        lines.append(item.render(names))
    if len(groups) > LINES_FOR_CHILDREN:
        lines.append(f"children in {len(groups) - LINES_FOR_CHILDREN} more places")
    return lines


def describe_process(answer: Answer) -> str:
    """Return what the kernel knows about a process, e.g. ``pid 812, bash, state S, in wait4``."""
    facts = [f"pid {answer.pid}", answer.command.partition(" ")[0].rpartition("/")[2]]
    facts.append(f"state {answer.state}" if answer.state else "")
    facts.append(f"in {answer.call}" if answer.call not in ("", RUNNING) else "")
    facts.append(f"waits in {answer.kernel}" if answer.kernel else "")
    return ", ".join(fact for fact in facts if fact)


def render_stacks(headline: str, answers: Sequence[Answer]) -> str:
    """Return everything that is known, as text for a file."""
    lines = [headline]
    for answer in answers:
        lines += ["", f"rank {answer.rank}: {describe_process(answer)}", f"  {answer.command}"]
        lines += [f"  no Python stack: {answer.why}"] if answer.why else []
        for thread in answer.threads:
            lines.append(f"  {thread.name}, innermost first ({answer.means}):")
            lines += [f"    {frame.render()}" for frame in thread.frames]
            lines += [] if thread.frames else ["    no Python frame"]
    return "".join(f"{printable(line)}\n" for line in lines)


def write_stacks(folder: int, headline: str, answers: Sequence[Answer]) -> str:
    """Write all stacks to a new file in the directory with this descriptor; return its name.

    Raises:
        OSError: The file cannot be written.
    """
    data = render_stacks(headline, answers).encode("utf-8", "replace")
    for number in range(1, 1000):
        name = f"{REPORT}{number}.txt"
        try:
            create_file(data, name, 0o600, at=folder)
        except FileExistsError:  # from an earlier stall
            continue
        return name
    raise FileExistsError(0, "too many reports in this directory")
