"""The identity of this node: its index, its ranks, its master, by what all sources claim."""
