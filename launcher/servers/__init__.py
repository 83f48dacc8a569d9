"""Servers of frameworks: programs of their own, each run by the Python that has the framework.

They lie apart from `launcher.frameworks`, whose modules are called as the frameworks are: the folder of a
program is the first where Python looks for what it imports.
"""
