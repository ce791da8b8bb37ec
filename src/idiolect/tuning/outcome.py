"""What a search has chosen, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import pandas as pd
from rich.table import Table

from idiolect.core.documents import read_json
from idiolect.core.errors import InputError, listed
from idiolect.core.objectives import ACCURACY, SCORES, Score
from idiolect.core.option_spec import Spec
from idiolect.core.terminal import Text
from idiolect.report.charts import Charts, charts
from idiolect.report.notebook import Block, html
from idiolect.runs.folder import MANIFEST_FILE, has_run
from idiolect.studies import Result, Study
from idiolect.studies.method_use import Use, title_of, with_values
from idiolect.tuning import plan as plans
from idiolect.tuning.halving import rungs_of, survivors
from idiolect.tuning.plan import Plan
from idiolect.tuning.sampler import batches
from idiolect.tuning.space import Range, Space, said, spaces
from idiolect.tuning.trials import Trial, best, read

_NONE = Trial("", 0, {}, {}, "running")  # before the first
TUNED_FILE, TUNING_PAGE, REFIT_FOLDER = "tuned.yaml", "tuning.html", "refit"


class Chosen(NamedTuple):
    """What was chosen for a method."""

    method: str
    """The label."""
    title: str
    values: dict[str, Any]
    """Option or setting: value; empty if nothing was searched, or no trial reached the last round."""
    score: float | None
    """Mean score on validation samples, as an accuracy, 0..1; None if no trial reached the last round."""
    trial: int | None
    trials: int
    rounds: int
    """Trained in all its trials together, where training that several methods share counts for each."""
    edges: tuple[str, ...]
    """The settings whose choice lies at an end of their range."""
    by: Score = ACCURACY
    """What the score is."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, the score under that of its metric."""
        return self.by.named(self._asdict())


@dataclass(frozen=True)
class Tuning:
    """A search that has ended, or as far as it came."""

    folder: Path
    plan: Plan
    study: Study
    """As it was before the search."""

    @cached_property
    def ranges(self) -> dict[str, Space]:
        """What is searched for each method, by its label: ranges by the name of an option or setting."""
        return spaces(self.study, self.plan.search)

    @property
    def each_trial(self) -> list[Trial]:
        """The trials, by method."""
        order = {u.label: k for k, u in enumerate(self.study.methods)}
        return sorted(read(self.folder), key=lambda t: (order.get(t.method, 0), t.number))

    def trials(self) -> Any:
        """Every trial as a pandas DataFrame.

        Columns: ``method``, ``trial``, one for each option or setting that was searched, ``rounds``,
        ``validation_accuracy`` (0..1; of predicted numbers ``validation_mse``), ``validation_loss`` (nats), ``state``
        (complete, stopped, diverged, refused) and ``chosen``.
        """
        winners = {(c.method, c.trial) for c in self.chosen()}
        rows = []
        for t in self.each_trial:
            reached = {t.value.by.validation: t.value.score, "validation_loss": t.value.loss} if t.rungs else {}
            end = {"rounds": t.trained, **reached, "state": t.state, "chosen": (t.method, t.number) in winners}
            rows.append({"method": t.method, "trial": t.number, **t.values, **end})
        last = ["rounds", self.by.validation, "validation_loss", "state", "chosen"]
        frame = pd.DataFrame(rows)
        return frame[[c for c in frame.columns if c not in last] + [c for c in last if c in frame.columns]]

    @property
    def by(self) -> Score:
        """By which number trials are compared."""
        return SCORES[next(iter(read(self.folder)), _NONE).metric]

    def chosen(self) -> list[Chosen]:
        """What was chosen for each method: the best on validation samples of the trials that reached the last round."""
        trials = self.each_trial
        return [_chosen(u.label, title_of(u), self.ranges[u.label], trials) for u in self.study.methods]

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The search in a folder.

        Raises:
            InputError: there is none, or it is broken.
        """
        plan = plans.read(Path(folder))
        return cls(Path(folder), plan, Study.look(Path(folder) / plans.STUDY_FILE))

    @property
    def has_ended(self) -> bool:
        """Whether all trials have ended."""
        return (self.folder / TUNED_FILE).exists()

    @property
    def tuned(self) -> Study:
        """The study with what was chosen; with ``refit`` it holds no validation samples out.

        Raises:
            InputError: the search has not ended.
        """
        if not self.has_ended:
            raise InputError(f"the search in {self.folder} has not ended: resume it")
        return self.with_choices()

    def with_choices(self) -> Study:
        """The study with what is best so far."""
        chosen = {c.method: c.values for c in self.chosen()}
        uses = _told_apart([_with_choice(u, chosen[u.label]) for u in self.study.methods])
        changes: dict[str, Any] = {"name": f"{self.study.name}-tuned"}
        if self.plan.refit:
            whole: dict[str, Any] = {"validation": 0.0, "round": "last"}
            changes |= {"protocol": self.study.protocol.model_copy(update=whole), "patience": None}
        return self.study.with_methods(uses).model_copy(update=changes)

    @property
    def result(self) -> Result | None:
        """What the tuned study measured on test samples, with ``refit``; None without."""
        folder = self.folder / REFIT_FOLDER
        return Result(folder, self.tuned) if has_run(folder) else None

    @property
    def page(self) -> Path:
        """Where its page is."""
        return self.folder / TUNING_PAGE

    def figures(self) -> Charts:
        """For each setting that was searched, the score over its values, as a chart of Altair by its name.

        Raises:
            InputError: Altair is not installed.
        """
        from idiolect.tuning.figures import figures

        return charts(list(figures(self)))

    def _repr_html_(self) -> str:
        columns = {"Method": False, "Chosen": False, f"Validation {self.by.name}": True, "Trials": True, "Rounds": True}
        return html(Block(f"What was chosen for {self.study.name}", columns, self.rows()), notes=self.notes())

    def notes(self) -> list[str]:
        """Sentences about what was chosen: choices at an edge, methods without a choice, and how it was done."""
        plan, every = self.plan, self.chosen()
        ends, sizes = rungs_of(self.study, plan.halving), batches(plan.trials, plan.sampler)
        go_on = [sum(survivors(sizes, plan.halving, cut)) for cut in range(len(ends) - 1)]
        *before, last = [
            f"until round {ends[0]}",
            *(f"up to {count} of them until round {end}" for count, end in zip(go_on, ends[1:], strict=True)),
        ]
        steps = ", and ".join([", ".join(before), last] if before else [last])
        count = f"{samples:,} " if (samples := self._validation_samples()) else ""
        notes = [] if self.has_ended else ["The search has not ended: this is how far it came."]
        notes += [
            f"Every method had {plan.trials} trials of {self.study.rounds} rounds, trained {steps}, with seed "
            f"{plan.seed}; choices by {self.by.name} on {count}validation samples, {plan.validation:.0%} of each "
            "client's training samples. No test sample was measured."
        ]
        if few := [f"{c.title} ({c.trials})" for c in every if self.has_ended and c.trials < plan.trials]:
            notes.append(f"Methods with fewer settings than trials: {', '.join(few)}; each was tried once.")
        trials = self.each_trial
        for c in every:
            for state in ("diverged", "refused"):
                if bad := [said(t.values) for t in trials if t.method == c.method and t.state == state]:
                    each = f"{len(bad)} of {c.trials} trials {'diverged' if state == 'diverged' else 'were refused'}"
                    notes.append(f"{c.title}: {each} ({listed(bad, 3, '; ')}), and trained no further.")
            if c.score is None and self.has_ended:
                notes.append(f"{c.title}: no trial reached the last round, so it keeps its settings: search elsewhere.")
            if (rate := _rate_that_diverged(c, trials)) is not None:
                notes.append(
                    f"{c.title}: a trial with {said({'lr': rate})}, at most twice the choice, diverged: with other "
                    "seeds or samples the choice may diverge too."
                )
            for name in c.edges:
                notes.append(
                    f"{c.title}: {said({name: c.values[name]})} lies at the edge of its range "
                    f"({self.ranges[c.method][name]}): a wider range may have a better value."
                )
        return notes

    def _validation_samples(self) -> int:
        """How many validation samples all clients have together; 0 if that is not known yet."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            clients = read_json(self.folder / "trials-1" / MANIFEST_FILE)["clients"]
            return sum(sum(client.get("validation", ())) for client in clients)
        return 0

    def table(self) -> Table:
        """What was chosen, as a terminal shows it."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("method", no_wrap=True)
        table.add_column("chosen")
        for header in ("validation", "trials", "rounds"):
            table.add_column(header, justify="right", no_wrap=True)
        for row in self.rows():
            table.add_row(*map(Text, row))
        return table

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The same as texts: method, chosen, score on validation samples, trials and rounds trained."""
        return [
            (
                c.title, said(c.values) or "as it was", "" if c.score is None else c.by.brief(c.score),
                str(c.trials), f"{c.rounds:,}",
            )
            for c in self.chosen()
        ]  # fmt: skip


def _with_choice(use: Use, values: Mapping[str, Any]) -> Use:
    """A method with what was chosen, also in its label where this names what was searched."""
    if not values:
        return use
    label = use.label
    if label.startswith(f"{use.name}:"):
        with suppress(InputError):  # a label that somebody chose
            spec = Spec.parse(label)
            label = str(Spec(name=spec.name, options={k: values.get(k, v) for k, v in spec.options.items()}))
    return with_values(use, values, label)


def _told_apart(uses: Sequence[Use]) -> list[Use]:
    """The methods, with numbers where the choices made labels equal: ``fedavg:lr=0.1``, ``fedavg:lr=0.1 (2)``."""
    labels: list[str] = []
    for use in uses:
        label, number = use.label, 1
        while label in labels:
            number += 1
            label = f"{use.label} ({number})"
        labels.append(label)
    return [use.model_copy(update={"label": label}) for use, label in zip(uses, labels, strict=True)]


def _chosen(label: str, title: str, space: Space, trials: Sequence[Trial]) -> Chosen:
    mine = [t for t in trials if t.method == label]
    rounds, one = sum(t.trained for t in mine), best(mine)
    if one is None:
        return Chosen(label, title, {}, None, None, len(mine), rounds, ())
    edges = tuple(name for name in one.values if _is_open(space[name], name, one, mine))
    return Chosen(label, title, one.values, one.value.score, one.number, len(mine), rounds, edges, one.value.by)


def _rate_that_diverged(chosen: Chosen, trials: Sequence[Trial]) -> float | None:
    """The lowest learning rate with which a trial diverged, up to twice the choice; None if there is none."""
    if not isinstance(lr := chosen.values.get("lr"), float):
        return None
    diverged = [t.values["lr"] for t in trials if t.method == chosen.method and t.state == "diverged"]
    return min((rate for rate in diverged if lr < rate <= 2 * lr), default=None)


def _is_open(range: Range, name: str, chosen: Trial, trials: Sequence[Trial]) -> bool:
    """Whether a choice lies at an end of its range, beyond which no trial failed."""
    value = chosen.values[name]
    if not range.edge(value):
        return False
    failures = [t.values[name] for t in trials if t.state in ("diverged", "refused")]
    beyond = (lambda v: v >= value) if range.is_upper(value) else (lambda v: v <= value)
    return not any(map(beyond, failures))
