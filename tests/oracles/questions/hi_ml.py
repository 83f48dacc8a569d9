"""hi-ml-azure: ``set_environment_variables_for_multi_node``, and what PyTorch finds after it.

Stood in for: the Azure SDK and pandas, which the module imports for other functions.
"""

from __future__ import annotations

import os
from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("conda_merge", "pandas", "param", "health_azure.argparsing", "health_azure.auth")
stand_in("azureml._restclient.constants")
stand_in("azureml.core", "azureml.core.authentication", "azureml.core.conda_dependencies")
stand_in("azureml.core.run", "azureml.data.azure_storage_datastore", "azureml.exceptions")
stand_in("azure.ai.ml", "azure.ai.ml.constants", "azure.ai.ml.entities", "azure.ai.ml.operations")
stand_in("azure.core.credentials", "azure.identity", "azure.core.exceptions", "azureml.dataprep.fuse.daemon")
utils: Any = load_alone("health_azure/utils.py")


def answer() -> dict[str, Any]:
    """It sets the master anew from Azure's names, and the node rank from Open MPI's rank."""
    meeting.begin()
    utils.set_environment_variables_for_multi_node()
    meeting.dist.init_process_group()
    node = os.environ.get("NODE_RANK")
    return {**meeting.result(), "node_rank": int(node) if node else None}
