"""The code that a bundle needs and does not hold: networks and methods of one's own, and methods of other packages."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect import methods
from idiolect.core.errors import InputError, option
from idiolect.core.import_path import by_path
from idiolect.deploy.schema import About
from idiolect.models.pretrained import code_of

log = logging.getLogger(__name__)


def digest_of(model: str) -> str | None:
    """SHA-256 of the file that defines a network of one's own; None for a network of this library."""
    path = code_of(model)
    if path is None:
        return None
    module = inspect.getmodule(by_path(path, "model")) or __import__(path.rpartition(".")[0], fromlist=["_"])
    file = inspect.getsourcefile(module)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None


def own_of(about: About) -> dict[str, str]:
    """The import paths of the method and the network that a bundle needs, if they are of one's own."""
    own = {"method": about.method.name} if methods.registry.is_path(about.method.name) else {}
    return own | ({"network": path} if (path := code_of(about.network.model)) else {})


def check_run(run: Path, manifest: Mapping[str, Any], label: str, method: str, model: str) -> None:
    """Check that the network and the method, if they are of one's own, are those with which a run began.

    Args:
        run: its folder.
        manifest: of the run.
        label: of the method in the run.
        method: its name.
        model: the network.

    Raises:
        InputError: one is another version.
    """
    before = {code_of(model): (manifest.get("network"), digest_of(model))}
    if methods.registry.is_path(method):
        before[method] = manifest["methods"][label]["code"], methods.code(method)
    for path, (then, now) in before.items():
        if path and then and then != now:
            raise InputError(
                f"{path} has changed since {run} began, and what was trained may not fit it: put the file of that time "
                "where it can be imported, or run the study again"
            )


def check(folder: Path, about: About, allow_import: bool) -> None:
    """Check that the code that a bundle needs is here; warn if that of another package's method is another version.

    Raises:
        InputError: it is not here, may not be imported, or is another version of a network or a method of one's own.
    """
    name, made_with, model = about.method.name, about.method.code, about.network.model
    own = own_of(about)
    for what, path in own.items():
        if not allow_import:
            raise InputError(
                f"{folder} has a {what} of its own, {path}, and using it runs the module {path.rpartition('.')[0]}: "
                f"check that module first, then give {option('allow_import', True)}"
            )
        if not (made_with == methods.code(path) if what == "method" else about.network.code == digest_of(model)):
            raise InputError(
                f"{folder} was made with another version of {path}: put the file of that time where it can be imported"
            )
    if "method" not in own:
        _installed(folder, name, made_with)


def _installed(folder: Path, name: str, made_with: str) -> None:
    """Check that a method of this library or of a package is here; warn if it is another version."""
    if name not in methods.names():
        package = made_with.partition(", code ")[0]
        raise InputError(
            f"{folder} needs the method {name} of {package or 'another package'}, which is not installed here: install "
            "that package, then try again"
        )
    if name not in methods.ours() and made_with and (here := methods.code(name)) != made_with:
        log.warning("%s was made with the method %s of %s, here it is %s: predictions may differ", folder, name,
                    made_with, here)  # fmt: skip
