"""Accelerators other than NVIDIA's, counted by device files in made-up machines: no driver is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.core.errors import HardwareMissing, UsageError
from launcher.core.model import AMD_GPU, COUNT_WORDS, INTEGRATED_XPU, OTHER_KINDS
from launcher.machine import read_machine
from launcher.machine.accelerators import count_accelerators
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.snapshot import take_snapshot

KFD = "sys/class/kfd/kfd/topology/nodes"
Files = dict[str, str]


def numbered(prefix: str, count: int) -> Files:
    """Return device files with numbers at their ends."""
    return {f"{prefix}{index}": "" for index in range(count)}


def amd(count: int, exposed: int) -> Files:
    """Return two CPUs and some GPUs as KFD lists them, of which some render nodes are exposed."""
    cpus = {f"{KFD}/{node}/properties": "cpu_cores_count 96\nsimd_count 0\n" for node in (0, 1)}
    gpus = {
        f"{KFD}/{node + 2}/properties": f"cpu_cores_count 0\nsimd_count 304\ndrm_render_minor {128 + node}\n"
        for node in range(count)
    }
    return {"dev/kfd": "", **cpus, **gpus, **{f"dev/dri/renderD{128 + n}": "" for n in range(exposed)}}


def intel(*addresses: str, tiles: int = 0, engines: int = 0, vendor: str = "0x8086") -> Files:
    """Return GPUs behind ``/dev/dri``; a link of ``/sys`` is a file here whose text is its target."""
    files: Files = {}
    for number, address in enumerate(addresses, 128):
        device = f"sys/class/drm/renderD{number}/device"
        files |= {f"dev/dri/renderD{number}": "", f"link {device}": f"../../../{address}"}
        device = f"sys/class/drm/{address}"
        files[f"{device}/vendor"] = f"{vendor}\n"
        files |= {f"{device}/tile{tile}/id": "" for tile in range(tiles)}
        files |= {f"{device}/drm/card{number}/gt/gt{engine}/id": "" for engine in range(engines)}
    return files


def machine(folder: Path, files: Mapping[str, str]) -> Host:
    """Return a machine that has these files."""
    for path, text in files.items():
        name = folder / path.removeprefix("link ")
        name.parent.mkdir(parents=True, exist_ok=True)
        if path.startswith("link "):
            (folder / "sys/class/drm" / text.rpartition("/")[2]).mkdir(parents=True, exist_ok=True)
            name.symlink_to(f"../{text.rpartition('/')[2]}")
        else:
            name.write_text(text)
    return Host(str(folder))


CARDS = ("0000:18:00.0", "0000:2a:00.0")
HABANA = {f"sys/class/accel/accel{n}/device/vendor": "0x1da3\n" for n in range(8)}
CASES: dict[str, tuple[Files, dict[str, str], dict[str, int | None]]] = {
    "nothing": ({"dev/null": ""}, {}, {}),
    "AMD": (amd(8, 8), {}, {"amd": 8}),
    "AMD, some in this container": (amd(8, 2), {}, {"amd": 2}),
    "AMD without its device file": ({**amd(8, 0)}, {}, {}),
    "AMD, hidden twice": (
        amd(8, 8),
        {"ROCR_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "0,1"},
        {"amd": 2},
    ),
    "AMD, hidden as if it were NVIDIA": (amd(8, 8), {"CUDA_VISIBLE_DEVICES": "4,5,6"}, {"amd": 3}),
    "AMD, all hidden": (amd(8, 8), {"HIP_VISIBLE_DEVICES": ""}, {}),
    "Intel": (intel(*CARDS), {}, {"xpu": 2}),
    "Intel, two tiles each": (intel(*CARDS, tiles=2, engines=2), {}, {"xpu": None}),
    "Intel, perhaps tiles": (intel(*CARDS, engines=2), {}, {"xpu": None}),
    "Intel, masked": (intel(*CARDS), {"ZE_AFFINITY_MASK": "0"}, {"xpu": None}),
    "Intel, selected": (intel(*CARDS), {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"}, {"xpu": None}),
    "Intel, and graphics": (intel("0000:00:02.0", *CARDS), {}, {"xpu": 2}),
    "Intel, graphics alone": (intel("0000:00:02.0"), {}, {"integrated xpu": 1}),
    "another's render nodes": (intel(*CARDS, vendor="0x10de"), {}, {}),
    "Gaudi": ({**numbered("dev/accel/accel", 8), **HABANA}, {}, {"hpu": 8}),
    "Gaudi, some modules": (
        {**numbered("dev/accel/accel", 8), **HABANA},
        {"HABANA_VISIBLE_MODULES": "4,5"},
        {"hpu": 2},
    ),
    "Gaudi, an older driver": ({**numbered("dev/hl", 8), **numbered("dev/hl_controlD", 8)}, {}, {"hpu": 8}),
    "an NPU inside of a CPU": (
        {"dev/accel/accel0": "", "sys/class/accel/accel0/device/vendor": "0x8086\n"},
        {},
        {},
    ),
    "Ascend": ({**numbered("dev/davinci", 8), "dev/davinci_manager": ""}, {}, {"npu": 8}),
    "Ascend, some": (numbered("dev/davinci", 8), {"ASCEND_RT_VISIBLE_DEVICES": "1,3,8"}, {"npu": 2}),
    "Cambricon": ({**numbered("dev/cambricon_dev", 4), "dev/cambricon_ctl": ""}, {}, {"mlu": 4}),
    "Moore Threads": (numbered("dev/mtgpu.", 4), {"MUSA_VISIBLE_DEVICES": "0"}, {"musa": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_accelerators_are_counted_by_their_files(name: str, tmp_path: Path) -> None:
    """What is exposed to us, less what variables hide; None where files do not tell."""
    files, environ, expected = CASES[name]
    host = machine(tmp_path, files)
    assert dict(count_accelerators(host, environ)) == expected
    assert dict(read_machine(host, environ, counts=True).accelerators) == expected
    assert read_machine(host, environ).accelerators == ()
    assert set(expected) <= {AMD_GPU, *OTHER_KINDS, INTEGRATED_XPU}


def count(word: str, host: Host) -> int | str:
    """Return how many processes a word means on a machine, or the code of the refusal."""
    try:
        plan = plan_job({}, host, read_options({"nproc_per_node": word}, {}), ())
    except HardwareMissing as error:
        (problem,) = error.problems
        assert (
            problem.what.startswith(f"--nproc-per-node {word} but ") and "--nproc-per-node N" in problem.fix
        )
        return problem.code
    return plan.topology.world_size or 0


PLAIN = {**numbered("dev/davinci", 16), **numbered("dev/cambricon_dev", 4), **numbered("dev/mtgpu.", 2)}
XPUS = [f"0000:{bus:02x}:00.0" for bus in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {"auto": 6, "cpu": 6, "gpu": "no-gpu", "cuda": "no-gpu", "xpu": "no-accelerator"}),
        (amd(8, 8), {"auto": 8, "gpu": 8, "cuda": 8, "cpu": 6, "hpu": "no-accelerator"}),
        (intel(*XPUS), {"auto": 4, "xpu": 4, "gpu": "no-gpu"}),
        ({**intel(*XPUS), **numbered("dev/nvidia", 2)}, {"auto": 2, "xpu": 4, "gpu": 2}),
        (intel(XPUS[0], engines=2), {"auto": "no-accelerator", "xpu": "no-accelerator", "cpu": 6}),
        (intel("0000:00:02.0"), {"auto": 6, "xpu": 1}),
        (numbered("dev/hl", 8), {"auto": 8, "hpu": 8}),
        (PLAIN, {"auto": 16, "npu": 16, "mlu": 4, "musa": 2}),
    ],
)
def test_a_word_means_what_it_means_to_torchrun(
    files: Files, expected: dict[str, int | str], tmp_path: Path
) -> None:
    """auto is the accelerator that is here, else the CPUs; what is not here, or not told, is an error.

    On the machine, and from its snapshot.
    """
    host = machine(tmp_path, {"dev/null": "", "sys/fs/cgroup/cpuset.cpus.effective": "0-5", **files})
    assert {word: count(word, host) for word in expected} == expected
    recorded = replay(take_snapshot(host, {}))
    assert {word: count(word, recorded) for word in expected} == expected


def test_the_words_count_in_variables_too(tmp_path: Path) -> None:
    """PET_NPROC_PER_NODE is torchrun's flag."""
    host = machine(tmp_path, intel(*XPUS))
    for name in ("PET_NPROC_PER_NODE", "LAUNCHER_NPROC_PER_NODE"):
        environ = {name: "xpu"}
        assert plan_job(environ, host, read_options({}, environ), ()).topology.world_size == 4


@pytest.mark.parametrize("word", ["mtia", "mps", "tpu", "my_backend"])
def test_a_word_that_no_files_count_asks_for_the_number(word: str) -> None:
    """torch may have a backend of that name; the message has the words that are counted."""
    with pytest.raises(UsageError, match=r"expected an integer in 1\.\.4096, or auto, ") as caught:
        read_options({"nproc_per_node": word}, {})
    assert all(known in str(caught.value) for known in COUNT_WORDS)
