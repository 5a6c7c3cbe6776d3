"""The meaning of figures, in sentences."""
