"""What stands in docker/azureml and docker/batch: read by Azure's own libraries, and rehearsed on recordings.

`folder` says where these libraries are; `load` is run by their Python and never talks to Azure; `commands`
has what a shell makes of a command line, and what the launcher plans for it on recorded nodes.
"""
