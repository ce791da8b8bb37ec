"""Bundles from the folder of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect import data, methods, models
from idiolect.core import keys, tree
from idiolect.core.errors import InputError, RunError, nearest
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.data import Encoding, FederatedData
from idiolect.deploy import bundle, card, code
from idiolect.deploy.schema import (
    About,
    ClientPart,
    Evaluation,
    Inputs,
    KeyPart,
    MethodPart,
    NetworkPart,
    Provenance,
    Revealed,
    TrainingPart,
)
from idiolect.methods import profile
from idiolect.runs import checkpoint, environment, reader
from idiolect.simulation import Job, State, begin
from idiolect.simulation.client_runner import Measured, Phase, Site

RARE = 5
"""Texts of a column that fewer training samples have are not written into a bundle, which strangers may read."""
_PRIVATE = {"data", "data_dir", "name", "methods", "seeds", "checkpoint_every"}


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

    Raises:
        InputError: the run is not finished, its data have changed, there is no such client, or the folder exists.
        RunError: the disk is full, or a client's personal model cannot be made.
    """
    bundle.vacant(out)
    found = reader.read(run)
    state = _state(run, found, job, study, labels)
    if data.manifest(federation)["hash"] != found.manifest.get("hash"):
        raise InputError(f"the data have changed since {run} was written: restore them, or run the study again")
    whom = None if client is None else _clients(federation, client)
    one = _Clients(job, federation, state)
    network = models.choose(str(study["model"]), federation.shape)
    revealed = _revealed(network, method, federation)
    about = About(
        kind="join" if whom is None else "models",
        method=MethodPart.model_validate(dict(method) | {"code": methods.code(method["name"])}),
        network=NetworkPart(model=network, code=code.digest_of(network)),
        classes=federation.class_names,
        clients=federation.trained,
        training=TrainingPart.model_validate({k: study[k] for k in TrainingPart.model_fields}),
        inputs=inputs_of(federation),
        key=KeyPart(seed=job.seed, round=state.round, client=federation.trained),
        models=("new client",) if whom is None else tuple(_name(federation, k) for k in whom),
        evaluation=_Measures(found, job, one).evaluation(),
        revealed=revealed,
        provenance=_provenance(found, federation, study),
    )
    own = [(one.down([federation.trained]).own, ())] if whom is None else list(one.personal(whom))
    if whom is not None and bundle.per_sample(own[0][1], len(federation.train[whom[0]])):
        about = about.model_copy(update={"revealed": revealed.model_copy(update={"per_sample": True})})
    return bundle.write(out, about, one.down([0]).shared, own, card.text(about))


def inputs_of(federation: FederatedData, rare: int = RARE) -> Inputs:
    """What the network takes, without texts of columns that fewer than ``rare`` training samples have."""
    kind: Literal["images", "table", "numbers"] = "table" if federation.encodings else "numbers"
    if federation.x_R.dtype == torch.uint8:
        kind = "images"
    return Inputs(
        kind=kind, shape=federation.shape, columns=_frequent(federation, rare), mean=federation.mean, std=federation.std
    )


def _frequent(federation: FederatedData, rare: int) -> tuple[Encoding, ...]:
    if not federation.encodings:
        return ()
    count_F = (federation.x_R[torch.cat(federation.train[: federation.trained])] == 1).sum(0).tolist()
    kept, start = [], 0
    for encoding in federation.encodings:
        counts = count_F[start : start + len(encoding.texts)]
        texts = tuple(text if n >= rare else "" for text, n in zip(encoding.texts, counts, strict=True))
        kept.append(replace(encoding, texts=texts))
        start += len(encoding.features)
    return tuple(kept)


class _Clients:
    """What the run's clients receive, and their personal models."""

    def __init__(self, job: Job, federation: FederatedData, state: State) -> None:
        self._job, self._data, self.state, self.site = job, federation, state, Site(job)

    def down(self, ids: Sequence[int]) -> Down:
        """The message to a client."""
        down = self.site.method.send(self.state.server, torch.tensor(list(ids)))
        return Down(down.shared, tree.rows(down.own, 0))

    def personal(self, ids: Sequence[int]) -> Iterator[tuple[Tree, Tree]]:
        """What each client received for itself, and its state with its personal model."""
        for k in ids:
            down = self.down([k])
            yield tree.copy(down.own), tree.copy(self.site.personalised(self.state.round, k, down, self.client(k)))

    def client(self, k: int) -> Tree:
        """A client's state after the run; that of a new client is the initial one."""
        if k < self._data.trained:
            return self.state.clients[k]
        return self.site.method.init_client(keys.start(self._job.seed))


class _Measures:
    """The accuracy of the run's clients: recorded where the run measured it, else measured now."""

    def __init__(self, run: reader.Run, job: Job, clients: _Clients) -> None:
        self._run, self._job, self._clients = run, job, clients
        r = run.records
        self._records = r[(r["method"] == job.name) & (r["seed"] == job.seed) & (r["round"] == clients.state.round)]

    def evaluation(self) -> Evaluation:
        data, trained = self._job.data, self._job.data.trained
        plain = [k for k in range(data.clients) if k < trained or data.conditions[k - trained] == ""]
        received = self._of("received", "accuracy", plain)
        personal = self._of("personalised", "accuracy", plain) | self._recorded("new", "accuracy")
        parts = [
            ClientPart(
                name=_name(data, k), train=len(data.train[k]), test=len(data.test[k]), new=k >= trained,
                received=_finite(received.get(k)), personal=_finite(personal.get(k)),
            )
            for k in plain
        ]  # fmt: skip
        stage = "personalised"
        return Evaluation(
            protocol=str(self._run.protocol), clients=tuple(parts), loss=_mean(self._recorded(stage, "loss")),
            calibration_error=_mean(self._recorded(stage, "calibration_error")),
        )  # fmt: skip

    def _of(self, stage: str, metric: str, ids: Sequence[int]) -> dict[int, float]:
        found = self._recorded(stage, metric)
        left = [k for k in ids if k not in found and len(self._job.data.test[k])]
        return found | ({} if not left else self._measured("received" if stage == "received" else "evaluate", left))

    def _recorded(self, stage: str, metric: str) -> dict[int, float]:
        r = self._records[(self._records["stage"] == stage) & (self._records["metric"] == metric)]
        return dict(zip(r["client"].tolist(), r["value"].tolist(), strict=True))

    def _measured(self, phase: Phase, ids: Sequence[int]) -> dict[int, float]:
        site, state, found = self._clients.site, self._clients.state, {}
        for k in ids:
            down = site.method.send(state.server, torch.tensor([k]))
            try:
                [one] = site.run(phase, state.round, [k], down, [self._clients.client(k)])
            except RunError:  # a method whose model cannot predict before it is made personal
                return {}
            assert isinstance(one, Measured)
            found[k] = one.accuracy
        return found


def _state(run: Path, found: reader.Run, job: Job, study: Mapping[str, Any], labels: Sequence[str]) -> State:
    for diverged in found.diverged:
        if (diverged.method, diverged.seed) == (job.name, job.seed):
            raise InputError(f"{job.name}, seed {job.seed}, diverged in round {diverged.round}: it has no model")
    folder = reader.cell_folder(run, labels, job.name, job.seed)
    path = folder / checkpoint.CHECKPOINT
    done = checkpoint.rounds(path)
    if done < study["rounds"]:
        raise InputError(
            f"{run} has {done} of {study['rounds']} rounds of {job.name}, seed {job.seed}: continue the run to its end"
        )
    return checkpoint.load(path, begin(job.build(), job.data.trained, job.seed, folder / "clients"))


def _clients(federation: FederatedData, client: str | int) -> list[int]:
    if client == "all":
        return list(range(federation.trained))
    names = [_name(federation, k) for k in range(federation.clients)]
    if str(client) not in names:
        raise InputError(f"there is no client {client!r} in this run; {nearest(str(client), names)}")
    return [names.index(str(client))]


def _name(federation: FederatedData, k: int) -> str:
    return federation.names[k] if federation.names else str(k)


def _revealed(model: str, method: Mapping[str, Any], federation: FederatedData) -> Revealed:
    network = models.build(model, federation.shape, federation.classes)
    found = profile.of(method["name"], dict(method["options"]), network, federation.classes, federation.trained)
    down, up = (found.down_shared, found.down_own), (found.up_value, found.up_weight)
    return Revealed(
        down={k: v for part in down for k, v in part.parts.items()},
        up={k: v for part in up for k, v in part.parts.items()},
        bytes_down=sum(part.bytes for part in down),
        bytes_up=sum(part.bytes for part in up),
        uploads_are_sums=found.uploads_are_sums,
        joins_by=found.joins_by,
    )


def _provenance(run: reader.Run, federation: FederatedData, study: Mapping[str, Any]) -> Provenance:
    rows = torch.cat(federation.train[: federation.trained])
    count_C: Tensor = torch.bincount(federation.y_R[rows], minlength=federation.classes)
    return Provenance(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=dict(run.manifest.get("versions") or environment.versions()),
        study={k: v for k, v in study.items() if k not in _PRIVATE},
        dataset=federation.name,
        data_digest=str(run.manifest.get("hash", "")),
        samples=tuple(count_C.tolist()),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(values: Mapping[int, float]) -> float | None:
    known = [v for v in values.values() if math.isfinite(v)]
    return math.fsum(known) / len(known) if known else None
