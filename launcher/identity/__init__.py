"""Decides the identity of this node from the claims of all sources: node_rank, ranks and master."""
