#!/bin/sh
# The entry point of training-job.json, in sourcedir.tar.gz beside train.py. SageMaker's training toolkit, which is the
# image's own entry point, starts it once on each host, and says the hosts in SM_HOSTS.
#
#     tar -czf sourcedir.tar.gz -C "$PWD/deploy/sagemaker" train.sh -C "$PWD/YOUR_CODE" .
#     aws s3 cp sourcedir.tar.gz s3://YOUR_BUCKET/code/
#     aws sagemaker create-training-job --cli-input-json file://deploy/sagemaker/training-job.json
#
# SageMaker starts a job again after its own failures (RetryStrategy) and when spot machines come back, not by our
# statuses: so --restarts serves failures of processes. A job that is started again goes on from /opt/ml/checkpoints.

# A node with a problem ends the job with 69, and its log has a JSON object that says why.
launcher check --strict --format json -- python train.py || exit
exec launcher run --restarts 3 -- python train.py
