"""What a scenario file declares, and how it is found."""
