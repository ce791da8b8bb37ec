"""Numbers and names that are not what they seem end nothing, and open nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sites import NAMES, Loop, study, workers

from idiolect.federation.events import Events
from idiolect.federation.messages import Message, Refusal, pack, unpack
from idiolect.federation.rounds import checks
from idiolect.federation.rounds.conversation import Conversation, Patience, Question
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for

Files = dict[str, Path]
HUGE = 10**400


@pytest.mark.parametrize("value", [HUGE, -HUGE, float("inf"), float("nan"), True, "1", None, [1]])
def test_what_is_not_a_finite_number_is_none(value: Any) -> None:
    assert checks.finite(value) is None


@pytest.mark.parametrize(
    "more", [{"info": {"x": HUGE}}, {"info": {"x": True}}, {"info": [1]}, {"info": {"x": [1]}}, {"info": {"x": "1"}}]
)
def test_a_site_that_reports_nonsense_does_not_count(more: dict[str, Any], files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=2)

    def tamper(asked: Message, honest: Message) -> Message:
        return Message(honest.about | (more if asked.about["kind"] == "local" else {}), honest.arrays)

    link = Loop(workers(tmp_path / "states", files), {"east": tamper})
    whole = study_for(tmp_path / "study.yaml", "trial")
    records = conduct(
        whole, link, list(NAMES), tmp_path / "run", Events(quiet=True), terms=Terms(Patience(least=3))
    ).records
    assert set(records.query("metric == 'answered'")["client"]) == {NAMES.index("east")}
    assert set(records.query("metric == 'bytes_up'")["client"]) == {0, 1, 3, 4}


@pytest.mark.parametrize(("methods", "counts"), [("fedas", True), ("'fedas:weighting=samples'", False)])
def test_only_a_measured_weight_may_be_more_than_the_samples(
    methods: str, counts: bool, files: Files, tmp_path: Path
) -> None:
    study(tmp_path, methods, rounds=1)

    def tamper(asked: Message, honest: Message) -> Message:
        much = {k: a.new_full(a.shape, 1e4) for k, a in honest.arrays.items() if k.startswith("weight")}
        return Message(honest.about, honest.arrays | much if asked.about["kind"] == "local" else honest.arrays)

    link = Loop(workers(tmp_path / "states", files), {"east": tamper})
    whole = study_for(tmp_path / "study.yaml", "trial")
    records = conduct(
        whole, link, list(NAMES), tmp_path / "run", Events(quiet=True), terms=Terms(Patience(least=3))
    ).records
    assert (NAMES.index("east") in set(records.query("metric == 'bytes_up'")["client"])) is counts


@pytest.mark.parametrize("seconds", [HUGE, -5, "soon", None, True])
def test_the_seconds_that_a_site_names_end_nothing(seconds: Any, files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1)

    def tamper(asked: Message, honest: Message) -> Message:
        return Message(honest.about | {"seconds": seconds}, honest.arrays)

    link = Loop(workers(tmp_path / "states", files), {"east": tamper})
    found = conduct(
        study_for(tmp_path / "study.yaml", "trial"), link, list(NAMES), tmp_path / "run", Events(quiet=True)
    )
    assert set(found.records.query("metric == 'bytes_up'")["client"]) == set(range(5))


def test_an_error_of_a_reader_costs_one_site_alone() -> None:
    class Echo:
        def answer(self, content: bytes) -> bytes:
            return content

    names = ["north", "south", "east"]
    link = Loop({name: Echo() for name in names})  # type: ignore[misc]
    asking = Conversation(link, names, Events(quiet=True))

    def take(i: int, message: Message) -> int:
        return [1, 2, 3][10 * (i == 1)] + i

    found = asking.ask({i: Question({"kind": "x"}, {}) for i in range(3)}, take, Patience(least=2))
    assert found == {0: 1, 2: 3}
    assert asking.refusals == {"south": "its reply is not in order (IndexError)"}


def _head(about: str) -> bytes:
    head = json.dumps({"__metadata__": {"about": about}}).encode()
    return len(head).to_bytes(8, "little") + head


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_have_is_refused(number: str) -> None:
    with pytest.raises(Refusal):
        unpack(_head(f'{{"kind": "local", "round": {number}}}'))


@pytest.mark.parametrize("shape", [[0, 2**62, 4], [2**62, 2**62, 0], [-1, 0]])
def test_a_shape_that_no_array_has_is_refused(shape: list[int]) -> None:
    head = {"__metadata__": {"about": "{}"}, "a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    content = json.dumps(head).encode()
    with pytest.raises(Refusal):
        unpack(len(content).to_bytes(8, "little") + content)


@pytest.mark.parametrize("seed", [False, 0.0, "0", None, [0]])
def test_a_sum_is_not_opened_again_under_another_name_of_its_seed(seed: Any, files: Files, tmp_path: Path) -> None:
    """False equals 0: a second sum of a round, over other sites, would show what a single site has sent."""
    study(tmp_path, rounds=1, secure_aggregation="true")
    link = Loop(workers(tmp_path / "states", files))
    site = link.workers["north"]
    begun: dict[str, Any] = {}

    def remember(asked: Message, honest: Message) -> Message:
        begun.update(asked.about)
        return honest

    link.tamper = {"north": remember}
    whole = study_for(tmp_path / "study.yaml", "trial")
    with pytest.raises(Exception, match="could answer"):  # kits are needed to go on
        conduct(whole, link, list(NAMES), tmp_path / "run", Events(quiet=True), terms=Terms(Patience(least=3)))
    asked = {k: v for k, v in begun.items() if k not in ("ticket", "kind", "kept", "seed")}
    for kind in ("keys", "shares", "opening"):
        said = unpack(site.answer(pack(asked | {"kind": kind, "seed": seed, "roster": {}, "answered": []}))).about
        assert "seed" in said["refused"] or "not in order" in said["refused"]
    folders = [path.name for path in (tmp_path / "states" / "north").rglob("*") if path.is_dir()]
    assert not [name for name in folders if name.endswith(("-False", "-0.0", "-None"))]


@pytest.mark.parametrize("round", [True, 1.0, "1", float(2**60)])
def test_a_round_is_a_whole_number(round: Any, files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=2)
    link = Loop(workers(tmp_path / "states", files))
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, list(NAMES), tmp_path / "run", Events(quiet=True))
    [asked] = [m for s, m in link.sent if s == "north" and (m.about["kind"], m.about.get("round")) == ("local", 1)]
    said = unpack(link.workers["north"].answer(pack(dict(asked.about) | {"round": round}, asked.arrays))).about
    assert "refused" in said
