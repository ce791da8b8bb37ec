"""Why two numbers differ: everything that determines them, compared in the order of likely importance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich import box
from rich.table import Table

from idiolect import data, models, report
from idiolect.core.objectives import ACCURACY, Score
from idiolect.core.option_spec import Spec, plain
from idiolect.core.terminal import Text
from idiolect.runs.environment import starts
from idiolect.runs.folder import STUDY_FILE
from idiolect.runs.store import settings_of_numbers, text_of
from idiolect.studies.config import Study
from idiolect.studies.method_use import Use

EFFECTS = {
    "dataset": "another task",
    "data": "another task",
    "target": "another task",
    "client_column": "other samples per client",
    "group_column": "samples that belong together are on one side of every split: less can be learned by heart",
    "layout": "other samples per client",
    "drop": "other inputs",
    "resize": "other inputs",
    **dict.fromkeys(("text", "tokens", "max_tokens", "columns", "header", "missing", "categorical"), "other inputs"),
    "unlabelled": "rows without a target are left out, or not",
    "partition": "how different clients are: different clients favour local training over a shared model",
    "partition.alpha": "a smaller one makes clients more different, which favours local training over a shared model",
    "clients": "with more clients, each has fewer of the same samples",
    "sizes": "samples to train on: with fewer every method loses, local training most",
    "keep": "samples to train on: with fewer every method loses, local training most",
    "shifts": "some clients' samples look different or have other labels",
    "data_seed": "another random division of the samples",
    "new_clients": "which clients train, and which are new",
    "new_shifts": "only the new clients' samples",
    "split": "other samples",
    "protocol.clients": "other clients are averaged",
    "protocol.stage": "another model is measured; for methods that personalise, before and after differ much",
    "protocol.round": "the number is from another round",
    "protocol.validation": "samples for validation are not used for training",
    "protocol.weighting": "clients with many test samples count more, or all count equally",
    "protocol.full_last_round": "a last round with all clients brings every client up to date",
    "method": "the method itself",
    "model": "another network",
    "normalise": "another scale of the inputs, which acts like another learning rate",
    "augment": "training images vary: slower to fit, better on test samples if there are few samples",
    "drop_last": "fewer steps, most of all if clients have few samples",
    "optimiser": "the steps of adam and adamw have nearly the same size for all weights, whatever the gradient's size",
    "personal": "which weights the clients share, and which each has for itself",
    "server_optimiser": "how far the shared model moves in a round",
    "uploads": "what the server gets is smaller, coarser or noisier",
    "privacy": "what the server gets is bounded and noisy, and clients weigh alike",
    "robust": "what the server makes of unlike uploads; without attackers too",
    "secure_aggregation": "the rounding of uploads: each number is sent as a whole multiple of a small step",
    "attacks": "what hostile clients send or train on; only honest clients are averaged",
    "lr": "longer or shorter steps",
    "lr_schedule": "longer or shorter steps in some of the rounds",
    "momentum": "steps grow with 1 / (1 - momentum): at 0.9 they are five times those at 0.5",
    "weight_decay": "how small weights are kept; little effect in few rounds",
    "clip": "steps with a long gradient are shorter; no effect where no gradient is longer than the bound",
    "batch_size": "larger batches take fewer steps in an epoch",
    "local_epochs": "more steps in a round: faster at first, and clients drift further apart",
    "rounds": "longer training",
    "precision": "rounding of the networks' products to 8 bits; training makes small differences larger",
    "participation": "fewer clients in a round: slower, and less steady from round to round",
    "seeds": "other initial weights and batches; compare means over several",
    "evaluate_every": "other rounds are evaluated; training is the same",
    "patience": "training may end before the last round, and the number is from the best round on validation samples",
    "protocol.also": "more is measured; the number is the same",
    "protocol.observe": "more is recorded; the number is the same",
    "class_weights": "samples of rare classes weigh more or less in training",
    "protocol.threshold": "from which probability on a class is predicted; probabilities are the same",
    "measures": "more is recorded; the number is the same",
    "task": "whether whole numbers of a target are taken as classes; the numbers are the same",
    "save_predictions": "more is recorded; the number is the same",
    "methods": "methods do not influence each other",
    "idiolect": "changes between the versions: see the changelog",
    "torch": "rounding; training makes small differences larger",
    "numpy": "rounding; its random draws are the same",
    "python": "no known effect",
    "engine": "vectorised rounds differently; training makes small differences larger",
    "dtype": "rounding; training makes small differences larger",
}
"""What can differ, the most important first, and its known effect."""

_RANK = {name: k for k, name in enumerate(EFFECTS)}
_DATA = [name for name in EFFECTS if _RANK[name] < _RANK["split"]]
_SAMPLES = frozenset(_DATA) - {"group_column", "shifts", "data_seed", "new_clients", "new_shifts"}  # and no more
_VERSIONS = ("idiolect", "torch", "numpy", "python")


class Difference(NamedTuple):
    """Something that differs."""

    what: str
    a: str
    b: str
    effect: str


class Gap(NamedTuple):
    """A method's number on both sides, each with its own protocol; None if there is none."""

    method: str
    by: Score
    """What the number is."""
    a: float | None
    b: float | None
    round_a: int | None
    """The round that counts; of several seeds the last."""
    round_b: int | None
    first: int | None
    """The first round, evaluated on both sides with the same seed, in which the mean over clients differs."""

    @property
    def change(self) -> float | None:
        """``b`` minus ``a``, in points or in the unit of the number."""
        return None if self.a is None or self.b is None else self.by.factor * (self.b - self.a)

    @property
    def points(self) -> float | None:
        """The same; None of what is no share."""
        return self.change if self.by.is_share else None


@dataclass(frozen=True)
class Side:
    """A run, or a cell of a recipe.

    Attributes:
        name: its name in the comparison.
        study: its settings.
        run: its records; None for a recipe.
        ran: engine, machine and versions of each start of the run.
        published: accuracy (0..1) that a paper prints.
        remarks: sentences on what is not compared.
    """

    name: str
    study: Study
    run: report.Run | None = None
    ran: Sequence[Mapping[str, Any]] = ()
    published: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def by(self) -> Score:
        """What its numbers are; those of papers are accuracies."""
        return ACCURACY if self.run is None else self.run.score


@dataclass(frozen=True)
class Diff:
    """What differs, the likeliest cause first, what else may matter, and how much the numbers differ."""

    a: str
    b: str
    differences: tuple[Difference, ...] = ()
    remains: tuple[str, ...] = ()
    numbers: tuple[Gap, ...] = ()

    def __str__(self) -> str:
        if not self.differences:
            same = ", and they are the same" if _same(self.numbers) else ""
            return f"Nothing that determines the numbers differs{same}."
        first = self.differences[0]
        rest = len(self.differences) - 1
        more = f" {rest} more {'thing differs' if rest == 1 else 'things differ'}." if rest else ""
        return f"{first.what} is {first.a} in {self.a} and {first.b} in {self.b} ({first.effect}).{more}"

    def as_json(self) -> dict[str, Any]:
        """Everything, as ``--json`` prints it."""
        return {
            "a": self.a,
            "b": self.b,
            "said": str(self),
            "differences": [d._asdict() for d in self.differences],
            "remains": list(self.remains),
            "numbers": [n._asdict() | {"by": n.by.metric, "points": n.points} for n in self.numbers],
        }


def of_run(folder: Path) -> Side:
    """A run's folder as a side.

    Raises:
        InputError: there is no run, or it cannot be read.
    """
    run = report.read(folder)  # has the best message if there is no run
    return Side(str(folder), Study.look(folder / STUDY_FILE), run, starts(folder))


def compare(a: Side, b: Side) -> Diff:
    """Two runs, or a run and a cell of a recipe."""
    pairs = _pairs(a.study.methods, b.study.methods)
    same = a.run is not None and _samples(a) == _samples(b)  # other settings say them in another way
    settings = [d for d in _settings(a, b) if not (same and d.what.partition(".")[0] in _SAMPLES)]
    differences = [*settings, *_methods(a, b, pairs)]
    split = _split(a, b, any(d.what.partition(".")[0] in _DATA for d in differences))
    differences += [*split, *_circumstances(a, b)]
    differences.sort(key=lambda d: _rank(d.what))
    numbers = () if a.run is None or a.by != b.by else tuple(_gap(a, b, *pair) for pair in pairs)
    unexplained = not differences and not _same(numbers)
    remains = (*a.remarks, *b.remarks, *_remains(a, b, numbers if unexplained else ()))
    return Diff(a.name, b.name, tuple(differences), remains, numbers)


def _samples(side: Side) -> list[Any] | None:
    """What a run's samples are, how they are divided and scaled, and the names of classes; None of a recipe."""
    kept = ("hash", "normalisation", "target_scale", "class_names")
    return None if side.run is None else [side.run.manifest.get(name) for name in kept]


def _same(numbers: Sequence[Gap]) -> bool:
    return bool(numbers) and all(n.change == 0 and n.first is None for n in numbers)


def _rank(what: str) -> int:
    head = what.partition(".")[0]
    return _RANK.get(what, _RANK.get(head, _RANK["method"]))  # an unknown name is a method's option


def _different(what: str, a: Any, b: Any, effect: str | None = None) -> Iterator[Difference]:
    if a != b:
        usual = EFFECTS.get(what) or EFFECTS.get(what.partition(".")[0], "")
        yield Difference(what, _text(a), _text(b), usual if effect is None else effect)


def _text(value: Any) -> str:
    return "not set" if value is None else plain(value) if isinstance(value, bool) else text_of(value)


def _settings(a: Side, b: Side) -> Iterator[Difference]:
    one, other = _flat(a.study), _flat(b.study)
    nested = ["protocol"]
    if isinstance(one["partition"], Mapping) and isinstance(other["partition"], Mapping):
        nested += ["partition"] if one["partition"]["name"] == other["partition"]["name"] else []
    for name in nested:
        mine, theirs = ({f"{name}.{k}": v for k, v in s.pop(name).items()} for s in (one, other))
        one, other = one | _options(mine, name), other | _options(theirs, name)
    if a.run is None or b.run is None:  # a cell may have any seed
        one["seeds"] = other["seeds"]
    for name in one | other:
        yield from _different(name, one.get(name), other.get(name))


def _options(flat: dict[str, Any], name: str) -> dict[str, Any]:
    inner = flat.pop(f"{name}.options", {})
    return flat | {f"{name}.{k}": v for k, v in inner.items()}


def _flat(study: Study) -> dict[str, Any]:
    """A study's settings without its methods; those that the library chooses are filled in."""
    settings = {k: v for k, v in settings_of_numbers(study).items() if k in Study.model_fields and k != "methods"}
    if study.dataset is not None:
        settings["model"] = models.choose(study.model, tuple(data.describe(study.dataset)["shape"]))
    return settings | {"evaluate_every": study.evaluation}


def _pairs(a: Sequence[Use], b: Sequence[Use]) -> list[tuple[Use, Use]]:
    """The methods of both sides: those with equal labels, then those whose name occurs once on each side."""
    labels = {u.label: u for u in b}
    pairs = [(u, labels[u.label]) for u in a if u.label in labels]
    left_a, left_b = ([u for u in uses if u not in [p[k] for p in pairs]] for k, uses in enumerate((a, b)))
    for u in left_a:
        same = [v for v in left_b if v.name == u.name]
        if len(same) == 1 and sum(v.name == u.name for v in left_a) == 1:
            pairs.append((u, same[0]))
    return pairs


def _methods(a: Side, b: Side, pairs: Sequence[tuple[Use, Use]]) -> Iterator[Difference]:
    for u, v in pairs:
        yield from _different(f"{u.label}.name", u.name, v.name, EFFECTS["method"])
        for option in u.options | v.options:
            effect = f"an option of {u.name}"
            yield from _different(f"{u.label}.{option}", u.options.get(option), v.options.get(option), effect)
        for setting in u.settings | v.settings:
            own, other = (getattr(side.study.of(use), setting) for side, use in ((a, u), (b, v)))
            yield from _different(f"{u.label}.{setting}", own, other, EFFECTS[setting])
    one, other = ([u.label for u in s.study.methods if u not in [p[k] for p in pairs]] for k, s in enumerate((a, b)))
    if not pairs:
        yield from _different("method", one, other, "no method in common")
    elif a.run is not None and b.run is not None:
        yield from _different("methods", one, other)


def _split(a: Side, b: Side, expected: bool) -> Iterator[Difference]:
    one, other = (str(side.run.manifest.get("hash", ""))[:12] if side.run else "" for side in (a, b))
    if one and other:
        why = (
            "a result of the other data settings" if expected else "the same settings gave other samples: other files?"
        )
        yield from _different("split", one, other, why)


def _circumstances(a: Side, b: Side) -> Iterator[Difference]:
    for name in (*_VERSIONS, "engine", "dtype"):
        one, other = _note(a, name), _note(b, name)
        if one and other and (name != "engine" or "vectorised" in one + other):
            yield from _different(name, one, other)


def _note(side: Side, what: str) -> str:
    """A version, the engine or the machine of a run, as its folder records it; "" if it does not."""

    def of(ran: Mapping[str, Any]) -> Any:
        if what == "engine":
            return str(Spec(name=ran["engine"], options=ran["options"]))
        return ran["versions"].get(what) if what in _VERSIONS else ran.get(what)

    return " then ".join(dict.fromkeys(str(of(ran)) for ran in side.ran if of(ran)))


def _remains(a: Side, b: Side, unexplained: Sequence[Gap]) -> Iterator[str]:
    uneven = [gap for gap in unexplained if gap.round_a != gap.round_b]
    for gap in uneven[:1]:
        yield f"The runs are not equally long: {gap.method} is at round {gap.round_a} and {gap.round_b}. Finish both."
    runs = [side for side in (a, b) if side.run is not None]
    silent = [side.name for side in runs if not _note(side, "machine")]
    for name in silent:
        yield f"{name} does not say on which machine and with which versions it ran."
    if silent or len(runs) < 2:
        return
    for what, effect in (("machine", "processors and graphics cards round differently"), ("engine", "the same bits")):
        one, other = _note(a, what), _note(b, what)
        if one != other and (what != "engine" or "vectorised" not in one + other):
            yield f"The {what} was {one} in {a.name} and {other} in {b.name}: {effect}."
    if unexplained and not uneven:
        yield "Still, the numbers differ: the code changed without a new version, or a GPU gave other numbers."


def _gap(a: Side, b: Side, mine: Use, theirs: Use) -> Gap:
    (one, round_one), (other, round_other) = _final(a, mine), _final(b, theirs)
    return Gap(mine.label, a.by, one, other, round_one, round_other, _first(a, b, mine, theirs))


def _final(side: Side, use: Use) -> tuple[float | None, int | None]:
    if side.run is None:
        return side.published, side.study.rounds
    row = next(r for r in report.summary(side.run) if r.label == use.label)
    final = side.run.final
    counted = final[final["method"] == use.label]["round"]
    return row.score, int(counted.max()) if len(counted) else None


def _first(a: Side, b: Side, mine: Use, theirs: Use) -> int | None:
    if a.run is None or b.run is None:
        return None
    one, other = (_means(run, use.label) for run, use in ((a.run, mine), (b.run, theirs)))
    both = pd.concat([one, other], axis=1, join="inner")
    unlike = both[both.iloc[:, 0] != both.iloc[:, 1]].reset_index()
    return int(unlike["round"].min()) if len(unlike) else None


def _means(run: report.Run, label: str) -> pd.Series[float]:
    scores = run.scores[run.scores["method"] == label]
    return scores.sort_values("client").groupby(["seed", "round"])["value"].mean()


def render(diff: Diff) -> list[Table | Text]:
    """The comparison for a terminal."""
    lines: list[Table | Text] = [Text(str(diff), style="bold"), Text()]
    if diff.differences:
        lines += [_table(("", diff.a, diff.b, "effect"), [tuple(d) for d in diff.differences]), Text()]
    lines += [Text(sentence) for sentence in diff.remains]
    if diff.numbers:
        by = diff.numbers[0].by
        rows = [
            (n.method, _value(by, n.a, n.round_a), _value(by, n.b, n.round_b),
             "-" if n.change is None else by.change(n.change), str(n.first or "-"))
            for n in diff.numbers
        ]  # fmt: skip
        number, change = (f"{by.name} %", "points") if by.is_share else (by.header, "change")
        headers = (number, diff.a, diff.b, change, "differs from round")
        lines += [*([Text()] if diff.remains else []), _table(headers, rows)]
    return lines


def _value(by: Score, value: float | None, round: int | None) -> str:
    return "-" if value is None else f"{by.text(value)} (round {round})"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(Text(header), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
