"""Slurm's own scontrol reads compressed host lists as we do; it needs no server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.sources.nodelist import parse_nodelist
from tests.unit.test_nodelist import EXPANSIONS, REFUSED_BY_SLURM, items


class Scontrol:
    """Slurm's expander, with a configuration file that names no server."""

    def __init__(self, conf: Path) -> None:
        conf.write_text("ClusterName=test\nSlurmctldHost=localhost\n")
        self.environ = {**os.environ, "SLURM_CONF": str(conf)}

    def expand(self, text: str) -> tuple[str, ...] | None:
        """Return the names, or None where Slurm refuses the list."""
        run = subprocess.run(
            ["scontrol", "show", "hostnames", text],
            env=self.environ,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return None if "Invalid hostlist" in run.stderr else tuple(run.stdout.split())


@pytest.fixture(scope="session")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Scontrol:
    """Return the oracle; root can install it, so for root its absence is a failure."""
    if shutil.which("scontrol") is None:
        message = "scontrol is not installed: apt-get install slurm-client"
        if os.geteuid() == 0:
            pytest.fail(message)
        pytest.skip(message)
    return Scontrol(tmp_path_factory.mktemp("slurm") / "slurm.conf")


@pytest.mark.parametrize("text", EXPANSIONS)
def test_table_agrees_with_slurm(scontrol: Scontrol, text: str) -> None:
    """The expected names in the table are Slurm's."""
    assert scontrol.expand(text) == parse_nodelist(text)


@pytest.mark.parametrize("text", REFUSED_BY_SLURM)
def test_slurm_refuses_these_too(scontrol: Scontrol, text: str) -> None:
    """The lists that the table calls refused by Slurm are."""
    assert scontrol.expand(text) is None


@settings(max_examples=200, deadline=None)
@given(chosen=st.lists(items(groups_max=4), min_size=1, max_size=3))
def test_generated_host_lists_agree_with_slurm(
    scontrol: Scontrol, chosen: list[tuple[str, list[str]]]
) -> None:
    """Generated lists expand as in Slurm, with its order for three groups and more."""
    text = ",".join(text for text, _ in chosen)
    assert scontrol.expand(text) == parse_nodelist(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="n01[]-,", min_size=1, max_size=16))
def test_what_we_accept_slurm_accepts(scontrol: Scontrol, text: str) -> None:
    """We never read names into a text that Slurm refuses or reads in another way."""
    try:
        names = parse_nodelist(text)
    except ValueError:
        return
    assert scontrol.expand(text) == names
