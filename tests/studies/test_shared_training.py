"""Uses of a study that train alike train once, and each has the records of a run of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import idiolect as idl
from idiolect.core import reduce, tree
from idiolect.core.errors import Diverged, Interrupted
from idiolect.data import FederatedData
from idiolect.runs import checkpoint
from idiolect.simulation import begin, client_runner
from idiolect.studies.progress import Watcher
from idiolect.training.sharing import same_training

USES = ("fedavg", "fedavg_ft:epochs=1", "local", "knnper:k=2", "pfedfda", "pfedfda:drop_last_adapt=true")
TRAININGS = 3  # FedAvg with its two companions, local, pFedFDA
STUDY = idl.Study(
    methods=USES, model="mlp:hidden=4", clients=3, keep=8, rounds=3, local_epochs=1, batch_size=4, evaluate_every=2,
    partition="iid", new_clients=1, checkpoint_every=1, participation=0.6,
)  # fmt: skip


def cells(folder: Path) -> dict[str, tuple[pd.DataFrame, bytes]]:
    """The records of each use and its last state, without the study's name."""
    records = pq.read_table(folder / "records.parquet").to_pandas()
    found = {}
    for path in sorted(folder.glob("cells/*/checkpoint.safetensors")):
        (label,) = set(pq.read_table(path.parent / "records.parquet")["method"].to_pylist())
        mine = records[records["method"] == label].reset_index(drop=True)
        found[label] = (mine, path.read_bytes())
    return found


@pytest.fixture(scope="module")
def federation() -> FederatedData:
    return STUDY.federation()


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[pd.DataFrame, bytes]]:
    """Each use in a run of its own."""
    folder, found = tmp_path_factory.mktemp("apart"), {}
    for number, use in enumerate(STUDY.methods):
        idl.run(STUDY.model_copy(update={"methods": (use,)}), folder / str(number), engine="sequential")
        found |= cells(folder / str(number))
    return found


def same(folder: Path, apart: dict[str, tuple[pd.DataFrame, bytes]]) -> None:
    found = cells(folder)
    assert found.keys() == apart.keys()
    for label, (records, state) in found.items():
        pd.testing.assert_frame_equal(records, apart[label][0], check_exact=True)
        assert state == apart[label][1], label
    timings = pq.read_table(folder / "timings.parquet").to_pandas()
    assert timings.groupby("method")["round"].apply(list).to_dict() == {label: [1, 2, 3] for label in apart}
    assert (timings["seconds"] > 0).all()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs whose clients train in this process, once per client and round."""
    seen: list[str] = []
    real = client_runner.ClientRunner._local

    def local(self: Any, *given: Any) -> Any:
        seen.append(self.job.name)
        return real(self, *given)

    monkeypatch.setattr(client_runner.ClientRunner, "_local", local)
    return seen


def test_records_and_states_are_those_of_separate_runs(tmp_path: Path, apart: Any, trained: list[str]) -> None:
    idl.run(STUDY, tmp_path / "r", engine="sequential")
    same(tmp_path / "r", apart)
    assert len(trained) == TRAININGS * STUDY.rounds, "one of the two clients in each round"
    assert set(trained) == {"fedavg", "local", "pfedfda"}


def test_two_workers_and_lanes(tmp_path: Path, apart: Any) -> None:
    idl.run(STUDY, tmp_path / "r", engine="processes", workers=2)
    same(tmp_path / "r", apart)


def test_stopped_and_resumed(tmp_path: Path, apart: Any, trained: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = tmp_path / "r", client_runner.ClientRunner._personalise

    def stop(self: Any, method: Any, round: int, *given: Any) -> Any:
        if self.job.name.startswith("knnper") and round == 2:
            raise Interrupted
        return real(self, method, round, *given)

    with monkeypatch.context() as patched:
        patched.setattr(client_runner.ClientRunner, "_personalise", stop)
        with pytest.raises(Interrupted):
            idl.run(STUDY, folder, engine="sequential")
    done = [checkpoint.rounds(path) for path in folder.glob("cells/*/checkpoint.safetensors")]
    assert done == [1, 1, 1], "a round is whole for all that share it, or for none"
    trained.clear()
    idl.run(STUDY, folder, engine="sequential", resume=True)
    assert trained.count("fedavg") == 2
    same(folder, apart)


def test_killed_between_two_checkpoints(tmp_path: Path, apart: Any, trained: list[str]) -> None:
    """Then one is behind, and trains by itself."""
    folder = tmp_path / "r"
    idl.run(STUDY, folder, engine="sequential")
    behind = next(p for p in folder.glob("cells/*knnper*"))
    for path in behind.iterdir():
        path.unlink()
    trained.clear()
    idl.run(STUDY, folder, engine="sequential", resume=True)
    assert set(trained) == {"knnper:k=2"}
    same(folder, apart)


def test_states_that_differ_are_not_mixed(tmp_path: Path, trained: list[str], federation: FederatedData) -> None:
    """As after starts on two machines: as far, but not the same."""
    study, folder = STUDY.model_copy(update={"methods": STUDY.methods[:2]}), tmp_path / "r"
    stops = iter([False, True])
    with pytest.raises(Interrupted):
        idl.run(study, folder, engine="sequential", watcher=_Stop(stops))
    (path,) = folder.glob("cells/*fedavg_ft*/checkpoint.safetensors")
    start = begin(study.jobs(federation)[1][1].build(), federation.trained, 0)
    state = checkpoint.load(path, start)
    assert state.round == 1
    checkpoint.save(state._replace(server=tree.map(lambda a: 1.01 * a, state.server)), path)
    trained.clear()
    idl.run(study, folder, engine="sequential", resume=True)
    assert [trained.count(use) for use in USES[:2]] == [2, 2]


class _Stop(Watcher):
    """Stops a run when the last of the uses has ended its first round."""

    def __init__(self, stops: Iterator[bool]) -> None:
        self._stops = stops

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        if next(self._stops):
            raise Interrupted


def test_a_training_that_diverges_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = client_runner.ClientRunner.outgoing

    def diverge(self: Any, round: int, id: int, *trained: Any) -> Any:
        if round == 2 and self.job.name == "fedavg":
            raise Diverged(f"{self.where(round, id, 'local')}: training diverged")
        return real(self, round, id, *trained)

    monkeypatch.setattr(client_runner.ClientRunner, "outgoing", diverge)
    result = idl.run(STUDY, tmp_path / "r", engine="sequential")
    assert [(d.method, d.round) for d in result.diverged] == [(label, 2) for label in (USES[0], USES[1], USES[3])]
    assert [d.said.split(":")[0] for d in result.diverged] == ["fedavg", "fedavg_ft", "knnper"]
    ended = {p.parent.name: checkpoint.rounds(p) for p in (tmp_path / "r").glob("cells/*/checkpoint.safetensors")}
    assert sorted(ended.values()) == [1, 1, 1, 3, 3, 3]


def test_a_model_that_diverges_ends_its_own_use(tmp_path: Path, apart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = client_runner.ClientRunner._personalise

    def diverge(self: Any, method: Any, round: int, id: int, down: Any, client: Any) -> Any:
        if self.job.name == "fedavg" and round == 2:
            raise Diverged("fedavg: not finite")
        return real(self, method, round, id, down, client)

    monkeypatch.setattr(client_runner.ClientRunner, "_personalise", diverge)
    result = idl.run(STUDY, tmp_path / "r", engine="sequential")
    assert [(d.method, d.round) for d in result.diverged] == [("fedavg", 2)]
    found = cells(tmp_path / "r")
    for label in USES[1:]:
        pd.testing.assert_frame_equal(found[label][0], apart[label][0], check_exact=True)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("fedavg_ft", "fedavg_ft:part=head", True),
        ("fedavg_ft:epochs=2", "knnper:scale=2", True),
        ("fedavg", "fedprox", False),
        ("fedavg", "fedbabu", False),
        ("fedbabu:tuning_lr=0.5", "fedbabu", True),
        ("fedbabu:weighting=uniform", "fedbabu", False),
        ("fedcr:head_epochs=1", "fedcr:predict_with=logits", True),
        ("fedsr", "fedsr:head_epochs=10", True),
        ("fedem:models=3", "fedem:models=5,tuning_epochs=1", False),
        ("fedshrink:personal=own", "fedshrink:folds=3", True),
        ("fedcr", "fedcr:beta=0.1", False),
        ("pfedfda", "pfedfda:ridge=0.5", False),
        ("fedpac", "fedpac:head_epochs=2", False),
    ],
)
def test_methods_of_the_same_rounds_train_alike(one: str, other: str, same: bool, federation: Any) -> None:
    study = STUDY.model_copy(update={"methods": idl.Study(methods=[one, other]).methods})
    first, second = (job.build() for _, job in study.jobs(federation))
    assert same_training(first, second) is same


def test_the_task_and_the_server_count(federation: FederatedData) -> None:
    def built(**settings: Any) -> Any:
        study = STUDY.model_copy(update={"methods": STUDY.methods[:2], **settings})
        return [job.build() for _, job in study.jobs(federation)]

    plain, tuned = built()
    assert same_training(plain, tuned)
    assert not same_training(plain, built(lr=0.5)[1])
    assert not same_training(plain, built(precision="bf16")[1])
    assert not same_training(plain, built(model="mlp:hidden=5")[1])
    momentum = idl.Study(server_optimiser="momentum").server_optimiser
    assert same_training(*built(server_optimiser=momentum))
    assert not same_training(plain, built(server_optimiser=momentum)[1])


def test_what_is_replaced_trains_by_itself(federation: FederatedData) -> None:
    method = STUDY.jobs(federation)[0][1].build()
    assert same_training(method, method._replace(personalise=lambda down, client, data, key: client))
    for name in ("init_server", "init_client", "send", "local", "aggregate"):
        real = getattr(method, name)
        other = method._replace(**{name: lambda *a, real=real: real(*a)})
        assert not same_training(method, other)
        assert not same_training(other, method._replace(**{name: lambda *a, real=real: real(*a)}))
    assert not same_training(method, method._replace(reduce=reduce.mean()))
    assert not same_training(method, method._replace(full_rounds=(1,)))
    assert not same_training(method, method._replace(stand_by=lambda down, client, data, key: client))
