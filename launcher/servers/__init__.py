"""Servers of frameworks, and what waits for them: programs, each run by the Python that it is for.

They lie apart from `launcher.frameworks`, whose modules are called as the frameworks are: the folder of a
program is the first where Python looks for what it imports.
"""
