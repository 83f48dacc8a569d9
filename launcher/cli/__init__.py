"""The commands of the launcher, and their dispatch from the command line."""
