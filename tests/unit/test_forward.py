"""What goes along from the head: all of the job's, nothing of the node's, no secret that nobody asked for."""

from __future__ import annotations

import pytest

from launcher.engines.forward import choose_forwarded, list_withheld, plan_starter_environ
from launcher.sources.rows import NODES, PLATFORMS

SECRET = "s3cr3t" + "Zq9XvT7LmK2pR8wB4nY6"
OF_THE_JOB = {
    "PATH": "/opt/conda/bin:/usr/bin",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "PYTHONPATH": "/src",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "OMP_NUM_THREADS": "4",
    "NCCL_DEBUG": "INFO",
    "UCX_TCP_PORT_RANGE": "9000-9100",
    "CUDA_VISIBLE_DEVICES": "0,1,-1",
    "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "29500",
    "AZUREML_RUN_ID": "run",
    "AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5",
    "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5",
    "OMPI_MCA_btl": "self,tcp",
    "I_MPI_DEBUG": "5",
    "LAUNCHER_MASTER_PORT": "1",
    "MY_OWN": "",
    "com.nvidia.cuda.version": "12",
    "BASH_FUNC_module%%": "() {  true\n}",
}
OF_THE_NODE = {
    "HOME": "/root",
    "USER": "root",
    "PWD": "/",
    "SHLVL": "1",
    "_": "/bin/x",
    "HOSTNAME": "node0",
    "TMPDIR": "/tmp/node0",
    "TERM": "xterm",
    "DISPLAY": ":0",
    "SSH_CONNECTION": "1 2 3 4",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "XDG_RUNTIME_DIR": "/run/user/0",
    "AZ_BATCH_NODE_ID": "tvm-1",
    "AZ_BATCH_IS_CURRENT_NODE_MASTER": "true",
    "AZ_BATCH_TASK_WORKING_DIR": "/mnt/wd",
    "AZ_BATCHAI_TASK_INDEX": "0",
    "AZUREML_CR_NODE_RANK": "0",
    "TF_CONFIG": "{}",
    "NVIDIA_VISIBLE_DEVICES": "GPU-1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "NODE_RANK": "0",
    "SLURM_JOBID": "7",
    "SLURM_PROCID": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.4:1",
    "OMPI_MCA_mca_base_env_list": "A;B",
    "PMIX_RANK": "0",
    "PMI_FD": "9",
    "HYDRA_BOOTSTRAP": "slurm",
    "PET_NODE_RANK": "0",
    "TORCHELASTIC_RUN_ID": "x",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "REDIS_SERVICE_HOST": "10.0.0.2",
    "REDIS_SERVICE_PORT_MAIN": "6379",
    "REDIS_PORT": "tcp://10.0.0.2:6379",
    "REDIS_PORT_6379_TCP_ADDR": "10.0.0.2",
    "LAUNCHER_LAUNCHED": "1",
    "LAUNCHER_ENGINE": "mpirun",
}
SECRETS = {
    "WANDB_API_KEY": SECRET,
    "HF_TOKEN": "x",
    "AZUREML_RUN_TOKEN": "x",
    "DATABASE": f"postgres://me:{SECRET}@db/x",
    "ARGS": f"--password {SECRET}",
}
ENVIRON = {**OF_THE_JOB, **OF_THE_NODE, **SECRETS}


def test_all_of_the_job_goes_along_and_nothing_else() -> None:
    """By name, and by value where the name is innocent."""
    assert choose_forwarded(ENVIRON) == tuple(sorted(OF_THE_JOB))
    assert list_withheld(ENVIRON) == tuple(sorted(SECRETS))


def test_a_name_that_is_asked_for_goes_along_whatever_it_is() -> None:
    """A secret too; a name that is not there does not."""
    asked = ("WANDB_API_KEY", "HOME", "RANK", "NOT_THERE")
    assert set(choose_forwarded(ENVIRON, asked)) == {*OF_THE_JOB, "WANDB_API_KEY", "HOME", "RANK"}
    assert "WANDB_API_KEY" not in list_withheld(ENVIRON, asked)


def test_a_pattern_brings_what_belongs_to_the_node_but_no_secret() -> None:
    """A pattern names no secret: whoever typed it may not know what it holds."""
    environ = {**ENVIRON, "SLURM_JWT": SECRET}
    assert set(choose_forwarded(environ, ("SLURM_*",))) == {*OF_THE_JOB, "SLURM_JOBID", "SLURM_PROCID"}
    assert "SLURM_JWT" in list_withheld(environ, ("SLURM_*",))
    assert "SLURM_JWT" not in list_withheld(environ)
    sound_secret = {"PWD", "SSH_AUTH_SOCK"}
    assert set(choose_forwarded(environ, ("*",))) == {*OF_THE_JOB, *OF_THE_NODE} - sound_secret


@pytest.mark.parametrize("value", ["GPU-5a1f0a3e-0000", "MIG-1f", "0,GPU-1"])
def test_gpus_by_their_own_names_are_of_one_node(value: str) -> None:
    """No other node has them; numbers every node has."""
    assert choose_forwarded({"CUDA_VISIBLE_DEVICES": value}) == ()
    assert choose_forwarded({"CUDA_VISIBLE_DEVICES": ""}) == ("CUDA_VISIBLE_DEVICES",)


def test_outside_of_kubernetes_a_service_is_the_users_word() -> None:
    """The names are innocent where no pod gave them."""
    names = ("MY_SERVICE_HOST", "MY_SERVICE_PORT", "MY_PORT")
    assert choose_forwarded(dict.fromkeys(names, "tcp://a:1")) == tuple(sorted(names))


def test_mpirun_itself_gets_what_ranks_get_and_what_it_needs() -> None:
    """Its own ranks inherit all of it: no secret, nothing of another starter. What is planned wins."""
    environ = {**ENVIRON, "PRTE_MCA_plm_ssh_num_concurrent": "500", "HYDRA_LAUNCHER_EXTRA_ARGS": "--external"}
    forwarded = choose_forwarded(environ)
    planned = (("HYDRA_LAUNCHER_EXTRA_ARGS", "-F x"), ("OMPI_MCA_plm", "rsh"))
    expected = {*OF_THE_JOB, *dict(planned), "HOME", "USER", "TMPDIR", "SSH_AUTH_SOCK"}
    own = plan_starter_environ(environ, forwarded, planned)
    assert set(own) == {*expected, "HYDRA_BOOTSTRAP", "PRTE_MCA_plm_ssh_num_concurrent"}
    assert own["HYDRA_LAUNCHER_EXTRA_ARGS"] == "-F x"
    asked = choose_forwarded(environ, ("HF_TOKEN",))
    assert set(plan_starter_environ(environ, asked, ())) - set(own) == {"HF_TOKEN"}


def test_the_index_of_a_node_stays_there() -> None:
    """On every platform that numbers its nodes: each rank would take itself for one of node 0."""
    names = [
        name for name in (*(row.index for row in NODES), *(row.index for row in PLATFORMS.values())) if name
    ]
    assert len(names) > 8 and choose_forwarded(dict.fromkeys(names, "0")) == ()
