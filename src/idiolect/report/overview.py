"""The clients of a study before anything is trained, for a program and for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group

from idiolect.data import FederatedData, members
from idiolect.data.heterogeneity import Description, describe_clients
from idiolect.report import description
from idiolect.report.charts import Charts, charts
from idiolect.report.notebook import Block, facts, html

_OPEN = 30  # clients in a table that is not folded


@dataclass(frozen=True, eq=False)
class Overview:
    """How clients differ: who has what, how much, how different.

    Attributes:
        data: the clients' samples.
        study: the settings of the study, as plain values.
    """

    data: FederatedData
    study: Mapping[str, Any] = field(repr=False)

    @cached_property
    def about(self) -> Description:
        """The clients in numbers."""
        return describe_clients(self.data)

    @cached_property
    def facts(self) -> list[tuple[str, str]]:
        """Facts about the setting, in words."""
        return description.facts(self.study, self.data, self.about)

    def clients(self) -> Any:
        """The clients, as a pandas DataFrame with a row for each.

        Columns: ``name``, ``train`` and ``test`` (numbers of samples), ``classes`` (that it trains on),
        ``label_divergence`` (bits), ``feature_distance`` (standard deviations), ``shift``. ``Description`` says what
        divergence and distance are.
        """
        about = self.about
        count = len(about.train_KC)
        columns = {
            "name": description.names_of(self.data)[:count],
            "train": about.train_KC.sum(1),
            "test": about.test_KC.sum(1),
            "classes": (about.train_KC > 0).sum(1),
            description.distance_of(self.data): about.label_K,
            "feature_distance": about.feature_K,
            "shift": list(self.data.shifts[:count]),
        }
        return pd.DataFrame(columns, index=pd.RangeIndex(count, name="client"))

    def table(self) -> Group:
        """The facts and a map of labels, as a terminal shows them."""
        return description.terminal(self.facts, self.data, self.about)

    def report(self, out: str | Path = "runs/describe.html", show: str | Sequence[int] | None = None) -> Path:
        """Write the page and return its path.

        Args:
            out: the file.
            show: clients whose images are shown, as ``0-2+50`` or a list; None takes the first of each shift.

        Raises:
            InputError: there is no such client, or ``out`` is a folder.
            RunError: the file cannot be written.
        """
        count = len(self.about.train_KC)
        text = show if isinstance(show, str) or show is None else "+".join(map(str, show))
        clients = sorted(members(text, count, "show")) if text else description.typical(self.data, self.about)
        return description.write_description(self.facts, self.data, self.about, clients, Path(out))

    def figures(self) -> Charts:
        """The page's figures, as Altair charts by name.

        Raises:
            InputError: Altair is not installed.
        """
        return charts(description.figures_of(self.data, self.about))

    def _repr_html_(self) -> str:
        frame = self.clients()
        apart = description.distance_of(self.data)
        for name in (apart, "feature_distance"):
            frame[name] = frame[name].map("{:.3f}".format)
        numbers = ["train", "test", "classes", apart, "feature_distance"]
        columns = {"client": False} | dict.fromkeys(numbers, True) | ({"shift": False} if any(frame["shift"]) else {})
        shown = frame.rename(columns={"name": "client"}).head(description.LINES)
        block = Block(
            "The clients" if len(shown) == len(frame) else f"The first {len(shown):,} of {len(frame):,} clients",
            {name.replace("_", " "): number for name, number in columns.items()},
            shown[list(columns)].astype(str).to_numpy().tolist(),
            is_folded=len(frame) > _OPEN,
        )
        below = [description.legend(self.data)]
        return html(facts(f"{self.data.name}, {len(frame)} clients", self.facts), block, below=below)
