"""The agents of all nodes as one: rendezvous, heartbeats, one outcome."""
