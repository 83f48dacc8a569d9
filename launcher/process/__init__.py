"""Processes of a node: starts, watches and stops them, and cleans up what they leave behind."""
