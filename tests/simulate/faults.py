"""What can go wrong with a simulated job, as actions on a `World`."""

from __future__ import annotations

from tests.simulate.network import REPEAT_S, UP, Connection
from tests.simulate.world import DOG_S, Launcher, World


def disturb(world: World, one: Launcher) -> None:
    """Note that a launcher, or all if it is that of node 0, may not act or be heard in time."""
    for each in list(world.launchers.values()) if one is world.server.own else [one]:
        if each.is_alive:
            world.disturb(each)


def pause(world: World, one: Launcher, for_s: float, *, whole: bool = False) -> None:
    """Stop a launcher (SIGSTOP), or the ``whole`` container with watchdog and processes, for a while."""
    if one.is_paused or not (one.is_alive or (one is world.server.own and world.server.is_alive)):
        return
    disturb(world, one)
    world.note(f"{one.session} {'is frozen' if whole else 'stands still'} for {for_s:.1f} s")
    one.is_paused = True
    if whole and one.processes is not None:
        one.processes.freeze(world.now)
    elif one.processes is not None:
        world.at(
            max(world.now, one.lease_until) + DOG_S, lambda: world.look_lease(one) if one.is_paused else None
        )
    world.at(world.now + for_s, lambda: resume(world, one))


def resume(world: World, one: Launcher) -> None:
    """Let a launcher go on: it reads what has arrived, and does what is due."""
    world.note(f"{one.session} goes on")
    one.is_paused = False
    if one.processes is not None:
        one.processes.thaw(world.now)
        world.look_lease(one)
    inbox, one.inbox = one.inbox, []
    for act in inbox:
        act()
    world.tick(one)


def cut(world: World, machine: int, for_s: dict[int, float]) -> None:
    """Let no packet arrive for a while; ``for_s``: how long, for each direction that is cut."""
    link = world.links[machine]
    if not machine or any(link.is_cut[way] for way in for_s):
        return
    for one in list(world.launchers.values()):
        if one.machine == machine and one.is_alive:
            world.disturb(one)
    for way, length_s in for_s.items():
        name = "to node 0" if way is UP else "from node 0"
        world.note(f"machine {machine}: nothing arrives {name}, for {length_s:.1f} s")
        link.is_cut[way] = True
        world.at(world.now + length_s, lambda way=way: heal(world, machine, way))  # type: ignore[misc]


def heal(world: World, machine: int, way: int) -> None:
    """Let packets arrive again; the kernel repeats what was lost."""
    world.note(f"machine {machine}: the way {'to' if way is UP else 'from'} node 0 is up again")
    link = world.links[machine]
    link.is_cut[way] = False
    waiting, link.waiting[way] = link.waiting[way], []
    after = world.now + world.rng.uniform(*REPEAT_S)
    for arrive in waiting:
        world.at(after, arrive)


def reset(world: World, one: Launcher) -> None:
    """Break a connection: both sides are told, node 0 as if the launcher had ended."""
    connection = one.connection
    if connection is not None and one.is_alive:
        world.disturb(one)
        world.note(f"the connection of {one.session} is reset")
        connection.is_open[UP] = False
        world.server.lose(connection, has_exited=True)
        world.act(one, lambda: world.drop(one, connection))


def die(world: World, one: Launcher, *, with_dog: bool = False, orphans: bool = False) -> None:
    """Kill a launcher (SIGKILL); ``orphans``: its ranks have started what outlives it and the watchdog."""
    if not one.is_alive:
        return
    disturb(world, one)
    world.note(f"{one.session} is killed{' with its watchdog' if with_dog else ''}")
    one.is_alive, one.has_dog = False, not with_dog
    made = one.processes
    if made is not None and made.ended is None:
        if with_dog and orphans:
            made.is_orphaned = True
        else:
            made.thaw(world.now)
            world.at(world.now + DOG_S, lambda: world.kill_processes(made, "watchdog"))
    if not with_dog and one.state.has_begun:
        world.at(world.now + DOG_S, lambda: report_killed(world, one))
    for connection in world.connections(one):
        world.hang_up(connection, UP)
    if one is world.server.own:
        world.server.end()


def report_killed(world: World, one: Launcher) -> None:
    """Let the watchdog of a killed launcher call node 0, once nothing of it runs any more."""
    if one.processes is not None and one.processes.ended is None:
        world.at(world.now + DOG_S, lambda: report_killed(world, one))
    elif one is not world.server.own:
        world.transmit(Connection(one.session, one.link), UP, lambda: world.server.note_killed(one.session))


def vanish(world: World, one: Launcher) -> None:
    """Switch a machine off: nothing of it is heard any more, and nobody is told."""
    if not one.is_alive or not one.machine:
        return
    world.disturb(one)
    world.note(f"machine {one.machine} is off")
    one.is_alive = False
    if one.processes is not None:
        one.processes.end(world.now, 137)
    for connection in world.connections(one):
        connection.is_open[UP] = False
    one.link.waiting[UP].clear()


def receive(world: World, one: Launcher, number: int) -> None:
    """Send a launcher a signal."""
    from launcher.job.events import Received

    if one.is_alive:
        world.note(f"{one.session} receives signal {number}")
        world.act(one, lambda: world.feed(one, Received(one.index, number)))
