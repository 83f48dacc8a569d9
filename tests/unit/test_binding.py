"""Which CPUs each process keeps to: near its GPU, apart from its neighbours, within what is ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.model import Binding, Core, Gpu, Layout, Plan
from launcher.core.ranks import render_cpu_list
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.binding import BindingRequest, divide, plan_binding
from launcher.planning.plan import plan_job
from launcher.planning.settings import render_environ
from tests.unit.machines import DGX, ND_V4, ND_V5, Machine, write_gpus, write_nodes
from tests.unit.platforms_model import deterministic

MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_MCA_orte_num_nodes": "1",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.77.0.4:5",
}
WORKER = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def plan(host: Host, environ: Mapping[str, str] | None = None, **typed: str) -> Plan:
    """Return what the launcher plans on a machine."""
    environ = environ or {}
    return plan_job(environ, host, read_options(typed, environ), ())


def notes(job: Plan) -> tuple[str, ...]:
    """Return what a plan says besides how its processes start."""
    return tuple(note for note in job.notes if not note.startswith(("engine ", "MASTER_PORT is a free port")))


def cpus(job: Plan) -> list[str | None]:
    """Return the CPUs of each process as the kernel writes them."""
    return [None if p.cpus is None else render_cpu_list(p.cpus) for p in job.processes]


def threads(job: Plan) -> list[str]:
    """Return OMP_NUM_THREADS of each process."""
    return [render_environ(job, process, {})["OMP_NUM_THREADS"] for process in job.processes]


def test_each_process_is_near_its_gpu_with_whole_cores(tmp_path: Path) -> None:
    """8 GPUs on 2 nodes of 24 cores: 6 cores each, with both hardware threads, without being asked."""
    job = plan(DGX(tmp_path))
    assert cpus(job) == [
        *("0-5,48-53", "6-11,54-59", "12-17,60-65", "18-23,66-71"),
        *("24-29,72-77", "30-35,78-83", "36-41,84-89", "42-47,90-95"),
    ]
    assert job.processes[0].cpus == (0, 1, 2, 3, 4, 5, 48, 49, 50, 51, 52, 53)
    assert threads(job) == ["6"] * 8
    assert (job.bind, notes(job)) == ("numa", ())


def test_nodes_are_those_of_the_gpus_not_of_the_ranks(tmp_path: Path) -> None:
    """On Azure's ND A100 v4 GPU 0 is on NUMA node 1, GPU 7 on node 2."""
    assert cpus(plan(ND_V4(tmp_path))) == [
        *("24-35", "36-47", "0-11", "12-23", "72-83", "84-95", "48-59", "60-71")
    ]


def test_none_leaves_cpus_alone_and_threads_as_they_were(tmp_path: Path) -> None:
    """--bind none: the CPUs divided by the processes are all that is known."""
    job = plan(DGX(tmp_path), bind="none")
    assert cpus(job) == [None] * 8
    assert threads(job) == ["12"] * 8


def test_core_divides_evenly_in_the_order_of_nodes(tmp_path: Path) -> None:
    """GPUs do not count: 3 processes on 48 cores."""
    job = plan(DGX(tmp_path), bind="core", nproc_per_node="3")
    assert cpus(job) == ["0-15,48-63", "16-31,64-79", "32-47,80-95"]
    assert (job.bind, threads(job)) == ("core", ["16"] * 3)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("4,5,6,7", ["48-59", "60-71", "72-83", "84-95"]),
        ("0,4", ["0-47", "48-95"]),
        ("7,0", ["48-95", "0-47"]),
        ("GPU-0006,GPU-0001,gpu-x", ["48-95", "0-47"]),
        ("GPU-0004,GPU-0005", ["48-71", "72-95"]),
        ("MIG-GPU-0004/1/0,MIG-GPU-0000/1/0", ["48-95", "0-47"]),
    ],
)
def test_local_ranks_follow_the_visible_gpus(tmp_path: Path, visible: str, expected: list[str]) -> None:
    """CUDA_VISIBLE_DEVICES by index, by UUID in any order, and the older names of MIG."""
    assert cpus(plan(ND_V5(tmp_path), {"CUDA_VISIBLE_DEVICES": visible})) == expected


def test_a_mig_instance_of_an_unknown_gpu_is_left_alone(tmp_path: Path) -> None:
    """Only NVML knows whose part MIG-<uuid> is; where all GPUs are on one node it does not matter."""
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-aaaa,MIG-bbbb"}
    job = plan(ND_V5(tmp_path / "two"), environ)
    assert cpus(job) == [None, None]
    assert notes(job) == ("processes are not bound to CPUs: the NUMA node of GPU MIG-aaaa is unknown",)
    host = Machine(tmp_path / "one", "0-7")
    write_nodes(tmp_path / "one", {0: "0-3", 1: "4-7"})
    write_gpus(tmp_path / "one", [("0001:00:00.0", 1)])
    assert cpus(plan(host, environ)) == ["4-5", "6-7"]


def test_a_process_with_gpus_on_two_nodes_gets_a_share_of_both(tmp_path: Path) -> None:
    """--gpus-per-process: the process's own GPUs count."""
    assert cpus(plan(ND_V5(tmp_path), nproc_per_node="4", gpus_per_process="2")) == [
        *("0-23", "24-47", "48-71", "72-95")
    ]
    environ = {"CUDA_VISIBLE_DEVICES": "0,4,1,2"}
    assert cpus(plan(ND_V5(tmp_path), environ, nproc_per_node="2", gpus_per_process="2")) == [
        *("0-23,48-95", "24-47")
    ]
    host = small(
        tmp_path / "off", [("0001:00:00.0", 0), ("0002:00:00.0", 9), ("0003:00:00.0", 1), ("0004:00:00.0", 1)]
    )
    assert cpus(plan(host, nproc_per_node="2", gpus_per_process="2")) == ["0-3", "4-7"]


def test_a_cpuset_and_a_mask_are_never_left(tmp_path: Path) -> None:
    """CPUs that are ours are divided; the core that mpirun left is not all there is."""
    # CPUs 0-15 of node 0 are ours: divided among all, by core; siblings outside are not ours.
    assert cpus(plan(DGX(tmp_path / "a", "0-15"))) == [
        *("0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15")
    ]
    assert cpus(plan(DGX(tmp_path / "b", "0-7,48-55")))[:2] == ["0,48", "1,49"]
    # taskset or Slurm around a launcher per node: what they left is divided, not what the cgroup admits.
    job = plan(ND_V5(tmp_path, "0-7,48-55", cpuset="0-95"))
    assert cpus(job) == ["0-1", "2-3", "4-5", "6-7", "48-49", "50-51", "52-53", "54-55"]
    # mpirun binds to a core what it starts once per node: the cgroup's cpuset counts.
    per_node = {**MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    per_node |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    for environ in (per_node, {**per_node, "TORCHELASTIC_RUN_ID": "left over"}):
        job = plan(ND_V5(tmp_path, "0", cpuset="0-95"), environ)
        assert cpus(job)[:2] == ["0-11", "12-23"]
        assert job.widen_cpus


UNKNOWN = [("0001:00:00.0", -1), ("0002:00:00.0", -1)]


def small(folder: Path, gpus: Sequence[tuple[str, int]], mask: str = "0-7", **nodes: str) -> Machine:
    """Return a machine of 8 CPUs on 2 NUMA nodes, or with the nodes given."""
    write_nodes(folder, {int(name[1:]): text for name, text in (nodes or {"n0": "0-3", "n1": "4-7"}).items()})
    write_gpus(folder, gpus)
    return Machine(folder, mask, cpuset="0-7")


def test_unknown_numa_nodes_leave_processes_alone_unless_asked(tmp_path: Path) -> None:
    """Virtual machines say -1: nobody is bound by a guess; --bind numa divides evenly, and says so."""
    host = small(tmp_path, UNKNOWN)
    assert (cpus(plan(host)), plan(host).bind) == ([None, None], "none")
    assert notes(plan(host)) == ("processes are not bound to CPUs: the NUMA node of GPU 0 is unknown",)
    asked = plan(host, bind="numa")
    assert (cpus(asked), asked.bind) == (["0-3", "4-7"], "core")
    assert notes(asked) == ("--bind numa: CPUs are divided evenly: the NUMA node of GPU 0 is unknown",)


def test_where_there_is_one_numa_node_every_gpu_is_near(tmp_path: Path) -> None:
    """Kernels say -1 on such machines, too; and a cpuset within one node is such a machine."""
    assert cpus(plan(small(tmp_path / "a", UNKNOWN, n0="0-7"))) == ["0-3", "4-7"]
    assert cpus(plan(small(tmp_path / "b", UNKNOWN, mask="4-7"))) == ["4-5", "6-7"]
    host = Machine(tmp_path / "c", "0-3")
    write_gpus(tmp_path / "c", UNKNOWN)
    assert cpus(plan(host)) == ["0-1", "2-3"]


@pytest.mark.parametrize(
    ("gpus", "mask", "nproc", "reason"),
    [
        (
            [("0001:00:00.0", 0), ("0002:00:00.0", 2)],
            "0-7",
            "2",
            "none of our CPUs is on the NUMA node of GPU 1",
        ),
        ([("0001:00:00.0", 0), ("0002:00:00.0", 1)], "0-7", "4", "2 visible GPUs for 4 processes"),
        (
            [(f"000{i}:00:00.0", 0) for i in range(3)],
            "0,4-7",
            "3",
            "NUMA node 0 has cores for 1 of 3 processes",
        ),
        ([(f"000{i}:00:00.0", 0) for i in range(3)], "0,4", "3", "there are cores for 2 of 3 processes"),
    ],
)
def test_what_cannot_be_near_a_gpu_is_even_if_asked_and_left_alone_if_not(
    tmp_path: Path, gpus: list[tuple[str, int]], mask: str, nproc: str, reason: str
) -> None:
    """A note says why; it is never an error."""
    host = small(tmp_path, gpus, mask)
    left = plan(host, nproc_per_node=nproc)
    assert (set(cpus(left)), notes(left)) == ({None}, (f"processes are not bound to CPUs: {reason}",))
    asked = plan(host, nproc_per_node=nproc, bind="numa")
    assert notes(asked) == (f"--bind numa: CPUs are divided evenly: {reason}",)
    assert cpus(asked) == cpus(plan(host, nproc_per_node=nproc, bind="core"))
    assert None not in cpus(asked)


def test_numa_without_gpus_divides_evenly_and_says_so(tmp_path: Path) -> None:
    """Training on CPUs: neighbours on one node is what such a process wants."""
    job = plan(small(tmp_path, []), {"LAUNCHER_BIND": "numa"}, nproc_per_node="2")
    assert cpus(job) == ["0-3", "4-7"]
    assert notes(job) == ("LAUNCHER_BIND='numa': CPUs are divided evenly: there is no GPU",)


def test_more_processes_than_cpus_share_them(tmp_path: Path) -> None:
    """Each has one; nobody has none; threads are one each."""
    job = plan(small(tmp_path, [], "2,5"), bind="core", nproc_per_node="5")
    assert cpus(job) == ["2", "2", "2", "5", "5"]
    assert threads(job) == ["1"] * 5
    assert cpus(plan(small(tmp_path, [], "3"), bind="core", nproc_per_node="2")) == ["3", "3"]


def test_a_quota_makes_threads_fewer_not_cpus(tmp_path: Path) -> None:
    """Docker's --cpus 24 on 96: the CPUs stay, threads that could not run are not started."""
    host = ND_V5(tmp_path)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("2400000 100000\n")
    job = plan(host)
    assert (cpus(job)[0], set(threads(job))) == ("0-11", {"3"})


def test_a_process_alone_on_its_node_is_left_alone(tmp_path: Path) -> None:
    """One GPU of two nodes: half of the cores would be lost to its data loaders; --bind numa binds it."""
    host = small(tmp_path, [("0001:00:00.0", 1)])
    assert (cpus(plan(host)), notes(plan(host))) == ([None], ())
    assert cpus(plan(host, bind="numa")) == ["4-7"]


def test_processes_that_others_have_started_are_bound_only_if_asked(tmp_path: Path) -> None:
    """Each takes its own share of all; workers of torchrun divide the mask of their agent."""
    # At PROCESS scope each process computes all shares, and takes its own: local rank 1 of 4.
    host = ND_V5(tmp_path, "7", cpuset="0-95")
    assert (cpus(plan(host, MPI)), notes(plan(host, MPI))) == ([None], ())
    assert cpus(plan(host, MPI, bind="core")) == ["24-47"]
    assert cpus(plan(host, MPI, bind="numa")) == ["12-23"]
    assert threads(plan(host, MPI, bind="numa")) == ["12"]
    assert threads(plan(host, MPI)) == ["1"]
    # All workers have the same one, also where the agent itself was started by mpirun or with a mask.
    host = ND_V5(tmp_path, "0-31", cpuset="0-95")
    per_node = {name: value for name, value in MPI.items() if "LOCAL" not in name}
    one = {**WORKER, **per_node, "LAUNCHER_NNODES": "1"}  # mpirun of several agents, each with its own job
    for environ in (WORKER, one, {**WORKER, "LAUNCHER_LAUNCHED": "0.1.0"}):
        assert cpus(plan(host, {**environ, "LAUNCHER_BIND": "core"})) == ["16-31"]


def test_a_process_that_somebody_has_bound_keeps_its_cpus(tmp_path: Path) -> None:
    """srun gives each task its own: dividing them again would leave most of them unused."""
    contract = {name: value for name, value in WORKER.items() if name != "TORCHELASTIC_RUN_ID"}
    job = plan(ND_V5(tmp_path, "12-23", cpuset="0-95"), contract, bind="core", scope="process")
    assert cpus(job) == [None]
    assert notes(job) == (
        "--bind core: processes are not bound to CPUs: this process is bound to CPUs 12-23 already",
    )
    wide = plan(ND_V5(tmp_path, "0-95"), contract, bind="core", scope="process")
    assert cpus(wide) == ["48-95"]


def test_an_unknown_number_of_processes_is_a_note(tmp_path: Path) -> None:
    """A rank without the size of its node: nothing can be divided."""
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1",
    }
    job = plan(ND_V5(tmp_path), environ, bind="core", scope="process")
    assert cpus(job) == [None]
    assert "how many processes this node runs is unknown" in notes(job)[-1]


@pytest.mark.parametrize(
    ("gpus", "environ", "typed"),
    [
        (0, {}, {"nproc_per_node": "2"}),
        (8, MPI, {}),
        (1, {}, {}),
        (8, {}, {"bind": "none"}),
        (8, {"LAUNCHER_BIND": "none"}, {}),
    ],
)
def test_nothing_is_read_where_nothing_is_to_be_bound(
    gpus: int, environ: dict[str, str], typed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU, or started per process, or alone, or told not to: no price."""
    monkeypatch.delattr("launcher.machine.numa.read_layout")
    host = Host({}, answers={"environ": environ, "gpus": gpus})
    assert set(cpus(plan(host, environ, **typed))) == {None}


def test_the_variable_is_not_handed_down(tmp_path: Path) -> None:
    """LAUNCHER_BIND was for this launcher: one inside of a process must not bind again."""
    environ = {"LAUNCHER_BIND": "core", "LAUNCHER_NPROC_PER_NODE": "2"}
    job = plan(small(tmp_path, []), environ)
    assert cpus(job) == ["0-3", "4-7"]
    assert "LAUNCHER_BIND" not in render_environ(job, job.processes[0], environ)


# --- for any machine

layouts = st.builds(
    lambda sizes, gpus: make_layout(sizes, gpus),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=12),
    st.lists(st.sampled_from([None, 0, 1, 2, 3, 9]), max_size=9),
)


def make_layout(sizes: Sequence[tuple[int, int]], gpus: Sequence[int | None]) -> Layout:
    """Return a machine of (NUMA node, hardware threads) per core; siblings are far apart."""
    cores = [
        Core(tuple(place * 2 + 100 * thread for thread in range(size)), node)
        for place, (node, size) in enumerate(sizes)
    ]
    cores.sort(key=lambda core: (core.node or 0, core.cpus))
    every = tuple(sorted(cpu for core in cores for cpu in core.cpus))
    found = tuple(Gpu(f"{place:04x}:00:00.0", node) for place, node in enumerate(gpus))
    return Layout(every, every, tuple(cores), found)


def sets(binding: Binding, count: int) -> list[set[int]]:
    return [set(binding.cpus(place) or ()) for place in range(count)]


@deterministic(400)
@given(
    layout=layouts,
    mode=st.sampled_from(["numa", "core"]),
    asked=st.booleans(),
    count=st.integers(1, 20),
    each=st.integers(1, 3),
    data=st.data(),
)
def test_shares_are_apart_whole_and_ours(
    layout: Layout, mode: str, asked: bool, count: int, each: int, data: st.DataObject
) -> None:
    """On every machine: within the mask, at least one CPU each, disjoint if cores suffice, cores whole."""
    own = data.draw(st.sets(st.sampled_from(layout.own), min_size=1))
    layout = Layout(tuple(sorted(own)), layout.cpuset, layout.cores, layout.gpus)
    names = tuple(str(place) for place in range(len(layout.gpus)))
    binding = plan_binding(BindingRequest(mode, "--bind" if asked else None, count, names, each), layout)
    usable = [own & set(core.cpus) for core in layout.cores if own & set(core.cpus)]
    if binding.mode == "none":
        assert not asked and binding.notes and binding.cpus(0) is None
        return
    shares = sets(binding, count)
    assert all(shares) and set.union(*shares) <= own
    if len(own) >= count:
        assert sum(map(len, shares)) == len(set.union(*shares))
    if len(usable) >= count:
        assert all(core <= share or not core & share for core in usable for share in shares)
    if binding.mode == "core":
        sizes = [len(share) for share in binding.shares]
        assert max(sizes) - min(sizes) <= 1
        assert set.union(*shares) == own or count > len(own) or mode == "numa"
    else:
        for place, share in enumerate(shares):
            nodes = {gpu.node for gpu in layout.gpus[place * each : (place + 1) * each]}
            present = {core.node for core in layout.cores if own & set(core.cpus)}
            near = {cpu for core in layout.cores if core.node in nodes for cpu in core.cpus}
            assert share <= near or len(present) == 1
    assert all(1 <= (binding.threads(place, None) or 0) <= len(shares[place]) for place in range(count))


@deterministic(200)
@given(sizes=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2)), min_size=1), count=st.integers(1, 40))
def test_a_division_leaves_nothing_over(sizes: list[tuple[int, int]], count: int) -> None:
    """Every core is somebody's, in order."""
    layout = make_layout(sizes, [])
    shares = divide(layout.cores, count)
    assert len(shares) == count
    given_away = [cpu for share in shares for core in share for cpu in core.cpus]
    assert set(given_away) == set(layout.own) or count > len(layout.own)
    if count <= len(layout.own):
        assert given_away == [cpu for core in layout.cores for cpu in core.cpus]
