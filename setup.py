"""What setup.cfg cannot say: a build makes the completions and the man page from the program itself."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Command, setup

ROOT = Path(__file__).resolve().parent
NEEDS = ["shtab==1.13.0"]
"""Needed by a build only: pip installs them into the build's environment, docker/tools.lock has them."""
NOTHING: list[tuple[str, list[str]]] = [("share", [])]
"""Setuptools runs the command only if there is an entry."""


class InstallData(Command):
    """Writes the completions and the man page where setuptools copies data_files."""

    def initialize_options(self) -> None:
        """Begin without a folder."""
        self.install_dir = ""
        self.outfiles: list[str] = []

    def finalize_options(self) -> None:
        """Take the folder that the whole installation has."""
        self.install_dir = self.get_finalized_command("install").install_data

    def get_outputs(self) -> list[str]:
        """Return what was written."""
        return self.outfiles

    def run(self) -> None:
        """Write them below the prefix."""
        sys.path.insert(0, str(ROOT))
        from tools.render_cli import render

        for name, text in render().items():
            path = Path(self.install_dir, "share", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            self.outfiles.append(str(path))


setup(setup_requires=NEEDS, cmdclass={"install_data": InstallData}, data_files=NOTHING)
