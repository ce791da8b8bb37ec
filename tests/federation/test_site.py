"""One site: what it answers to a server that asks for what it should not, or asks again."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sites import Loop, study, worker, workers

from idiolect.core.documents import read_json
from idiolect.core.errors import Interrupted, RunError
from idiolect.core.version import __version__
from idiolect.federation.data.samples import SiteFiles, SiteSamples
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, pack, unpack
from idiolect.federation.rounds.study import digest
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.worker import Worker
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import write_json


class Asked:
    """A run of one round at one site, whose messages are asked again, changed."""

    def __init__(self, tmp_path: Path, files: dict[str, Path]) -> None:
        study(tmp_path, "fedper", rounds=2)
        self.folder, self.file = tmp_path / "states", files["north"]
        self.link = Loop(workers(self.folder, {"north": self.file}))
        whole = study_for(tmp_path / "study.yaml", "trial")
        conduct(whole, self.link, ["north"], tmp_path / "run", Events(quiet=True))

    def of(self, kind: str, round: int | None = None) -> Message:
        return next(m for _, m in self.link.sent if m.about["kind"] == kind and round in (None, m.about.get("round")))

    def answer(self, message: Message, policy: Policy | None = None, **changes: Any) -> Message:
        fresh = worker(self.folder, "north", 0, self.file, policy)
        return unpack(fresh.answer(pack(message.about | changes, message.arrays)))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Asked:
    return Asked(tmp_path_factory.mktemp("asked"), files)


def test_a_round_that_is_repeated_gives_the_same_bits(asked: Asked) -> None:
    first = next(m for _, m in asked.link.received if m.about["kind"] == "local" and m.about["round"] == 2)
    again = asked.answer(asked.of("local", 2))
    assert pack({}, again.arrays) == pack({}, first.arrays)


def test_an_older_round_is_refused(asked: Asked) -> None:
    assert "has trained round 2" in asked.answer(asked.of("local", 1)).about["refused"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedavg"}, "not in the study"),
        ({"seed": 7}, "not in the study"),
        ({"round": 9}, "not one of this study's"),
        ({"round": 2, "kept": 2}, "not one of this study's"),
        ({"round": "2"}, "not one of this study's"),
        ({"kept": -1}, "not one of this study's"),
        ({"kind": "state"}, "not a kind of message"),
        ({"run": "../../../etc"}, "not digests"),
        ({"digest": 5}, "not in order"),
    ],
)
def test_what_the_study_does_not_say_is_refused(changes: dict[str, Any], said: str, asked: Asked) -> None:
    assert said in asked.answer(asked.of("local", 2), **changes).about["refused"]


def test_another_tree_is_refused(asked: Asked) -> None:
    message = asked.of("local", 2)
    few = Message(message.about, dict(list(message.arrays.items())[1:]))
    assert "is missing" in asked.answer(few).about["refused"]


def test_an_unknown_run_or_a_lost_state_is_said(asked: Asked) -> None:
    assert asked.answer(asked.of("local", 2), run="0" * 16).about["unknown"] is True
    assert asked.answer(asked.of("evaluate", 1), kept=1, round=2).about["measured"]
    path = next(asked.folder.rglob("round-1.state"))
    content = path.read_bytes()
    path.unlink()
    assert asked.answer(asked.of("evaluate", 2), kept=1).about["lost"] is True
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.0.0"}, "the server has idiolect 0.0.0"),
        ({"number": 3}, "this site is client 0"),
        ({"digest": "0" * 64}, "does not have the digest"),
    ],
)
def test_a_study_with_wrong_papers_is_refused(changes: dict[str, Any], said: str, asked: Asked) -> None:
    assert said in asked.answer(asked.of("study"), **changes).about["refused"]


def test_a_policy_is_asked_again_in_a_new_process(asked: Asked) -> None:
    """A site that starts again with a stricter policy does not go on with what an older one allowed."""
    assert "not allowed here" in asked.answer(asked.of("local", 2), Policy(methods=("fedavg",))).about["refused"]
    assert "larger than" in asked.answer(asked.of("local", 2), Policy(most_bytes=100)).about["refused"]


def test_a_site_whose_samples_have_changed_does_not_go_on(asked: Asked, tmp_path: Path) -> None:
    """A file with a row more is divided otherwise: what was for tests would be trained on."""
    shutil.copytree(asked.folder, tmp_path / "states")
    frame = pd.read_csv(asked.file)
    pd.concat([frame, frame[:1]]).to_csv(tmp_path / "more.csv", index=False)

    def said(kind: str) -> dict[str, Any]:
        one = worker(tmp_path / "states", "north", 0, tmp_path / "more.csv")
        return unpack(one.answer(pack(*asked.of(kind)))).about

    for kind in ("begin", "local", "evaluate", "begin"):
        assert "not those with which it began this study" in said(kind)["refused"]
        assert "give it the same files and options again" in said(kind)["refused"]
    [path] = (tmp_path / "states" / "north").rglob("agreement.json")
    record = read_json(path)
    del record["samples"]
    write_json(path, record)  # as an older version wrote it
    assert "measured" in said("evaluate")


def test_trainings_are_counted_over_runs(asked: Asked) -> None:
    message, count = asked.of("begin"), Policy(most_trainings=2)
    local = asked.of("local", 1)
    said = []
    for run in ("a" * 16, "b" * 16, "c" * 16):
        assert "refused" not in asked.answer(message, count, run=run).about
        said.append(asked.answer(local, count, run=run).about.get("refused", ""))
    assert said[:2] == ["", ""]
    assert "2 times" in said[2]


def test_a_signal_in_training_ends_the_site(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise Interrupted("stopped", 15)

    monkeypatch.setattr("idiolect.federation.site.worker.ClientRunner.run", stopped)
    with pytest.raises(Interrupted):
        asked.answer(asked.of("local", 2))


def test_a_training_that_is_asked_again_after_a_kill_is_counted_once(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Interrupted("stopped", 15)

    def answer(message: Message) -> dict[str, Any]:
        one = worker(tmp_path, "north", 0, asked.file, Policy(most_trainings=2))
        return unpack(one.answer(pack(*message))).about

    answer(asked.of("begin"))
    for round in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr("idiolect.federation.site.worker.ClientRunner.run", killed)
            with pytest.raises(Interrupted):
                answer(asked.of("local", round))
        assert "info" in answer(asked.of("local", round))
    changed = Message(asked.of("local", 2).about, {k: a + 1 for k, a in asked.of("local", 2).arrays.items()})
    assert "2 times, as often as is allowed here" in answer(changed)["refused"]


@pytest.mark.parametrize(
    ("settings", "change", "told"),
    [
        ({"task": "regression"}, lambda frame: frame.assign(label=[*range(19), "Mr Smith"]), None),
        ({}, lambda frame: pd.concat([frame] * 2).assign(label=[*np.linspace(0, 1, 39), "Mr Smith"]), None),
        ({}, lambda frame: pd.concat([frame] * 2).assign(label=np.linspace(0, 1, 40)), "write task: regression in"),
        ({"text": "note"}, lambda frame: frame, "has no column 'note'"),
    ],
)
def test_what_is_wrong_with_a_sites_samples_stays_there_unless_others_need_it(
    settings: dict[str, str], change: Callable[[pd.DataFrame], pd.DataFrame], told: str | None, asked: Asked,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    change(pd.read_csv(asked.file)).to_csv(tmp_path / "own.csv", index=False)
    text = study_for(study(tmp_path, **settings), "trial").to_yaml()
    samples = SiteFiles(tmp_path / "own.csv", target="label")
    one = Worker(samples, 0, tmp_path / "state", Policy(), Vault.of(tmp_path / "state"), Events())
    question = {"kind": "study", "study": text, "digest": digest(text), "run": "0" * 16, "number": 0}
    failed = unpack(one.answer(pack(question | {"version": __version__}))).about["failed"]
    said = capsys.readouterr().err
    if told is None:
        assert failed == "its samples cannot be used; its own log says why"
        assert "Mr Smith" in said
    else:
        assert told in failed
        assert failed in " ".join(said.split())


def test_values_that_are_no_labels_are_said_at_the_site_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are met after the columns are agreed."""
    made = {}
    for k, name in enumerate(("north", "south")):
        frame = pd.DataFrame({"m": np.arange(20.0), "ill": [0, 1] * 10, "old": [1, 0] * 10})
        frame.assign(ill=frame["ill"] * [1, 777][k]).to_csv(tmp_path / f"{name}.csv", index=False)
        samples = SiteFiles(tmp_path / f"{name}.csv", target="ill+old")
        made[name] = Worker(samples, k, tmp_path / name, Policy(), Vault.of(tmp_path / name), Events())
    whole = study_for(study(tmp_path, task="multilabel"), "trial")
    with pytest.raises(RunError, match=r"south: it says: its samples cannot be used; its own log says why$"):
        conduct(whole, Loop(made), list(made), tmp_path / "run", Events(quiet=True))
    assert "has the values 0, 777" in " ".join(capsys.readouterr().err.split())


def test_what_goes_wrong_here_is_said_and_does_not_end_the_site(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RunError("cannot write state/round-2.state (No space left on device): free some space")

    monkeypatch.setattr("idiolect.federation.site.personal_state.files.write", full)
    assert "No space left" in asked.answer(asked.of("local", 2)).about["failed"]
    monkeypatch.undo()
    assert "info" in asked.answer(asked.of("local", 2)).about


def test_noise_is_the_sites_own(files: dict[str, Path], tmp_path: Path) -> None:
    """The same question gives the same noise; another question, or another site with the same samples, another."""
    study(tmp_path, rounds=1, uploads='["clip:norm=1e-9", "noise:std=1.0"]')  # so that noise is all there is
    link = Loop(workers(tmp_path / "a", files))
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, list(files), tmp_path / "run", Events(quiet=True))
    begin, local = (next(m for s, m in link.sent if (s, m.about["kind"]) == ("north", k)) for k in ("begin", "local"))

    def noise(folder: str, message: Message) -> torch.Tensor:
        one = worker(tmp_path, folder, 0, files["north"])
        one.answer(pack(*begin))
        arrays = unpack(one.answer(pack(*message))).arrays
        return torch.cat([arrays[path].flatten() for path in sorted(arrays) if "value" in path])

    first = noise("b", local)
    assert torch.equal(first, noise("b", Message(local.about | {"ticket": "other"}, local.arrays)))
    moved = Message(local.about, {path: a + 1 for path, a in local.arrays.items()})
    for other in (noise("b", moved), noise("c", local)):
        assert abs(float((first - other).std()) / 2**0.5 - 1) < 0.2


def test_a_study_that_never_ended_is_forgotten_when_the_next_one_comes(asked: Asked, tmp_path: Path) -> None:
    """A site that was away at the end hears of it never."""
    one = worker(tmp_path, "north", 0, asked.file)
    local = asked.of("local", 1)
    first = "0" * 16
    for run in (first, *(16 * str(k) for k in range(1, 5))):
        for message in (asked.of("study"), asked.of("begin"), local):
            assert "refused" not in unpack(one.answer(pack(message.about | {"run": run}, message.arrays))).about
        assert [list(entries) for entries in (one._participations, one._offers)] == [[(local.about["digest"], run)]] * 2
    again = unpack(one.answer(pack(local.about | {"run": first}, local.arrays)))
    assert again.arrays


def test_a_study_that_is_done_is_forgotten_when_the_next_one_comes_and_found_again(
    files: dict[str, Path], tmp_path: Path
) -> None:
    states = tmp_path / "states"
    link = Loop(workers(states, {"north": files["north"]}))

    def samples() -> int:
        gc.collect()
        return sum(isinstance(one, SiteSamples) for one in gc.get_objects())

    before = samples()
    study(tmp_path, "fedper", rounds=2)
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, ["north"], tmp_path / "first", Events(quiet=True))
    of_one = samples() - before
    first = next(m for _, m in link.received if m.about["kind"] == "local" and m.about["round"] == 2)
    asked = next(m for _, m in link.sent if m.about["kind"] == "local" and m.about["round"] == 2)
    for rounds in (1, 3):
        study(tmp_path, "fedper", rounds=rounds)
        whole = study_for(tmp_path / "study.yaml", "trial")
        conduct(whole, link, ["north"], tmp_path / str(rounds), Events(quiet=True))
        assert samples() - before == of_one
    again = unpack(link.workers["north"].answer(pack(asked.about, asked.arrays)))
    assert pack({}, again.arrays) == pack({}, first.arrays)
