"""A run on disk: written whole or not at all, sealed, read back, checked."""
