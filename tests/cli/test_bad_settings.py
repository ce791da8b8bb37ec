"""Bad settings: one sentence, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import SMALL, Command, refused

from idiolect import data
from idiolect.data.partitions import Split

REFUSED = {
    "unknown method": ("--methods fedpacc", "unknown method 'fedpacc'", "did you mean 'fedpac'"),
    "unknown dataset": ("--dataset digit", "unknown dataset 'digit'", "did you mean 'digits'"),
    "unknown partition": ("--partition dirichle", "unknown partition", "did you mean 'dirichlet'"),
    "unknown shift": ("--shift roatte", "unknown shift", "did you mean 'rotate'"),
    "unknown model": ("--model mpl", "unknown model 'mpl'", "did you mean 'mlp'"),
    "unknown engine": ("--engine process", "unknown engine 'process'", "did you mean 'processes'"),
    "unknown option": ("--clints 3", "unknown option --clints; did you mean --clients?", "--clints"),
    "method option": ("--methods fedpac:alignmnt=1", "fedpac has no option 'alignmnt'", "did you mean 'alignment'"),
    "partition option": ("--partition iid:alpha=1", "iid has no option 'alpha'", "test_fraction"),
    "shift option": ("--shift rotate:degree=9", "rotate has no option 'degree'", "did you mean 'degrees'"),
    "method value": ("--methods fedpac:alignment=x", "fedpac", "alignment='x'", "number"),
    "set value": ("--set fedavg_ft.epochs=0", "fedavg_ft", "epochs=0", "greater than"),
    "preset": ("--methods fedpac:preset=papr", "preset 'papr'", "did you mean 'paper'"),
    "no clients": ("--clients 0", "clients=0", "greater than 0"),
    "negative clients": ("--clients -3", "clients=-3", "greater than 0"),
    "no rounds": ("--rounds 0", "rounds=0", "greater than 0"),
    "no epochs": ("--local-epochs 0", "local_epochs=0", "greater than 0"),
    "no batch": ("--batch-size -1", "batch_size=-1", "greater than 0"),
    "no lr": ("--lr 0", "lr=0", "greater than 0"),
    "nan lr": ("--lr nan", "lr=nan", "finite"),
    "infinite lr": ("--lr inf", "lr=inf", "finite"),
    "negative decay": ("--weight-decay -1", "weight_decay=-1", "greater than or equal to 0"),
    "unknown optimiser": ("--optimiser rmsprop", "optimiser='rmsprop'", "'sgd', 'adam' or 'adamw'"),
    "momentum of adam": ("--optimiser adam --momentum 0.9", "momentum=0.9 is for optimiser=sgd", "leave momentum out"),
    "momentum of adamw": ("--optimiser adamw --momentum 0.5", "momentum=0.5 is for optimiser=sgd, not adamw", "leave"),
    "no clip": ("--clip 0", "clip=0", "greater than 0"),
    "negative clip": ("--clip=-2", "clip=-2", "greater than 0"),
    "infinite clip": ("--clip inf", "clip=inf", "finite"),
    "unknown schedule": ("--lr-schedule cosin", "unknown lr_schedule 'cosin'", "did you mean 'cosine'"),
    "schedule option": ("--lr-schedule cosine:ends=0", "lr_schedule cosine has no option 'ends'", "did you mean 'end'"),
    "no factor": ("--lr-schedule step:factor=0", "lr_schedule step: factor=0", "greater than 0"),
    "no rounds between steps": ("--lr-schedule step:every=0", "lr_schedule step: every=0", "greater than 0"),
    "end of a schedule": ("--lr-schedule cosine:end=1.5", "lr_schedule cosine: end=1.5", "less than or equal to 1"),
    "warmup of all rounds": (
        "--rounds 3 --lr-schedule constant:warmup=3",
        "warm-up of 3 rounds",
        "warmup below rounds",
    ),
    "no rate left": ("--lr-schedule exponential:factor=1e-40", "round 2", "as good as 0", "factor nearer to 1"),
    "adam of scaffold": (
        "--optimiser adam --methods scaffold",
        "method scaffold needs SGD",
        "leave out optimiser=adam",
    ),
    "unknown server": ("--server-optimiser adma", "unknown server_optimiser 'adma'", "did you mean 'adam'"),
    "server option": ("--server-optimiser adam:beta=1", "server_optimiser adam has no option 'beta'", "beta1"),
    "server value": ("--server-optimiser momentum:momentum=1", "server_optimiser momentum: momentum=1", "less than 1"),
    "server malformed": ("--server-optimiser adam:0.1", "'0.1'", "key=value"),
    "server of fedproto": (
        "--server-optimiser adam --methods fedproto",
        "method fedproto cannot take server_optimiser=adam",
        "leave out server_optimiser",
    ),
    "momentum": ("--momentum 1", "momentum=1", "less than 1"),
    "text for number": ("--clients many", "--clients", "integer"),
    "alpha zero": ("--partition dirichlet:alpha=0", "alpha=0", "greater than 0"),
    "alpha negative": ("--partition dirichlet:alpha=-1", "alpha=-1", "greater than 0"),
    "alpha nan": ("--partition dirichlet:alpha=nan", "alpha"),
    "participation zero": ("--participation 0", "participation=0", "greater than 0"),
    "participation over": ("--participation 1.5", "participation=1.5", "less than or equal to 1"),
    "too many clients": ("--clients 5000", "clients=5000", "at most 898 clients"),
    "no workers": ("--workers 0 --engine auto", "workers=0", "at least 1"),
    "no workers, processes": ("--workers 0 --engine processes", "workers=0", "at least 1"),
    "workers of the loop": ("--workers 2", "workers=2", "sequential"),
    "set without value": ("--set fedavg.x", "--set fedavg.x", "METHOD.OPTION=VALUE"),
    "set without option": ("--set fedavg=3", "--set fedavg=3", "METHOD.OPTION=VALUE", "an option of its own"),
    "set of another option": ("--set fedavg.foo=1", "method fedavg has no option 'foo'", "local_epochs, batch_size"),
    "set of nobody": ("--set fedpac.alignment=1", "'fedpac' is not in this study", "fedavg"),
    "seed twice": ("--seeds 1,2,1", "seed 1", "twice"),
    "seed text": ("--seeds 1,x", "--seeds 1,x: write whole numbers separated by commas, as 0,1,2, or 0-2"),
    "seed half": ("--seeds 1.5", "--seeds 1.5: write whole numbers separated by commas"),
    "seed negative": ("--seeds=-1", "--seeds -1: write whole numbers separated by commas"),
    "seeds backwards": ("--seeds 2-0", "--seeds 2-0: write whole numbers separated by commas"),
    "seeds in a range without end": ("--seeds 0-999999999999", "more than 10,000 seeds", "give fewer"),
    "seed huge": ("--seeds 99999999999999999999", "seeds", "less than"),
    "seeds none": ("--seeds ,", "--seeds ,: write whole numbers separated by commas"),
    "method twice": ("--methods fedavg,local,fedavg", "method 'fedavg'", "twice"),
    "methods none": ("--methods ,", "methods", "name:option=value"),
    "shift clients range": ("--shift invert:clients=2-9", "there is no client 9", "0 to 3"),
    "shift clients none": ("--shift invert:clients=", "cannot read clients, which says none", "all, half, 0-4"),
    "shift clients text": ("--shift invert:clients=some", "clients='some'", "all, half, 0-4"),
    "shift malformed": ("--shift rotate:90", "'90'", "key=value"),
    "model of other shape": ("--model cifar_cnn", "cifar_cnn", "choose model auto"),
    "no data_dir": ("--data-dir nowhere", "data_dir=nowhere", "no such folder"),
    "no data set in data_dir": ("--data-dir . --dataset mnist", "there is no folder mnist", "train.parquet"),
    "resume without out": ("--resume", "--out"),
    "missing study": ("nowhere.yaml", "nowhere.yaml", "No such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_settings(idiolect: Command, tmp_path: Path, case: str) -> None:
    line, *words = REFUSED[case]
    refused(idiolect(f"{SMALL} {line}"), *words)
    assert list(tmp_path.iterdir()) == [], "something is left behind"


STUDIES = {
    "typo": ("dataset: digits\nclinets: 3\n", "unknown setting 'clinets'", "did you mean 'clients'"),
    "not YAML": ("dataset: [digits\n", "is not YAML", "line 2"),
    "binary": ("\x00\x01", "is not YAML"),
    "text": ("digits\n", "is not a study", "dataset: digits"),
    "empty": ("", "is not a study"),
    "numbers for names": ("1: 2\n", "is not a study"),
    "wrong value": ("rounds: -1\n", "rounds=-1", "greater than 0"),
    "wrong kind": ("rounds: [1]\n", "rounds=[1]", "integer"),
    "spec as mapping": ("partition:\n  dirichlet:\n    alpha: 1\n", "partition", "dirichlet:alpha=0.3"),
    "method with another key": (
        "methods: [{name: fedlda, opions: {head: recent}}]\n",
        "a method has no key 'opions'; did you mean 'options'? Known: name, label, options, settings",
    ),
    "method as mapping": ("methods:\n  - fedpac: 1\n", "methods", "name:option=value"),
    "unknown method": ("methods: [fedpca]\n", "unknown method 'fedpca'"),
    "label with slash": ("methods: [{name: fedavg, label: a/b}]\n", "label='a/b'", "pattern"),
    "name with slash": ("name: a/b\n", "name='a/b'", "pattern"),
}


@pytest.mark.parametrize("case", STUDIES)
def test_bad_study_file(idiolect: Command, tmp_path: Path, case: str) -> None:
    content, *words = STUDIES[case]
    Path("s.yaml").write_text(content)
    refused(idiolect("run s.yaml"), "s.yaml", *words)
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]


def test_study_file_that_is_a_folder(idiolect: Command) -> None:
    Path("s.yaml").mkdir()
    refused(idiolect("run s.yaml"), "cannot read study s.yaml", "directory")


@pytest.mark.parametrize("missing", ["train", "test"])
def test_client_without_rows(idiolect: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def lopsided(source: data.Source, clients: int, rng: np.random.Generator) -> Split:
        """Client 2 has nothing of one kind."""
        rows = list(np.arange(10 * clients).reshape(clients, 10))
        fewer = [r[:0] if k == 2 else r[5:] for k, r in enumerate(rows)]
        return Split(*([fewer, [r[:5] for r in rows]] if missing == "train" else [[r[:5] for r in rows], fewer]))

    monkeypatch.setitem(data.PARTITIONS, "lopsided", lopsided)
    kind = "training" if missing == "train" else "test"
    refused(idiolect(f"{SMALL} --partition lopsided"), f"client 2 has no {kind} samples", "fewer clients")
    assert list(tmp_path.iterdir()) == []
