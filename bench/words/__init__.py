"""The meaning of results, in sentences."""
