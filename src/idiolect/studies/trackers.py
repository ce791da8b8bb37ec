"""Experiment trackers: a study's numbers are sent to TensorBoard, MLflow or Weights & Biases while it runs."""

from __future__ import annotations

import importlib
import json
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np

from idiolect.core import evaluation_protocol, files
from idiolect.core.errors import InputError, Interrupted, nearest, option, printable
from idiolect.core.objectives import ACCURACY, Score
from idiolect.runs.store import settings_of_numbers
from idiolect.simulation import Record
from idiolect.studies.config import Study

Status = Literal["finished", "stopped", "failed"]
_METRICS = ("accuracy", "loss", "calibration_error", "brier", "mse", "mae", "r2", "micro_f1")
_ON_VALIDATION = (
    "validation_accuracy", "validation_loss", "validation_mse", "validation_mae", "validation_r2",
    "validation_micro_f1",
)  # fmt: skip


class Tracker(Protocol):
    """Is told about one method with one seed; others at the same time have their own trackers in other threads."""

    def start(self, study: Study, label: str, seed: int, folder: Path, done: int) -> None:
        """The method starts or, if rounds are ``done``, continues; ``folder`` is its cell's and is kept."""

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """The numbers of an evaluated round: see ``measures``."""

    def end(self, status: Status) -> None:
        """The method has ended, was stopped or has failed."""


Make = Callable[[], Tracker]


def measures(
    records: Sequence[Record],
    seconds: float,
    what: evaluation_protocol.Protocol,
    rows: Sequence[int],
    conditions: Sequence[str] = (),
    validation_rows: Sequence[int] = (),
    by: Score = ACCURACY,
) -> dict[str, float]:
    """An evaluated round in a few numbers; empty for a round that was not evaluated.

    Args:
        records: of the round.
        seconds: that it took.
        what: whose models are measured, and how clients are averaged.
        rows: the number of test samples of each client.
        conditions: of the last clients, which are new; "" is for their samples as they are.
        validation_rows: the number of validation samples of each client; () for none.
        by: the score.

    Returns:
        ``accuracy`` (0..1), ``loss`` (nats), ``calibration_error`` (0..1), ``brier`` (0..2), averaged over clients or
        samples, or of predicted numbers ``mse``, ``mae``, ``r2`` and ``loss``, of several labels ``micro_f1`` and
        ``loss``; the same of validation samples, as ``validation_accuracy``; ``worst_decile``, the mean score of the
        worst tenth of clients; ``new_client_accuracy`` (or ``new_client_mse`` and so on) of new clients, under all
        conditions, once they are measured; ``bytes``, down and up, mean over participants; ``seconds``. If the protocol
        is about new clients, the numbers are theirs, and ``trained_accuracy`` is that of the others.
    """
    values_of: dict[str, list[tuple[int, float]]] = {}
    bytes_of: dict[int, float] = {}
    count = len(rows) - len(conditions)
    for _, client, stage, metric, value, _ in records:
        if stage in (what.stage, "new") and metric in _METRICS and rows[client]:
            new = stage == "new"
            if new == (what.clients == "new") and not (new and conditions[client - count]):
                values_of.setdefault(metric, []).append((client, value))
            if metric == by.metric and (new or what.clients == "new"):
                name = f"{'new_client' if new else 'trained'}_{by.metric}"
                values_of.setdefault(name, []).append((client, value))
        elif stage == what.stage and metric in _ON_VALIDATION and validation_rows and validation_rows[client]:
            values_of.setdefault(metric, []).append((client, value))
        elif stage == "wire" and metric != "answered":
            bytes_of[client] = bytes_of.get(client, 0.0) + value
    if not values_of:
        return {}

    def mean(metric: str) -> float:
        clients, values = zip(*values_of[metric], strict=True)
        rows_of = validation_rows if metric in _ON_VALIDATION else rows
        return float(np.average(values, weights=[rows_of[i] for i in clients] if what.weighting == "sample" else None))

    means = {m: mean(m) for m in values_of}
    if worst := sorted((value for _, value in values_of.get(by.metric, ())), reverse=not by.more_is_better):
        means["worst_decile"] = float(np.mean(worst[: max(1, len(worst) // 10)]))
    return means | {"bytes": float(np.mean(list(bytes_of.values()) or [0.0])), "seconds": seconds}


class TensorBoard:
    """Event files in the cell's folder, or in ``where``; ``tensorboard --logdir`` takes the run's folder or it."""

    def __init__(self, where: str | None = None) -> None:
        self._where = where

    def start(self, study: Study, label: str, seed: int, folder: Path, done: int) -> None:
        """Open the event file; points that were written after the last checkpoint do not count."""
        from torch.utils.tensorboard import SummaryWriter

        into = Path(self._where, folder.parents[1].name, folder.name) if self._where else folder / "tensorboard"
        self._writer = SummaryWriter(str(into), purge_step=done + 1)
        self._writer.add_text("study", f"```\n{study.to_yaml()}```", done)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, status: Status) -> None:
        """Close the file."""
        self._writer.close()


class MLflow:
    """A run of the experiment with the study's name, on the server or in the store at ``where``.

    With None, MLflow chooses: MLFLOW_TRACKING_URI, else its own file.
    """

    _ENDS: Mapping[Status, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def __init__(self, where: str | None = None) -> None:
        self._where = where

    def start(self, study: Study, label: str, seed: int, folder: Path, done: int) -> None:
        """Start a run, or continue the one whose number is in the cell's folder."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._client = Metric, MlflowClient(tracking_uri=self._where)
        self._run = _run_name(folder / "mlflow.json", self._client.tracking_uri, lambda: self._new(study, label, seed))
        self._client.update_run(self._run, status="RUNNING")
        settings = _settings(study, label)
        params = [Param(k, str(v)[:500]) for k, v in settings.items()] if done == 0 else []
        for k in range(0, len(params), 100):  # as many as it accepts at a time
            self._client.log_batch(self._run, params=params[k : k + 100])

    def _new(self, study: Study, label: str, seed: int) -> str:
        name, tags = f"{label}, seed {seed}", {"method": label, "seed": str(seed)}
        experiment_there = self._client.get_experiment_by_name(study.name)
        experiment = experiment_there.experiment_id if experiment_there else self._client.create_experiment(study.name)
        return str(self._client.create_run(experiment, run_name=name, tags=tags).info.run_id)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log a round's numbers at once."""
        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[self._metric(k, v, now, round) for k, v in values.items()])

    def end(self, status: Status) -> None:
        """Close the run."""
        self._client.set_terminated(self._run, self._ENDS[status])


class WandB:
    """A run of the project ``where``, grouped by study; WANDB_MODE=offline keeps it in the cell's folder."""

    def __init__(self, where: str | None = None) -> None:
        self._where = where

    def start(self, study: Study, label: str, seed: int, folder: Path, done: int) -> None:
        """Start a run, or continue the one whose name is in the cell's folder."""
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=self._where or "idiolect",
            group=study.name,
            name=f"{label}, seed {seed}",
            id=_run_name(folder / "wandb.json", self._where or "", lambda: secrets.token_hex(4)),
            resume="allow",
            reinit="create_new",  # one run does not end another that is active
            dir=str(folder),
            config=_settings(study, label) | {"method": label, "seed": seed},
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log a round's numbers at once."""
        self._run.log(dict(values), step=round)

    def end(self, status: Status) -> None:
        """Close the run."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


_ADAPTERS: Mapping[str, tuple[Callable[[str | None], Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (MLflow, "mlflow"),
    "wandb": (WandB, "wandb"),
}

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",  # seconds; MLflow's default is to wait for two minutes and to try eight times
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_INIT_TIMEOUT": "20",  # seconds
}
"""Defaults for trackers: they ask only the user's server, and give up soon if it does not answer."""


def tracker(text: str) -> Make:
    """A function that makes the trackers for a text such as ``mlflow:http://localhost:5000``.

    Raises:
        InputError: there is no such tracker, or its package is missing.
    """
    name, _, where = text.partition(":")
    if name not in _ADAPTERS:
        raise InputError(f"unknown tracker {name!r}; {nearest(name, _ADAPTERS)}")
    adapter, package = _ADAPTERS[name]
    for variable, value in _ENVIRONMENT.items():  # the packages read these when they are imported
        os.environ.setdefault(variable, value)
    try:
        importlib.import_module(package)
    except ImportError:
        raise InputError(f"{option('track', name)} needs a package: pip install 'idiolect[{name}]'") from None
    return lambda: adapter(where or None)


class Tracking:
    """The trackers of a run. One that fails is left out from then on and reported at the end; the run goes on."""

    def __init__(self, wanted: Sequence[str | Make] = ()) -> None:
        self._makes = {str(w): tracker(w) if isinstance(w, str) else w for w in wanted}
        self._lock = threading.Lock()
        self._failures: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        """Warn of the trackers that failed, after everything else was shown."""
        for sentence in self._failures:
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)

    @contextmanager
    def of(
        self, study: Study, label: str, seed: int, folder: Path, done: int
    ) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
        """The trackers of one method and seed; they end as the block ends."""
        mine: dict[str, Tracker] = {}

        def log(round: int, values: Mapping[str, float]) -> None:
            for name, one in mine.items():
                if name in self._makes:
                    with self._guard(name):
                        one.log(round, values)

        for name, make in list(self._makes.items()):
            with self._guard(name):
                one = make()
                one.start(study, label, seed, folder, done)
                mine[name] = one
        status: Status = "failed"
        try:
            yield log
            status = "finished"
        except (Interrupted, KeyboardInterrupt):
            status = "stopped"
            raise
        finally:
            for name, one in mine.items():
                with self._guard(name):
                    one.end(status)

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever a tracker does, the run goes on
            with self._lock:
                if self._makes.pop(name, None) is not None:
                    reason = printable(" ".join(str(error).split())[:300])
                    what = f"{option('track', name)} failed, and the run goes on without it"
                    self._failures.append(f"{what}: {type(error).__name__}: {reason}")


def _settings(study: Study, label: str) -> dict[str, Any]:
    """The settings of one method, by name; those of other methods are left out."""
    uses = [u for u in study.methods if u.label == label]
    settings = settings_of_numbers(study.model_copy(update={"methods": tuple(uses)}))
    settings = settings | {f"protocol.{k}": v for k, v in settings.pop("protocol").items()}
    own = {f"{label}.{k}": f"method.{k}" for k in ("name", *uses[0].options)}
    own |= {f"{label}.{k}": k for k in uses[0].settings}
    return {own.get(k, k): v for k, v in settings.items() if k not in ("methods", "seeds")}


def _run_name(path: Path, where: str, make: Callable[[], str]) -> str:
    """The name of the tracked run at ``where`` from a file; if the file has none, a new one is written."""
    names: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if where not in names:
        names[where] = make()
        files.write(path, json.dumps(names))
    return names[where]
