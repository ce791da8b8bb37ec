"""A site: what it answers to each message of the server. It knows nothing of the network."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.documents import read_json
from idiolect.core.errors import Diverged, IdiolectError, Interrupted, RunError
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.core.version import __version__
from idiolect.deploy.bundle import Personal
from idiolect.deploy.schema import Inputs
from idiolect.engines.threads import OneThread
from idiolect.federation.data.agreement import Agreed, plain
from idiolect.federation.data.samples import Prepared, Samples, alone, sums
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, Refused, asked, built, named, pack, unpack
from idiolect.federation.rounds import checks
from idiolect.federation.rounds.study import digest, study_of
from idiolect.federation.site.personal_model import FILE as MODEL
from idiolect.federation.site.personal_model import Part, fingerprint, keep, kept_after
from idiolect.federation.site.personal_state import Lost, PersonalState, Vault
from idiolect.federation.trust.kits import Identity
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import PRIVATE, private_folder, secret_of, write_json
from idiolect.runs import predictions
from idiolect.simulation.client_runner import Measured, Site, Trained
from idiolect.simulation.rounds import first_state
from idiolect.studies import Study
from idiolect.studies.method_use import Use

if TYPE_CHECKING:
    from idiolect.federation.secure_aggregation.masked_rounds import MaskedRounds

ROUNDS = ("local", "evaluate", "received")
"""The kinds of messages that ask for a phase of a round."""
SUMS = ("keys", "shares", "opening")
"""Those of secure aggregation besides."""
AGREED = "agreed.json"
"""The file of what the sites of a run have agreed on."""
_HEX = re.compile("[0-9a-f]{16,64}")


@dataclass
class _Known:
    """A study that this site takes part in."""

    study: Study
    folder: Path
    prepared: Prepared
    agreed: Agreed
    fingerprint: str = ""
    runs: dict[tuple[str, int], tuple[Site, Down]] = field(default_factory=dict)


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
    """

    def __init__(
        self, samples: Samples, number: int, folder: Path, policy: Policy, vault: Vault, say: Events,
        identity: Identity | None = None,
    ) -> None:  # fmt: skip
        self._identity = identity
        self._samples, self._number, self._folder, self._policy = samples, number, folder, policy
        self._vault, self._say = vault, say
        self._known: dict[tuple[str, str], _Known] = {}
        self._offered: dict[tuple[str, str], Study] = {}
        self._kinds: dict[str, Callable[[Message], tuple[dict[str, Any], dict[str, Tensor]]]] = {
            "study": self._study, "inputs": self._inputs, "begin": self._begin, "done": self._done,
            "ended": self._ended,
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
                raise Refused(f"{about.get('kind')!r} is not a kind of message that this version knows")
            said, arrays = self._kinds[about["kind"]](message)
            reply = self._signed(about, said | {"seconds": time.perf_counter() - start}, arrays)
            self._policy.fits(len(reply))
            return reply
        except Interrupted:
            raise
        except Lost:
            return self._signed(about, {"lost": True})
        except Refused as error:
            self._say.rarely(str(error), f"refused {about.get('kind', 'a message')}: {error}", refused=True)
            return self._signed(about, {"refused": str(error)})
        except IdiolectError as error:
            self._say(f"failed: {error}", failed=True)
            return self._signed(about, {"failed": str(error), "diverged": isinstance(error, Diverged)})
        except Exception as error:  # noqa: BLE001  whatever a message does, the site goes on
            self._say(f"refused a message that is not in order ({type(error).__name__}: {error})", refused=True)
            return self._signed(about, {"refused": f"the message is not in order ({type(error).__name__})"})

    def _signed(
        self, about: Mapping[str, Any], said: dict[str, Any], arrays: Mapping[str, Tensor] | None = None
    ) -> bytes:
        back = {name: about[name] for name in ("kind", "ticket", "round") if name in about}
        return pack(back | {"version": __version__} | said, arrays)

    def _study(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A study is offered: check it, and say what is needed to agree on features and classes."""
        about = message.about
        study = self._read(about)
        self._offered[about["digest"], about["run"]] = study
        what = f"study {study.name} of {study.rounds} rounds: {', '.join(use.label for use in study.methods)}"
        self._say.rarely(about["run"], what)
        return {"offer": plain(self._samples.offer(study.task))}, {}

    def _read(self, about: Mapping[str, Any]) -> Study:
        if about["version"] != __version__:
            raise Refused(f"the server has idiolect {about['version']} and this site {__version__}: install the same")
        if about["digest"] != digest(about["study"]) or not _HEX.fullmatch(about["run"]):
            raise Refused("the study does not have the digest that the server says")
        if about["number"] != self._number:
            raise Refused(f"this site is client {self._number}, not {about['number']}")
        study = study_of(about["study"])
        self._policy.check(study)
        return study

    def _inputs(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Features and classes are agreed: say how many samples there are, and their sums."""
        about = message.about
        study = self._offered[about["digest"], about["run"]]
        inputs, classes = _inputs_of(about["inputs"]), tuple(map(str, about["classes"]))
        prepared = self._samples.prepared(inputs, classes, study.data_seed, self._number, look=False)
        for sentence in list(about.get("remarks", ()))[:20]:
            self._say(str(sentence)[:1000])
        return {}, named("sums", sums(prepared, len(classes))._asdict())

    def _begin(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything is agreed: keep it, for this process and the next."""
        about = message.about
        study = self._offered.get((about["digest"], about["run"])) or self._read(about)
        agreed = Agreed.model_validate(about["agreed"])
        self._prepare(about["digest"], about["run"], study, agreed)
        folder = self._at(about["digest"], about["run"])
        kept = {name: about[name] for name in ("digest", "run", "number", "version", "study", "agreed")}
        write_json(folder / AGREED, kept | {"began": time.time()}, self._folder)
        if about.get("late"):
            self._say(f"the study began without this site, which takes part from round {about['late']} on")
        return {}, {}

    def _done(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The run is over."""
        known = self._found(message.about)
        if known is not None:
            self._say(f"study {known.study.name} is done; what this site keeps of it is in {known.folder}", done=True)
        return {}, {}

    def _ended(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The study does not go on, or not with this site."""
        why = str(message.about.get("why"))[:1000]
        self._say.rarely(("ended", why), f"this site takes no part: {why}", failed=True)
        return {}, {}

    def _prepare(self, study_digest: str, run: str, study: Study, agreed: Agreed) -> _Known:
        if not 0 <= self._number < len(agreed.names):
            raise Refused(f"this site is client {self._number} of {len(agreed.names)}")
        folder = self._at(study_digest, run)
        prepared = self._samples.prepared(
            agreed.inputs, agreed.classes, study.data_seed, self._number, look=agreed.inputs.kind == "table"
        )
        known = self._known[study_digest, run] = _Known(study, folder, prepared, agreed)
        return known

    def _at(self, study_digest: str, run: str) -> Path:
        if not _HEX.fullmatch(study_digest) or not _HEX.fullmatch(run):
            raise Refused("the names of study and run are not digests")
        return self._folder / study_digest[:32] / run

    def _found(self, about: Mapping[str, Any]) -> _Known | None:
        """The study of a message, from memory or from disk."""
        key = about["digest"], about["run"]
        if key in self._known and about["clients"] == len(self._known[key].agreed.names):
            return self._known[key]
        path = self._at(*key) / AGREED
        if not path.exists():
            return None
        try:
            kept = read_json(path)
            agreed = Agreed.model_validate(kept["agreed"])
            if about["clients"] != len(agreed.names):
                return None  # sites were added since
            return self._prepare(*key, self._read(kept), agreed)
        except (IdiolectError, Refused):
            raise
        except (OSError, ValueError, KeyError, pydantic.ValidationError) as error:
            self._say(f"{path} cannot be read and is asked for again ({error})")
            return None

    @cached_property
    def _sums(self) -> MaskedRounds:
        from idiolect.federation.secure_aggregation.masked_rounds import MaskedRounds

        return MaskedRounds(self._identity, self._policy.least_summed or 0)

    def _sum(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A step of secure aggregation before or after the upload."""
        about = message.about
        known = self._found(about)
        if known is None:
            return {"unknown": True}, {}
        if not known.study.secure_aggregation or type(about["round"]) is not int:
            raise Refused("the study has no secure aggregation, or no such round")
        self._runner(known, about["method"], about["seed"])
        return self._sums.answer(message, place(known.folder, about["method"], about["seed"]))

    def _phase(self, message: Message) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A phase of a round, with what is needed to repeat it if it is asked for again."""
        about = message.about
        known = self._found(about)
        if known is None:
            return {"unknown": True}, {}
        kind, round, kept = about["kind"], about["round"], about["kept"]
        whole = type(round) is int and type(kept) is int
        if not whole or not 0 < round <= known.study.rounds + 1 or not 0 <= kept < round + 2 * (kind != "local"):
            raise Refused(f"round {round} after {kept} is not one of this study's {known.study.rounds}")
        label, seed = about["method"], about["seed"]
        runner, like = self._runner(known, label, seed)
        folder = place(known.folder, label, seed)
        belongs = belonging(about["digest"], about["run"], label, seed)
        initial = first_state(runner.method, seed, self._number)
        state = PersonalState(folder, belongs, initial, self._vault)
        down = Down(**built(message.arrays, like._asdict()))
        if kind == "local" and state.rounds and round < state.rounds[-1] and round < (done := state.last()):
            raise Refused(f"round {round} is over here: this site has trained round {done}")
        if known.study.uploads:
            runner.job = runner.job._replace(secret=self._secret(message))
        before = state.load(kept)
        question = asked(message) if kind == "local" else b""
        if question and self._policy.most_trainings is not None and not state.answers(round, question):
            self._count(known, self._policy.most_trainings)
        after = kept_after(known.study, kind, round)
        found: Trained | Measured | None = None
        with OneThread():
            if after is not None:
                found = self._keep(known, runner, folder, belongs, after, down, before)
            if kind != "evaluate" or found is None:
                runner.job = runner.job._replace(keeps=round)
                [found] = runner.run(kind, round, [self._number], down, [before])
        if isinstance(found, Trained):
            return self._trained(known, state, message, found, question)
        stage = "personalised" if kind == "evaluate" else "trained" if round + 1 in state.rounds else "received"
        if round == known.study.rounds and stage == known.study.protocol.stage:
            self._save(known, folder, label, seed, stage, found)
        return ({"measured": checks.sent(found)} if self._policy.evaluate else {"withheld": True}), {}

    def _keep(
        self, known: _Known, runner: Site, folder: Path, belongs: dict[str, Any], round: int, down: Down, before: Tree
    ) -> Measured:
        """Make the personal model after a round, measure it, and keep it: it stays here."""
        label, seed = belongs["method"], belongs["seed"]
        runner.job = runner.job._replace(keeps=round)
        own = Down(down.shared, tree.rows(down.own, 0))
        client, measured = runner.evaluated(round, self._number, own, before)
        part = Part(known.study, known.agreed, self._number, _use(known, label), seed)
        model = Personal(own, client)
        known.fingerprint = known.fingerprint or fingerprint(known.prepared)
        try:
            keep(
                folder / MODEL, self._vault, part, belongs, round, before, model, measured, known.prepared,
                known.fingerprint,
            )  # fmt: skip
        except RunError as error:  # what was measured counts all the same
            self._say(f"{label}, seed {seed}: the model after round {round} is not kept: {error}", failed=True)
            return measured
        if round == known.study.rounds:
            what = f"the personal model after the last round is in {folder}"
            self._say(f"{label}, seed {seed}: {what}", round=round, kept=True)
        return measured

    def _save(self, known: _Known, folder: Path, label: str, seed: int, stage: str, found: Measured) -> None:
        """Write what was predicted for the site's own test samples, if the study says so; it stays here."""
        if known.study.save_predictions and not self._vault.encrypts:
            assert found.predicted is not None
            y_N = known.prepared.y_N[known.prepared.test_N].numpy()
            one = predictions.ClientPredictions(stage, self._number, y_N, found.predicted.numpy())
            predictions.save(folder, label, seed, [one], PRIVATE)

    def _trained(
        self, known: _Known, state: PersonalState, message: Message, found: Trained, question: bytes
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        about, arrays = message.about, named("value", found.up.value) | named("weight", found.up.weight)
        if known.study.secure_aggregation and arrays:
            arrays = self._sums.masked(message, arrays)
        state.put(about["round"], about["kept"], found.client, question)
        info = {name: float(value) for name, value in found.info.items()}
        self._say(f"{about['method']}, seed {about['seed']}: round {about['round']} trained", round=about["round"])
        return {"info": info}, arrays

    def _secret(self, message: Message) -> int:
        """The seed of the noise on an upload, which nobody else can know: the same if all is asked again as it was.

        If anything else is asked, it is another, so that the noise is not in the difference of two uploads.
        """
        return int.from_bytes(hmac.digest(secret_of(self._folder, "noise"), asked(message), "sha256")[:7], "big")

    def _count(self, known: _Known, most: int) -> None:
        """Count a training over all runs of a study, of which the policy allows so many."""
        path = known.folder.parent / "trainings.json"
        done = int(read_json(path)["trainings"]) if path.exists() else 0
        if done >= most:
            raise Refused(f"this site has trained for this study {done} times, as often as is allowed here")
        write_json(path, {"trainings": done + 1}, self._folder)

    def _runner(self, known: _Known, label: str, seed: int) -> tuple[Site, Down]:
        """What runs phases of a method, and a message ``Down`` of the form that this method's server sends."""
        if type(label) is not str or type(seed) is not int:  # True equals 1, and would have a folder of its own
            raise Refused("its method or seed is none")
        if (label, seed) not in known.runs:
            if seed not in known.study.seeds:
                raise Refused(f"method {label!r} with seed {seed} is not in the study")
            use, data = _use(known, label), alone(known.prepared, known.agreed, self._number, known.study.name)
            runner = Site(known.study.job(use, seed, data))
            like = runner.method.send(runner.method.init_server(keys.start(0)), torch.tensor([self._number]))
            known.runs[label, seed] = runner, like
        return known.runs[label, seed]


def _use(known: _Known, label: str) -> Use:
    for use in known.study.methods:
        if use.label == label:
            return use
    raise Refused(f"method {label!r} is not in the study")


def place(folder: Path, label: str, seed: int) -> Path:
    """The folder of a method and a seed in that of a run."""
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '.', label)[:80]}-{digest(label)[:8]}-{seed}"


def belonging(study: str, run: str, label: str, seed: int) -> dict[str, Any]:
    """What a state belongs to: the digest of a study, a run, a method and a seed."""
    return {"study": study, "run": run, "method": label, "seed": seed}


def _inputs_of(values: Mapping[str, Any]) -> Inputs:
    return Inputs.model_validate(values)
