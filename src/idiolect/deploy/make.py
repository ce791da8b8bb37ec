"""Bundles from the folder of a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from idiolect import data, methods, models
from idiolect.core import files, tree
from idiolect.core.errors import InputError, RunError, nearest, option
from idiolect.core.inputs import Input
from idiolect.core.method import Down, Method
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree
from idiolect.data import Encoding, FederatedData
from idiolect.data.federated import RawSamples
from idiolect.deploy import bundle, card, code
from idiolect.deploy.about_file import with_memory
from idiolect.deploy.numbers import targets_of
from idiolect.deploy.provenance import participants_of, provenance_of, say_validation
from idiolect.deploy.schema import (
    About,
    ClientPart,
    Evaluation,
    FeaturesPart,
    Inputs,
    KeyPart,
    Kind,
    MethodPart,
    NetworkPart,
    Provenance,
    Revealed,
    Scale,
    TensorPart,
    TokensPart,
    TrainingPart,
)
from idiolect.deploy.units import scale_of
from idiolect.methods import profile
from idiolect.runs import checkpoint, reader
from idiolect.runs.folder import CHECKPOINT_FILE, cell_folder, client_states
from idiolect.simulation import Job, State, begin
from idiolect.simulation.client_runner import ClientRunner, EvaluationResult, Phase
from idiolect.simulation.rounds import first_state
from idiolect.simulation.thresholds import HALF
from idiolect.training.class_weights import class_weights_of, weights_of
from idiolect.training.preprocessing import Preprocessing

log = logging.getLogger(__name__)

RARE = 5
"""Texts of a column that fewer training samples have are not written into a bundle, which strangers may read."""


class Elsewhere(NamedTuple):
    """What a run knows whose samples and clients' states are not where the run is, but at the sites of a federation."""

    build: Callable[..., Method]
    """The method; the run's own job has something else in place of clients' states."""
    inputs: Inputs
    """What the network takes."""


def make(
    run: Path,
    out: Path,
    job: Job,
    federation: FederatedData,
    study: Mapping[str, Any],
    *,
    method: Mapping[str, Any],
    labels: Sequence[str],
    client: str | int | Literal["all"] | None = None,
    elsewhere: Elsewhere | None = None,
) -> bundle.Bundle:
    """Write what a run trained as a bundle.

    Args:
        run: the run's folder.
        out: the bundle's folder, new or empty.
        job: the method with its seed on the run's data.
        federation: the run's data.
        study: the study's settings, as in ``study.yaml``.
        method: the method's name, title and options.
        labels: of all the study's methods, in order.
        client: None writes what a new client gets; a client's name or number its personal model; "all" the personal
            models of all clients that trained.
        elsewhere: of a run whose samples and clients' states are at sites; None if they are here.

    Raises:
        InputError: the run is not finished, its data have changed, there is no such client, its state is at a site, or
            the folder exists.
        RunError: the disk is full, or a personal model cannot be made.
    """
    files.vacant(out)
    if elsewhere is not None and client is not None:
        raise InputError(
            f"the personal models of {run} stay at its sites: leave out {option('client')} for what a new client gets; "
            "a site uses its own model from its state folder"
        )
    records = reader.read(run)
    say_validation(federation)
    code.check_run(run, records.manifest, job.name, method["name"], str(study["model"]))
    state = _state(run, records, job, study, labels)
    best = records.best_rounds.get((job.name, job.seed), state.round)
    if records.protocol.round == "best_validation" and best < state.round:
        log.warning(
            "a run keeps models of its last round: those of %s, seed %d, are from round %d, and its %s in the table "
            "is that of round %d, the best on validation samples",
            *(job.name, job.seed, state.round, federation.score.name, best),
        )
    job = job if elsewhere is None else job._replace(build=elsewhere.build)
    if data.manifest(federation)["hash"] != records.manifest.get("hash"):
        raise InputError(f"the data have changed since {run} was written: restore them, or run the study again")
    whom, one = None if client is None else _clients(federation, client), _Clients(job, federation, state)
    measures = _Measures(records, job, one, here=elsewhere is None)
    about = about_of(
        job, federation, study, method, kind="join" if whom is None else "models", round=state.round,
        names=("new client",) if whom is None else tuple(_name(federation, k) for k in whom),
        inputs=inputs_of(federation) if elsewhere is None else elsewhere.inputs,
        evaluation=measures.evaluation(),
        provenance=provenance_of(federation, study, records.manifest, participants_of(records, job.name, job.seed)),
    )  # fmt: skip
    about = with_messages(about, federation)
    if whom is not None and about.threshold != "half":
        about = about.model_copy(update={"thresholds": measures.thresholds(whom, about.labels)})
    own = [(one.down([federation.trained]).own, ())] if whom is None else list(one.personal(whom))
    if whom is not None:
        about = with_memory(about, own[0][1], len(federation.train[whom[0]]))
    return bundle.write(out, about, one.down([0]).shared, own, card.text(about))


def about_of(
    job: Job, federation: FederatedData, study: Mapping[str, Any], method: Mapping[str, Any], *,
    kind: Literal["join", "models"], round: int, names: tuple[str, ...], inputs: Inputs, evaluation: Evaluation,
    provenance: Provenance, client: int | None = None,
) -> About:  # fmt: skip
    """What a bundle says about itself.

    Args:
        job: the method with its seed.
        federation: the clients' data, of which the samples are not needed.
        study: the study's settings.
        method: the method's name, title and options.
        kind, round: see ``About``.
        names: of the models.
        inputs: what the network takes.
        evaluation: how the clients did.
        provenance: where it is from.
        client: whose random draws are its; None is the first one that did not train.
    """
    network = models.choose(str(study["model"]), federation.inputs)
    form = federation.inputs if federation.raw is None else federation.raw.form
    frozen = models.build(network, form, federation.outputs).frozen_digest
    way = Spec.model_validate(study.get("class_weights") or {"name": "none"})
    moments = federation.raw and FeaturesPart.model_validate({"mean": federation.mean, "std": federation.std})
    return About(
        kind=kind,
        method=MethodPart.model_validate(dict(method) | {"code": methods.code(method["name"])}),
        network=NetworkPart(model=network, code=code.digest_of(network), frozen=frozen or None, features=moments),
        classes=() if federation.targets else federation.class_names,
        targets=targets_of(federation.targets),
        labels=federation.targets.names if federation.targets and federation.task == "multilabel" else (),
        threshold=(study.get("protocol") or {}).get("threshold", "half"),
        class_weights=weights_of(class_weights_of(way), federation.class_counts),
        clients=federation.trained,
        training=TrainingPart.model_validate({k: study[k] for k in TrainingPart.model_fields}),
        inputs=inputs,
        key=KeyPart(seed=job.seed, round=round, client=federation.trained if client is None else client),
        models=names,
        evaluation=evaluation,
        provenance=provenance,
    )


def with_messages(about: About, federation: FederatedData) -> About:
    """The same, and which messages made the models, which takes a round of the method on synthetic samples.

    Where these make no global model, new clients have no score of what they received: all or a part of it is untrained.
    """
    revealed = _revealed(about.network.model, about.method, about.training.personal, federation)
    has_global = bundle.Bundle(Path(), about, "").has_global
    about = about.model_copy(update={"revealed": revealed, "global_model": has_global})
    if has_global or about.evaluation is None:
        return about
    clients = tuple(c.model_copy(update={"received": None}) if c.new else c for c in about.evaluation.clients)
    return about.model_copy(update={"evaluation": about.evaluation.model_copy(update={"clients": clients})})


def inputs_of(federation: FederatedData) -> Inputs:
    """What the network takes, without texts of columns that fewer than ``RARE`` training samples have."""
    kind: Kind = "table" if federation.encodings else "numbers"
    if federation.has_images:
        kind = "images"
    if federation.raw is not None:
        return _raw_inputs(federation, federation.raw)
    columns, scales = federation.encodings, list[Scale]()
    if columns:
        x_RF = federation.x_R[torch.cat([*federation.train[: federation.trained]])]
        columns, at = frequent(columns, (x_RF == 1).sum(0).tolist()), 0
        for column in columns:
            number = column.kind == "number" and column.value
            scales.append(scale_of(x_RF[:, at].double().numpy() + column.shift) if number else Scale())
            at += len(column.features)
    if isinstance(form := federation.inputs, dict):
        tensors = {name: TensorPart(**_tensor(one, federation.preprocessing.of(name))) for name, one in form.items()}
        return Inputs(kind=kind, tensors=tensors)
    if (tokens := federation.tokens) is not None:
        how = TokensPart(columns=tokens.columns, encoder=tokens.encoder.name, most=tokens.most)
        return Inputs(kind="texts", tokens=how, **_tensor(form, federation.preprocessing))
    if federation.channels:
        return Inputs(kind="windows", channels=federation.channels, **_tensor(form, federation.preprocessing))
    bits = federation.bits if kind == "images" else None
    return Inputs(
        kind=kind, columns=columns, scales=tuple(scales), bits=bits, **_tensor(form, federation.preprocessing)
    )


def _raw_inputs(federation: FederatedData, raw: RawSamples) -> Inputs:
    """What a frozen backbone takes, which normalises images itself."""
    form = raw.form
    assert isinstance(form, Input)
    if (tokens := federation.tokens) is not None:
        how = TokensPart(columns=tokens.columns, encoder=tokens.encoder.name, most=tokens.most)
        return Inputs(kind="texts", tokens=how, shape=form.shape, ids=form.size)
    channels = form.shape[0]
    return Inputs(kind="images", shape=form.shape, bits=federation.bits, mean=(0.0,) * channels, std=(1.0,) * channels)


def _tensor(form: Input, preprocessing: Preprocessing) -> dict[str, Any]:
    """The fields of one tensor."""
    return {
        "shape": form.shape, "mean": preprocessing.mean, "std": preprocessing.std,
        "ids": form.size if form.integer else None,
    }  # fmt: skip


def frequent(columns: Sequence[Encoding], count_F: Sequence[int]) -> tuple[Encoding, ...]:
    """The columns without texts that fewer than ``RARE`` samples have; ``count_F`` counts those of each feature."""
    frequent_columns, start = [], 0
    for encoding in columns:
        counts = count_F[start : start + len(encoding.texts)]
        texts = tuple(text if n >= RARE else "" for text, n in zip(encoding.texts, counts, strict=True))
        frequent_columns.append(replace(encoding, texts=texts))
        start += len(encoding.features)
    return tuple(frequent_columns)


class _Clients:
    """What the run's clients receive, and their personal models."""

    def __init__(self, job: Job, federation: FederatedData, state: State) -> None:
        self._job, self._data, self.state, self.runner = job, federation, state, ClientRunner(job)

    def down(self, ids: Sequence[int]) -> Down:
        """The message to a client."""
        down = self.runner.method.send(self.state.server, torch.tensor(list(ids)))
        return Down(down.shared, tree.rows(down.own, 0))

    def personal(self, ids: Sequence[int]) -> Iterator[tuple[Tree, Tree]]:
        """What each client received for itself, and its state with its personal model."""
        for k in ids:
            down = self.down([k])
            yield tree.copy(down.own), tree.copy(self.runner.personalise(self.state.round, k, down, self.client(k)))

    def client(self, k: int) -> Tree:
        """A client's state after the run; that of a new client is the initial one."""
        if k < self._data.trained:
            return self.state.clients[k]
        return first_state(self.runner.method, self._job.seed, k)


class _Measures:
    """What the run's clients score: recorded where the run measured it, else measured now, if they are here."""

    def __init__(self, run: reader.Run, job: Job, clients: _Clients, *, here: bool) -> None:
        self._run, self._job, self._clients, self._here = run, job, clients, here
        self._now: dict[tuple[Phase, int], dict[str, float | None]] = {}
        r = run.records
        self._records = r[(r["method"] == job.name) & (r["seed"] == job.seed) & (r["round"] == clients.state.round)]

    def evaluation(self) -> Evaluation:
        data, count = self._job.data, self._job.data.trained
        plain = [k for k in range(data.clients) if k < count or data.conditions[k - count] == ""]
        received = self._of("received", data.score.metric, plain)
        personal = self._of("personalised", data.score.metric, plain) | self._values("new", data.score.metric)
        parts = [
            ClientPart(
                name=_name(data, k), train=len(data.train[k]), test=len(data.test[k]), new=k >= count,
                received=_finite(received.get(k)), personal=_finite(personal.get(k)),
            )
            for k in plain
        ]  # fmt: skip
        stage = "personalised"
        return Evaluation(
            protocol=str(self._run.protocol.model_copy(update={"round": "last"})),  # which has the models
            clients=tuple(parts), loss=_mean(self._values(stage, "loss")),
            calibration_error=_mean(self._values(stage, "calibration_error")),
        )  # fmt: skip

    def thresholds(self, clients: Sequence[int], labels: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        """Those of clients' personal models, chosen on validation samples: of each label, or of the second class.

        A client without validation or test samples has 1/2.
        """
        names = [f"threshold[{name}]" for name in labels] or ["threshold"]
        chosen = [self._of("personalised", name, clients) for name in names]
        return tuple(tuple(of_clients.get(k, HALF) for of_clients in chosen) for k in clients)

    def _of(self, stage: str, metric: str, ids: Sequence[int]) -> dict[int, float]:
        values = self._values(stage, metric)
        rest = [k for k in ids if self._here and k not in values and len(self._job.data.test[k])]
        return values | self._measured("received" if stage == "received" else "evaluate", metric, rest)

    def _values(self, stage: str, metric: str) -> dict[int, float]:
        r = self._records[(self._records["stage"] == stage) & (self._records["metric"] == metric)]
        return dict(zip(r["client"].tolist(), r["value"].tolist(), strict=True))

    def _measured(self, phase: Phase, metric: str, ids: Sequence[int]) -> dict[int, float]:
        runner, state, values = self._clients.runner, self._clients.state, dict[int, float]()
        for k in ids:
            if (phase, k) not in self._now:
                down = runner.method.send(state.server, torch.tensor([k]))
                try:
                    [one] = runner.run(phase, state.round, [k], down, [self._clients.client(k)])
                except RunError:  # a method whose model cannot predict before it is made personal
                    return {}
                assert isinstance(one, EvaluationResult)
                self._now[phase, k] = {"accuracy": one.accuracy} | dict(one.measures or {})
            value = self._now[phase, k][metric]
            assert value is not None  # these clients have test samples
            values[k] = value
        return values


def _state(run: Path, records: reader.Run, job: Job, study: Mapping[str, Any], labels: Sequence[str]) -> State:
    for diverged in records.diverged:
        if (diverged.method, diverged.seed) == (job.name, job.seed):
            raise InputError(f"{job.name}, seed {job.seed}, diverged in round {diverged.round}: it has no model")
    folder = cell_folder(run, labels, job.name, job.seed)
    path = folder / CHECKPOINT_FILE
    count = checkpoint.rounds(path)
    stop = records.stopped.get((job.name, job.seed))
    if count < study["rounds"] and not (stop and stop.round == count):
        raise InputError(
            f"{run} has {count} of {study['rounds']} rounds of {job.name}, seed {job.seed}: continue the run to its end"
        )
    return checkpoint.load(path, begin(job.build(), job.data.trained, job.seed, client_states(folder)))


def _clients(federation: FederatedData, client: str | int) -> list[int]:
    if client == "all":
        return list(range(federation.trained))
    names = [_name(federation, k) for k in range(federation.clients)]
    if str(client) not in names:
        raise InputError(f"there is no client {client!r} in this run; {nearest(str(client), names)}")
    return [names.index(str(client))]


def _name(federation: FederatedData, k: int) -> str:
    return federation.names[k] if federation.names else str(k)


def _revealed(model: str, method: MethodPart, personal: str | None, federation: FederatedData) -> Revealed:
    network = models.build(model, federation.inputs, federation.outputs)
    anatomy = profile.of(
        method.name, dict(method.options), network, federation.outputs, federation.trained, personal_weights=personal,
        task=federation.task,
    )  # fmt: skip
    down, up = (anatomy.down_shared, anatomy.down_own), (anatomy.up_value, anatomy.up_weight)
    return Revealed(
        down={k: v for part in down for k, v in part.parts.items()},
        up={k: v for part in up for k, v in part.parts.items()},
        bytes_down=sum(part.bytes for part in down),
        bytes_up=sum(part.bytes for part in up),
        uploads_are_sums=anatomy.uploads_are_sums,
        joins_by=anatomy.joins_by,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(values: Mapping[int, float]) -> float | None:
    finite = [v for v in values.values() if math.isfinite(v)]
    return math.fsum(finite) / len(finite) if finite else None
