"""Programs on other nodes of the job, with their standard streams, over the channel between the launchers."""
