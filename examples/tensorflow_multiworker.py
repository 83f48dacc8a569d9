"""Digits by softmax regression on several workers: each has its own images, all learn from all of them.

    launcher run --framework tensorflow -- python examples/tensorflow_multiworker.py

MultiWorkerMirroredStrategy finds the other workers in TF_CONFIG, and averages over them what is assigned to
the variables. Images are sorted by digit before they are shared out: on its own a worker would not see most
of the digits. Together they take the very steps that one worker takes with all images.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--steps", type=int, default=60)
RATE = 2.0


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images of 64 pixels in 0..1 by digit, and the digits; 1,792 of them, for equal shares."""
    images, labels = load_digits(return_X_y=True)
    order = np.argsort(labels, kind="stable")[:1792]
    return (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)


def train(steps: int) -> dict[str, float]:
    """Take full steps down the gradient; return what this worker has then."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    resolver = strategy.cluster_resolver
    index, count = resolver.task_id or 0, strategy.extended._num_workers
    if resolver.task_type == "worker" and "chief" in resolver.cluster_spec().jobs:
        index += 1
    images, labels = read_digits()
    mine = slice(index * len(images) // count, (index + 1) * len(images) // count)
    own_images, own_labels = tf.constant(images[mine]), tf.constant(labels[mine])
    with strategy.scope():
        mean = tf.VariableAggregation.MEAN
        weights = tf.Variable(tf.zeros([64, 10]), aggregation=mean)
        bias = tf.Variable(tf.zeros([10]), aggregation=mean)

    def step() -> None:
        with tf.GradientTape() as tape:
            guesses = own_images @ weights + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(own_labels, guesses))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, [weights, bias]), strict=True):
            variable.assign_sub(RATE * gradient)

    run = tf.function(lambda: strategy.run(step))
    for _ in range(steps):
        run()
    found = images @ weights.numpy() + bias.numpy()
    accuracy = float(np.mean(np.argmax(found, axis=1) == labels))
    size = float(np.abs(weights.numpy()).sum())
    return {"worker": index, "workers": count, "accuracy": round(accuracy, 3), "size": round(size, 2)}


if __name__ == "__main__":
    print(json.dumps(train(PARSER.parse_args().steps)), flush=True)
