"""What setup.cfg cannot say: a build makes the completions and the man page from the program itself.

Not where `tools/` is left out, as in the context of an image, which has no use for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Command, setup

ROOT = Path(__file__).resolve().parent
NEEDS = ["shtab==1.13.0", "argparse-manpage==4.8"]
"""Of a build alone: pip installs them into its environment."""
NOTHING: list[tuple[str, list[str]]] = [("share", [])]
"""Setuptools runs the command only where there is an entry."""


class InstallData(Command):
    """Writes the files where setuptools would copy what data_files names: they are those of this program."""

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


if (ROOT / "tools").is_dir():
    setup(setup_requires=NEEDS, cmdclass={"install_data": InstallData}, data_files=NOTHING)
else:
    setup()
