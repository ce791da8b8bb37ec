"""Rounds with secure aggregation: the numbers of a simulation, lost sites, and what a server may not ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from sites import NAMES, Away, Loop, Tamper, study, worker

import idiolect as idl
from idiolect.core.errors import InputError, RunError, as_options
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import FILE, Events
from idiolect.federation.messages import Message, pack, unpack
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site.worker import Worker
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.policy import Policy
from idiolect.simulation.summing import STEP
from idiolect.studies import Result
from rehearsal import rehearsed

Files = dict[str, Path]
SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
Made = Callable[..., dict[str, Worker]]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("provision") / "kits"
    provision(kits.Description(name="trial", server="127.0.0.1:9092", sites=NAMES), out)
    return out


@pytest.fixture
def made(kit: Path, files: Files, tmp_path: Path) -> Made:
    def workers(folder: str = "states", policy: Policy | None = None) -> dict[str, Worker]:
        found = {}
        for k, (name, file) in enumerate(files.items()):
            found[name] = worker(tmp_path / folder, name, k, file, policy)
            found[name]._identity = kits.site_kit(kit / f"site-{name}").identity
        return found

    return workers


def _run(tmp_path: Path, kit: Path, link: Loop, out: str = "run", least: int = 3, start: int | None = None) -> Result:
    whole = study_for(tmp_path / "study.yaml", "trial")
    public = kits.server_kit(kit / "server").roster.keys()
    terms = Terms(Patience(least=least, deadline=60), start=start)
    return conduct(whole, link, list(NAMES), tmp_path / out, Events(quiet=True), terms=terms, public=public)


def _said(tmp_path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (tmp_path / "run" / FILE).read_text().splitlines()]


def _uploads(link: Loop, round: int) -> dict[str, dict[str, torch.Tensor]]:
    return {s: m.arrays for s, m in link.received if (m.about["kind"], m.about.get("round")) == ("local", round)}


def test_the_numbers_are_those_of_a_simulation(kit: Path, made: Made, files: Files, tmp_path: Path) -> None:
    """With masks, without, and, but for rounding, those of plain aggregation; of means and of sums."""
    methods = "fedavg, scaffold, local, pfl_da, fedkd, 'fedavg:personal=head'"
    study(tmp_path, methods, rounds=2, participation=0.8, secure_aggregation=True)
    found = _run(tmp_path, kit, Loop(made())).records
    whole = study_for(tmp_path / "study.yaml", "trial")
    samples = {name: SiteFiles(file, target="label") for name, file in files.items()}
    alone = rehearsed(whole, samples, tmp_path / "simulated").records
    both = found.merge(alone, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6
    plain = rehearsed(whole.model_copy(update={"secure_aggregation": False}), samples, tmp_path / "plain").records
    sent = {"bytes_up", "bytes_down"}
    both = alone[~alone["metric"].isin(sent)].merge(plain, on=SIDES)
    np.testing.assert_allclose(both["value_x"], both["value_y"], rtol=1e-5, atol=1e-5)  # a loss may be above 1
    up = [r.query("method == 'fedavg' and metric == 'bytes_up'")["value"].max() for r in (alone, plain)]
    assert up[0] == 2 * up[1]  # 64 bits for 32


def test_the_server_gets_noise_and_the_mean(kit: Path, made: Made, tmp_path: Path) -> None:
    """The next model against numpy's mean of what the same sites send without masks."""
    study(tmp_path, rounds=2, secure_aggregation=True)
    link = Loop(made())
    _run(tmp_path, kit, link)
    study(tmp_path, rounds=2)
    open_link = Loop(made("others"))
    _run(tmp_path, kit, open_link, "open")
    clear, masked = _uploads(open_link, 1), _uploads(link, 1)
    weight_m = np.array([float(clear[name]["weight/"]) for name in NAMES])
    before, after = (
        next(m for _, m in link.sent if (m.about["kind"], m.about.get("round")) == ("local", r)).arrays for r in (1, 2)
    )
    for path in before:
        place = path.replace("shared", "value", 1)
        value_m = np.stack([clear[name][place].double().numpy() for name in NAMES])
        mean = np.tensordot(weight_m / weight_m.sum(), value_m, 1)
        within = len(NAMES) / 2 * STEP / weight_m.sum() + 1e-6  # rounding to steps, and to float32
        np.testing.assert_allclose(after[path].double().numpy() - before[path].double().numpy(), mean, atol=within)
    numbers = np.concatenate([a.numpy().ravel() for arrays in masked.values() for a in arrays.values()])
    high = numbers.astype(np.float64) / 2.0**63  # what is sent is spread over all of [-1, 1]
    assert abs(np.quantile(high, [0.25, 0.75]) - [-0.5, 0.5]).max() < 5 * 2 * np.sqrt(0.1875 / len(high))


def _silent(kind: str, round: int = 1) -> Tamper:
    return lambda asked, reply: None if (asked.about["kind"], asked.about.get("round")) == (kind, round) else reply


@pytest.mark.parametrize("kind", ["keys", "shares", "local", "opening"])
def test_one_site_is_lost_in_any_step(kind: str, kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, rounds=2, secure_aggregation=True)
    found = _run(tmp_path, kit, Loop(made(), {"east": _silent(kind)})).records
    gone = found[found["metric"] == "answered"]
    late = kind == "opening"  # its upload is in the sum
    assert list(zip(gone["round"], gone["client"], strict=True)) == ([] if late else [(1, 2)])
    trained = found[(found["stage"] == "local") & (found["round"] == 1)]["client"].unique()
    assert len(trained) == 5 - (not late)


def _refused(kind: str) -> Tamper:
    def tamper(asked: Message, reply: Message) -> Message:
        return Message({**reply.about, "refused": "no"} if asked.about["kind"] == kind else reply.about, reply.arrays)

    return tamper


@pytest.mark.parametrize("kind", ["keys", "shares", "local", "opening"])
def test_the_events_name_who_was_refused_in_any_step(kind: str, kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, rounds=2, secure_aggregation=True)
    _run(tmp_path, kit, Loop(made(), {"east": _refused(kind)}))
    lines = [json.loads(line) for line in (tmp_path / "run" / FILE).read_text().splitlines()]
    for line in (line for line in lines if "counted" in line):
        assert line["excluded"] == ({} if kind == "opening" else {"east": "it says: no"})
        assert line["counted"] == [name for name in NAMES if name not in line["excluded"]]
        assert line["absent"] == []
    assert sum("counted" in line for line in lines) == 2


def test_a_site_that_comes_late_is_in_the_sums(kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, rounds=3, secure_aggregation=True)
    found = _run(tmp_path, kit, Away(made(), back=2), start=4).records
    assert found.query("stage == 'local'").groupby("round")["client"].nunique().tolist() == [4, 5, 5]
    assert not [text for text in _said(tmp_path) if "changes nothing" in text]


def test_too_few_sites_cost_a_round_and_no_more(kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, rounds=2, secure_aggregation=True)
    link = Loop(made(), dict.fromkeys(("east", "west"), _silent("local")))
    found = _run(tmp_path, kit, link).records
    assert [s for s in _said(tmp_path) if "round 1 changes nothing: 3 of 5 sites stayed, and it takes 4" in s]
    assert sorted(found.query("metric == 'answered'")["client"]) == [0, 1, 2, 3, 4]
    assert not [m for _, m in link.sent if (m.about["kind"], m.about.get("round")) == ("opening", 1)]
    first, second = (
        next(m for _, m in link.sent if (m.about["kind"], m.about.get("round")) == ("local", r)) for r in (1, 2)
    )
    assert all(torch.equal(a, second.arrays[path]) for path, a in first.arrays.items())
    assert len(found.query("stage == 'local' and round == 2")["client"].unique()) == 5


def test_a_site_that_lies_about_its_keys_is_refused(kit: Path, made: Made, tmp_path: Path) -> None:
    def lies(asked: Message, reply: Message) -> Message:
        if asked.about["kind"] != "keys":
            return reply
        return Message(reply.about | {"keys": reply.about["keys"] | {"seed": "0" * 64}}, {})

    study(tmp_path, rounds=1, secure_aggregation=True)
    found = _run(tmp_path, kit, Loop(made(), {"east": lies})).records
    assert found.query("metric == 'answered'")["client"].tolist() == [2]
    assert [
        s for s in _said(tmp_path) if s == "east does not count: the keys of east are not signed by east for this round"
    ]


def test_a_site_answers_one_question_with_its_keys(kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, rounds=1, secure_aggregation=True)
    link = Loop(made())
    _run(tmp_path, kit, link)
    mine = {m.about["kind"]: m for s, m in link.sent if s == "north"}
    north = link.workers["north"]

    def ask(kind: str, arrays: Any = None, **changes: Any) -> Message:
        return unpack(north.answer(pack(mine[kind].about | changes, mine[kind].arrays if arrays is None else arrays)))

    first = next(m for s, m in link.received if (s, m.about["kind"]) == ("north", "local"))
    again = ask("local")
    assert all(torch.equal(a, first.arrays[path]) for path, a in again.arrays.items())
    moved = {path: a + 1 for path, a in mine["local"].arrays.items()}
    roster = dict(list(mine["shares"].about["roster"].items())[:4])
    fewer = [name for name in NAMES if name != "east"]
    assert "another question with the same keys" in ask("local", moved).about["refused"]
    assert "another question with the same keys" in ask("shares", roster=roster).about["refused"]
    assert "another question with the same keys" in ask("opening", answered=fewer).about["refused"]
    sealed = mine["local"].about
    bare = {name: value for name, value in sealed.items() if name != "sealed"}
    assert "under masks only" in unpack(north.answer(pack(bare, mine["local"].arrays))).about["refused"]
    north._sums._sums.clear()  # it has started again
    assert "no keys for round 1" in ask("local").about["refused"]


def test_a_site_forgets_the_sums_of_the_run_before(kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, "fedavg, fedper", rounds=1, secure_aggregation=True)
    link, uploads = Loop(made()), []
    for run in ("first", "second"):
        _run(tmp_path, kit, link, run)
        [*_, upload] = [m for s, m in link.sent if (s, m.about["kind"]) == ("north", "local")]
        uploads.append(pack(*upload))
    said = [unpack(link.workers["north"].answer(upload)).about.get("refused", "") for upload in uploads]
    assert "no keys for round 1" in said[0]
    assert not said[1]
    assert len(link.workers["north"]._sums._sums) == 2  # of two methods


def test_a_round_is_opened_over_the_same_sites_only(kit: Path, made: Made, tmp_path: Path) -> None:
    """Two sums of a round that differ in one site would show this site's upload."""
    study(tmp_path, rounds=2, secure_aggregation=True)

    class Killed(Exception):
        pass

    def dies(asked: Message, reply: Message) -> Message:
        if asked.about["kind"] == "evaluate":
            raise Killed
        return reply

    with pytest.raises(Killed):  # the sum of round 1 was opened, and is not on disk
        _run(tmp_path, kit, Loop(made(), {"north": dies}))
    _run(tmp_path, kit, Loop(made(), {"east": _silent("local")}))
    assert [s for s in _said(tmp_path) if "a sum of round 1 was opened already, over other sites" in s]
    assert [s for s in _said(tmp_path) if "round 1 changes nothing: 0 of 5 sites stayed" in s]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"methods": "fedpac"}, "cannot take .*secure.aggregation.*, because its server needs the upload of each"),
        ({"robust": "norm_bound"}, "robust.* do not go together"),
        ({"privacy": "gaussian:norm=1.0,noise_multiplier=1.0,delta=0.01"}, "privacy.* do not go together"),
        ({"participation": 0.4}, "a round has 2 of 5 clients, and a sum over fewer than 3"),
        ({"protocol": "{stage: personalised, also: [trained]}"}, "the stage trained needs the upload of each"),
    ],
)
def test_what_needs_single_uploads(more: dict[str, Any], said: str, kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, **({"rounds": 1, "secure_aggregation": True} | more))
    with pytest.raises(InputError, match=said):
        _run(tmp_path, kit, Loop(made()))


@pytest.mark.parametrize("name", ["fedpac", "fedfomo", "hypcluster"])
@pytest.mark.parametrize(("is_command", "written"), [(False, "secure_aggregation"), (True, "--secure-aggregation")])
def test_a_setting_is_named_as_it_is_written(name: str, is_command: bool, written: str, tmp_path: Path) -> None:
    study = idl.Study(clients=3, rounds=1, methods=name, secure_aggregation=True)
    with as_options() if is_command else nullcontext(), pytest.raises(InputError) as caught:
        idl.run(study, tmp_path / "run", engine="sequential")
    assert str(caught.value) == (
        f"method {name} cannot take {written}, because its server needs the upload of each client, not only their sum: "
        f"leave out {written}, or this method"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [({"participation": 0.4}, "a round has 2 of 5 clients"), ({"protocol": "also=trained"}, "stage trained")],
)
def test_a_run_that_cannot_be_summed_writes_nothing(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    study = idl.Study(clients=5, rounds=1, methods="fedavg", secure_aggregation=True, **more)
    with pytest.raises(InputError, match=said):
        idl.run(study, tmp_path / "run", engine="sequential")
    assert not (tmp_path / "run").exists()


def test_a_policy_can_insist(kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, rounds=1)
    with pytest.raises(RunError, match="uploads must be under masks here"):
        _run(tmp_path, kit, Loop(made(policy=Policy(least_summed=3))))
    study(tmp_path, rounds=1, secure_aggregation=True)
    found = _run(tmp_path, kit, Loop(made(policy=Policy(least_summed=6)))).records
    assert isinstance(found, pd.DataFrame)
    assert [s for s in _said(tmp_path) if "the sum has 5 sites, and 6 or more are needed here" in s]


def test_a_kit_without_the_other_sites_keys(kit: Path, made: Made, tmp_path: Path) -> None:
    study(tmp_path, rounds=1, secure_aggregation=True)
    link = Loop(made())
    link.workers["east"]._identity = kits.Identity("east", ec.generate_private_key(ec.SECP384R1()), {})
    _run(tmp_path, kit, link)
    assert [s for s in _said(tmp_path) if "make new kits" in s]
