"""Studies that say which weights stay at clients: how it is written, what it is combined with, and what is refused."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from typer.testing import CliRunner

import idiolect as idl
from idiolect.cli import app
from idiolect.core import tree
from idiolect.core.errors import InputError, Interrupted
from idiolect.report.notes import notes
from idiolect.reproduction.diff import Side, compare
from idiolect.runs.checkpoint import load
from idiolect.runs.folder import CHECKPOINT_FILE, cell_folder
from idiolect.runs.reader import read
from idiolect.simulation import State, begin
from idiolect.studies.cost import evaluation_warning
from idiolect.studies.progress import Watcher

sys.path.insert(0, str(Path(__file__).parents[1]))  # tiny_backbones

SMALL: dict[str, Any] = dict(
    dataset="digits", model="mlp:hidden=6", clients=6, keep=12, rounds=3, local_epochs=1, batch_size=5, lr=0.1,
    participation=0.7, new_clients=1,
)  # fmt: skip


def records(study: idl.Study, folder: Path, engine: str = "sequential", **more: Any) -> pd.DataFrame:
    return idl.run(study, folder, engine=engine, **more).records.drop(columns="method")


def state(folder: Path, study: idl.Study) -> State:
    """The state after the last round of a study's only method."""
    job = study.job(study.methods[0], 0, study.federation())
    label = study.methods[0].label
    return load(cell_folder(folder, [label], label, 0) / CHECKPOINT_FILE, begin(job.build(), job.data.trained, 0))


# --- beside everything else that a study does with uploads


@pytest.mark.thorough(but=["*clip*", "*gaussian*", "*secure*", "*adam*", "*also*"])
@pytest.mark.parametrize(
    "more",
    [
        {"uploads": ["clip:norm=0.1", "top_k:share=0.2"]},
        {"uploads": ["noise:std=0.01", "quantise:bits=8"]},
        {"privacy": "gaussian:norm=0.1,noise_multiplier=0.5", "participation": 0.5},
        {"robust": "median"},
        {"robust": "norm_bound:multiple=1.5", "attacks": ["sign_flip:clients=0-1"]},
        {"secure_aggregation": True},
        {"server_optimiser": "adam:lr=0.03"},
        {"optimiser": "adam", "lr": 0.01, "lr_schedule": "step:every=1,factor=0.5"},
        {"protocol": "also=received+trained"},
        {"augment": "crop_flip", "drop_last": True},
    ],
    ids=str,
)
def test_averaging_whose_heads_stay_is_fedper_whatever_is_done_with_uploads(tmp_path: Path, more: Any) -> None:
    """Bounds, noise, votes, secret sums and the server's steps see only what travels."""
    theirs = records(idl.Study(methods="fedper", **SMALL | more), tmp_path / "fedper")
    ours = records(idl.Study(methods="fedavg", personal="head", **SMALL | more), tmp_path / "ours")
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


class Stops(Watcher):
    """Stops the run after the second round of a method."""

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        if (label, round) == ("ditto", 2):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("engine", ["processes", "vectorised:device=cpu"])
def test_engines_agree_and_a_stopped_run_goes_on(tmp_path: Path, engine: str) -> None:
    study = idl.Study(methods="fedavg,ditto,pfedfda,fedrep", **SMALL | {"checkpoint_every": 1, "personal": "*bias"})
    alone = records(study, tmp_path / "alone")
    workers = {"workers": 2} if engine == "processes" else {}
    with pytest.raises(Interrupted):
        idl.run(study, tmp_path / "other", engine=engine, watcher=Stops(), **workers)
    other = records(study, tmp_path / "other", engine, resume=True, **workers)
    if engine == "processes":
        pd.testing.assert_frame_equal(other, alone, check_exact=True)
    else:
        pd.testing.assert_frame_equal(other, alone, atol=0.04, rtol=1e-3)


# --- how it is written


def test_the_study_one_method_and_a_file_mean_the_same(tmp_path: Path) -> None:
    whole = records(idl.Study(methods="fedavg", personal="*bias", **SMALL), tmp_path / "whole")
    own = idl.Study(methods=[idl.use("fedavg", personal="*bias"), "local"], **SMALL)
    pd.testing.assert_frame_equal(records(own, tmp_path / "own")[: len(whole)], whole, check_exact=True)
    (tmp_path / "study.yaml").write_text(own.to_yaml())
    assert idl.Study.read(tmp_path / "study.yaml") == own
    text = idl.Study(methods="fedavg:personal=*bias,local", **SMALL)
    assert [u.settings for u in text.methods] == [{"personal": "*bias"}, {}]
    usual = records(idl.Study(methods="fedavg", **SMALL), tmp_path / "usual")
    assert not usual["value"].equals(whole["value"])


def test_one_method_may_share_what_the_others_keep(tmp_path: Path) -> None:
    study = idl.Study(methods="fedavg,fedprox:personal=null,fedper:personal=null", personal="head", **SMALL)
    jobs = [job for _, job in study.jobs(study.federation())]
    assert ["head" in str(tree.named(job.build().send(job.build().init_server(torch.tensor(0)), torch.tensor([0]))))
            for job in jobs] == [False, True, False]  # fmt: skip
    again = idl.Study(**yaml.safe_load(study.to_yaml()))
    assert again == study


def test_fedshrink_has_an_option_of_that_name_and_takes_the_studys_rule(tmp_path: Path) -> None:
    study = idl.Study(methods="fedshrink:personal=own", personal="body.1.bias", **SMALL)
    assert study.methods[0].options["personal"] == "own"
    of_one = {"name": "fedshrink", "options": {"personal": "own"}, "settings": {"personal": "body.1.bias"}}
    other = idl.Study(methods=[of_one], **SMALL)
    pd.testing.assert_frame_equal(records(study, tmp_path / "a"), records(other, tmp_path / "b"), check_exact=True)
    idl.run(study, tmp_path / "c", engine="sequential")
    assert list(state(tmp_path / "c", study).clients[0].weights.body) == ["1.bias"]


def test_the_command_line_and_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--dataset", "digits", "--model", "mlp:hidden=6", "--clients", "3", "--keep", "8", "--rounds", "1"]
    command = ["run", *settings, "--methods", "fedavg,fedavg:personal=body.1.bias,fedprox", "--personal", "head"]
    result = CliRunner().invoke(app, [*command, "--engine", "sequential", "--out", "r"])
    assert result.exit_code == 0, result.output
    assert "FedAvg, personal=body.1.bias" in result.output
    assert yaml.safe_load(Path("r/study.yaml").read_text())["personal"] == "head"
    assert "Weights that stay at each client: head." in notes(read(Path("r")))
    assert "Weights that stay at each client: head." in Path("r/report.html").read_text()
    listed = CliRunner().invoke(app, ["list", "methods", "fedavg", "--json", "--personal", "head", "--model", "mlp"])
    anatomy = json.loads(listed.output)["fedavg"]
    assert anatomy["counted_for"]["personal"] == "head"
    assert anatomy["anatomy"]["up"]["value"] == {"parts": {"body": "body"}, "bytes": 4 * (64 * 64 + 64)}
    assert anatomy["anatomy"]["joins_by"] == "training"


@pytest.mark.parametrize(
    ("pattern", "bytes"),
    [("head", 4 * (64 * 6 + 6)), ("body.1.weight", 4 * (6 + 6 * 10 + 10)), ("*bias", 4 * (64 * 6 + 60))],
)
def test_a_message_takes_the_bytes_of_what_travels(tmp_path: Path, pattern: str, bytes: int) -> None:
    table = records(idl.Study(methods="fedavg", personal=pattern, **SMALL), tmp_path / "r")
    sizes = {m: set(table[table["metric"] == m]["value"]) for m in ("bytes_down", "bytes_up")}
    assert sizes == {"bytes_down": {bytes}, "bytes_up": {bytes + 4}}


def test_two_runs_that_keep_other_weights_are_told_apart() -> None:
    one, other = (idl.Study(methods="fedavg", personal=p, **SMALL) for p in (None, "*bias"))
    [difference] = compare(Side("one", one), Side("other", other)).differences
    assert (difference.what, difference.a, difference.b) == ("personal", "not set", "*bias")
    assert difference.effect == "which weights the clients share, and which each has for itself"


def test_who_is_measured_before_a_first_round_is_counted_as_training() -> None:
    usual: dict[str, Any] = {"clients": 1_000, "participation": 0.02, "rounds": 2, "methods": "fedavg"}

    def said(**more: Any) -> str | None:
        study = idl.Study(**usual | more)
        return evaluation_warning(study, 1_000, {(u.label, 0): 0 for u in study.methods})

    assert said() is None
    for pattern in ("head", "*bias", "normalisation"):
        assert "FedAvg trains a client that has not taken part yet" in str(said(personal=pattern))


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"personal": "*lora_B*"}, r"personal=\*lora_B\* matches no weight of the network; it has body.1.weight"),
        ({"personal": "body+head"}, r"method fedavg cannot take personal=body\+head, because nothing would be left"),
        ({"personal": "normalisation"}, "the network has no normalisation layer with weights"),
        ({"personal": "head", "methods": "scaffold"}, "it shares several sets of the head's weights"),
        ({"personal": "head", "methods": "fedavg,fedem"}, "method fedem cannot take personal=head"),
        ({"methods": "fedavg:personal=heads"}, "did you mean 'head'"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_one_sentence_and_no_folder(tmp_path: Path, settings: Any, said: str) -> None:
    study = idl.Study(**SMALL | {"methods": "fedavg"} | settings)
    with pytest.raises(InputError, match=said):
        idl.run(study, tmp_path / "r", engine="sequential")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [("", "personal=''"), (True, "personal=true is not valid"), (["head"], "personal"), ("a" * 1001, "personal")],
)
def test_a_rule_is_a_text(value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        idl.Study(methods="fedavg", personal=value)


# --- adapters


@pytest.mark.thorough(but=["fedavg", "ditto", "pfedfda"])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep", "fedper", "fedpac", "pfedfda", "fedshrink"])
def test_one_factor_of_adapters_stays(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSA-LoRA: A is averaged, B is each client's own; B starts at 0 and alone is in a client's state."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tiny_backbones import write_vit

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    y = np.arange(24) % 2
    x = (np.random.default_rng(1).integers(0, 99, (24, 3, 16, 16)) + 90 * y[:, None, None, None]).astype(np.uint8)
    source = idl.data.from_arrays(x, y, clients=np.array(["ann", "bob", "cyd"])[np.arange(24) // 8])
    model = f"hf:{write_vit(tmp_path / 'vit')},adapt=lora(r=2)"
    study = idl.Study(data=source, model=model, methods=method, personal="*lora_B*", rounds=2, local_epochs=1,
                      batch_size=4, lr=0.3)  # fmt: skip
    idl.run(study, tmp_path / "r", engine="sequential")
    end = state(tmp_path / "r", study)
    factors = [client.weights.body for client in end.clients]
    assert len(factors[0]) == 4  # queries and values of two layers
    assert all("lora_B" in name for name in factors[0])
    built = study.job(study.methods[0], 0, study.federation()).build()
    start = built.init_client(torch.tensor(0), torch.tensor(0)).weights.body
    for name, first in start.items():
        assert not first.any()
        assert all(own[name].any() for own in factors)
        assert not torch.equal(factors[0][name], factors[1][name])
    sent = tree.named(built.send(end.server, torch.tensor([0])))
    assert [path for path in sent if "lora_A" in path]
    assert not [path for path in sent if "lora_B" in path]
