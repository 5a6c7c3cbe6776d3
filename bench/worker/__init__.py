"""The measured processes: the only package that imports torch. Beside it the standard library, ``bench.core`` and
``bench.seams`` alone, so that it can live in another interpreter than the command line's.
"""
