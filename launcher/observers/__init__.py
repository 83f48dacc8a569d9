"""Observers of a job: stall detector, NCCL log watcher, meeting watch. All are optional, none decides."""
