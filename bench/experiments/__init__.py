"""Experiments: measure, diagnose, train the reference, search for a batch, go on, import."""
