"""TensorFlow: softmax regression with MultiWorkerMirroredStrategy."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.cluster.training.run import TRAIN_COUNT, Run

RATE = 0.5


def main() -> None:
    """Train from the checkpoint to the last step."""
    run = Run()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    count = strategy.extended._num_workers
    done, arrays = run.load()  # rank 0 writes the next one only after a step that needs all workers
    with strategy.scope():
        start = arrays.get("weights", np.zeros((64, 10), np.float32))
        weights = tf.Variable(start, aggregation=tf.VariableAggregation.MEAN)

    @tf.function
    def descend(pixels: tf.Tensor, labels: tf.Tensor) -> None:
        strategy.run(descend_here, (pixels, labels))

    def descend_here(pixels: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, pixels @ weights)
            loss = tf.reduce_mean(losses)
        weights.assign_sub(RATE * tape.gradient(loss, weights))

    for step, rows in run.steps(done, run.rank, count):
        descend(tf.constant(run.pixels[rows]), tf.constant(run.labels[rows]))
        if run.rank == 0:
            run.save(step, {"weights": weights.numpy()})
    found = weights.numpy()
    right = np.argmax(run.pixels[TRAIN_COUNT:] @ found, axis=1) == run.labels[TRAIN_COUNT:]
    if run.rank == 0:
        run.finish(float(right.mean()), {"weights": found})


if __name__ == "__main__":
    main()
