"""The command that is to run, as it was typed: which Python, script, shell or launcher it is."""
