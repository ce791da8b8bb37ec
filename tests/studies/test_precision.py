"""bfloat16 in the networks alone: what it rounds, what keeps its type, and what a run says about it."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import idiolect as idl
from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import Down
from idiolect.core.network import Model, Network
from idiolect.core.reduction import reduced
from idiolect.data import FederatedData
from idiolect.reproduction import seed_runs
from idiolect.simulation import begin
from idiolect.simulation.client_runner import ClientRunner
from idiolect.studies import runner

BF16 = 2.0**-8  # half of the distance between two neighbours, relative
STUDY = idl.Study(
    methods=["fedavg"], precision="bf16", model="mlp:hidden=8", clients=3, keep=6, rounds=1, local_epochs=1,
    batch_size=4, partition="iid",
)  # fmt: skip


def affine() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(5, 3), nn.Linear(3, 4)


def rounded(a: Tensor) -> np.ndarray:
    """The nearest bfloat16 numbers: the upper half of a float32, by arithmetic on its bits."""
    bits = a.detach().numpy().view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32).astype(np.float64)


def test_products_are_of_rounded_numbers_and_all_that_comes_out_is_float32() -> None:
    network = Network(affine, (5,), precision="bf16")
    model, x = network.init(keys.key(0)), torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    body = {k: w.clone().requires_grad_() for k, w in model.body.items()}
    z = network.features(body, x)
    want = rounded(x) @ rounded(body["weight"]).T + rounded(body["bias"])
    np.testing.assert_allclose(z.detach(), want, rtol=BF16, atol=1e-6)
    assert z.dtype == torch.float32
    assert torch.equal(z, z.bfloat16().float())
    assert network.logits(model.head, z).dtype == torch.float32
    (grad,) = torch.autograd.grad((z * torch.arange(3.0)).sum(), [body["weight"]])
    assert grad.dtype == torch.float32
    np.testing.assert_allclose(grad, np.outer(np.arange(3), rounded(x).sum(0)), rtol=2 * BF16, atol=4 * BF16)


def test_it_travels_and_float32_is_untouched() -> None:
    again = pickle.loads(pickle.dumps(Network(affine, (5,), precision="bf16")))
    assert (again.make, again.shape, again.buffers, again.precision) == (affine, (5,), None, "bf16")
    network, x = Network(affine, (5,)), torch.randn(7, 5)
    body = network.init(keys.key(0)).body
    assert torch.equal(network.features(body, x), nn.functional.linear(x, body["weight"], body["bias"]))


def normalised() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)), nn.Sequential(nn.Flatten(), nn.Linear(12, 2))


def test_statistics_of_batch_normalisation_are_not_rounded() -> None:
    network = Network(normalised, (1, 4, 4), "local", "bf16")
    model, x = network.init(keys.key(0)), torch.randn(9, 1, 4, 4)
    with torch.no_grad(), network.recording() as seen:
        network(model, x)
    layer = nn.functional.conv2d(x.bfloat16(), *(model.body[f"0.{k}"].bfloat16() for k in ("weight", "bias")))
    z = layer.double().numpy()
    moments = seen["body.1"]
    np.testing.assert_allclose(moments.mean_MC[0], z.mean((0, 2, 3)), rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(moments.square_MC[0], (z**2).mean((0, 2, 3)), rtol=1e-2)
    assert not torch.equal(moments.mean_MC, moments.mean_MC.bfloat16().double())
    with torch.no_grad(), network.normalising(seen):
        assert network.features(model.body, x).dtype == torch.float32
    gradient = torch.func.grad(lambda body: network(Model(body, model.head), x).square().sum())(model.body)
    assert {w.dtype for w in tree.leaves(gradient)} == {torch.float32}


@pytest.fixture(scope="module")
def federation() -> FederatedData:
    return STUDY.federation()


@pytest.mark.parametrize("name", methods.names())
def test_states_and_uploads_of_every_method_are_float32(name: str, federation: FederatedData) -> None:
    study = STUDY.model_copy(update={"methods": (idl.use(name),)})
    ((_, job),) = study.jobs(federation)
    method, site = job.build(), ClientRunner(job)
    state = begin(method, 3, 0)
    trained = site.run("local", 1, [0], method.send(state.server, torch.tensor([0])), [state.clients[0]])
    server, _ = method.aggregate(
        state.server, reduced(method.reduce, tree.stack([t.up for t in trained])), torch.tensor([0])
    )
    assert tree.leaves(server) or name == "local"
    kinds = {a.dtype for a in tree.leaves((server, [t[:3] for t in trained])) if a.is_floating_point()}
    assert kinds <= {torch.float32, torch.float64}
    down = method.send(server, torch.tensor([0]))
    (measured,) = site.run("evaluate", 1, [0], down, [t.client for t in trained])
    assert 0 <= measured.accuracy <= 1


def test_clients_measured_together_as_alone(federation: FederatedData) -> None:
    ((_, job),) = STUDY.jobs(federation)
    method, site = job.build(), ClientRunner(job)
    down = Down(method.send(method.init_server(keys.key(0)), torch.arange(3)).shared)
    together = site._predict_group(method, [0, 1], [down, down], [(), ()])
    assert together is not None
    for client, logp in enumerate(together):
        torch.testing.assert_close(logp, site._predict(method, 1, client, down, ()), rtol=0.05, atol=0.05)


def test_a_run_says_it_and_is_resumed_with_it_alone(tmp_path: Path) -> None:
    result = idl.run(STUDY, tmp_path / "r", engine="sequential")
    assert "precision: bf16" in (tmp_path / "r/study.yaml").read_text()
    assert "Computed in bf16." in str(result.table().caption)
    assert "Networks computed in bf16." in (tmp_path / "r/report.html").read_text()
    plain = STUDY.model_copy(update={"precision": "float32"})
    with pytest.raises(InputError, match=r"another study \(precision: bf16 there, float32 here\)"):
        idl.run(plain, tmp_path / "r", engine="sequential", resume=True)
    idl.run(STUDY, tmp_path / "r", engine="sequential", resume=True)


def test_it_names_a_run_only_where_it_is_not_the_default() -> None:
    plain = STUDY.model_copy(update={"precision": "float32"})
    assert seed_runs.digest(plain) != seed_runs.digest(STUDY)
    settings = plain.model_dump(exclude={"precision"})
    assert seed_runs.digest(idl.Study(**settings)) == seed_runs.digest(plain)


@pytest.mark.parametrize(("has", "said"), [({"avx512_bf16": True}, 0), ({"amx_bf16": False, "avx2": True}, 1), ({}, 0)])
def test_a_processor_without_it(has: dict[str, bool], said: int, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    with caplog.at_level(logging.WARNING):
        runner.check_precision(STUDY, _Engine("sequential"))
    assert [("longer than with float32" in r.message) for r in caplog.records] == [True] * said


class _Engine:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("engine", ["vectorised", "ray"])
def test_engines_without_it(engine: str) -> None:
    with pytest.raises(InputError, match=f"precision=bf16 is for the engines processes and sequential, not {engine}"):
        runner.check_precision(STUDY, _Engine(engine))
    runner.check_precision(STUDY.model_copy(update={"precision": "float32"}), _Engine(engine))
