"""Nodes with an sshd, as in tests/cluster."""

from __future__ import annotations

from tests.cluster.conftest import cluster, sshd_on_nodes

__all__ = ["cluster", "sshd_on_nodes"]
