"""Programs that `tests.cluster.test_recovery_training` disturbs: each trains on digits and can resume."""
