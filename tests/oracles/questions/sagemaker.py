"""SageMaker's toolkit: the torchrun line that it makes of the platform's variables, node by node.

It is no consumer of ours, but the other reader of SM_HOSTS: who is node 0, and which node is this.
Stood in for: its other modules (torch_distributed.py is loaded alone).
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import Any

from tests.oracles.questions.alone import load_alone, stand_in

stand_in("six", "sagemaker_training._entry_point_type", "sagemaker_training.environment")
stand_in("sagemaker_training.errors", "sagemaker_training.logging_config")
process: Any = type("process", (), {"ProcessRunner": object, "validate_entry_point": str})
package: Any = import_module("sagemaker_training")
package.process = process
package.SM_EFA_NCCL_INSTANCES = package.SM_EFA_RDMA_INSTANCES = ()
module: Any = load_alone("sagemaker_training/torch_distributed.py")
module._entry_point_type.get = lambda *_: module._entry_point_type.PYTHON_PROGRAM


def answer() -> dict[str, Any]:
    """The port is its own, 7777; the rest is the truth about the node."""
    hosts = json.loads(os.environ["SM_HOSTS"])
    runner = object.__new__(module.TorchDistributedRunner)
    runner._user_entry_point, runner._args, runner._processes_per_host = (
        "train.py",
        [],
        os.environ["SM_NUM_GPUS"],
    )
    runner._hosts, runner._current_host = hosts, os.environ["SM_CURRENT_HOST"]
    runner._master_hostname, runner._network_interface_name, runner._instance_type = hosts[0], "eth0", ""
    words = runner._create_command()
    flags = dict(zip(words[1::2], words[2::2], strict=False))
    return {
        "node_rank": int(flags["--node_rank"]),
        "node_count": int(flags["--nnodes"]),
        "local_size": int(flags["--nproc_per_node"]),
        "master_addr": flags["--master_addr"],
    }
