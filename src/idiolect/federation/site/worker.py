"""A site: what it answers to each message of the server. It knows nothing of the network."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.documents import read_json
from idiolect.core.errors import Disagreement, Diverged, IdiolectError, InputError, Interrupted, RunError
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.core.version import __version__
from idiolect.deploy.bundle import Personal
from idiolect.deploy.schema import Inputs
from idiolect.engines.threads import OneThread
from idiolect.federation.data.agreement import Agreement, plain
from idiolect.federation.data.backbone import check
from idiolect.federation.data.samples import SiteFiles, SiteSamples, alone, division_of, reading_of, sums
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, Refusal, by_path, pack, question_bytes, trees_of, unpack
from idiolect.federation.rounds import checks
from idiolect.federation.rounds.study import digest, study_of
from idiolect.federation.site.features import SiteFeatures
from idiolect.federation.site.participation import AGREEMENT, Participation, belonging, place
from idiolect.federation.site.personal_model import FILE as MODEL
from idiolect.federation.site.personal_model import SiteCell, keep, model_round
from idiolect.federation.site.personal_state import MissingState, PersonalState, Vault
from idiolect.federation.trust.kits import Identity
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import PRIVATE, private_folder, secret_of, write_json
from idiolect.runs import predictions
from idiolect.simulation.client_runner import ClientRunner, EvaluationResult, LocalResult
from idiolect.simulation.rounds import first_state
from idiolect.studies import Study

if TYPE_CHECKING:
    from idiolect.federation.secure_aggregation.site_sums import SiteSums

ROUNDS = ("local", "evaluate", "received")
"""The kinds of messages that ask for a phase of a round."""
SUMS = ("keys", "shares", "opening")
"""Those of secure aggregation besides."""
_HEX = re.compile("[0-9a-f]{16,64}")


class _Unusable(InputError):
    """What is wrong with the site's own samples; it may quote them, so it is said here alone."""


@contextmanager
def _own_samples() -> Iterator[None]:
    try:
        yield
    except Disagreement:
        raise
    except InputError as error:
        raise _Unusable(str(error)) from error


class Worker:
    """Answers messages, one at a time.

    Args:
        samples: the site's.
        number: the client's.
        folder: where the personal state is kept.
        policy: what is allowed.
        vault: reads and writes the state.
        say: for events.
        identity: who the site is to other sites, for secure aggregation.
        brief: whether the next message may meet a new process, so that keys of sums are kept in the folder too.
    """

    def __init__(
        self, samples: SiteFiles, number: int, folder: Path, policy: Policy, vault: Vault, say: Events,
        identity: Identity | None = None, *, brief: bool = False,
    ) -> None:  # fmt: skip
        self._identity, self._brief = identity, brief
        self._samples, self._number, self._folder, self._policy = samples, number, folder, policy
        self._vault, self._say, self._features = vault, say, SiteFeatures(folder, vault)
        self._participations: dict[tuple[str, str], Participation] = {}
        self._offers: dict[tuple[str, str], Study] = {}
        """Studies are forgotten when the next one is offered, and are on disk."""
        self._kinds: dict[str, Callable[[Message], tuple[dict[str, Any], dict[str, Tensor]]]] = {
            "study": self._study, "inputs": self._inputs, "begin": self._begin, "done": self._end_of_run,
            "ended": self._dismissal,
            **dict.fromkeys(ROUNDS, self._phase), **dict.fromkeys(SUMS, self._sum),
        }  # fmt: skip
        private_folder(folder)

    def answer(self, content: bytes) -> bytes:
        """The reply to a message: what it asks for, or why not."""
        about: Mapping[str, Any] = {}
        start = time.perf_counter()
        try:
            message = unpack(content)
            about = message.about
            if about.get("kind") not in self._kinds:
                raise Refusal(f"{about.get('kind')!r} is not a kind of message that this version knows")
            values, arrays = self._kinds[about["kind"]](message)
            reply = self._reply(about, values | {"seconds": time.perf_counter() - start}, arrays)
            self._policy.fits(len(reply))
            return reply
        except Interrupted:
            raise
        except MissingState:
            return self._reply(about, {"lost": True})
        except Refusal as error:
            self._say.rarely(str(error), f"refused {about.get('kind', 'a message')}: {error}", refused=True)
            return self._reply(about, {"refused": str(error)})
        except _Unusable as error:
            self._say(f"failed: {error}", failed=True)
            return self._reply(about, {"failed": "its samples cannot be used; its own log says why"})
        except IdiolectError as error:
            self._say(f"failed: {error}", failed=True)
            return self._reply(about, {"failed": str(error), "diverged": isinstance(error, Diverged)})
        except Exception as error:  # noqa: BLE001  whatever a message does, the site goes on
            self._say(f"refused a message that is not in order ({type(error).__name__}: {error})", refused=True)
            return self._reply(about, {"refused": f"the message is not in order ({type(error).__name__})"})

    def _reply(
        self, about: Mapping[str, Any], values: dict[str, Any], arrays: Mapping[str, Tensor] | None = None
    ) -> bytes:
        back = {name: about[name] for name in ("kind", "ticket", "round") if name in about}
        return pack(back | {"version": __version__} | values, arrays)

    def _study(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A study is offered: check it, and say what is needed to agree on features and classes."""
        about = message.about
        study = self._read(about)
        check(study, str(about.get("backbone", "")))
        key = about["digest"], about["run"]
        self._offers = {key: study}
        self._participations = {own: entry for own, entry in self._participations.items() if own == key}
        what = f"study {study.name} of {study.rounds} rounds: {', '.join(use.label for use in study.methods)}"
        self._say.rarely(about["run"], what)
        with _own_samples():
            offer = self._samples.offer(study.task, reading_of(study), study.group_column)
        return {"offer": plain(offer)}, {}

    def _read(self, about: Mapping[str, Any]) -> Study:
        if about["version"] != __version__:
            raise Refusal(f"the server has idiolect {about['version']} and this site {__version__}: install the same")
        if about["digest"] != digest(about["study"]) or not _HEX.fullmatch(about["run"]):
            raise Refusal("the study does not have the digest that the server says")
        if about["number"] != self._number:
            raise Refusal(f"this site is client {self._number}, not {about['number']}")
        study = study_of(about["study"])
        self._policy.check(study)
        return study

    def _inputs(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Features and classes are agreed: say how many samples there are, and their sums."""
        about = message.about
        study = self._offers.get((about["digest"], about["run"])) or self._read(about)
        inputs, classes = Inputs.model_validate(about["inputs"]), tuple(map(str, about["classes"]))
        for sentence in list(about.get("remarks", ()))[:20]:
            self._say(str(sentence)[:1000])
        labels = tuple(map(str, about.get("labels", ())))
        samples = self._ready(study, inputs, classes, labels, look=False)
        return {}, by_path("sums", sums(samples, len(classes))._asdict())

    def _begin(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything is agreed: keep it, for this process and the next."""
        about = message.about
        study = self._offers.get((about["digest"], about["run"])) or self._read(about)
        agreement = Agreement.model_validate(about["agreement"])
        entry = self._prepare(about["digest"], about["run"], study, agreement)
        record = {name: about[name] for name in ("digest", "run", "number", "version", "study", "agreement")}
        more = {"samples": entry.fingerprint, "began": time.time()}
        write_json(entry.folder / AGREEMENT, record | more, self._folder)
        if about.get("late"):
            self._say(f"the study began without this site, which takes part from round {about['late']} on")
        return {}, {}

    def _end_of_run(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The run is over."""
        entry = self._participation(message.about)
        if entry is not None:
            if self._brief and entry.study.secure_aggregation:
                self._sums.forget(entry.folder)
            self._say(f"study {entry.study.name} is done; what this site keeps of it is in {entry.folder}", done=True)
        return {}, {}

    def _dismissal(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The study does not go on, or not with this site."""
        why = str(message.about.get("why"))[:1000]
        self._say.rarely(("ended", why), f"this site takes no part: {why}", failed=True)
        return {}, {}

    def _prepare(self, study_digest: str, run: str, study: Study, agreement: Agreement) -> Participation:
        if not 0 <= self._number < len(agreement.names):
            raise Refusal(f"this site is client {self._number} of {len(agreement.names)}")
        folder = self._at(study_digest, run)
        check(study, agreement.backbone.digest if agreement.backbone else "")
        look = agreement.inputs.kind == "table"
        samples = self._ready(study, agreement.inputs, agreement.classes, agreement.labels, look=look)
        entry = Participation(study, folder, samples, agreement)
        entry.check()
        self._participations[study_digest, run] = entry
        return entry

    def _ready(
        self, study: Study, inputs: Inputs, classes: Sequence[str], labels: Sequence[str], *, look: bool
    ) -> SiteSamples:
        """This site's samples in the agreed form, as features where a frozen backbone makes them."""
        how = division_of(study)
        with _own_samples():
            samples = self._samples.encode(
                inputs, classes, study.data_seed, self._number, look=look, labels=labels, **how
            )
        return self._features.of(study, samples)

    def _at(self, study_digest: str, run: str) -> Path:
        if not _HEX.fullmatch(study_digest) or not _HEX.fullmatch(run):
            raise Refusal("the names of study and run are not digests")
        return self._folder / study_digest[:32] / run

    def _participation(self, about: Mapping[str, Any]) -> Participation | None:
        """The study of a message, from memory or from disk."""
        key = about["digest"], about["run"]
        if key in self._participations and about["clients"] == len(self._participations[key].agreement.names):
            return self._participations[key]
        path = self._at(*key) / AGREEMENT
        if not path.exists():
            return None
        try:
            record = read_json(path)
            agreement = Agreement.model_validate(record["agreement"])
            if about["clients"] != len(agreement.names):
                return None  # sites were added since
            return self._prepare(*key, self._read(record), agreement)
        except (IdiolectError, Refusal):
            raise
        except (OSError, ValueError, KeyError, pydantic.ValidationError) as error:
            self._say(f"{path} cannot be read and is asked for again ({error})")
            return None

    @cached_property
    def _sums(self) -> SiteSums:
        from idiolect.federation.secure_aggregation.site_sums import SiteSums

        return SiteSums(self._identity, self._policy.least_summed or 0, self._vault if self._brief else None)

    def _sum(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A step of secure aggregation before or after the upload."""
        about = message.about
        entry = self._participation(about)
        if entry is None:
            return {"unknown": True}, {}
        if not entry.study.secure_aggregation or type(about["round"]) is not int:
            raise Refusal("the study has no secure aggregation, or no such round")
        self._runner(entry, about["method"], about["seed"])
        return self._sums.answer(message, place(entry.folder, about["method"], about["seed"]))

    def _phase(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A phase of a round, with what is needed to repeat it if it is asked for again."""
        about = message.about
        entry = self._participation(about)
        if entry is None:
            return {"unknown": True}, {}
        kind, round, base = about["kind"], about["round"], about["kept"]
        whole = type(round) is int and type(base) is int
        if not whole or not 0 < round <= entry.study.rounds + 1 or not 0 <= base < round + 2 * (kind != "local"):
            raise Refusal(f"round {round} after {base} is not one of this study's {entry.study.rounds}")
        label, seed = about["method"], about["seed"]
        runner, like = self._runner(entry, label, seed)
        folder = place(entry.folder, label, seed)
        belongs = belonging(about["digest"], about["run"], label, seed)
        initial = first_state(runner.method, seed, self._number)
        state = PersonalState(folder, belongs, initial, self._vault)
        down = Down(**trees_of(message.arrays, like._asdict()))
        first = round + entry.ahead
        if kind == "local" and state.rounds and first < state.rounds[-1] and first < (last := state.last()):
            raise Refusal(
                f"round {round} is over here, because this site has trained round {last}: continue the newest copy of "
                f"the server's run, or move {folder.relative_to(self._folder)} out of the site's state folder, so that "
                "the site starts from the first state again"
            )
        if entry.study.uploads:
            runner.job = runner.job._replace(secret=self._secret(message))
        before = state.load(base)
        question = question_bytes(message) if kind == "local" else b""
        if question and self._policy.most_trainings is not None and not state.answers(round, question):
            self._count(entry, self._policy.most_trainings, hashlib.sha256(question).hexdigest())
        after = model_round(entry.study, kind, round)
        outcome: LocalResult | EvaluationResult | None = None
        with OneThread():
            if after is not None:
                outcome = self._keep(entry, runner, folder, belongs, after, down, before)
            if kind != "evaluate" or outcome is None:
                runner.job = runner.job._replace(keeps=round)
                [outcome] = runner.run(kind, round, [self._number], down, [before])
        if isinstance(outcome, LocalResult):
            return self._upload(entry, state, message, outcome, question)
        stage = "personalised" if kind == "evaluate" else "trained" if base > round else "received"
        if round == entry.study.rounds and stage == entry.study.protocol.stage:
            self._save(entry, folder, label, seed, stage, outcome)
        return ({"measured": checks.as_message(outcome)} if self._policy.evaluate else {"withheld": True}), {}

    def _keep(
        self, entry: Participation, runner: ClientRunner, folder: Path, belongs: dict[str, Any], round: int,
        down: Down, before: Tree,
    ) -> EvaluationResult:  # fmt: skip
        """Make the personal model after a round, measure it, and keep it: it stays here."""
        label, seed = belongs["method"], belongs["seed"]
        runner.job = runner.job._replace(keeps=round)
        own = Down(down.shared, tree.rows(down.own, 0))
        client, measures = runner.evaluate(round, self._number, own, before)
        cell = SiteCell(entry.study, entry.agreement, self._number, entry.use(label), seed)
        model = Personal(own, client)
        try:
            keep(
                folder / MODEL, self._vault, cell, belongs, round, before, model, measures, entry.samples,
                entry.fingerprint,
            )  # fmt: skip
        except RunError as error:  # what was measured counts all the same
            self._say(f"{label}, seed {seed}: the model after round {round} is not kept: {error}", failed=True)
            return measures
        if round == entry.study.rounds:
            what = f"the personal model after the last round is in {folder}"
            self._say(f"{label}, seed {seed}: {what}", round=round, kept=True)
        return measures

    def _save(
        self, entry: Participation, folder: Path, label: str, seed: int, stage: str, measures: EvaluationResult
    ) -> None:
        """Write what was predicted for the site's own test samples, if the study says so; it stays here."""
        if entry.study.save_predictions and not self._vault.encrypts:
            assert measures.p_NC is not None
            truth_N = entry.samples.truth_N[entry.samples.test_N].numpy()
            one = predictions.ClientPredictions(stage, self._number, truth_N, measures.p_NC.numpy())
            predictions.save(folder, label, seed, [one], PRIVATE)

    def _upload(
        self, entry: Participation, state: PersonalState, message: Message, outcome: LocalResult, question: bytes
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        about, arrays = message.about, by_path("value", outcome.up.value) | by_path("weight", outcome.up.weight)
        if entry.study.secure_aggregation and arrays:
            arrays = self._sums.mask_upload(message, arrays, place(entry.folder, about["method"], about["seed"]))
        state.put(about["round"], about["kept"], outcome.client, question, ahead=entry.ahead)
        info = {name: float(value) for name, value in outcome.info.items()}
        self._say(f"{about['method']}, seed {about['seed']}: round {about['round']} trained", round=about["round"])
        return {"info": info}, arrays

    def _secret(self, message: Message) -> int:
        """The seed of the noise on an upload, which nobody else can know: the same if all is asked again as it was.

        If anything else is asked, it is another, so that the noise is not in the difference of two uploads.
        """
        secret = secret_of(self._folder, "noise")
        return int.from_bytes(hmac.digest(secret, question_bytes(message), "sha256")[:7], "big")

    def _count(self, entry: Participation, most: int, question: str) -> None:
        """Count a training over all runs of a study, of which the policy allows so many.

        The last question is counted once: if the site is killed while it trains, it is asked again.
        """
        path = entry.folder.parent / "trainings.json"
        record = read_json(path) if path.exists() else {"trainings": 0}
        trainings = int(record["trainings"])
        if record.get("asked") == question:
            return
        if trainings >= most:
            raise Refusal(f"this site has trained for this study {trainings} times, as often as is allowed here")
        write_json(path, {"trainings": trainings + 1, "asked": question}, self._folder)

    def _runner(self, entry: Participation, label: str, seed: int) -> tuple[ClientRunner, Down]:
        """What runs phases of a method, and a message ``Down`` of the form that this method's server sends."""
        if type(label) is not str or type(seed) is not int:  # True equals 1, and would have a folder of its own
            raise Refusal("its method or seed is none")
        if (label, seed) not in entry.runs:
            if seed not in entry.study.seeds:
                raise Refusal(f"method {label!r} with seed {seed} is not in the study")
            use, data = entry.use(label), alone(entry.samples, entry.agreement, self._number, entry.study.name)
            runner = ClientRunner(entry.study.job(use, seed, data))
            like = runner.method.send(runner.method.init_server(keys.start(0)), torch.tensor([self._number]))
            entry.runs[label, seed] = runner, like
        return entry.runs[label, seed]
