"""What a dotted path stands for: ``package.module.attribute``, the current folder included."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from idiolect.errors import InputError, nearest


def by_path(path: str, what: str) -> Any:
    """The object at an import path; ``what`` names the setting in the message.

    Raises:
        InputError: no such module or attribute, or the module fails to import.

    >>> by_path("math.tau", "number")
    6.283185307179586
    """
    module_name, _, name = path.rpartition(".")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # a console script does not look where it is run
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InputError(
                f"{what} {path!r}: there is no module {error.name!r}; write package.module.attribute of something that "
                f"can be imported from {here}"
            ) from None
        raise InputError(f"{what} {path!r}: {module_name} needs {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} {path!r}: importing {module_name} fails ({type(error).__name__}: {error})") from error
    try:
        return getattr(module, name)
    except AttributeError:
        public = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module_name and n[0] != "_"]
        raise InputError(f"{what} {path!r}: {module_name} has no {name!r}; {nearest(name, public)}") from None
