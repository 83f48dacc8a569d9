// A pool of Azure Batch for the tasks in docker/batch: containers, nodes that reach each other, one task per node.
//
//     az deployment group create --resource-group GROUP --template-file deploy/azure/batch-pool.bicep
//       --parameters account=ACCOUNT image=REGISTRY.azurecr.io/launcher-pytorch:latest identity=RESOURCE_ID
//
// Each node runs `launcher check` in the image before it takes tasks. If the check finds a problem, the node takes none (its
// state is "start task failed"), and startup/stdout.txt on it has a JSON object that says why.
//
// Before 2025-06-01 the API had targetNodeCommunicationMode, to be set to 'Simplified'. This version has only that mode.
param account string
param image string
@description('A user-assigned identity that may pull from the registry.')
param identity string
param size string = 'Standard_ND96isr_H100_v5'
@description('Spot nodes can be taken away: the launcher then ends the task with 75.')
param spotNodes int = 0
param nodes int = 2

resource batch 'Microsoft.Batch/batchAccounts@2025-06-01' existing = {
  name: account
}

resource pool 'Microsoft.Batch/batchAccounts/pools@2025-06-01' = {
  parent: batch
  name: 'launcher'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: { '${identity}': {} }
  }
  properties: {
    vmSize: size
    interNodeCommunication: 'Enabled'
    taskSlotsPerNode: 1 // or multi-instance tasks are never scheduled
    scaleSettings: {
      fixedScale: { targetDedicatedNodes: nodes, targetLowPriorityNodes: spotNodes }
    }
    deploymentConfiguration: {
      virtualMachineConfiguration: {
        imageReference: { publisher: 'microsoft-dsvm', offer: 'ubuntu-hpc', sku: '2204', version: 'latest' }
        nodeAgentSkuId: 'batch.node.ubuntu 22.04'
        containerConfiguration: {
          type: 'DockerCompatible'
          containerImageNames: [ image ]
          containerRegistries: [
            {
              registryServer: split(image, '/')[0]
              identityReference: { resourceId: identity }
            }
          ]
        }
      }
    }
    startTask: {
      commandLine: 'launcher check --strict --format json --nnodes 1'
      containerSettings: {
        imageName: image
        containerRunOptions: '--entrypoint="" --network=host --shm-size=16g --ulimit=memlock=-1'
      }
      userIdentity: {
        autoUser: { scope: 'Pool', elevationLevel: 'Admin' }
      }
      maxTaskRetryCount: 1
      waitForSuccess: true
    }
  }
}
