"""JAX: softmax regression; ``jax.distributed`` connects the processes, gloo adds up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.cluster.training.run import TRAIN_COUNT, Run

RATE = 0.5


@jax.jit
def descend(weights: jax.Array, pixels: jax.Array, labels: jax.Array) -> jax.Array:
    """Take one step down the mean loss of the whole job."""

    def mean_loss(weights: jax.Array) -> jax.Array:
        chances = jax.nn.log_softmax(pixels @ weights)
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    return weights - RATE * jax.grad(mean_loss)(weights)


def main() -> None:
    """Train from the checkpoint to the last step."""
    run = Run()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize()
    mesh = Mesh(jax.devices(), "all")
    shared, whole = NamedSharding(mesh, PartitionSpec("all")), NamedSharding(mesh, PartitionSpec())
    step0, arrays = run.load() if run.rank == 0 else (0, {})
    own = (np.int32(step0), arrays.get("weights", np.zeros((64, 10), np.float32)))
    done, start = multihost_utils.broadcast_one_to_all(own)
    weights = jax.device_put(np.asarray(start), whole)
    for step, rows in run.steps(int(done), jax.process_index(), jax.process_count()):
        parts = (run.pixels[rows], run.labels[rows])
        batch = (jax.make_array_from_process_local_data(shared, part) for part in parts)
        weights = descend(weights, *batch).block_until_ready()
        if run.rank == 0:
            run.save(step, {"weights": np.asarray(weights)})
    found = np.asarray(weights)
    right = np.argmax(run.pixels[TRAIN_COUNT:] @ found, axis=1) == run.labels[TRAIN_COUNT:]
    if run.rank == 0:
        run.finish(float(right.mean()), {"weights": found})
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
