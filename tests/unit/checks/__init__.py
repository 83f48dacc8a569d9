"""Tests of `launcher.checks`: one file per check."""
