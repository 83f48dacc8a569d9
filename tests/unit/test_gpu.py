"""On a machine with an NVIDIA GPU: what we say of it is what ``nvidia-smi`` says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from launcher.cli.entry import main
from launcher.machine.gpus import list_minors
from launcher.machine.host import Host
from launcher.machine.numa import parse_pci_address
from launcher.machine.nvml import read_gpu_facts
from tests.process.starting import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not list_minors(Host()), reason="no NVIDIA GPU: there is no /dev/nvidia0"),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi on PATH"),
]


def ask_nvidia_smi() -> list[ET.Element]:
    """Return what nvidia-smi says of each GPU, in the order of PCI addresses."""
    done = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, timeout=60, check=True)
    found = list(ET.fromstring(done.stdout).iter("gpu"))
    return sorted(found, key=lambda gpu: parse_pci_address(gpu.get("id", "")) or ())


def test_facts_are_those_of_nvidia_smi() -> None:
    """Address, UUID, name, memory, ECC, each GPU."""
    theirs, ours = ask_nvidia_smi(), read_gpu_facts(Host())
    assert len(ours) == len(theirs)
    for gpu, node in zip(ours, theirs, strict=True):
        assert parse_pci_address(gpu.address or "") == parse_pci_address(node.get("id", ""))
        assert gpu.uuid == node.findtext("uuid")
        assert gpu.name == node.findtext("product_name")
        mebibytes = (node.findtext("fb_memory_usage/total") or "").split()
        assert gpu.memory_bytes is not None
        assert gpu.memory_bytes >> 20 == int(mebibytes[0])
        ecc = {"Enabled": True, "Disabled": False}.get(node.findtext("ecc_mode/current_ecc") or "")
        assert gpu.has_ecc == ecc
        failed = node.findtext("remapped_rows/remapped_row_failure")
        assert gpu.remapping_failed == {"Yes": True, "No": False}.get(failed or "")


def test_nvlinks_are_those_of_nvidia_smi() -> None:
    """As many active ones, where it lists any."""
    for gpu in read_gpu_facts(Host()):
        command = ["nvidia-smi", "nvlink", "--status", "-i", gpu.uuid or ""]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        active = done.stdout.count("GB/s")
        assert sum(link.count for link in gpu.links or ()) == active


@pytest.mark.parametrize("form", ["text", "json"])
def test_topology_shows_the_machine(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Every GPU by its address."""
    assert main(["topology", "--format", form], {}) == 0
    shown = capfd.readouterr().out
    assert all(str(gpu.address) in shown for gpu in read_gpu_facts(Host()))


def test_check_looks_at_the_machine(capfd: pytest.CaptureFixture[str]) -> None:
    """All GPUs are found, and NVML's facts about them are judged."""
    assert main(["check", "--format", "json"], {}) == 0
    found = {finding["check"]: finding for finding in json.loads(capfd.readouterr().out)["findings"]}
    assert found["gpus"]["found"].startswith(f"{len(list_minors(Host()))} ")
    assert "health" in found
    assert [one for one in found.values() if one["what"] == "the check itself"] == []


REDUCE = """
import torch
torch.distributed.init_process_group("nccl")
data = torch.ones(1, device="cuda")
torch.distributed.all_reduce(data)
print("sum", int(data), flush=True)
torch.distributed.destroy_process_group()
"""


def test_torch_with_nccl_starts_on_one_gpu() -> None:
    """The variables of the launcher are all that it needs."""
    torch = pytest.importorskip("torch")
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        pytest.skip("this torch has no CUDA, or no NCCL")
    words = ("--standalone", "--nproc-per-node", "1", "--", sys.executable, "-c", REDUCE)
    done = launch("run", *words)
    assert (done.returncode, done.stdout) == (0, "sum 1\n"), done.stderr


def test_what_nccl_says_is_what_was_planned() -> None:
    """torch with NCCL on one GPU: it names its network also on a node alone, and the launcher hears it."""
    pytest.importorskip("torch")
    script = (
        "import torch, torch.distributed as dist; torch.cuda.set_device(0); dist.init_process_group('nccl');"
        "dist.all_reduce(torch.ones(1, device='cuda')); torch.cuda.synchronize();"
        "dist.destroy_process_group()"
    )
    flags = ("--standalone", "--nproc-per-node", "1", "--verify-fabric", "--fabric", "tcp")
    done = launch("run", *flags, "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert "fabric tcp verified: NCCL uses NET/Socket" in done.stderr
    assert "NCCL INFO" not in done.stdout + done.stderr
