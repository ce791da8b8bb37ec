"""A bundle as a notebook shows it: the facts and results of its card."""

from __future__ import annotations

from pathlib import Path

from idiolect.deploy.card import participants, specs_text, summary
from idiolect.deploy.schema import About
from idiolect.report.notebook import Block, facts, html

_SHOWN = 30  # classes, clients


def bundle_html(folder: Path, about: About) -> str:
    """What a bundle is, and how well its models did in the run."""
    title = f"{about.method.title}: " + ("what a new site gets" if about.kind == "join" else "personal models")
    blocks = [facts(title, _facts(about))]
    if about.evaluation and about.evaluation.clients:
        blocks.append(_results(about))
    return html(*blocks, below=[f"In {folder}; README.md there says how to use it, and what it is not for."])


def _facts(about: About) -> list[tuple[str, str]]:
    options = ", ".join(f"{k}={v}" for k, v in about.method.options.items())
    lines = [("Method", about.method.title + (f" ({options})" if options else "")), ("Network", about.network.model)]
    if about.kind != "join":
        lines.append(("Models", _listed(about.models)))
    lines.append(("Inputs", _inputs(about)))
    if about.targets:
        lines.append(("Predicts", _listed([target.name for target in about.targets])))
    elif about.labels:
        lines.append(("Labels", f"{len(about.labels)}: {_listed(about.labels)}"))
    else:
        lines.append(("Classes", f"{len(about.classes)}: {_listed(about.classes)}"))
    count = participants(about)
    lines.append(
        ("Clients in the federation", str(about.clients)) if count is None else ("Clients that trained", count)
    )
    lines.append(("Rounds", f"{about.key.round}, seed {about.key.seed}"))
    if source := about.provenance:
        partition, shifts = (specs_text(source.study.get(part)) for part in ("partition", "shifts"))
        divided = f", partition {partition}, shifts {shifts or 'none'}" if partition else ""  # a federation has none
        lines.append(("Data", source.dataset + divided))
        lines.append(("Made", f"{source.made}, with idiolect {source.versions.get('idiolect', '?')}"))
    if about.site:
        lines.append(("At this site", f"the {about.site.ships} model: {about.site.why}"))
    return lines


def _inputs(about: About) -> str:
    inputs = about.inputs
    if inputs.kind == "images":
        c, h, w = inputs.shape
        return f"8-bit images of {w}x{h} pixels, {'grey' if c == 1 else 'RGB'}"
    if inputs.tokens is not None:
        return f"texts: the first {inputs.shape[0]:,} {inputs.tokens.encoder} of each"
    if inputs.channels:
        return f"windows of {inputs.shape[0]:,} channels and {inputs.shape[1]:,} time steps"
    if inputs.kind == "numbers":
        return f"numbers of shape {inputs.shape}"
    return f"{len(inputs.columns)} columns: {_listed([column.name for column in inputs.columns])}"


def _results(about: About) -> Block:
    assert about.evaluation is not None
    rows, score = [], about.objective.score
    for is_new, who in ((False, "that trained"), (True, "new")):
        for field, what in (("personal", "personal model"), ("received", "model as received")):
            parts = [getattr(c, field) for c in about.evaluation.clients if c.new == is_new]
            values = [value for value in parts if value is not None]
            if values:
                numbers = [score.text(value, 1) for value in summary(values, score)]
                rows.append([f"{len(values)} {who}", what, *numbers])
    columns = {"Clients": False, "Model": False} | dict.fromkeys(("Mean", "Standard deviation", "Worst tenth"), True)
    what = f"{score.axis[0].upper()}{score.axis[1:]}"
    return Block(f"{what} on each client's test samples: {about.evaluation.protocol}", columns, rows)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
