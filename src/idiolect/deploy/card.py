"""The README of a bundle: a model card that a person reads before using it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from idiolect.core.objectives import Score
from idiolect.core.option_spec import Spec
from idiolect.deploy import code
from idiolect.deploy.global_model import NO_GLOBAL
from idiolect.deploy.schema import About, ClientPart

_SHOWN = 30  # clients in the table

_ASKS = re.compile(r"\w\s*([<>]=?|!?=)\s*\S")
_FORM = ("header", "columns", "missing")
"""How a study reads tables: settings that are options of a command too."""
_JOINS = {
    "what it receives": "A new site needs no sample to get this model: it is what the server sends.",
    "forward passes": "A new site gets its own model by forward passes over its samples, without training.",
    "training": "A new site gets its own model by a short training on its samples.",
}


def text(about: About) -> str:
    """The card, in Markdown."""
    parts = [_title(about), _use(about), _inputs(about), _training(about)]
    if about.site:
        parts.append(_site(about))
    parts += [_results(about), _reveals(about), _limits(about)]
    return "\n".join(part for part in parts if part)


def _title(about: About) -> str:
    kind = "what a new site gets" if about.kind == "join" else f"{_count(len(about.models), 'personal model')}"
    data = f" trained on {_plain(about.provenance.dataset)}" if about.provenance else ""
    return f"# {_plain(about.method.title)}{data}: {kind}\n"


def _use(about: About) -> str:
    predict = ["idiolect", "predict", "--data", "new.csv", "--out", "predictions.parquet"]
    if about.kind == "join":
        goal = (
            "+".join(_name(target.name) for target in about.targets) or _question(about) or _labels(about) or "COLUMN"
        )
        join = ["idiolect", "join", ".", "--data", "my.csv", "--target", shlex.quote(goal), "--out", "site"]
        if about.provenance and about.provenance.study.get("unlabelled"):
            join += ["--unlabelled", str(about.provenance.study["unlabelled"])]
        commands = [join, [*predict[:2], "site", *predict[2:]]]
        joins = _JOINS.get(about.revealed.joins_by, "") if about.revealed else ""
        if about.global_model is False:
            joins = f"{NO_GLOBAL[0].upper()}{NO_GLOBAL[1:]}. {'' if joins == _JOINS['what it receives'] else joins}"
        intro = f"{joins} Make a model for your site, then predict with it:"
    else:
        commands = [[*predict[:2], ".", *(["--client", "NAME"] if len(about.models) > 1 else []), *predict[2:]]]
        intro = "Predict with it:"
    study = about.provenance.study if about.provenance else {}
    if form := [name for name in _FORM if study.get(name)]:
        intro = f"{intro.strip()[:-1]} (the last options fit files like those of the training; give what fits yours):"
        options = [word for name in form for word in [f"--{name}", shlex.quote(str(study[name]))]]
        commands = [[*command, *options] for command in commands]
    if own := code.own_of(about):
        names = " and ".join(_plain(path) for path in own.values())
        permission = ["--allow-import"]
        intro = f"It imports {names}, which {permission[0]} permits: look at that code first. {intro.strip()}"
        commands = [[*command, *permission] for command in commands]
    return "\n".join([f"{intro.strip()}\n", *(f"    {' '.join(command)}" for command in commands), ""])


def _labels(about: About) -> str:
    """The column or columns of the labels in training, as an option; "" for classes."""
    target = str(about.provenance.study.get("target") or "") if about.provenance else ""
    return (target or "+".join(map(_name, about.labels))) if about.labels else ""


def _question(about: About) -> str:
    """The question of two answers that was the target in training, as ``num>0``; "" if it was a column."""
    target = str(about.provenance.study.get("target") or "") if about.provenance else ""
    return target if _ASKS.search(target) else ""


def _inputs(about: About) -> str:
    inputs = about.inputs
    lines = ["## What it takes and gives\n"]
    if inputs.kind == "images":
        c, h, w = inputs.shape
        lines.append(f"8-bit images of {w}x{h} pixels, {'grey' if c == 1 else 'RGB'}.\n")
    elif inputs.tokens is not None:
        names = inputs.tokens.columns
        where = f" in the column{'s' * (len(names) > 1)} {' and '.join(map(_plain, names))}" if names else ""
        lines.append(f"Texts{where}: the first {inputs.shape[0]:,} {_plain(inputs.tokens.encoder)} of each.\n")
    elif inputs.channels:
        where = f"the column{'s' * (len(inputs.channels) > 1)} {' and '.join(map(_plain, inputs.channels))}"
        lines.append(f"Windows of {inputs.shape[0]:,} channels and {inputs.shape[1]:,} time steps, in {where}.\n")
    elif inputs.kind == "numbers":
        lines.append(f"Numbers of shape {inputs.shape}.\n")
    else:
        lines += ["| column | kind | mean | standard deviation |", "| --- | --- | --- | --- |"]
        at = 0
        for column in inputs.columns:
            texts = [_plain(t) for t in column.texts if t]
            kind = f"one of {', '.join(texts)}" if column.kind == "text" else "number"
            mean, std = inputs.mean[at], inputs.std[at]
            scale = f"{mean + column.shift:.4g} | {std:.4g}" if column.scaled and column.kind == "number" else "|"
            lines.append(f"| {_plain(column.name)} | {kind}{', may be missing' if column.gaps else ''} | {scale} |")
            at += len(column.features)
        lines.append("")
    if about.targets:
        lines += ["It gives these numbers, in the units of the training samples:\n"]
        lines += ["| number | mean | standard deviation |", "| --- | --- | --- |"]
        lines += [f"| {_plain(t.name)} | {t.mean:.4g} | {t.std:.4g} |" for t in about.targets[:_SHOWN]]
        more = len(about.targets) - _SHOWN
        lines += [f"| {more} more: see bundle.json | | |"] if more > 0 else []
        lines.append("")
    elif about.labels:
        lines.append(
            f"It gives a probability for each of {len(about.labels)} labels, of which a sample can have several: "
            f"{_listed(about.labels)}.\n"
        )
    else:
        lines.append(f"It gives a probability for each of {len(about.classes)} classes: {_listed(about.classes)}.\n")
    if about.threshold != "half":
        best = {"f1": "F1", "balanced": "balanced accuracy"}[about.threshold]
        what = "Each label" if about.labels else f"The class {_plain(about.classes[1])}"
        whose = "the samples that a site joins with" if about.kind == "join" else "samples that it was not trained on"
        lines.append(f"{what} is predicted from the probability on that has the best {best} on {whose}.\n")
    return "\n".join(lines)


def _training(about: About) -> str:
    source = about.provenance
    if source is None:
        return ""
    study = source.study
    pairs = list(zip(about.classes, source.samples, strict=True))[:_SHOWN] if about.classes else []
    counts = f" ({', '.join(f'{_plain(c)} {n:,}' for c, n in pairs)})" if pairs else ""
    count = participants(about)
    who = f"{about.clients} in the federation, over" if count is None else f"{count} trained together for"
    lines = [
        "## How it was trained\n",
        f"- Method: {_plain(about.method.title)} ({_options(about.method.options)}), seed {about.key.seed}.",
        f"- Clients: {who} {_count(about.key.round, 'round')} of "
        f"{_count(about.training.local_epochs, 'local epoch')}; participation {study.get('participation', 1):g}.",
        f"- Network: {_plain(about.network.model)}.",
        *([f"- Weights that stay at each client: {_plain(kept)}."] if (kept := about.training.personal) else []),
        f"- Training samples: {sum(source.samples):,}{counts}.",
        f"- Data: {_data(source.dataset, study)}.",
        f"- Made on {source.made} with idiolect {source.versions.get('idiolect', '?')}.\n",
    ]
    return "\n".join(lines)


def participants(about: About) -> str | None:
    """How many clients trained, and of how many if some never did; None where this is not known."""
    count = about.provenance.participants if about.provenance else None
    if count is None:
        return None
    return f"{count} of {about.clients}" if count < about.clients else str(count)


def _data(name: str, study: Mapping[str, object]) -> str:
    partition, shifts = (_plain(specs_text(study.get(part))) for part in ("partition", "shifts"))
    if not partition:  # of a federation, whose sites have data of their own
        return f"that of the sites of the federation {_plain(name)}"
    return f"{_plain(name)}, partition {partition}, shifts {shifts or 'none'}"


def _results(about: About) -> str:
    measures = about.evaluation
    if measures is None or not measures.clients:
        return ""
    score = about.objective.score
    what = f"{score.name[0].upper()}{score.name[1:]}"
    lines = ["## How well it did in the run\n", f"{what} on each client's test samples: {measures.protocol}.\n"]
    lines += ["| clients | model | mean | standard deviation | worst tenth |", "| --- | --- | --- | --- | --- |"]
    for new, who in ((False, "trained"), (True, "new")):
        for field, what in (("personal", "personal"), ("received", "as received")):
            values = [v for c in measures.clients if c.new == new and (v := getattr(c, field)) is not None]
            if values:
                lines.append(f"| {len(values)} {who} | {what} | {_summary(values, score)} |")
    if measures.loss is not None and measures.calibration_error is not None:
        lines.append(
            f"\nMean log loss {measures.loss:.3f}, expected calibration error {100 * measures.calibration_error:.1f}% "
            "(the mean distance between how sure the model is and how often it is right)."
        )
    lines += [
        "\n| client | training samples | test samples | personal | as received |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [_row(c, score) for c in measures.clients[:_SHOWN]]
    if len(measures.clients) > _SHOWN:
        lines.append(f"| {len(measures.clients) - _SHOWN} more: see bundle.json | | | | |")
    return "\n".join(lines) + "\n"


def _row(client: ClientPart, score: Score) -> str:
    values = " | ".join("" if v is None else score.brief(v) for v in (client.personal, client.received))
    return f"| {_plain(client.name)}{' (new)' if client.new else ''} | {client.train} | {client.test} | {values} |"


def _summary(values: Sequence[float], score: Score) -> str:
    return " | ".join(score.brief(v) for v in summary(values, score))


def summary(values: Sequence[float], score: Score) -> tuple[float, float, float]:
    """Mean and standard deviation of clients' scores, and the mean of the worst tenth of them."""
    worst = np.sort(score.sign * np.array(values))[: max(1, math.ceil(len(values) / 10))]
    return float(np.mean(values)), float(np.std(values)), score.sign * float(worst.mean())


def _site(about: About) -> str:
    site = about.site
    assert site is not None
    basis = f"Measured on {site.samples} of the site's samples."
    return f"## This site's model\n\n{basis} It is the {site.ships} model: {site.why}\n"


def _reveals(about: About) -> str:
    if (content := about.revealed) is None:
        return ""
    sums = (
        "The server's state depends only on sums over clients."
        if content.uploads_are_sums
        else "The server saw what each client sent, not only sums over clients."
    )
    scores = "errors" if about.targets else "F1" if about.labels else "accuracy"
    lines = [
        "## What it reveals\n",
        f"Every round each client received {_parts(content.down)} ({content.bytes_down:,} bytes) and sent "
        f"{_parts(content.up)} ({content.bytes_up:,} bytes). {sums} No sample as it was is in this bundle, but numbers "
        "that were computed from samples are: an attacker may learn from them whether a person's sample was used. The "
        f"file bundle.json also has the names of clients, their numbers of samples and their {scores}.\n",
    ]
    if content.per_sample:
        lines.append(
            "**This model holds numbers for each training sample of its client**, such as their features: give it to "
            "nobody who may not see the samples.\n"
        )
    if any(column.texts for column in about.inputs.columns):
        lines.append("Texts of columns that fewer than 5 training samples have are not named.\n")
    return "\n".join(lines)


def _limits(about: About) -> str:
    others = "for numbers far from those that it was trained on" if about.targets else "for classes that are not listed"
    others = "for labels that are not listed" if about.labels else others
    return (
        "## What it is not for\n\n"
        f"It was measured on the clients above and nowhere else. Do not use it for samples of another kind, {others}, "
        "or where a wrong answer does harm that nobody checks. Compare it with the model that your site has today "
        "before you rely on it.\n"
    )


def _parts(parts: dict[str, str]) -> str:
    return ", ".join(f"{_plain(k)} {v}" if v != k else v for k, v in parts.items()) or "nothing"


def _options(options: dict[str, object]) -> str:
    return ", ".join(f"{k}={v}" for k, v in options.items()) or "no options"


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(map(_plain, names[:_SHOWN]))
    return text + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def specs_text(values: object) -> str:
    """Partitions and shifts of a study, as one writes them."""
    if isinstance(values, list | tuple):
        return ", ".join(map(specs_text, values))
    return str(Spec.model_validate(values)) if isinstance(values, dict) else str(values or "")


def _name(target: str) -> str:
    """A name as it is written among several that are joined by +."""
    return f'"{target}"' if "+" in target else target


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _plain(text: str) -> str:
    """A text of the data that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|" else c for c in " ".join(str(text).split()))
