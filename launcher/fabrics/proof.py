"""``--verify-fabric``: how rank 0's NCCL is made to say which network it uses, where nothing is in the way.

Its debug output is read from a file of ours. A user who has set one of the three variables wants that output
elsewhere, or none: then theirs stay, and a note says that nothing is compared.

Source: NCCL "Environment Variables" (NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE) and src/debug.cc.
"""

from __future__ import annotations

from launcher.core.model import Network, Proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.fabrics.facts import Facts

DEBUG, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
SETTINGS = ((DEBUG, "INFO"), (SUBSYSTEMS, "INIT,NET,ENV"))
"""ENV names the variables that keep NCCL from a network: they are what is to be mended."""


def plan_proof(facts: Facts, network: Network, required: str) -> tuple[Proof | None, str]:
    """Return what NCCL's word is compared with, or why it cannot be heard.

    Args:
        facts: What this node has: the user's variables, and NCCL's files.
        network: What was planned.
        required: The flag that ends the job if it is another one; empty for none.
    """
    theirs = [name for name in (DEBUG, FILE, SUBSYSTEMS) if facts.told(name)]
    if not theirs:
        return Proof(network, SETTINGS, required), ""
    said = ", ".join(f"{name}={facts.told(name)}" for name in theirs)
    return None, f"{said} stays: {network.fabric} is not verified (unset it, or look for NET/ in that output)"
