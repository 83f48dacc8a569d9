"""Fabrics that NCCL reaches through a net plugin: AWS's EFA, and Google's GPUDirect-TCPX and TCPXO.

EFA needs aws-ofi-nccl and libfabric. The plugin itself sets what the instance type needs (topology file,
buffer sizes, protocols), but NCCL must find it: without the plugin NCCL uses sockets, and says so only at the
level INFO.

Google's plugin has its settings in a file beside it, and its own checker compares the variables with the list
of its version. So we set none of NCCL's variables, not even NCCL_SOCKET_IFNAME.

Source: AWS "Get started with EFA and NCCL" (FI_PROVIDER=efa), aws/aws-ofi-nccl README and release notes, NCCL
"Environment Variables" (NCCL_NET_PLUGIN: libnccl-net-NAME.so); GKE "Maximize GPU network bandwidth in
Standard mode clusters", GoogleCloudPlatform/container-engine-accelerators gpudirect-tcpx and gpudirect-tcpxo
(where the files are, NCCL_FASTRAK_*, NCCL_GPUDIRECTTCPX_*).
"""

from __future__ import annotations

from launcher.fabrics.facts import ELSEWHERE, Facts, Found, count, find_hidden, unusable

NAMED = ("ofi", "aws-ofi")
"""Names of the plugin after libnccl-net-, in its different versions."""
FOLDERS = ("/tcpx", "/fastrak")
"""Parts of the paths where the installers put the plugin: /var/lib/tcpxo/lib64, /usr/local/tcpx/lib64."""
VARIABLES = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_")
PROFILE = "nccl-env-profile.sh"


def find_efa(facts: Facts) -> Found:
    """Return whether adapters and plugin are here, or which of the two is missing."""
    ports = tuple(port for port in facts.ports if port.driver == "efa" and port.state == "ACTIVE")
    usable = facts.reachable(ports)
    if not ports:
        return Found(False, "this node shows no EFA device", fix=ELSEWHERE)
    if not usable:
        return find_hidden(ports, "EFA", "docker run --device /dev/infiniband")
    plugin, named = facts.net_plugin() or find_named(facts)[1], facts.told("NCCL_NET_PLUGIN")
    if plugin:
        return Found(True, f"{count(usable, 'EFA')}, plugin {plugin}", usable, has_hardware=True)
    if named:
        return unusable(f"NCCL_NET_PLUGIN={named} is set", "unset NCCL_NET_PLUGIN")
    if facts.strays:
        folder = facts.strays[0].rpartition("/")[0]
        why = f"aws-ofi-nccl is in {folder}, which the loader does not search: NCCL would use sockets"
        return unusable(why, f"LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH")
    why = f"{count(usable, 'EFA')}, but aws-ofi-nccl is not installed: NCCL would use sockets"
    return unusable(why, "an image with aws-ofi-nccl (AWS Deep Learning Containers, or the EFA installer)")


def find_named(facts: Facts) -> tuple[str, str]:
    """Return name and path of a plugin that NCCL loads only if it is named; empty if there is none."""
    if facts.told("NCCL_NET_PLUGIN"):
        return "", ""
    by_name = {path.rpartition("/")[2]: path for path in facts.plugins}
    found = ((name, by_name.get(f"libnccl-net-{name}.so", "")) for name in NAMED)
    return next((pair for pair in found if pair[1]), ("", ""))


def find_gcp(facts: Facts) -> Found:
    """Return whether NCCL would load the plugin."""
    plugin = facts.net_plugin()
    is_set = any(name.startswith(VARIABLES) for name in facts.environ)
    if plugin is None:
        why = "its variables are set, but no libnccl-net.so" if is_set else "no plugin of it"
        fix = "add the plugin's directory to LD_LIBRARY_PATH (/var/lib/tcpxo/lib64)"
        return Found(False, f"{why} is found", has_hardware=is_set, fix=fix)
    if not is_set and not any(part in plugin for part in FOLDERS):
        return Found(False, f"{plugin} is another plugin", fix=ELSEWHERE)
    profile = f"{plugin.rpartition('/')[0]}/{PROFILE}"
    note = f"GPUDirect's variables are not set: source {profile} before the launcher"
    return Found(True, f"plugin {plugin}", has_hardware=True, notes=() if is_set else (note,))
