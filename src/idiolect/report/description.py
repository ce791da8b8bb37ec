"""The clients before training: for a terminal, and as a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich import box
from rich.console import Group
from rich.table import Table

from idiolect.core import files, keys, tree
from idiolect.core.errors import InputError, listed
from idiolect.core.inputs import is_integer
from idiolect.core.objectives import number
from idiolect.core.terminal import Text
from idiolect.core.tree import Tree
from idiolect.data import FederatedData, holdings
from idiolect.data.heterogeneity import COMPARED, Description
from idiolect.data.text.tokens import unit
from idiolect.report import baseline, examples
from idiolect.report.figures import Figure, partition_figures
from idiolect.report.formatting import divided, short
from idiolect.report.page import render_page
from idiolect.report.tables import size
from idiolect.runs.reader import Run

_OF_LABELS = (
    "Label divergence: Jensen-Shannon divergence of two clients' training labels in bits, 0 for the same mixture of "
    "classes, 1 for no class in common. "
)
_OF_TARGETS = (
    "Target distance: root mean square distance of two clients' mean training targets, in standard deviations of all. "
)
_OF_SHARES = (
    "Label distance: root mean square difference, over labels, of the shares of two clients' training samples that "
    "have a label. "
)
_OF_FEATURES = (
    "Feature distance: root mean square distance of two clients' mean training "
    "samples, in standard deviations of the data set; of texts, Hellinger distance of the frequencies of their tokens, "
    "0 for the same and 1 for no token in common. Both are means over the other clients, or over "
    f"{COMPARED:,} drawn at random if there are more. At random: the mean over pairs if clients of these sizes got "
    "their samples at random."
)


def legend(data: FederatedData) -> str:
    """What the numbers of a description mean."""
    of_task = {"classification": _OF_LABELS, "regression": _OF_TARGETS, "multilabel": _OF_SHARES}
    return of_task[data.task] + _OF_FEATURES


_SHADES = " ·░▒▓█"
_CLASSES = 32  # columns that a terminal has room for
_CLIENTS = 40
LINES = 1_000  # of the page's table
_SAID = 6
_NAMES = 16
_LABELS = 20  # of which a line says how frequent each is


def facts(study: Mapping[str, Any], data: FederatedData, about: Description) -> list[tuple[str, str]]:
    """The facts about the setting, in words."""
    clients = len(about.train_KC)
    new = clients - data.trained
    form = _form(data)
    memory = tree.nbytes(data.x_R)
    shifts = Counter(map(short, data.shifts[:clients]))
    del shifts[""]
    texts = [f"{shift} on {count}" for shift, count in shifts.items()]
    if len(texts) > _SAID:
        texts = [f"{len(texts)} different ones on {shifts.total()} clients: {', '.join(list(shifts)[:3])}, ..."]
    lines = [
        ("Data set", f"{data.name}: {_goal(data)}; a sample is {form}"),
        *_columns(study, data),
        (
            "Partition",
            divided(study["partition"], bool(data.names), data.official_split, data.task)
            + f", seed {study['data_seed']}",
        ),
        ("Clients", f"{data.trained} that train, {new} new" if new else str(clients)),
        ("Training samples", _spread(about.train_KC.sum(1))),
        ("Test samples", _spread(about.test_KC.sum(1)) + _new_classes(about) + _of_one_class(data, about)),
        *_division(study, data),
        *_labels(data, about),
        ("Feature distance", f"{about.feature_mean:.3f} on average over pairs; {about.feature_chance:.3f} at random"),
        *filter(None, [baseline.line(data)]),
        *_tokens(data),
        ("Shifts", ", ".join(texts) or "none"),
        ("Memory", f"{size(memory)} of samples"),
    ]
    conditions = [short(c) for c in dict.fromkeys(data.conditions) if c]
    return lines + ([("New clients also under", ", ".join(conditions))] if conditions else [])


def _goal(data: FederatedData) -> str:
    """What is learnt, in words."""
    if data.targets is None:
        return f"{data.classes} classes"
    if data.task == "multilabel":
        return f"{data.outputs} labels, of which a sample can have several"
    return f"{listed(data.targets.names)} to predict, {'a number' if data.outputs == 1 else f'{data.outputs} numbers'}"


def _columns(study: Mapping[str, Any], data: FederatedData) -> list[tuple[str, str]]:
    """What a table's classes are, and which of its columns are features."""
    lines = []
    if data.targets is None and (target := study.get("target")):
        lines.append(("Target", f"{target}: {listed(data.class_names, _NAMES)}"))
    if data.encodings:
        names = [one.name for one in data.encodings]
        texts = sum(one.kind == "text" for one in data.encodings)
        more = [f"{texts} with a number for each of their values"] * (texts > 0)
        if gaps := sum(one.gaps for one in data.encodings):
            more.append(f"{gaps} with missing values, which a number of their own marks")
        lines.append(("Features", "; ".join([f"{len(names)} columns: {listed(names, _NAMES)}", *more])))
    return lines


def _labels(data: FederatedData, about: Description) -> list[tuple[str, str]]:
    """How the clients' targets differ."""
    if data.targets is None or about.target_KD is None:
        bits = f"{about.label_mean:.3f} bits on average over pairs; {about.label_chance:.3f} at random"
        return [("Classes per client", _spread((about.train_KC > 0).sum(1), total=False)), ("Label divergence", bits)]
    goal = data.targets
    apart = f"{about.label_mean:.3f} on average over pairs; {about.label_chance:.3f} at random"
    if data.task == "multilabel":
        return [*_label_shares(data, about.target_KD), ("Label distance", apart)]
    lines = [
        (
            f"Target {name}" if data.outputs > 1 else "Target",
            f"mean {number(mean)}, standard deviation {number(std)}; clients' means {number(low)} to {number(high)}",
        )
        for name, mean, std, low, high in zip(
            goal.names, goal.mean, goal.std, about.target_KD.min(0), about.target_KD.max(0), strict=True
        )
    ]
    return [*lines, ("Target distance", apart)]


def _label_shares(data: FederatedData, share_KL: Any) -> list[tuple[str, str]]:
    """How many labels training samples have, and how frequent each is."""
    assert data.targets is not None
    value_NL = data.targets.value_RD[torch.cat([*data.train[: data.trained]])].numpy()
    count_N = value_NL.sum(1).astype(int)
    lines = [("Labels per sample", f"{_spread(count_N, total=False)}; {100 * (count_N == 0).mean():.3g} % have none")]
    most_L = np.argsort(-value_NL.mean(0), kind="stable")[:_LABELS]
    for k in most_L:
        ends = f"{100 * share_KL[:, k].min():.3g} to {100 * share_KL[:, k].max():.3g} %"
        text = f"{100 * value_NL[:, k].mean():.3g} % of training samples; of clients' {ends}"
        lines.append((f"Label {data.targets.names[k]}", text))
    rest = len(data.targets.names) - len(most_L)
    return lines + ([("Other labels", f"{rest}, less frequent")] if rest else [])


def _division(study: Mapping[str, Any], data: FederatedData) -> list[tuple[str, str]]:
    """What keeps training and test samples apart, besides chance."""
    options = (study.get("split") or {}).get("options", {})
    if (gap := options.get("gap")) is not None:
        which = "the last samples of each class" if options.get("each_class") else "its last samples"
        return [("Order", f"each client tests on {which}, after a gap of {gap:,}")]
    if data.group_R is None:
        return []
    numbers = np.concatenate([data.group_R[rows].numpy() for part in (data.train, data.test) for rows in part])
    count_G = np.unique(numbers, return_counts=True)[1]
    name = study.get("group_column") or "group"
    return [("Groups", f"{len(count_G):,} of {name}, with {_spread(count_G, total=False)} samples; each on one side")]


def _form(data: FederatedData) -> str:
    """The form of a sample, in words."""
    if data.tokens is not None:
        name, units = data.tokens.encoder.name, unit(data.tokens.encoder)
        return f"a text of up to {data.x_R.shape[1]:,} {units}{'' if units == name else f' of {name}'}"
    if examples.kind_of(data) == "windows":
        channels, time = data.shape
        return f"a window of {channels:,} channel{'s' * (channels > 1)} and {time:,} time steps"
    return _numbers(data.x_R)


def _tokens(data: FederatedData) -> list[tuple[str, str]]:
    """How long training texts are."""
    if data.tokens is None:
        return []
    units = unit(data.tokens.encoder).capitalize()
    return [(f"{units} per text", examples.spread_of_lengths(examples.training_lengths(data)))]


def _numbers(x_R: Tree) -> str:
    """The form of numbers, or of several tensors by name, in words."""
    if isinstance(x_R, dict):
        return "; ".join(f"{name}: {_numbers(leaf)}" for name, leaf in x_R.items())
    if x_R.ndim != 2:
        return f"{'x'.join(map(str, x_R.shape[1:]))} {str(x_R.dtype)[6:]}"
    numbers = x_R.shape[1]
    return f"{numbers:,} {'id' if is_integer(x_R) else 'number'}{'s' * (numbers > 1)}"


def _spread(count_K: Any, total: bool = True) -> str:
    low, middle, high = int(count_K.min()), float(np.median(count_K)), int(count_K.max())
    text = f"{low:,}" if low == high else f"{low:,} to {high:,}, median {middle:,.0f}"
    return f"{text}; {int(count_K.sum()):,} in all" if total else text


def _new_classes(about: Description) -> str:
    """The share of test samples whose class their client does not train on, in words; "" if there are none."""
    new = int(about.test_KC[about.train_KC == 0].sum())
    return f"; {100 * new / about.test_KC.sum():.3g} % of classes that their client does not train on" if new else ""


def _of_one_class(data: FederatedData, about: Description) -> str:
    """Whose test samples have one class, although they train on several; "" if it is nobody."""
    if data.targets is not None:
        return ""
    alone = np.flatnonzero(((about.test_KC > 0).sum(1) == 1) & ((about.train_KC > 0).sum(1) > 1))
    names = names_of(data)
    return f"; of one class at {listed([names[int(k)] for k in alone], 3)}, unlike training" if len(alone) else ""


def terminal(facts: Sequence[tuple[str, str]], data: FederatedData, about: Description) -> Group:
    """The facts and a map of labels, with a line for each client."""
    grid = Table.grid(padding=(0, 2))
    for name, text in facts:
        grid.add_row(Text(name, "bold"), Text(text))
    parts: list[Any] = [grid, ""]
    names = names_of(data)
    clients, classes = about.train_KC.shape
    with_map = classes <= _CLASSES and about.target_KD is None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("Client", overflow="fold")
    table.add_column("Train", justify="right")
    table.add_column("Test", justify="right")
    if about.target_KD is not None:
        table.add_column(_third_header(data, "Mean"), justify="right")
    elif with_map:
        table.add_column("".join(str(c % 10) for c in range(classes)), no_wrap=True)
    else:
        table.add_column("Classes", justify="right")
    if any(data.shifts):
        table.add_column("Shift", overflow="fold")
    for k in range(min(clients, _CLIENTS)):
        count_C = about.train_KC[k]
        level_C = np.ceil(count_C / max(1, count_C.max()) * (len(_SHADES) - 1)).astype(int)
        cell = "".join(_SHADES[v] for v in level_C) if with_map else _third(data, about, k)
        line = [names[k], f"{count_C.sum():,}", f"{about.test_KC[k].sum():,}", cell]
        table.add_row(*map(Text, line + ([short(data.shifts[k])] if any(data.shifts) else [])))
    parts.append(table)
    if clients > _CLIENTS:
        where = "the page has all" if clients <= LINES else f"the page has {LINES:,}, the JSON output all"
        parts.append(Text(f"... and {clients - _CLIENTS} more clients: {where}", "dim"))
    if with_map:
        parts.append(
            Text(f"Darker: more of the client's training samples. Classes: {', '.join(data.class_names)}", "dim")
        )
    return Group(*parts)


def _third_header(data: FederatedData, of_numbers: str) -> str:
    return "Labels per sample" if data.task == "multilabel" else of_numbers


def _third(data: FederatedData, about: Description, k: int) -> str:
    """What is said of a client beside its samples: the mean of its target, or how many labels or classes it has."""
    if about.target_KD is not None and data.task == "multilabel":
        return f"{about.target_KD[k].sum():.2f}"
    if about.target_KD is not None:
        return ", ".join(map(number, about.target_KD[k]))
    return str(int((about.train_KC[k] > 0).sum()))


def as_json(study: Mapping[str, Any], data: FederatedData, about: Description) -> dict[str, Any]:
    """The same numbers, per client and over all."""
    distances = zip(about.label_K.tolist(), about.feature_K.tolist(), holdings(data)["clients"], strict=False)
    clients = [
        client | {distance_of(data): round(label, 4), "feature_distance": round(feature, 4)}
        for label, feature, client in distances
    ]
    if about.target_KD is not None:
        name = "label_shares" if data.task == "multilabel" else "target_mean"
        clients = [c | {name: mean} for c, mean in zip(clients, about.target_KD.tolist(), strict=True)]
    scores = [None if math.isnan(score) else score for score in baseline.baseline(data).tolist()]
    clients = [client | {"baseline": score} for client, score in zip(clients, scores, strict=False)]
    goal = {} if data.targets is None else {"task": data.task, "targets": list(data.targets.names)}
    return {
        "dataset": data.name,
        "partition": study["partition"],
        "official_split": data.official_split,
        "shape": {n: list(v) for n, v in data.shape.items()} if isinstance(data.shape, dict) else list(data.shape),
        **({"class_names": list(data.class_names)} if data.targets is None else goal),
        distance_of(data): {"mean": about.label_mean, "at_random": about.label_chance},
        "feature_distance": {"mean": about.feature_mean, "at_random": about.feature_chance},
        "baseline": {"metric": data.score.metric, "what": baseline.NAMES[data.task]},
        "conditions": [c for c in dict.fromkeys(data.conditions) if c],
        "clients": clients,
    }


def write_description(
    facts: Sequence[tuple[str, str]], data: FederatedData, about: Description, clients: Sequence[int], out: Path
) -> Path:
    """Write the page: facts, who has what, sizes, divergences, examples of some clients' samples.

    Raises:
        InputError: ``out`` is a folder.
        RunError: the file cannot be written.
    """
    if out.is_dir():
        raise InputError(f"{out} is a folder: name a file, for example {out / 'describe.html'}")
    count, kind = len(about.train_KC), examples.kind_of(data)
    figures = figures_of(data, about)
    names = names_of(data)
    listed_K = np.arange(count)
    if count > LINES:
        listed_K = np.sort(keys.generator(0, "describe", "lines").choice(count, LINES, replace=False))
    lines = [
        {
            "place": k + 1,
            "who": names[k],
            "cells": [
                int(about.train_KC[k].sum()), int(about.test_KC[k].sum()), _third(data, about, k),
                f"{about.label_K[k]:.3f}", f"{about.feature_K[k]:.3f}",
            ],
            "shift": short(data.shifts[k]),
        }
        for k in listed_K.tolist()
    ]  # fmt: skip
    page = render_page(
        "description.html",
        {f"describe-{f.name}": f.spec | {"description": f.title} for f in figures},
        title=f"{data.name}, {count} clients",
        facts=facts,
        figures=figures,
        shown=examples.HEADINGS.get(kind, ""),
        samples=[examples.of_client(data, k, names[k]) for k in clients] if kind else [],
        headers=[
            "Training samples", "Test samples",
            _third_header(data, "Classes" if data.targets is None else "Mean of the target"),
            distance_of(data).replace("_", " ").capitalize(), "Feature distance",
        ],
        lines=lines,
        clients=count,
        shifted=any(data.shifts),
        legend=legend(data),
    )  # fmt: skip
    files.write(out, page)
    return out


def distance_of(data: FederatedData) -> str:
    """The name of ``Description.label_K``."""
    of_task = {"classification": "label_divergence", "regression": "target_distance", "multilabel": "label_distance"}
    return of_task[data.task]


def figures_of(data: FederatedData, about: Description) -> list[Figure]:
    """The figures of the page."""
    inventory = holdings(data)
    inventory["clients"] = inventory["clients"][: len(about.train_KC)]
    figures = partition_figures(Run(data.name, {}, inventory, pd.DataFrame(), pd.DataFrame()), about)
    return [*figures, examples.figure_of_lengths(data)] if data.tokens is not None else figures


def typical(data: FederatedData, about: Description) -> list[int]:
    """Clients whose samples are shown: the first without a shift, and the first of each shift, six at most."""
    first = {shift: k for k, shift in reversed(list(enumerate(data.shifts[: len(about.train_KC)])))}
    clients = sorted(first.values())[:6]
    return clients if len(clients) > 1 else list(range(min(3, len(about.train_KC))))


def names_of(data: FederatedData) -> list[str]:
    """What clients are called; new ones have it behind their name."""
    client_names = data.names or tuple(map(str, range(data.clients)))
    new = ["" if k < data.trained else " (new)" for k in range(data.clients)]
    return [name + more for name, more in zip(client_names, new, strict=True)]
