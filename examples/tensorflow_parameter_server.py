"""Digits by softmax regression with parameter servers: the chief schedules, workers compute, servers keep.

launcher run --chief --parameter-server-count 1 --worker-count 2 --evaluator -- \
    python examples/tensorflow_parameter_server.py --checkpoints /shared/digits

This is the coordinator: the launcher runs TensorFlow's standard server in the tasks of workers and parameter
servers. The evaluator runs this script, too, and looks at each checkpoint until it has seen the last one.
"""

from __future__ import annotations

import argparse
import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--checkpoints", required=True, help="directory that chief and evaluator share")
PARSER.add_argument("--steps", type=int, default=300)
BATCH = 64


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 1,797 images of 64 pixels in 0..1, and which digit each shows."""
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.int32)


def make_variables() -> dict[str, tf.Variable]:
    """Return the model and a count of its steps; within a strategy they lie on the parameter servers."""
    return {
        "weights": tf.Variable(tf.zeros([64, 10])),
        "bias": tf.Variable(tf.zeros([10])),
        "steps": tf.Variable(0, dtype=tf.int64, trainable=False),
    }


def train(folder: str, steps: int) -> None:
    """The chief: have the workers do all steps, in any order, and save now and then."""
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    images, labels = read_digits()
    with strategy.scope():
        model = make_variables()

    @tf.function
    def step(seed: tf.Tensor) -> tf.Tensor:
        batch = tf.random.stateless_uniform([BATCH], [0, seed], 0, len(images), tf.int32)
        wanted = tf.gather(labels, batch)
        with tf.GradientTape() as tape:
            guesses = tf.gather(images, batch) @ model["weights"] + model["bias"]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, guesses))
        weights, bias = tape.gradient(loss, [model["weights"], model["bias"]])
        model["weights"].assign_sub(0.5 * weights)
        model["bias"].assign_sub(0.5 * bias)
        model["steps"].assign_add(1)
        return loss

    checkpoint = tf.train.Checkpoint(**model)
    for first in range(0, steps, 100):
        for seed in range(first, min(first + 100, steps)):
            coordinator.schedule(step, args=(seed,))
        coordinator.join()  # raises what a step raised
        checkpoint.save(f"{folder}/digits")
    print(json.dumps({"steps": int(model["steps"].numpy()), "scheduled": steps}), flush=True)
    os._exit(0)  # a coordinator that has lost a worker does not return from __del__ (TensorFlow 2.21)


def evaluate(folder: str, steps: int) -> None:
    """The evaluator: accuracy of each checkpoint, the last one included."""
    images, labels = read_digits()
    model = make_variables()
    for path in tf.train.checkpoints_iterator(folder, min_interval_secs=0.2):
        tf.train.Checkpoint(**model).restore(path).expect_partial()
        guesses = np.argmax(images @ model["weights"].numpy() + model["bias"].numpy(), axis=1)
        done = int(model["steps"].numpy())
        print(
            json.dumps({"evaluated": done, "accuracy": round(float(np.mean(guesses == labels)), 3)}),
            flush=True,
        )
        if done >= steps:
            return


if __name__ == "__main__":
    words = PARSER.parse_args()
    task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    (evaluate if task == "evaluator" else train)(words.checkpoints, words.steps)
