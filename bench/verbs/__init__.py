"""The verbs of the command line, a module each: options, defaults, and what is printed."""
