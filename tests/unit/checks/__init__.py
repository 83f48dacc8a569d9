"""Tests of `launcher.checks`: one file for each check."""
