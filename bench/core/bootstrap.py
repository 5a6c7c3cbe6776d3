"""How a process of bench starts another one, in its own interpreter or in a foreign one."""

import os

_PROGRAM = """\
import sys
if sys.version_info < (3, 11):
    sys.exit('bench needs Python 3.11 or newer, and this is ' + sys.version.split()[0])
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.util
spec = importlib.util.spec_from_file_location('bench', {init!r}, submodule_search_locations=[{package!r}])
sys.modules['bench'] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from {target} import main
raise SystemExit(main(sys.argv[1:]))
"""


def program(target: str) -> str:
    """A program for ``python -c`` that calls ``main(arguments)`` of the module ``target`` of this very ``bench``.

    Only the package itself is named, and the working directory is kept off the path: the folder around the package may
    be the site-packages of another interpreter, with another torch in it.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return _PROGRAM.format(init=os.path.join(package, "__init__.py"), package=package, target=target)
