"""A study that a site takes part in, and what is on its disk of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from idiolect.core.documents import read_json
from idiolect.core.method import Down
from idiolect.federation.data.agreement import Agreement
from idiolect.federation.data.samples import SiteSamples
from idiolect.federation.messages import Refusal
from idiolect.federation.rounds.study import digest
from idiolect.federation.site.personal_model import fingerprint
from idiolect.simulation.client_runner import ClientRunner
from idiolect.studies import Study
from idiolect.studies.method_use import Use

AGREEMENT = "agreement.json"
"""The file of what the sites of a run have agreed on, and of the fingerprint of this site's samples."""


@dataclass
class Participation:
    """A study that this site takes part in."""

    study: Study
    folder: Path
    samples: SiteSamples
    agreement: Agreement
    runs: dict[tuple[str, int], tuple[ClientRunner, Down]] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """That of the samples."""
        return fingerprint(self.samples)

    def check(self) -> None:
        """Check that the samples are those with which the site began.

        Raises:
            Refusal: they are others.
        """
        if _first_fingerprint(self.folder / AGREEMENT) not in (None, self.fingerprint):
            raise Refusal(
                "this site's samples are not those with which it began this study, so it might train on samples that "
                "it tests on: give it the same files and options again, or begin a new study"
            )

    @property
    def ahead(self) -> bool:
        """Whether sites are measured after the training of a round while the round before it may be repeated."""
        return "trained" in self.study.protocol.stages

    def use(self, label: str) -> Use:
        """A method of the study.

        Raises:
            Refusal: there is none of this label.
        """
        for use in self.study.methods:
            if use.label == label:
                return use
        raise Refusal(f"method {label!r} is not in the study")


def _first_fingerprint(path: Path) -> str | None:
    """That of the samples with which a site began; None if this cannot be known."""
    try:
        return str(read_json(path)["samples"])
    except (OSError, ValueError, TypeError, KeyError):  # also if an older version wrote it
        return None


def place(folder: Path, label: str, seed: int) -> Path:
    """The folder of a method and a seed in that of a run."""
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '.', label)[:80]}-{digest(label)[:8]}-{seed}"


def belonging(study: str, run: str, label: str, seed: int) -> dict[str, Any]:
    """What a state belongs to: the digest of a study, a run, a method and a seed."""
    return {"study": study, "run": run, "method": label, "seed": seed}
