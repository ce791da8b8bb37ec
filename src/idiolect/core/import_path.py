"""Imports by name: of a dotted path ``package.module.attribute``, and of optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from idiolect.core.errors import InputError, nearest

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_imports = ContextVar("imports", default=True)


def is_dotted(text: str) -> bool:
    """Whether a text has the form of an import path.

    >>> is_dotted("my_package.my_net"), is_dotted("mlp"), is_dotted("../rows.csv")
    (True, False, False)
    """
    return _DOTTED.fullmatch(text) is not None


@contextmanager
def no_imports() -> Iterator[None]:
    """Inside the block, nothing is imported by its path: for reading files that someone else may have written."""
    before = _imports.set(False)
    try:
        yield
    finally:
        _imports.reset(before)


def may_import() -> bool:
    """Whether imports by path are allowed here."""
    return _imports.get()


def by_path(path: str, what: str) -> Any:
    """The object at an import path; ``what`` names the setting in the message.

    Raises:
        InputError: no such module or attribute, the module fails to import, or this is inside ``no_imports``.

    >>> by_path("math.tau", "number")
    6.283185307179586
    """
    if not may_import():
        raise InputError(f"{what} {path!r} names code, and no code is imported while a file is read")
    module_name, _, name = path.rpartition(".")
    here = _search_here()
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


def has_module(path: str) -> bool:
    """Whether there is a module, or a package, where an import path begins; nothing is imported.

    >>> has_module("math.tau"), has_module("patients.cvs")
    (True, False)
    """
    _search_here()
    with suppress(ImportError, ValueError):
        top = path.partition(".")[0]
        return top in sys.modules or importlib.util.find_spec(top) is not None
    return False


def _search_here() -> str:
    """Let modules be imported from the current folder, which a console script does not search."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    return here


def optional(package: str, extra: str, what: str) -> Any:
    """A package that is not always installed; ``what`` needs it, and the extra of that name installs it.

    Raises:
        InputError: it is not installed.

    >>> optional("math", "numbers", "the number pi").pi
    3.141592653589793
    """
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
    else:
        if module.__spec__ is not None and module.__spec__.origin is not None:  # else a folder of the same name
            return module
    raise InputError(f'{what} needs the package {package}: pip install "idiolect[{extra}]"')
