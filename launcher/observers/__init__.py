"""What is seen of a job beside its processes: each can be left out, none decides."""
