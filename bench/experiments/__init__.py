"""What is done with launches: measure, diagnose, train the reference, search for a batch, go on, import."""
