"""The user's command: detects which Python, script, shell or launcher it is."""
