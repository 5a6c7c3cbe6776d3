"""The measured processes: the only package that imports torch.

It imports the standard library, ``bench.core``, ``bench.seams`` and torch alone, so that it can live in another
interpreter than the command line's.
"""
