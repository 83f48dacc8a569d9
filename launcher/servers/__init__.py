"""Programs that serve a framework or wait for its server, each run by the Python that it is for.

They are not in `launcher.frameworks`, whose modules have the names of the frameworks: Python searches a
program's own folder first, and would import those modules instead of the frameworks.
"""
