"""``python -m bench``. Nothing is imported from the working directory, which may hold somebody else's files."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # the working directory may be gone
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # put there by -m

from bench.cli import program

program()
