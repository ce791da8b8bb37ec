"""The engine whose clients are sites: what the round loop asks of each goes there and comes back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from idiolect.core import tree
from idiolect.core.errors import Interrupted
from idiolect.core.method import Down, Method
from idiolect.core.reduction import Reduction
from idiolect.core.tree import Tree
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, by_path
from idiolect.federation.rounds import checks, measurements
from idiolect.federation.rounds.conversation import Conversation, Patience, Question
from idiolect.simulation.adding import Places
from idiolect.simulation.client_runner import EvaluationResult, Job, LocalResult, Phase, Stop


class Remote:
    """Builds a method whose clients' states are elsewhere: in their place is the last round whose upload counted."""

    def __init__(self, build: Callable[..., Method]) -> None:
        self.real = build

    def __call__(self, **how: Any) -> Method:
        """The method."""
        return self.real(**how)._replace(init_client=self._none)

    def _none(self, key: torch.Tensor, id: torch.Tensor) -> Tree:
        """No round yet. It is this job's own: sites keep a state for each method, so no two methods train as one."""
        return torch.zeros((), dtype=torch.int64)


class Sites:
    """Sites as an engine of ``idiolect.simulation``.

    Args:
        conversation: asks the sites.
        about: what each message says of the study and the run.
        patience: when the server stops waiting; of a round without all sites its ``least`` is the same share.
        most: an upload whose norm is more than this many times the median does not count.
        say: for events.
        on_start: called when a job starts.
        public: the public key of each site in PEM, by name, for secure aggregation.
        samples: how many training samples a client has said that it has.
        tests: how many test samples.
    """

    name = "federation"
    workers = lanes = 1

    def __init__(
        self, conversation: Conversation, about: Mapping[str, Any], patience: Patience, most: float, say: Events,
        on_start: Callable[[], None] = lambda: None, public: Mapping[str, bytes] | None = None, *,
        samples: Callable[[int], int], tests: Callable[[int], int] = lambda client: 0,
    ) -> None:  # fmt: skip
        self.conversation, self.about, self.patience, self.most, self.say = conversation, about, patience, most, say
        self.options: dict[str, object] = {}
        self.seconds, self._on_start, self.public, self.samples = 0.0, on_start, public or {}, samples
        self.tests = tests
        self.participation = 1.0
        """The share of the sites in a round."""
        self.pauses: Callable[[], bool] = lambda: False
        """Whether the run stops at its last whole round, because of sites that it does not know yet or of a signal."""
        self.is_stopped = False
        """Whether it did."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def open(self, job: Job) -> Session:
        """Start a job.

        Raises:
            InputError: its method cannot run at sites.
        """
        self._on_start()
        return Session(self, job)


class Session:
    """A job at the sites."""

    def __init__(self, engine: Sites, job: Job) -> None:
        assert isinstance(job.build, Remote)
        self.seconds, self._engine, self._job = 0.0, engine, job
        method = job.build.real()
        checks.all_are_asked(job.name, method, engine.participation)
        self._form = checks.form_of(method, job.data, job.name)
        self._measured = Reduction(method.reduce, self._form.up).measured
        self._metrics = measurements.Metrics.of(job)

    def map(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop,
        places: Places | None = None,
    ) -> list[LocalResult | None] | list[EvaluationResult | None]:  # fmt: skip
        """One phase at some sites; None for a site that did not answer, or whose answer does not count.

        Raises:
            RunError: fewer sites than are needed can answer.
            Interrupted: ``stop`` returned true.
        """
        engine, job = self._engine, self._job
        if phase == "local" and engine.pauses():
            engine.is_stopped = True
            raise Interrupted
        about = dict(engine.about) | {"kind": phase, "method": job.name, "seed": job.seed, "round": round}
        shared = by_path("shared", down.shared)
        questions = {
            i: Question(
                about | {"kept": int(last_round)}, shared | by_path("own", tree.rows(down.own, torch.tensor([k])))
            )
            for k, (i, last_round) in enumerate(zip(ids, clients, strict=True))
        }

        def on_answer(message: Message) -> None:
            self.seconds += max(0.0, checks.finite(message.about.get("seconds")) or 0.0)

        def take(i: int, message: Message) -> LocalResult | EvaluationResult | None:
            on_answer(message)
            if phase == "local":
                labels = job.data.outputs if job.data.task == "multilabel" else 1
                return checks.local_result(message, self._form, round, engine.samples(i), labels, self._measured)
            return measurements.evaluation_result(message, self._metrics)

        before, start = self.seconds, time.monotonic()
        least = math.ceil(engine.patience.least * len(ids) / len(engine.conversation.sites))  # 1 or more
        patience = engine.patience._replace(least=least if phase == "local" else 0)
        if phase == "local" and job.secure and tree.leaves(self._form.up.value):
            from idiolect.federation.secure_aggregation.secure_sum import SecureSum

            secure = SecureSum(engine.conversation, engine.public, patience, engine.say)
            answers: dict[int, Any] = secure(questions, self._form, stop, on_answer, len(ids))
        else:
            answers = engine.conversation.ask(questions, take, patience, stop)
            if phase == "local" and job.privacy is None:  # else one site would decide which others count
                self._drop(answers, round)
        if phase == "local":
            self._note(round, ids, answers, time.monotonic() - start)
        engine.seconds += self.seconds - before
        return [answers.get(i) for i in ids]

    def close(self) -> None:
        """Do nothing: the sites wait for the next message."""

    def _note(self, round: int, ids: Sequence[int], answers: Mapping[int, Any], seconds: float) -> None:
        """Keep a line for each round: who counted, who did not answer, and whose answer was refused."""
        job, talk = self._job, self._engine.conversation
        present = [talk.sites[i] for i in answers]
        exclusions = {site: why for site, why in talk.refusals.items() if site not in present}
        absent = [site for site in (talk.sites[i] for i in ids) if site not in (*present, *exclusions)]
        self._engine.say.note(
            f"{job.name}, seed {job.seed}: round {round} closed with {len(present)} of {len(ids)} sites, "
            f"{seconds:.1f} s",
            method=job.name, seed=job.seed, round=round, seconds=float(f"{seconds:.3f}"), counted=present,
            absent=absent, excluded=exclusions,
        )  # fmt: skip

    def _drop(self, answers: dict[int, Any], round: int) -> None:
        """Leave out uploads that are much larger than the others."""
        sizes = {i: checks.norm(one.up) for i, one in answers.items()}
        for i, ratio in checks.too_large(sizes, self._engine.most).items():
            site = self._engine.conversation.sites[i]
            why = f"its upload is {ratio:.3g} times as large as the median"
            self._engine.say(f"{site} does not count in round {round}: {why}", site=site, round=round, refused=why)
            self._engine.say.count_refusal("upload", site)
            self._engine.conversation.refusals[site] = why
            del answers[i]
