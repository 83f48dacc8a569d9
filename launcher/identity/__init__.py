"""Who we are: which node, which ranks, where the master is, by what all sources claim."""
