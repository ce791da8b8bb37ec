"""A federation without a network: the simulator's numbers, and rounds that go on whatever a site does."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sites import NAMES, Away, Loop, Tamper, study, worker, workers

from idiolect.core.errors import InputError, Interrupted, RunError
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import FILE, Events
from idiolect.federation.messages import Message
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.trust.policy import Policy
from idiolect.simulation.privacy import GaussianMechanism, Ledger
from idiolect.studies import Result, Study
from rehearsal import rehearsed

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
Files = dict[str, Path]


def _run(tmp_path: Path, link: Loop, out: str = "run", terms: Terms | None = None, **more: Any) -> Result:
    whole = study_for(tmp_path / "study.yaml", "trial")
    return conduct(whole, link, list(link.workers), tmp_path / out, Events(quiet=True), terms=terms, **more)


def _events(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "run" / FILE).read_text().splitlines()]


def _same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    both = one.merge(other, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


def test_the_numbers_are_those_of_a_simulation(files: Files, tmp_path: Path) -> None:
    protocol = "{stage: personalised, also: [received, trained]}"
    methods = "fedavg, scaffold, fedper, 'fedavg:personal=head', 'ditto:personal=*bias'"
    study(tmp_path, methods, rounds=2, participation=0.6, protocol=protocol)
    found = _run(tmp_path, Loop(workers(tmp_path / "states", files)))
    whole = study_for(tmp_path / "study.yaml", "trial")
    samples = {name: SiteFiles(file, target="label") for name, file in files.items()}
    _same(found.records, rehearsed(whole, samples, tmp_path / "simulated").records)


@pytest.mark.parametrize("weights", ["balanced", "effective:beta=0.9", "numbers:weights=1+3+2"])
def test_weights_of_classes_are_those_of_all_sites(weights: str, files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg_ft, 'fedavg_ft:class_weights=none'", rounds=2, class_weights=weights)
    found = _run(tmp_path, Loop(workers(tmp_path / "states", files)))
    whole = study_for(tmp_path / "study.yaml", "trial")
    samples = {name: SiteFiles(file, target="label") for name, file in files.items()}
    _same(found.records, rehearsed(whole, samples, tmp_path / "simulated").records)
    losses = found.records.query("metric == 'loss'").groupby("method")["value"].mean()
    assert losses.nunique() == 2


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("fedavg, 'fedavg:class_weights=numbers(weights=1+3)'", r"weights=1\+3 has 2 numbers for 3 classes: give each"),
        ("fedavg, 'fedcr:class_weights=balanced'", "method fedcr has a loss of its own, which knows no class_weights"),
        ("'scaffold:optimiser=adam'", "method scaffold needs SGD"),
    ],
)
def test_a_method_that_cannot_be_ends_a_study_before_it_begins(
    methods: str, said: str, files: Files, tmp_path: Path
) -> None:
    study(tmp_path, methods, rounds=1)
    link = Away(workers(tmp_path / "states", files), back=0)
    with pytest.raises(InputError, match=said):
        _run(tmp_path, link)
    assert not (tmp_path / "run").exists()
    ends = [message.about["why"] for _, message in link.sent if message.about["kind"] == "ended"]
    assert len(ends) == len(files)
    assert all(re.search(said, why) for why in ends)


@pytest.mark.parametrize(
    ("methods", "noted"),
    [("fedbn", ["fedbn"]), ("fedavg, fedbn", ["fedbn"]), ("'fedbn:weighting=samples', scaffold", ["fedbn"]),
     ("fedavg, ditto", [])],
)  # fmt: skip
def test_the_server_says_a_methods_note_as_a_run_does(
    methods: str, noted: list[str], files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """These columns go to a network without normalisation, in which nothing of FedBN stays at a site; said once."""
    study(tmp_path, methods, rounds=1, seeds="[0, 1]")
    with caplog.at_level(logging.WARNING):
        _run(tmp_path, Loop(workers(tmp_path / "states", files)))
    said = [record.message for record in caplog.records if "has no normalisation layer" in record.message]
    assert [one.split(":")[0] for one in said] == [f"method {name}" for name in noted]


@pytest.mark.thorough(but=["cosine*"])
@pytest.mark.parametrize("schedule", ["cosine:warmup=1", "step:every=1,factor=0.5", "constant:warmup=2"])
def test_sites_know_the_round_and_the_last_one(schedule: str, files: Files, tmp_path: Path) -> None:
    """A learning rate over the rounds is that of a simulation, also in the stage that trains once more."""
    protocol = "{stage: personalised, also: [trained]}"
    study(tmp_path, "fedavg_ft, scaffold", rounds=3, lr_schedule=f"'{schedule}'", clip=0.5, protocol=protocol)
    found = _run(tmp_path, Loop(workers(tmp_path / "states", files)))
    whole = study_for(tmp_path / "study.yaml", "trial")
    samples = {name: SiteFiles(file, target="label") for name, file in files.items()}
    _same(found.records, rehearsed(whole, samples, tmp_path / "simulated").records)
    other = whole.model_copy(update={"lr_schedule": Study().lr_schedule})
    constant = rehearsed(other, samples, tmp_path / "constant").records
    assert not np.allclose(found.records["value"], constant["value"]), "the schedule changes nothing"


def test_a_method_whose_sites_must_all_be_asked_is_refused_before_another_trains(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg, fedah", rounds=1, participation=0.6)
    link = Loop(workers(tmp_path / "states", files))
    with pytest.raises(InputError, match=r"method fedah cannot run at sites with participation 0\.6"):
        _run(tmp_path, link)
    assert "local" not in {message.about["kind"] for _, message in link.received}


@pytest.mark.parametrize(
    ("methods", "stays"),
    [("fedper", "head"), ("'fedavg:personal=head'", "head"), ("'fedprox:personal=*bias'", "bias")],
)
def test_states_and_samples_stay_at_the_sites(methods: str, stays: str, files: Files, tmp_path: Path) -> None:
    study(tmp_path, methods, rounds=1)
    link = Loop(workers(tmp_path / "states", files))
    _run(tmp_path, link)
    sent = [message for _, message in link.received if message.about["kind"] == "local"]
    assert len(sent) == len(NAMES)
    paths = {path for message in sent for path in message.arrays}
    assert not [path for path in paths if stays in path]
    assert {tuple(message.about) for message in sent} == {("kind", "ticket", "round", "version", "info", "seconds")}
    assert list((tmp_path / "states" / "north").rglob("round-1.state"))


def _everything_is(value: float) -> Callable[[Message, Message], Message]:
    def change(asked: Message, reply: Message) -> Message:
        arrays = {k: torch.full_like(a, value) if a.is_floating_point() else a for k, a in reply.arrays.items()}
        return Message(reply.about, arrays)

    return change


def _replayed(asked: Message, reply: Message, kept: list[Message] = []) -> Message:  # noqa: B006  kept between rounds
    kept.append(reply)
    return kept[0]


def _other_shape(asked: Message, reply: Message) -> Message:
    return Message(reply.about, {name: a[None] for name, a in reply.arrays.items()})


def _other_tree(asked: Message, reply: Message) -> Message:
    return Message(reply.about, {f"value/other/{k}": a for k, a in enumerate(reply.arrays.values())})


HOSTILE: dict[str, tuple[Tamper, str]] = {
    "not a number": (_everything_is(float("nan")), "is not finite"),
    "infinite": (_everything_is(float("inf")), "is not finite"),
    "negative weight": (
        lambda asked, reply: Message(
            reply.about, {k: -a if k.startswith("weight") else a for k, a in reply.arrays.items()}
        ),
        "weight is negative",
    ),
    "counts too many samples": (
        lambda asked, reply: Message(
            reply.about, {k: a * 2 if k.startswith("weight") else a for k, a in reply.arrays.items()}
        ),
        "its weight is 32, and it has 16 training samples",
    ),
    "too large": (
        lambda asked, reply: Message(
            reply.about, {k: a * 1000 if "value" in k else a for k, a in reply.arrays.items()}
        ),
        "times as large as the median",
    ),
    "another shape": (_other_shape, "is \\(1,"),
    "another tree": (_other_tree, "is missing"),
    "replayed": (_replayed, "reply is to another message"),
    "reports nonsense": (lambda asked, reply: Message(reply.about | {"info": {"a": "b"}}, reply.arrays), "info a"),
    "silent": (lambda asked, reply: None, "did not answer"),
}


@pytest.mark.thorough(but=["not a number", "negative weight", "counts too many samples"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_upload_is_refused_and_the_round_goes_on(name: str, files: Files, tmp_path: Path) -> None:
    change, said = HOSTILE[name]

    def tamper(asked: Message, reply: Message) -> Message | None:
        return change(asked, reply) if asked.about["kind"] == "local" else reply

    study(tmp_path, rounds=2)
    link = Loop(workers(tmp_path / "states", files), {"east": tamper})
    found = _run(tmp_path, link, terms=Terms(Patience(least=3, deadline=60)))
    gone = found.records[found.records["metric"] == "answered"]
    rounds = [2] if name == "replayed" else [1, 2]  # the first one is honest
    assert list(zip(gone["round"], gone["client"], gone["value"], strict=True)) == [(r, 2, 0.0) for r in rounds]
    told = [event for event in _events(tmp_path) if event.get("site") == "east"]
    assert len(told) == (2 if name == "too large" else 1)  # once, not in each round; sizes differ by round
    assert pd.Series([event["event"] for event in told]).str.contains(said).all()
    lines = [event for event in _events(tmp_path) if "counted" in event]
    assert [event["round"] for event in lines] == [1, 2]
    for event in lines:
        out = event["absent"] if name == "silent" else list(event["excluded"])
        assert out == (["east"] if event["round"] in rounds else [])
        assert event["counted"] == [site for site in NAMES if site not in out]
    assert torch.isfinite(torch.tensor(found.records["value"].to_numpy())).all()


def test_a_round_without_a_site_is_the_mean_of_the_others(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=2)

    def silent(asked: Message, reply: Message) -> Message | None:
        return None if asked.about["kind"] == "local" else reply

    link = Loop(workers(tmp_path / "states", files), {"coast": silent})
    found = _run(tmp_path, link, terms=Terms(Patience(least=4)))
    assert found.records.query("metric == 'answered'")["client"].unique().tolist() == [4]
    _mean_of_uploads(link, 1, clients=4)


def _mean_of_uploads(link: Loop, round: int, clients: int) -> None:
    """What the next round begins with is what this one began with and the weighted mean of its uploads."""
    first, second = (
        next(m for _, m in link.sent if (m.about["kind"], m.about.get("round")) == ("local", r))
        for r in (round, round + 1)
    )
    ups = [m for _, m in link.received if (m.about["kind"], m.about.get("round")) == ("local", round)]
    assert len(ups) == clients
    weight_m = np.array([float(m.arrays["weight/"]) for m in ups])
    for path, before in first.arrays.items():
        value_m = np.stack([m.arrays[path.replace("shared", "value", 1)].double().numpy() for m in ups])
        mean = np.tensordot(weight_m / weight_m.sum(), value_m, 1)
        np.testing.assert_allclose(second.arrays[path].numpy() - before.numpy(), mean, atol=1e-6)


def test_a_site_that_starts_late_joins_from_the_next_round(files: Files, tmp_path: Path) -> None:
    """Its machine goes away after the agreement, until round 3; what it was told before the first round is gone."""
    study(tmp_path, rounds=4)
    link = Away(workers(tmp_path / "states", files), back=3, agrees=True)

    def gone(asked: Message, reply: Message) -> Message:
        if asked.about["kind"] == "begin":
            link.workers["coast"] = worker(tmp_path / "later", "coast", 4, files["coast"])
        return reply

    link.tamper = {"coast": gone}
    found = _run(tmp_path, link, terms=Terms(Patience(least=3)))
    absent = found.records.query("metric == 'answered'")
    assert list(zip(absent["round"], absent["client"], strict=True)) == [(1, 4), (2, 4)]
    assert found.records.query("client == 4 and metric == 'accuracy'")["round"].tolist() == [3, 4]
    told = [(m.about["kind"], m.about.get("round"), m.about.get("kept")) for who, m in link.sent if who == "coast"]
    assert told[told.index(("local", 3, 0)) :][:3] == [("local", 3, 0), ("begin", None, None), ("local", 3, 0)]
    assert ("local", 4, 3) in told
    assert [event["event"] for event in _events(tmp_path) if event.get("site") == "coast"] == [
        "goes on without coast, which did not answer in time",  # in two trainings and two measurements
        "coast counts again",
    ]
    assert [m.about.get("unknown") for who, m in link.received if who == "coast"][3] is True
    link.received = [(who, m) for who, m in link.received if not m.about.get("unknown")]
    _mean_of_uploads(link, 3, clients=5)


def test_too_few_sites_end_the_run_and_it_can_go_on(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=2)
    nonsense: dict[str, Tamper] = dict.fromkeys(
        NAMES[:3], lambda a, r: Message(r.about | {"info": 1}, r.arrays) if a.about.get("round") == 2 else r
    )
    states = tmp_path / "states"
    with pytest.raises(RunError, match="only 2 sites could answer, and 3 are needed: north: info"):
        _run(tmp_path, Loop(workers(states, files), nonsense), terms=Terms(Patience(least=3)))
    found = _run(tmp_path, Loop(workers(states, files)))
    assert sorted(found.records["round"].unique()) == [1, 2]


@pytest.mark.parametrize("failing", [["coast"], NAMES[1:]], ids=["one", "four"])
def test_a_round_of_some_sites_needs_the_share_of_them_that_a_round_of_all_needs(
    failing: list[str], files: Files, tmp_path: Path
) -> None:
    """Three of five are drawn. Where three of all are needed, two of them are; the draws of the seed have coast."""
    study(tmp_path, rounds=4, participation=0.6)

    def nonsense(asked: Message, reply: Message) -> Message:
        return Message(reply.about | {"info": 1}, reply.arrays) if asked.about["kind"] == "local" else reply

    link, terms = Loop(workers(tmp_path / "states", files), dict.fromkeys(failing, nonsense)), Terms(Patience(least=3))
    if len(failing) > 1:
        with pytest.raises(RunError, match=r"only [01] sites could answer, and 2 are needed"):
            _run(tmp_path, link, terms=terms)
        return
    _run(tmp_path, link, terms=terms)
    counted = [event["counted"] for event in _events(tmp_path) if "counted" in event]
    assert {len(sites) for sites in counted} == {2, 3}


class Killed(Exception):
    """In place of a signal that nobody can handle."""


def _killed_in(kind: str) -> Tamper:
    """The server ends when a site answers in round 2."""

    def dies(asked: Message, reply: Message) -> Message:
        if asked.about.get("round") == 2 and asked.about["kind"] == kind:
            raise Killed
        return reply

    return dies


def test_a_server_that_was_stopped_goes_on_to_the_same_numbers(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "scaffold, fedper", rounds=3)
    whole = _run(tmp_path, Loop(workers(tmp_path / "a", files)), "whole")

    with pytest.raises(Killed):  # four sites have trained round 2 by then
        _run(tmp_path, Loop(workers(tmp_path / "b", files), {"coast": _killed_in("local")}))
    link = Loop(workers(tmp_path / "b", files))  # the sites have started again, too
    _same(_run(tmp_path, link).records, whole.records)
    assert not [m for _, m in link.sent if m.about["kind"] in ("study", "inputs", "begin")]


def test_an_old_copy_of_a_run_goes_on_with_sites_that_start_again(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedper", rounds=3)

    def copies(asked: Message, reply: Message) -> Message:
        if (asked.about["kind"], asked.about.get("round")) == ("local", 2):
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
        return reply

    _run(tmp_path, Loop(workers(tmp_path / "states", files), {"north": copies}))
    with pytest.raises(RunError, match="this site has trained round 3: continue the newest copy of") as end:
        _run(tmp_path, Loop(workers(tmp_path / "states", files)), "copy")
    place = re.search(r"or move (\S+) out of the site's state folder", str(end.value))
    assert place is not None
    for name in NAMES:
        (tmp_path / "states" / name / place[1]).rename(tmp_path / f"{name}-before")
    found = _run(tmp_path, Loop(workers(tmp_path / "states", files)), "copy")
    assert sorted(found.records["round"].unique()) == [1, 2, 3]
    events = [json.loads(line) for line in (tmp_path / "copy" / FILE).read_text().splitlines()]
    assert {event["site"] for event in events if event.get("lost")} == set(NAMES)


@pytest.mark.parametrize("looks", [1, 2], ids=["at once", "while the run is read"])
def test_a_stop_before_a_run_goes_on(looks: int, files: Files, tmp_path: Path) -> None:
    """Until rounds go on, nobody but the caller notes signals."""
    study(tmp_path, rounds=2)
    with pytest.raises(Killed):
        _run(tmp_path, Loop(workers(tmp_path / "states", files), {"coast": _killed_in("local")}))
    link, left = Loop(workers(tmp_path / "states", files)), iter([False] * (looks - 1))
    with pytest.raises(Interrupted):
        _run(tmp_path, link, stop=lambda: next(left, True))
    assert not link.sent
    assert _run(tmp_path, link).records["round"].max() == 2


@pytest.mark.parametrize("at", [("local", 3), ("received", 2)])
def test_a_server_that_was_stopped_at_the_stage_trained_goes_on(
    at: tuple[str, int], files: Files, tmp_path: Path
) -> None:
    """Sites have trained round 3 to be measured after round 2, which the server repeats. What is repeated is one
    training: four are enough, of three rounds and of the one after them.
    """
    study(tmp_path, "fedper", rounds=3, participation=0.6, protocol="{stage: trained, also: [received]}")
    whole = _run(tmp_path, Loop(workers(tmp_path / "a", files)), "whole")

    def dies(asked: Message, reply: Message) -> Message:
        if (asked.about["kind"], asked.about.get("round")) == at:
            raise Killed
        return reply

    policy = Policy(most_trainings=4)
    with pytest.raises(Killed):
        _run(tmp_path, Loop(workers(tmp_path / "b", files, policy), {"coast": dies}))
    link = Loop(workers(tmp_path / "b", files, policy))
    _same(_run(tmp_path, link).records, whole.records)
    assert not [m for _, m in link.received if "refused" in m.about or "lost" in m.about]


def test_a_site_without_its_state_starts_again_and_is_named(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedper", rounds=2)
    link = Loop(workers(tmp_path / "states", files))

    def forgets(asked: Message, reply: Message) -> Message:
        if asked.about["kind"] == "local" and asked.about["round"] == 1:
            link.workers["west"] = worker(tmp_path / "new disk", "west", 3, files["west"])
        return reply

    link.tamper = {"west": forgets}
    link.quiet_for = lambda site: 0.0  # type: ignore[method-assign]
    found = _run(tmp_path, link)
    assert {e["site"] for e in _events(tmp_path) if e.get("lost")} == {"west"}
    assert not (found.records["metric"] == "answered").any()
    assert list((tmp_path / "new disk").rglob("round-2.state"))


def test_a_policy_that_keeps_measurements(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1)
    link = Loop(workers(tmp_path / "states", files))
    link.workers["east"] = worker(tmp_path / "states", "east", 2, files["east"], Policy(evaluate=False))
    found = _run(tmp_path, link)
    assert sorted(found.records.query("metric == 'accuracy'")["client"].unique()) == [0, 1, 3, 4]
    assert not [m for site, m in link.received if site == "east" and "measured" in m.about]


def test_a_policy_that_does_not_allow_the_study(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=5)
    link = Loop(workers(tmp_path / "states", files, Policy(most_rounds=4)))
    with pytest.raises(RunError, match="5 rounds are more than the 4 that are allowed here"):
        _run(tmp_path, link)
    assert not (tmp_path / "run").exists()
    assert all(not m.arrays for _, m in link.received)


def test_a_stop_before_the_first_round(files: Files, tmp_path: Path) -> None:
    study(tmp_path)
    with pytest.raises(Interrupted):
        _run(tmp_path, Loop(workers(tmp_path / "states", files)), stop=lambda: True)


def test_a_run_of_another_study_or_of_other_sites(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1)
    _run(tmp_path, Loop(workers(tmp_path / "states", files)))
    four = {name: file for name, file in files.items() if name != "coast"}
    with pytest.raises(InputError, match="other sites"):
        _run(tmp_path, Loop(workers(tmp_path / "states", four)))
    study(tmp_path, rounds=2)
    with pytest.raises(InputError, match="another study"):
        _run(tmp_path, Loop(workers(tmp_path / "states", files)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(InputError, match="no run of a federation"):
        _run(tmp_path, Loop(workers(tmp_path / "states", files)), "full")


@pytest.mark.parametrize(
    ("setting", "said"),
    [("dataset: digits", "dataset is for a simulation"), ("shifts: ['rotate:degrees=90']", "shifts is for"),
     ("protocol: {observe: [gaussianity]}", "needs the samples of all clients"),
     ("protocol: {validation: 0.2, stage: trained}\npatience: 3", "sites keep their models after the last one alone")],
)  # fmt: skip
def test_a_study_that_only_a_simulation_can_follow(setting: str, said: str, tmp_path: Path) -> None:
    path = study(tmp_path)
    path.write_text(path.read_text() + setting + "\n")
    with pytest.raises(InputError, match=said):
        study_for(path, "trial")


def test_only_the_server_knows_the_noise_of_privacy(files: Files, tmp_path: Path) -> None:
    """The same study in one place draws its noise from the study's seed, and no message tells the server's."""
    study(tmp_path, rounds=1, privacy="gaussian:norm=1.0,noise_multiplier=5.0,delta=0.01")
    link = Loop(workers(tmp_path / "states", files))
    found = _run(tmp_path, link)
    samples = {name: SiteFiles(file, target="label") for name, file in files.items()}
    alone = rehearsed(study_for(tmp_path / "study.yaml", "trial"), samples, tmp_path / "simulated")
    spent, loss = (
        [r[(r["stage"] == stage) & (r["metric"] == metric)]["value"].to_numpy() for r in (found.records, alone.records)]
        for stage, metric in (("server", "epsilon"), ("personalised", "loss"))
    )
    assert (spent[0] == spent[1]).all()
    assert abs(loss[0] - loss[1]).min() > 1e-3
    secret = str(json.loads((tmp_path / "run/.federation.json").read_text())["secret"])
    assert len(secret) > 10
    assert all(secret not in json.dumps(message.about) for _, message in link.sent)


def test_a_round_that_is_measured_twice_is_spent_twice(files: Files, tmp_path: Path) -> None:
    """A server that is killed while it measures round 2 repeats it, and both models of that round are out."""
    study(tmp_path, rounds=2, privacy="gaussian:norm=1.0,noise_multiplier=5.0,delta=0.01")

    with pytest.raises(Killed):
        _run(tmp_path, Loop(workers(tmp_path / "states", files), {"coast": _killed_in("evaluate")}))
    records = _run(tmp_path, Loop(workers(tmp_path / "states", files))).records
    spent = records[records["metric"] == "epsilon"].groupby("round")["value"].max()
    ledger = Ledger(GaussianMechanism(norm=1.0, noise_multiplier=5.0, delta=0.01))
    ledger.add(1.0)
    assert spent[1] == pytest.approx(ledger.epsilon)
    ledger.add(1.0, 2)
    assert spent[2] == pytest.approx(ledger.epsilon)


def test_with_privacy_no_site_decides_which_others_count(files: Files, tmp_path: Path) -> None:
    """A bound by the median depends on every site. Each upload is clipped anyway."""

    def tamper(asked: Message, reply: Message) -> Message | None:
        return HOSTILE["too large"][0](asked, reply) if asked.about["kind"] == "local" else reply

    study(tmp_path, rounds=1, privacy="gaussian:norm=1.0,noise_multiplier=5.0,delta=0.01")
    records = _run(tmp_path, Loop(workers(tmp_path / "states", files), {"east": tamper})).records
    assert not (records["metric"] == "answered").any()
    assert not [event for event in _events(tmp_path) if "refused" in event]


def test_attacks_are_for_a_simulation(tmp_path: Path) -> None:
    study(tmp_path, attacks="[nan:clients=1]")
    with pytest.raises(InputError, match="attacks is for a simulation"):
        study_for(tmp_path / "study.yaml", "trial")


@pytest.mark.parametrize(
    ("setting", "value"), [("task", "classification"), ("text", "say"), ("text", "title+say"), ("max_tokens", 9)]
)
def test_what_the_study_says_of_all_sites_samples(setting: str, value: object, tmp_path: Path) -> None:
    study(tmp_path, **{"text": "say"} | {setting: value})
    assert getattr(study_for(tmp_path / "study.yaml", "trial"), setting) == value
