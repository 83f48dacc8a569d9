"""Google's GPUDirect-TCPX and TCPXO: a net plugin for NCCL, with its settings in a file beside it.

The plugin's own checker compares the variables with the list of its version. So we set none of NCCL's
variables, not even NCCL_SOCKET_IFNAME.

Source: GKE "Maximize GPU network bandwidth in Standard mode clusters", GoogleCloudPlatform/
container-engine-accelerators gpudirect-tcpx and gpudirect-tcpxo (where the files are, NCCL_FASTRAK_*,
NCCL_GPUDIRECTTCPX_*).
"""

from __future__ import annotations

from launcher.fabrics.finding import ELSEWHERE, Found, Wish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.fabrics.facts import Facts

FOLDERS = ("/tcpx", "/fastrak")
"""Parts of the paths where the installers put the plugin: /var/lib/tcpxo/lib64, /usr/local/tcpx/lib64."""
VARIABLES = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_")
PROFILE = "nccl-env-profile.sh"


def find(facts: Facts) -> Found:
    """Return whether NCCL would load the plugin."""
    plugin = facts.net_plugin()
    is_set = any(name.startswith(VARIABLES) for name in facts.environ)
    if plugin is None:
        why = (
            "its variables are set, but no libnccl-net.so is found" if is_set else "no plugin of it is found"
        )
        fix = "LD_LIBRARY_PATH with the folder of the plugin (/var/lib/tcpxo/lib64)"
        return Found(False, why, has_hardware=is_set, fix=fix)
    if not is_set and not any(part in plugin for part in FOLDERS):
        return Found(False, f"{plugin} is another plugin", fix=ELSEWHERE)
    if is_set:
        return Found(True, f"plugin {plugin}", has_hardware=True)
    profile = f"{plugin.rpartition('/')[0]}/{PROFILE}"
    note = f"GPUDirect's variables are not set: source {profile} before the launcher"
    return Found(True, f"plugin {plugin}", has_hardware=True, notes=(note,))


def plan(facts: Facts, found: Found, wish: Wish) -> Sequence[tuple[str, str, str]]:
    """Return no settings: the plugin's checker would refuse them."""
    return ()
