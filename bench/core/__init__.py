"""Used by the command line and the measured processes alike: values, errors, channels. Standard library alone."""
