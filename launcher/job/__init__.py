"""The life of a job: pure state machines of the job (`controller`) and of each of its nodes (`node`)."""
