"""Where the ranks of a job are, and for which of them the others wait, from their stacks. Pure."""

from __future__ import annotations

import re

from launcher.core.frozen import frozen, replace
from launcher.core.ranks import name_ranks
from launcher.hang.stacks import LIBRARY, PACKAGES, is_users
from launcher.machine.calls import RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.hang.model import Answer, Frame

_COLLECTIVES = re.compile(
    r"torch/(?:distributed/(?!elastic/)|nn/parallel/|autograd/(?:graph|__init__)\.py)"
    r"|horovod/|mpi4py/|deepspeed/comm/|tensorflow/python/distribute/"
)
"""Packages in which a process waits for others. Their callers, and what they call, are in other packages.
A backward pass counts: DDP and FSDP reduce gradients inside torch's engine, without a Python frame."""
_QUERIES = frozenset(
    [
        *("get_rank", "get_world_size", "get_backend", "get_node_local_rank", "get_group_rank"),
        *("get_global_rank", "get_process_group_ranks", "is_initialized", "is_available"),
    ]
)
"""Functions of these packages that do not wait: a rank may call them in an endless loop."""
_WRAPPERS = re.compile(r"torch/distributed/c10d_logger\.py")
"""What stands between a call of the user's code and the function of that name."""
_TRACKERS = re.compile(r".*/multiprocessing/(?:resource_tracker|forkserver)\.py")
_STARTERS = re.compile(r".*/subprocess\.py|.*/torch/distributed/elastic/(?:agent|multiprocessing)/")
"""Where a process does nothing but wait for a process that it started."""
_BEGIN = re.compile(r".*/multiprocessing/process\.py")
"""Start of a forked child. Its outer frames are its parent's: they show where it was made, not what it
does."""
_PHRASES = {
    **dict.fromkeys(("clock_nanosleep", "nanosleep"), "in sleep"),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"), "in poll"),
    **dict.fromkeys(("wait4", "waitid"), "for a child process"),
    "futex": "for a lock or a thread",
    "flock": "for a file lock",
}
STOPPED, STUCK = "is stopped (state T)", "waits for a device or a file system (state D)"
STATES = {"T": STOPPED, "t": STOPPED, "D": STUCK}
"""States in which other ranks may wait for a rank, by their letters in ps."""
RUNS = "R"


@frozen
class Spot:
    """Where a process is.

    Attributes:
        inner: The innermost frame.
        package: The innermost frame of an installed package; None if that is ``inner``, or if there is none.
        users: The innermost frame of the user's own code; None if there is none.
        folder: The working directory of the process.
        collective: What the user's code called and which waits for other processes; None if it does not wait
            for them.
    """

    inner: Frame
    package: Frame | None
    users: Frame | None
    folder: str
    collective: Frame | None

    @property
    def call(self) -> object:
        """The call in the user's code: equal for ranks that wait for each other anywhere inside it."""
        if self.collective is None or self.users is None:
            return self
        return self.users, self.folder, self.collective.file, self.collective.function

    def without_inside(self) -> Spot:
        """Return the place of the call alone."""
        return self if self.collective is None else replace(self, inner=self.collective, package=None)

    def render(self, call: str) -> str:
        """Return e.g. ``in all_reduce (torch/distributed/distributed_c10d.py:2501) <- train.py:47``.

        Args:
            call: System call in which the process waits, `RUNNING`, or empty.
        """
        text = self._render_inner(call)
        if self.package is not None:
            text += f" <- {self.package.function} ({place(self.package, self.folder)})"
        if self.users is not None and self.users is not self.inner:
            text += f" <- {place(self.users, self.folder)}"
        return text

    def _render_inner(self, call: str) -> str:
        where, function = place(self.inner, self.folder), self.inner.function
        if self.users is not self.inner or call in ("", RUNNING):
            return f"in {function} ({where})"
        # A line of the user's code waits in C code, which has no frame; the system call shows for what.
        within = "" if function == "<module>" else f" in {function}"
        return f"{_PHRASES.get(call, f'in {call}')} ({where}{within})"


def find_spot(answer: Answer) -> Spot | None:
    """Return where the main thread of a process is; None if unknown."""
    if not answer.frames:
        return None
    inner, frames = answer.frames[0], answer.frames
    begins = (at for at, frame in enumerate(frames) if _BEGIN.match(frame.file))
    frames = frames[: next(begins, len(frames)) + 1]
    users = next((frame for frame in frames if is_users(frame)), None)
    # Only what the user's code called: torch/distributed/ is also among its callers, in @record.
    called = frames[: frames.index(users)] if users else frames
    package = next((frame for frame in called if PACKAGES.match(frame.file)), None)
    # An import runs the body of a module, which takes time but waits for no process.
    calls = [frame for frame in called if frame.function != "<module>"]
    waits = [frame for frame in calls if _COLLECTIVES.match(PACKAGES.sub("", frame.file))]
    outer = [frame for frame in waits if not _WRAPPERS.match(PACKAGES.sub("", frame.file))] or waits
    collective = outer[-1] if outer and outer[-1].function not in _QUERIES else None
    return Spot(inner, None if package is inner else package, users, answer.folder, collective)


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
        return self.spot is not None and self.spot.collective is not None and not self.state

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
        return self.state or f"{'runs' if self.runs else 'waits'} ({describe_process(self.answers[0])})"


def describe_process(answer: Answer) -> str:
    """Return what the kernel knows about a process, e.g. ``pid 812, bash, state S, in wait4``."""
    facts = (
        f"pid {answer.pid}",
        answer.program,
        f"state {answer.state}" if answer.state else "",
        f"in {answer.call}" if answer.call not in ("", RUNNING) else "",
        f"waits in {answer.kernel}" if answer.kernel else "",
    )
    return ", ".join(filter(None, facts))


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
        working = [answer for answer in known if not _STARTERS.match(answer.frames[0].file)]
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
        place = (answer.program, answer.call, answer.kernel) if spot is None else spot.call
        found.setdefault((place, STATES.get(answer.state, "")), []).append(answer)
    groups = []
    for members in found.values():
        spot, *others = {spots[answer.frames, answer.folder]: None for answer in members}
        groups.append(Group(tuple(members), spot.without_inside() if spot and others else spot))
    return groups


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
    each = "each " if len(ranks) > 1 else ""
    return ranks[0], f"{name_ranks(ranks)}{on} {each}{suspects[0].say()}, and the others wait{more}"


def is_tracker(answer: Answer) -> bool:
    """Whether a process is one of multiprocessing's own helpers, which always wait."""
    return any(_TRACKERS.match(frame.file) for frame in answer.frames)


def place(frame: Frame, folder: str) -> str:
    """Return a short file and line: ``train.py:47``, ``torch/distributed/distributed_c10d.py:2501``."""
    file = LIBRARY.sub("", PACKAGES.sub("", frame.file))
    if folder and file.startswith(f"{folder}/"):
        file = file[len(folder) + 1 :]
    return f"{file.removesuffix('>') if frame.file.startswith('<frozen') else file}:{frame.line}"
