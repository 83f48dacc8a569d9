"""A stand-in for pyxis and enroot on the nodes of a real Slurm: their options and variables, no containers.

srun and sbatch know pyxis' options by a plugin of Slurm's, compiled here, and refuse others. A task of a step
that asks for an image runs on the node, with the variables that it has in a container with PyTorch.

Source: NVIDIA/pyxis 0.24.0, args.c and pyxis_slurmstepd.c (`pytorch_setup`: RANK and LOCAL_RANK of each
task); NVIDIA/enroot, conf/hooks/extra/50-slurm-pytorch.sh (the others).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

OPTIONS = {
    "container-image": True,
    "container-mounts": True,
    "container-workdir": True,
    "container-name": True,
    "container-save": True,
    "container-mount-home": False,
    "no-container-mount-home": False,
    "container-remap-root": False,
    "no-container-remap-root": False,
    "container-entrypoint": False,
    "no-container-entrypoint": False,
    "container-entrypoint-log": False,
    "container-writable": False,
    "container-readonly": False,
    "container-env": True,
    "container-unshare": True,
}
"""The options, and whether each has a value."""

# The declarations are those of slurm/spank.h, which is in a package of its own.
PLUGIN = """\
struct spank_option {
    const char *name, *arginfo, *usage;
    int has_arg, val;
    int (*take)(int val, const char *text, int remote);
};
extern int spank_option_register(void *spank, struct spank_option *option);
extern int spank_setenv(void *spank, const char *name, const char *value, int overwrites);

const char plugin_name[] = "pyxis", plugin_type[] = "spank";
const unsigned int plugin_version = %(version)d, spank_plugin_version = 1;

static int has_image = 0;

static int take(int val, const char *text, int remote)
{
    has_image |= val;
    return 0;
}

static struct spank_option options[] = {%(options)s};

int slurm_spank_init(void *spank, int count, char **words)
{
    for (unsigned i = 0; i < sizeof options / sizeof *options; ++i)
        if (spank_option_register(spank, &options[i]))
            return -1;
    return 0;
}

int slurm_spank_task_init(void *spank, int count, char **words)
{
    return has_image ? spank_setenv(spank, "%(mark)s", "1", 1) : 0;
}
"""
MARK = "IN_CONTAINER_OF_PYXIS"
TASK_PROLOG = f"""\
#!/bin/sh
test "${MARK}" || exit 0
first=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)
echo "export MASTER_ADDR=${{MASTER_ADDR:-$first}}"
echo "export MASTER_PORT=${{MASTER_PORT:-$((61000 + SLURM_JOB_ID % 4536))}}"
echo "export WORLD_SIZE=${{WORLD_SIZE:-$SLURM_NTASKS}}"
echo "export RANK=$SLURM_PROCID"
echo "export LOCAL_RANK=$SLURM_LOCALID"
"""


def install_pyxis(folder: Path) -> str:
    """Write the plugin and what belongs to it to a folder; return the lines of slurm.conf for them."""
    options = ", ".join(
        f'{{"{name}", "TEXT", "", {int(has_value)}, {int(name == "container-image")}, take}}'
        for name, has_value in OPTIONS.items()
    )
    source, plugin = folder / "pyxis.c", folder / "pyxis.so"
    source.write_text(PLUGIN % {"version": _read_version(), "options": options, "mark": MARK})
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(source)], check=True)
    (folder / "plugstack.conf").write_text(f"required {plugin}\n")
    prolog = folder / "task_prolog"
    prolog.write_text(TASK_PROLOG)
    prolog.chmod(0o755)
    return f"PlugStackConfig={folder}/plugstack.conf\nTaskProlog={prolog}\n"


def _read_version() -> int:
    """Return Slurm's version as plugins name it, such as 0x160508 for 22.05.8."""
    slurmd = shutil.which("slurmd", path=f"{os.defpath}:/usr/sbin:/sbin") or "slurmd"
    done = subprocess.run([slurmd, "-V"], capture_output=True, text=True, check=True)
    major, minor, micro = (int(part) for part in done.stdout.split()[-1].split("-")[0].split("."))
    return major << 16 | minor << 8 | micro
