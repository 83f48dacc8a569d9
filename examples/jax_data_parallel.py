"""Train softmax regression on handwritten digits with JAX: each process has images of its own.

    launcher run -- python examples/jax_data_parallel.py

Nothing in here knows how many processes there are, or which one this is: ``jax.distributed.initialize()``
finds out. The batch is that of the whole job, and every step is taken on the mean over all of it, so
that any number of processes reaches the same accuracy.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

STEPS = 200
RATE = 0.5
TRAIN_COUNT = 1440  # of 1797 images; divides evenly by most process counts


def main() -> None:
    """Join the job, train, and tell how well it went."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # where there is no GPU
    jax.distributed.initialize()
    mesh = Mesh(jax.devices(), "all")
    mine = slice(jax.process_index(), TRAIN_COUNT, jax.process_count())
    images, labels = load()
    batch = [share(part[:TRAIN_COUNT][mine], mesh) for part in (images, labels)]

    everywhere = NamedSharding(mesh, PartitionSpec())
    weights = jax.device_put(np.zeros((65, 10), np.float32), everywhere)
    for _ in range(STEPS):
        weights, loss = step(weights, *batch)

    right = jnp.argmax(np.asarray(weights).T @ images[TRAIN_COUNT:].T, axis=0) == labels[TRAIN_COUNT:]
    if jax.process_index() == 0:
        job = f"processes {jax.process_count()}, devices {jax.device_count()}"
        print(f"{job}: loss {float(loss):.5f}, accuracy {100 * float(right.mean()):.1f} %", flush=True)
    jax.distributed.shutdown()


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return 1797 images of 64 pixels in 0..1, with a 1 for the bias, and the digit that each shows."""
    images, labels = load_digits(return_X_y=True)
    return np.hstack([images / 16, np.ones((len(images), 1))]).astype(np.float32), labels


def share(mine: np.ndarray, mesh: Mesh) -> jax.Array:
    """Return one array of the whole job, made of what each process has of it."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("all")), mine)


@jax.jit
def step(weights: jax.Array, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take one step down the mean loss of the whole job: JAX adds up over all processes by itself."""

    def mean_loss(weights: jax.Array) -> jax.Array:
        chances = jax.nn.log_softmax(images @ weights)
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    loss, slope = jax.value_and_grad(mean_loss)(weights)
    return weights - RATE * slope, loss


if __name__ == "__main__":
    main()
