"""Runs: a run's folder, its metadata, checkpoints, log and results, and what was trained."""
