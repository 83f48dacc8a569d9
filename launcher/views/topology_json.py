"""Renders the parts of a node and the distances between them as JSON (docs/topology.md)."""

from __future__ import annotations

import json

from launcher.core.ranks import render_cpu_list
from launcher.core.version import __version__
from launcher.machine.hardware import Hardware, distance
from launcher.machine.infiniband import Port, is_usable
from launcher.machine.network import Interface
from launcher.machine.nvml import describe_gpu
from launcher.planning.assignment import Assigned
from launcher.views.topology import TopologyView, show_addresses, show_routes

VERSION = 1


def describe(view: TopologyView) -> dict[str, object]:
    """Return a view as a JSON object."""
    hardware = view.hardware
    parts = hardware.parts
    labels = {part.port: part.label for part in parts if part.port is not None}
    paths = {part.gpu: part.path for part in parts if part.gpu is not None}
    return {
        "version": VERSION,
        "launcher": __version__,
        "hostname": hardware.hostname,
        "numa_nodes": [
            {"node": node.number, "cpus": render_cpu_list(node.cpus), "cores": node.core_count}
            for node in hardware.nodes
        ],
        "gpus": [
            {**describe_gpu(gpu), "pci_path": list(paths[gpu]), "visible": gpu.index in view.visible}
            for gpu in hardware.gpus
        ],
        "ports": [_describe_port(labels[port], port) for port in hardware.ports],
        "interfaces": [_describe_interface(one, hardware) for one in hardware.interfaces],
        "matrix": {
            "labels": [part.label for part in parts],
            "rows": [[distance(row, column) for column in parts] for row in parts],
        },
        "processes": [_describe_process(process) for process in view.assigned],
        "notes": list(view.notes),
    }


def _describe_port(label: str, port: Port) -> dict[str, object]:
    names = ("device", "number", "link_layer", "state", "rate_gbps", "numa_node", "interface", "driver")
    return {
        "label": label,
        **{name: vars(port)[name] for name in names},
        "pci_path": list(port.pci_path),
        "usable": is_usable(port),
    }


def _describe_interface(interface: Interface, hardware: Hardware) -> dict[str, object]:
    names = ("name", "kind", "is_up", "has_carrier", "speed_mbps", "master")
    return {
        **{name: vars(interface)[name] for name in names},
        "addresses": list(show_addresses(interface)),
        "routes": list(show_routes(interface, hardware)),
    }


def _describe_process(process: Assigned) -> dict[str, object]:
    return {
        "rank": process.rank,
        "local_rank": process.local_rank,
        "gpus": list(process.gpus),
        "cpus": None if process.cpus is None else render_cpu_list(process.cpus),
        "nearest_ports": list(process.ports),
        "distance": process.reach,
    }


def render_json(view: TopologyView) -> str:
    """Return a view as JSON text, with keys in a fixed order."""
    return json.dumps(describe(view), indent=1) + "\n"
