"""What the command line and the measured processes both use: values, errors, channels. Standard library alone."""
