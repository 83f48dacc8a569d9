"""Train a classifier of handwritten digits with Horovod on TensorFlow, in a loop of its own.

    launcher run --nproc-per-node 2 -- python examples/horovod_tensorflow.py     # gloo
    launcher run --engine mpirun -- python examples/horovod_tensorflow.py        # MPI

Keras 3 has no place for Horovod 0.28's ``horovod.tensorflow.keras``; a GradientTape needs no Keras.
"""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

SEED = 0
TRAIN_COUNT = 1440  # of 1797 images
BATCH = 96  # of the whole job
RATE = 0.5


def main() -> None:
    """Join the job, train, and say how well it went."""
    parser = argparse.ArgumentParser(description="Train on digits with Horovod.")
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs

    hvd.init()
    check_average()
    images, labels = load_digits(return_X_y=True)
    pixels, classes = tf.constant(images / 16, tf.float32), tf.constant(labels)

    draw = tf.random.stateless_normal
    shapes = ((64, 64), (64,), (64, 10), (10,))
    model = [tf.Variable(draw(shape, seed=(hvd.rank(), n)) / 8) for n, shape in enumerate(shapes)]
    hvd.broadcast_variables(model, root_rank=0)
    order = np.random.default_rng(SEED)  # the same on every rank
    for _ in range(epochs):
        for rows in np.split(order.permutation(TRAIN_COUNT), TRAIN_COUNT // BATCH):
            mine = rows[hvd.rank() :: hvd.size()]
            step(model, tf.gather(pixels, mine), tf.gather(classes, mine))

    found = tf.argmax(predict(model, pixels[TRAIN_COUNT:]), axis=1)
    accuracy = float(tf.reduce_mean(tf.cast(found == classes[TRAIN_COUNT:], tf.float32)))
    weights = tf.concat([tf.reshape(part, [-1]) for part in model], axis=0)
    apart = float(tf.reduce_max(tf.abs(hvd.allgather(weights[None]) - weights)))
    if hvd.rank() == 0:
        sizes = f"{hvd.size()} ranks, {hvd.local_size()} on each node"
        by = "MPI" if hvd.mpi_enabled() else "gloo"
        print(f"accuracy {accuracy:.3f} ({sizes}, by {by}); weights differ by {apart:g}")
    hvd.shutdown()


def check_average() -> None:
    """Stop unless a gradient that is another on each rank comes back as the mean of all."""
    weight = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        loss = weight * hvd.rank()
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
    mean = (hvd.size() - 1) / 2
    if float(gradient) != mean:
        raise SystemExit(f"rank {hvd.rank()}: a gradient of {float(gradient)}, and the mean is {mean}")


def predict(model: list[tf.Variable], pixels: tf.Tensor) -> tf.Tensor:
    """Return the scores of ten digits."""
    return tf.nn.relu(pixels @ model[0] + model[1]) @ model[2] + model[3]


def step(model: list[tf.Variable], pixels: tf.Tensor, classes: tf.Tensor) -> None:
    """Take one step along the mean of all ranks' gradients."""
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, predict(model, pixels))
        loss = tf.reduce_mean(losses)
    for part, gradient in zip(model, hvd.DistributedGradientTape(tape).gradient(loss, model), strict=True):
        part.assign_sub(RATE * gradient)


if __name__ == "__main__":
    main()
