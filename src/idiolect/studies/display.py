"""A study as a file has it and as a notebook shows it, and its clients before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from idiolect.studies.backbones import check_task
from idiolect.studies.method_use import Use, title_of
from idiolect.studies.settings import SETTINGS

if TYPE_CHECKING:
    from idiolect.report.overview import Overview
    from idiolect.studies.config import Study


class Display:
    """What ``Study`` shows of itself."""

    def describe(self: Any) -> Overview:
        """How the clients differ, before anything is trained: as ``idiolect describe``.

        Raises:
            InputError: the data are missing or broken, or do not allow the partition; or the network does not fit them.
        """
        from idiolect.report.overview import Overview

        federation = self.samples()
        check_task(self, federation)
        return Overview(federation, self.model_dump(mode="json"))

    def to_yaml(self: Any) -> str:
        """The whole study with its defaults, as text that ``read`` can read."""
        settings = self.model_dump(mode="json")
        order = dict.fromkeys(("name", *filter(settings.__contains__, SETTINGS), *settings))
        return yaml.safe_dump({name: settings[name] for name in order}, sort_keys=False, allow_unicode=True)

    def _repr_html_(self: Any) -> str:
        from idiolect.report.notebook import facts, html

        every = dict(_settings(self))
        given = {name: text for name, text in every.items() if _differs(self, name)}
        rest = [(name, text) for name, text in every.items() if name not in given]
        return html(facts(f"Study {self.name}", list(given.items())), facts("All other settings", rest, is_folded=True))


def _differs(study: Study, name: str) -> bool:
    return name == "methods" or getattr(study, name) != SETTINGS[name].default


def _settings(study: Study) -> Iterator[tuple[str, str]]:
    """Each setting with its value, in the order of the table of settings."""
    plain = study.model_dump(mode="json")
    for name, setting in SETTINGS.items():
        value = getattr(study, name)
        if value is None or value == ():
            yield name, setting.unset or "none"
        elif name == "methods":
            yield name, ", ".join(title_of(use) for use in value)
        else:
            yield name, _text(value, plain[name])


def _text(value: Any, plain: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_text(one, other) for one, other in zip(value, plain, strict=True))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(plain, Mapping) and "name" not in plain:  # the protocol
        return str(value)
    return value.label if isinstance(value, Use) else str(value if isinstance(plain, Mapping) else plain)
