"""What setup.cfg cannot say: the files that a build makes.

The completions and the man page come from the program itself; ``launcher/commit.txt`` says which commit was
built (launcher/core/version.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
NEEDS = ["shtab==1.13.0"]
"""Needed by a build only: pip installs them into the build's environment, docker/tools.lock has them."""
NOTHING: list[tuple[str, list[str]]] = [("share", [])]
"""Setuptools runs the command only if there is an entry."""


def write_commit(root: str) -> None:
    """Write the commit and its time into the package of a build.

    ``git archive`` has done so already. LAUNCHER_REVISION names the commit where the source has no ``.git``:
    in the build of an image. If nothing names it, the file stays as it is.

    Args:
        root: The folder that the package is in.
    """
    path = Path(root, "launcher", "commit.txt")
    if not path.exists() or not path.read_text(encoding="utf-8").startswith("$Format"):
        return
    said = os.environ.get("LAUNCHER_REVISION", "")
    if (ROOT / ".git").exists():
        line = ("git", "-C", str(ROOT), "log", "-1", "--format=%H %ct")
        said = subprocess.run(line, capture_output=True, text=True, check=False).stdout or said
    if said:
        path.unlink()  # setuptools may have made a link to the file of the source
        path.write_text(f"{said.strip()}\n", encoding="utf-8")


class BuildPackage(build_py):
    """Builds the package with the commit in it; an editable installation uses the files of the checkout."""

    def run(self) -> None:
        """Copy the modules, then write the commit."""
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class SourceArchive(sdist):
    """Makes the source archive with the commit in it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, then write the commit."""
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


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


COMMANDS = {"install_data": InstallData, "build_py": BuildPackage, "sdist": SourceArchive}
setup(setup_requires=NEEDS, cmdclass=COMMANDS, data_files=NOTHING)
