"""Programs that serve a framework or wait for its server. Each runs under the framework's own Python.

They are not in `launcher.frameworks`, whose modules have the names of the frameworks: Python searches a
program's own directory first, and would import those modules instead of the frameworks.
"""
