"""bench: which way of training in data parallel and mixed precision is fastest here, and at what cost.

This package's root imports nothing: ``python -m bench --help`` and the measured processes both pass through it.
"""

__version__ = "0.3.0"
