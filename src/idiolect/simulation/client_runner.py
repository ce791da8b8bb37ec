"""What every engine runs for a client, wherever the client runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot
from torch.nn.utils.rnn import pad_sequence

from idiolect.core import keys, tree
from idiolect.core.errors import CodeError, InputError, blame
from idiolect.core.evaluation_protocol import Threshold
from idiolect.core.method import Data, Down, Info, Method, Up
from idiolect.core.network import watching
from idiolect.core.reduction import Branch, Reduction
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.simulation import attacks, measures, summing, target_measures, thresholds, uploads
from idiolect.simulation.answer_checks import check_finite, check_state, not_of_local, refusal
from idiolect.simulation.privacy import GaussianMechanism, Releases
from idiolect.simulation.representation_metrics import gaussianity, plane, standardise
from idiolect.simulation.robust import Rule
from idiolect.training.chunks import in_chunks
from idiolect.training.sgd import layout_copy

Phase = Literal["local", "stand_by", "evaluate", "received"]
"""``local`` is a participant's work in a round, ``stand_by`` that of the other clients, where a method has some;
``evaluate`` measures the model after ``personalise``, ``received`` the client as it is."""
Stop = Callable[[], bool]
PAUSE = 0.2  # seconds between two checks whether to stop
_CHUNK = 256  # test samples per prediction: larger ones leave the processor's cache
_FEATURE_SAMPLES = 200  # test samples of a client whose representations are recorded
_GROUP_SAMPLES = 32  # test samples that several clients are measured on at a time: more leave the processor's cache


class LocalResult(NamedTuple):
    """The result of a client's ``local``."""

    client: Tree
    up: Up
    info: Info
    sums: tuple[Branch, ...] = ()
    """Where uploads are added up on their way: branches that this upload and others are in, in place of ``up``."""
    is_refused: bool = False
    """Whether the upload was refused on its way."""

    def with_sums(self, more: Sequence[Branch]) -> LocalResult:
        """The result with more branches."""
        return self._replace(sums=(*self.sums, *more))


class EvaluationResult(NamedTuple):
    """A client's model on its test samples, and on its validation samples; None for those that it does not have."""

    accuracy: float | None = None
    loss: float | None = None
    """Mean negative log-likelihood, nats, mean over several labels; of numbers, mean squared error of the scaled
    target."""
    calibration_error: float | None = None
    """Expected calibration error, 0..1: see ``calibration_error``."""
    brier: float | None = None
    """Mean over samples of the sum over classes of (probability - truth)^2, 0..2 (Brier, 1950)."""
    validation_accuracy: float | None = None
    validation_loss: float | None = None
    measures: Mapping[str, float] | None = None
    """Of the test samples, by metric: see ``idiolect.simulation.measures``."""
    observations: Mapping[str, float] | None = None
    """The metrics that the job's ``Watch`` asks for."""
    p_NC: Tensor | None = None
    """Of the test samples class probabilities (N, C), probabilities of labels (N, L), or predicted numbers (N, D) in
    the units of the data, float64, in the round whose predictions the job keeps."""


class Watch(NamedTuple):
    """What is observed about the models that a phase measures."""

    phase: Phase
    gaussianity: bool
    """Observed for every client in every round."""
    clients: tuple[int, ...]
    """Clients whose representations of test samples are recorded in round ``last``."""
    last: int


class Job(NamedTuple):
    """One method on one federation with one seed.

    ``build`` can be imported, so that a worker can call it too. ``build(personal=False)`` leaves out ``personalise``;
    this is used to measure the received model.
    """

    name: str
    build: Callable[..., Method]
    data: FederatedData
    seed: int
    watch: Watch | None = None
    uploads: tuple[uploads.Step, ...] = ()
    """What happens to every upload."""
    measures: tuple[str, ...] = ()
    """What is measured besides, by name."""
    keeps: int | None = None
    """The round whose predictions are returned; None returns none."""
    attacks: tuple[attacks.Attackers, ...] = ()
    """Which clients send something else than they should, and what."""
    robust: Rule | None = None
    """How the server combines uploads of which some are hostile."""
    privacy: GaussianMechanism | None = None
    """What makes the server's results differentially private."""
    secure: bool = False
    """Whether uploads are whole numbers, of which the server gets the sum alone: ``idiolect.simulation.summing``."""
    rounds: int = 0
    """The number of the study's last round; 0 where nobody knows."""
    threshold: Threshold = "half"
    """From which probability on a class or a label is predicted of test samples: see ``Protocol.threshold``."""
    secret: int | None = None
    """See ``hidden_seed``; None is for simulations."""
    releases: Releases | None = None
    """Counts noisy sums."""

    @property
    def hidden_seed(self) -> int:
        """That of noise, at the server or a site, and of who takes part with privacy: nobody else may know it."""
        return self.seed if self.secret is None else self.secret


def groups(phase: Phase, data: FederatedData, ids: Sequence[int]) -> list[list[int]]:
    """Groups of clients that a worker gets at a time, as places in ``ids``, the most work first.

    Training takes one client after another. Clients with few test samples are measured together, those with similar
    numbers (see ``ClientRunner.run``). The groups depend only on ``ids``, so the number of workers does not change a
    result.
    """
    if phase in ("local", "stand_by"):
        return [[k] for k in sorted(range(len(ids)), key=lambda k: -len(data.train[ids[k]]))]
    places: list[list[int]] = []
    rows = [data.measured(i).numel() for i in ids]
    for k in sorted(range(len(ids)), key=lambda k: -rows[k]):
        if places and (len(places[-1]) + 1) * rows[places[-1][0]] <= _GROUP_SAMPLES:
            places[-1].append(k)
        else:
            places.append([k])
    return places


class ClientRunner:
    """Runs phases for clients of a job; every error says in which method, round, client and phase it happened."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.method = job.build()
        self._reduction: Reduction | None = None

    @cached_property
    def without_personalise(self) -> Method:
        """The method without its ``personalise``."""
        return self.job.build(personal=False)

    def of(self, phase: Phase) -> Method:
        """The method as a phase needs it."""
        return self.without_personalise if phase == "received" else self.method

    def run(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree]
    ) -> list[LocalResult] | list[EvaluationResult]:
        """One phase of a group of clients; ``down.own`` has a row for each.

        If a client's own part is small compared with the shared part, as a head with a body, the group's test samples
        pass through the model together.

        Raises:
            RunError: the method raised.
            Diverged: something it computed is not finite.
        """
        downs = [Down(down.shared, tree.copy(tree.rows(down.own, k))) for k in range(len(ids))]
        clients = [tree.copy(c) for c in clients]
        if phase == "local":
            return [self._local(round, i, d, c) for i, d, c in zip(ids, downs, clients, strict=True)]
        if phase == "stand_by":
            return [self._stand_by(round, i, d, c) for i, d, c in zip(ids, downs, clients, strict=True)]
        method = self.of(phase)
        states = [self._personalise(method, round, i, d, c) for i, d, c in zip(ids, downs, clients, strict=True)]
        logp = self._predict_group(method, ids, downs, states) if len(ids) > 1 else None
        if logp is None:
            logp = [self._predict(method, round, i, d, c) for i, d, c in zip(ids, downs, states, strict=True)]
        return [
            self.measure(round, i, logp_NC)._replace(observations=self.observe(phase, round, i, d, c))
            for i, logp_NC, d, c in zip(ids, logp, downs, states, strict=True)
        ]

    def evaluate(self, round: int, id: int, down: Down, client: Tree) -> tuple[Tree, EvaluationResult]:
        """A client's state with its personal model, and what ``run`` measures of it for this client alone.

        Raises:
            RunError: the method raised.
            Diverged: something it computed is not finite.
        """
        down, ready = Down(down.shared, tree.copy(down.own)), self.personalise(round, id, down, client)
        result = self.measure(round, id, self._predict(self.method, round, id, down, ready))
        return ready, result._replace(observations=self.observe("evaluate", round, id, down, ready))

    def where(self, round: int, id: int, phase: Phase) -> str:
        """Adds method, client, round and phase to an error."""
        return f"{self.job.name}: client {id}, round {round}, {phase}"

    def _data(self, rows: Tensor, round: int | None = None) -> Data:
        """Samples, and the round if there is one: a personal model is made in none."""
        whole = self.job.data
        data = Data(whole.x_R, whole.target_R, rows, torch.ones(len(rows)), group_R=whole.groups)
        return data if round is None else data._replace(round=torch.tensor(round), rounds=torch.tensor(self.job.rounds))

    def _key(self, round: int, id: int, phase: Phase) -> Tensor:
        return keys.key(self.job.seed, round, id, phase)

    def _local(self, round: int, id: int, down: Down, client: Tree) -> LocalResult:
        where = self.where(round, id, "local")
        with blame(where):
            rows = self._data(self.job.data.train[id], round)
            answer = self.method.local(down, client, rows, self._key(round, id, "local"))
            if wrong := not_of_local(answer):
                raise CodeError(f"{where}: local does not return (client, Up, info): {wrong}")
            state, up, info = answer
            check_state(where, "local", state, client)
            result = LocalResult(tree.copy(state), tree.copy(up), tree.copy(info))
        return self.outgoing(round, id, result, client)

    def _stand_by(self, round: int, id: int, down: Down, client: Tree) -> LocalResult:
        where = self.where(round, id, "stand_by")
        with blame(where):
            assert self.method.stand_by is not None
            rows = self._data(self.job.data.train[id], round)
            state = self.method.stand_by(down, client, rows, self._key(round, id, "stand_by"))
            check_state(where, "stand_by", state, client)
            result = LocalResult(tree.copy(state), Up(), {})
        check_finite(where, {"client": state})
        return result

    def outgoing(self, round: int, id: int, result: LocalResult, before: Tree) -> LocalResult:
        """A client's result, checked, with its upload after the job's steps and, if it attacks, its attack.

        Raises:
            Diverged: something is not finite, and nothing refuses it. Where it is refused, the state is the one before.
        """
        where, can_refuse = self.where(round, id, "local"), bool(self.job.robust or self.job.privacy)
        if (refused := refusal(where, result[:3], can_refuse=can_refuse)) is not None:
            return LocalResult(before, refused, {})
        if not (self.job.uploads or self.job.attacks or self.job.secure):
            return result
        with blame(f"{where}: upload"):
            up = uploads.apply_steps(self.job.uploads, result.up, keys.key(self.job.hidden_seed, round, id, "upload"))
            key = keys.key(self.job.seed, round, id, "attack")
            up = up._replace(value=attacks.apply_attacks(self.job.attacks, up.value, id, key))
            if self.job.secure:
                self._reduction = self._reduction or Reduction(self.method.reduce, up)
                up = summing.encode(self._reduction, up, self.job.data.trained)
        return result._replace(up=tree.copy(up))

    def personalise(self, round: int, id: int, down: Down, client: Tree) -> Tree:
        """A client's state with its personal model, made from its training samples.

        Raises:
            RunError: the method raised.
        """
        return self._personalise(self.method, round, id, Down(down.shared, tree.copy(down.own)), tree.copy(client))

    def _personalise(self, method: Method, round: int, id: int, down: Down, client: Tree) -> Tree:
        with blame(self.where(round, id, "evaluate")):
            rows = self._data(self.job.data.train[id])
            return method.personalise(down, client, rows, self._key(round, id, "evaluate"))

    def _predict(self, method: Method, round: int, id: int, down: Down, client: Tree) -> Tensor:
        data = self.job.data
        if not len(row_N := data.measured(id)):
            return torch.zeros(0, data.outputs)
        with blame(self.where(round, id, "evaluate")), torch.no_grad():
            return in_chunks(partial(method.predict, down, client), data.x_R, _CHUNK, row_N)

    def _predict_group(
        self, method: Method, ids: Sequence[int], downs: Sequence[Down], clients: Sequence[Tree]
    ) -> list[Tensor] | None:
        """Log-probabilities of each client's measured samples in one pass, or None if that would not be less work."""
        rows = [self.job.data.measured(i) for i in ids]
        longest = max(map(len, rows))
        if not longest or 2 * tree.nbytes((downs[0].own, clients[0])) > tree.nbytes(downs[0].shared):
            return None
        row_M = pad_sequence([*rows], batch_first=True).flatten()  # with the first sample of all
        x_M = tree.map(_for_mapping, tree.rows(self.job.data.x_R, row_M))
        predict = torch.func.vmap(method.predict, in_dims=(Down(None, 0), 0, 0))
        try:
            down = Down(tree.map(layout_copy, downs[0].shared), tree.stack([d.own for d in downs]))
            with torch.no_grad():
                x_KN = tree.map(lambda a_M: a_M.view(len(ids), longest, *a_M.shape[1:]), x_M)
                logp_KNC = predict(down, tree.stack(clients), x_KN)
        except Exception:  # noqa: BLE001  a network that does not map, or states of unlike sizes: one after another, then
            return None
        return [logp_NC[: len(r)] for logp_NC, r in zip(logp_KNC, rows, strict=True)]

    def observe(self, phase: Phase, round: int, id: int, down: Down, client: Tree) -> dict[str, float] | None:
        """What is observed of a client whose state is ready to predict, by metric.

        ``gaussianity`` and ``gaussianity_standardised`` of its training samples; for its first test samples in a plane
        ``feature[row,0]`` and ``feature[row,1]``, and their ``feature_class[row]``.

        Raises:
            InputError: the method records no representation.
        """
        watch, data, values = self.job.watch, self.job.data, {}
        if watch is None or watch.phase != phase:
            return None
        with blame(self.where(round, id, "evaluate")):
            if watch.gaussianity:
                z_Nd, y_N = self._represent(phase, down, client, data.train[id]), data.y_R[data.train[id]]
                values["gaussianity"] = gaussianity(z_Nd, y_N)
                values["gaussianity_standardised"] = gaussianity(standardise(z_Nd), y_N)
            if round == watch.last and id in watch.clients and len(data.test[id]):
                rows = data.test[id][:_FEATURE_SAMPLES]
                for k, (first, second) in enumerate(plane(self._represent(phase, down, client, rows)).tolist()):
                    values |= {f"feature[{k},0]": first, f"feature[{k},1]": second}
                    values[f"feature_class[{k}]"] = float(data.y_R[rows[k]])
        return {k: v for k, v in values.items() if math.isfinite(v)}

    def _represent(self, phase: Phase, down: Down, client: Tree, rows: Tensor) -> Tensor:
        parts = []
        for some in torch.split(rows, _CHUNK):
            with watching() as records, torch.no_grad():
                self.of(phase).predict(down, client, tree.rows(self.job.data.x_R, some))
            if not records:
                what = f"{self.job.name} records no representation to observe"
                raise InputError(f"{what}: let it call idiolect.core.network.watch, or leave observe out")
            parts.append(records[0].flatten(1))
        return torch.cat(parts)

    def measure(self, round: int, id: int, logp_NC: Tensor) -> EvaluationResult:
        """What is predicted of a client's test and validation samples, checked and compared with the targets.

        Args:
            round: the number of the round.
            id: the client.
            logp_NC: log-probabilities; where the target is numbers, scaled ones (N, D); of several labels (N, L, 2).
        """
        if self.job.data.targets is not None:
            return self._measure_targets(round, id, logp_NC)
        where, y_N = self.where(round, id, "evaluate"), self.job.data.y_R[self.job.data.measured(id)]
        if not len(y_N):
            return EvaluationResult()
        logp_NC = logp_NC.double()
        with blame(where):
            measures.check_sums(logp_NC)
        check_finite(where, {"prediction": logp_NC.amax(1)})
        right_N, test_count = (logp_NC.argmax(1) == y_N).double(), len(self.job.data.test[id])
        result = EvaluationResult()
        if test_count:
            p_NC, test_N = logp_NC[:test_count].exp(), y_N[:test_count]
            threshold, more = thresholds.of_class(self.job.threshold, logp_NC[test_count:], y_N[test_count:])
            if more:
                right_N[:test_count] = (measures.at(threshold, p_NC).argmax(1) == test_N).double()
            with blame(where):
                more |= measures.values_of(self.job.measures, p_NC, test_N, threshold)
            result = EvaluationResult(
                float(right_N[:test_count].mean()),
                float(nll_loss(logp_NC[:test_count], test_N)),
                measures.calibration_error(p_NC, test_N),
                float((p_NC - one_hot(test_N, p_NC.shape[1])).square().sum(1).mean()),
                measures=more,
                p_NC=p_NC if round == self.job.keeps else None,
            )
        if test_count == len(y_N):
            return result
        validation = float(right_N[test_count:].mean()), float(nll_loss(logp_NC[test_count:], y_N[test_count:]))
        return result._replace(validation_accuracy=validation[0], validation_loss=validation[1])

    def _measure_targets(self, round: int, id: int, predicted_N: Tensor) -> EvaluationResult:
        where, data, test_count = self.where(round, id, "evaluate"), self.job.data, len(self.job.data.test[id])
        assert data.targets is not None
        row_N = data.measured(id)
        if not len(row_N):
            return EvaluationResult()
        check_finite(where, {"prediction": predicted_N})
        goal, result = data.targets.rows(row_N), EvaluationResult()
        with blame(where):
            value_ND, loss_N, more = target_measures.of_predictions(
                predicted_N, goal, tree.rows(data.groups, row_N), test_count, self.job.measures, self.job.threshold
            )
        if test_count:
            result = EvaluationResult(
                loss=float(loss_N[:test_count].mean()), p_NC=value_ND[:test_count] if round == self.job.keeps else None
            )
        if test_count < len(row_N):
            result = result._replace(validation_loss=float(loss_N[test_count:].mean()))
        return result._replace(measures=more)


def _for_mapping(x_M: Tensor) -> Tensor:
    """Images in the memory layout in which they are faster: that of mapped ones cannot be changed later."""
    return x_M.clone(memory_format=torch.channels_last) if x_M.ndim == 4 else x_M
