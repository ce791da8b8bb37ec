"""What commands read that use a model: a bundle, or the state folder of a site that took part in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from idiolect.cli.options import option
from idiolect.core.errors import InputError

if TYPE_CHECKING:
    from idiolect.deploy.bundle import Bundle
    from idiolect.federation.site.personal_model import SiteModel

_STATE = "Of a site's state folder: "
Method = Annotated[str | None, option(f"{_STATE}the method, where its study has several.", metavar="NAME")]
Seed = Annotated[int | None, option(f"{_STATE}the seed, where its study has several.")]
Study = Annotated[
    str | None,
    option(f"{_STATE}the study's name, or the first digits of its run, if there are several.", "the newest",
           metavar="NAME"),
]  # fmt: skip
StateKey = Annotated[Path | None, option("The file of the key that encrypts a site's state folder.", metavar="FILE")]


def is_state(folder: Path) -> bool:
    """Whether a folder is the state of a site, as ``idiolect site`` keeps it."""
    if (folder / "bundle.json").exists():
        return False
    return (folder / ".lock").is_file() or next(folder.glob("*/*/agreement.json"), None) is not None


def state(folder: Path, *, state_key: Path | None, **choice: Any) -> SiteModel:
    """A site's personal model from its state folder; ``choice`` is as for ``state_folder.site_model``.

    Raises:
        InputError: it is not there or cannot be read, or it is not said which.
    """
    from idiolect.core.import_path import optional

    optional("cryptography", "federation", "a site's state")
    from idiolect.federation.site.state_folder import site_model

    return site_model(folder, key=state_key, **choice)


def model(folder: Path, *, allow_import: bool, **choice: Any) -> Bundle:
    """A bundle, or a site's model from its state folder; ``choice`` says which of several models the latter is.

    Raises:
        InputError: it cannot be read, or ``choice`` is given for a bundle.
    """
    from idiolect.deploy.bundle import Bundle

    if is_state(folder):
        return state(folder, **choice)
    bundle = Bundle.read(folder, allow_import=allow_import)
    refuse(folder, **choice)
    return bundle


def refuse(folder: Path, **choice: Any) -> None:
    """Check that no option is given that is only for a state folder.

    Raises:
        InputError: one is.
    """
    for name, value in choice.items():
        if value is not None:
            raise InputError(
                f"--{name.replace('_', '-')} is for a site's state folder, and {folder} is none: leave it out"
            )
