"""The vectorised engine against the plain loop, and its methods on the meta device, which has no data to ask for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))  # tiny_bn
sys.path.insert(0, str(Path(__file__).parent))  # counting

import counting
import tiny_bn
import toy

from idiolect import methods, models
from idiolect.core import keys, tree
from idiolect.core.errors import Diverged, InputError, Interrupted, RunError
from idiolect.core.method import SGD, Adam, AdamW, Data, Down, Method, Task, Up, unchanged
from idiolect.core.schedules import Cosine, Exponential, Schedule, Step
from idiolect.engines import Sequential
from idiolect.engines.vectorised import engine as vectorised
from idiolect.engines.vectorised.engine import Vectorised
from idiolect.engines.vectorised.graphs import UnfoldMode, vmap_of
from idiolect.engines.vectorised.groups import plan
from idiolect.runs.checkpoint import load, save
from idiolect.simulation import Engine, Job, Record, State, begin, fit
from idiolect.training import joins_by_training, log_softmax_of, train_model, trained, untrained
from idiolect.training.server_optimisers import ServerAdam, ServerMomentum, ServerOptimiser

OUT_OF_MEMORY = torch.cuda.OutOfMemoryError("CUDA out of memory.")
CHEAP: dict[str, dict[str, Any]] = {"pfedhn": {"steps": 16}, "fedala": {"most_passes": 12}}  # to take less time
SHORT: dict[str, dict[str, Any]] = {
    "pfedhn": {"steps": 2}, "fedcr": {"head_epochs": 1}, "fedbabu": {"tuning_epochs": 1}, "fedala": {"most_passes": 2},
}  # fmt: skip
FORMS = [(name, options) for name in methods.names() for options in methods.get(name).forms.values()]
PLAIN = [(name, {}) for name in methods.names()]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("apfl", {"mix": "outputs", "alpha_gradient": "released", "evaluate_with": "own"}),
    ("ditto", {"preset": "official"}),
    ("fedavg_ft", {"part": "head"}),
    ("fedala", {"preset": "official", "layers": 0}),
    ("fedcp", {"preset": "official"}),
    ("fedcr", {"share_encoder": False, "objective": "log_mean", "predict_with": "logits"}),
    ("fedfomo", {"average_candidate": True, "distance": "l1"}),
    ("fedgh", {"preset": "official"}),
    ("fedlda", {"head": "recent"}),
    ("fedlda", {"tune_body": True, "centre": "interpolated", "decorrelate": "batch"}),
    ("fedproto", {"predict_with": "prototypes", "drop_last": True}),
    ("fedphp", {"by": "features", "least_steps": 5}),
    ("fedrep", {"newcomer_head": "average"}),
    ("fedrod", {"personal_head": "hypernetwork"}),
    ("fedtgp", {"preset": "official", "predict_with": "head"}),
    ("gpfl", {"preset": "official"}),
    ("pfedfda", {"beta": "separate", "folds_of": "samples"}),
    ("pfedfda", {"statistics": "fresh"}),
    ("pfedfda", {"preset": "paper"}),
    ("pfedfda", {"preset": "official"}),
    ("pfedhn", {"local_head": True, "tuning": "all"}),
    ("pfedme", {"personal": "fresh", "warm_start": False}),
    ("scaffold", {"steps": 3}),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(torch.float32)


def _task(model: str = "mlp") -> Task:
    return replace(toy.task(), network=models.build(model, (1, 4, 4), toy.CLASSES))


def _job(name: str, options: dict[str, Any] | None = None, model: str = "mlp") -> Job:
    settled = methods.settle(name, (options or {}) | CHEAP.get(name, {}))
    return Job(name, partial(methods.build, name, settled, _task(model)), toy.data(), 3)


def _run(job: Job, engine: Engine, rounds: int = 1, state: State | None = None) -> tuple[State, list[Record]]:
    records: list[Record] = []
    with engine:
        end = fit(
            job, engine, rounds=rounds, participation=0.7, state=state,
            on_round=lambda state, new, seconds: records.extend(new),
        )  # fmt: skip
    return end, records


def _plain(job: Job, rounds: int = 1) -> tuple[State, list[Record]]:
    return _run(job, Sequential(), rounds)


def _agree(ours: tuple[State, list[Record]], plain: tuple[State, list[Record]], tolerance: float) -> None:
    """Of each tensor and each number, relative to its largest entry, where that is more than rounding."""
    least = 1e-8 if tolerance > 1e-6 else 1e-12
    a, b = ({"server": s.server, "clients": list(s.clients)} for s, _ in (ours, plain))
    for (path, u), v in zip(tree.named(a).items(), tree.leaves(b), strict=True):
        assert (u.dtype, u.shape) == (v.dtype, v.shape), path
        gap, size = (u - v).abs().amax() if u.numel() else 0, v.abs().amax() if v.numel() else 0
        assert gap <= tolerance * size + least, f"{path} differs by {gap:.1e} of {size:.1e}"
    for mine, theirs in zip(ours[1], plain[1], strict=True):
        assert mine[:4] == theirs[:4]
        assert mine.value == pytest.approx(theirs.value, rel=tolerance, abs=tolerance), mine


# --- agreement with the plain loop, which every other engine gives the bits of


@pytest.mark.kinds
@pytest.mark.parametrize(("name", "options"), FORMS)
def test_a_round_in_float32(name: str, options: dict[str, Any]) -> None:
    engine, job = Vectorised(device="cpu"), _job(name, options)
    _agree(_run(job, engine), _plain(job), 1e-4)
    assert 0 < engine.padding <= 0.1


@pytest.mark.parametrize(("name", "options"), PLAIN + OTHERS)
def test_a_round_in_float64_and_in_chunks(name: str, options: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float64)
    job = _job(name, options)
    _agree(_run(job, Vectorised(device="cpu", chunk=2)), _plain(job), 1e-9)


@pytest.mark.parametrize("name", ["fedpac", "pfedfda"])
def test_rounds_of_a_convolutional_network(name: str) -> None:
    torch.set_default_dtype(torch.float64)
    job = _job(name, model="small_cnn")
    plain, ways = _plain(job, 2), [{"chunk": 1}, {}, {"convolution": "unfold"}]
    for options in ways:  # pFedFDA finds its beta to about 1e-7, and its second round starts from it
        _agree(_run(job, Vectorised(device="cpu", **options), 2), plain, 1e-6)


BY_ADAM = [("fedavg", {}), ("apfl", {}), ("fedem", {"keep_momentum": True}), ("fedsr", {"keep_momentum": True})]


def _task_by_adam() -> Task:
    return replace(_task(), training=replace(_task().training, optimiser=Adam(lr=0.01, clip=1.0)))


@pytest.mark.parametrize(("name", "options"), BY_ADAM)
def test_rounds_by_adam(name: str, options: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float64)
    job = Job(name, partial(methods.build, name, options, _task_by_adam()), toy.data(), 3)
    _agree(_run(job, Vectorised(device="cpu", chunk=2), 2), _plain(job, 2), 1e-9)


RATES = [
    (name, rule)
    for name in ("fedavg_ft", "apfl", "scaffold", "pfedme", "fedsr")
    for rule in (SGD(0.05, 0.5, 5e-4, clip=0.5), AdamW(0.01, weight_decay=0.1))
    if isinstance(rule, SGD) or name not in ("scaffold", "pfedme")
]


SCHEDULES = [Cosine(end=0.1, warmup=1), Step(every=1, factor=0.3), Exponential(factor=0.5)]


@pytest.mark.thorough(but=["fedavg_ft-*", "apfl-SGD*", "pfedme-*"])
@pytest.mark.parametrize(
    ("name", "rule", "schedule"), [(*rate, SCHEDULES[k % 3]) for k, rate in enumerate(RATES)], ids=str
)
def test_rounds_with_a_learning_rate_over_the_rounds(name: str, rule: SGD | AdamW, schedule: Schedule) -> None:
    torch.set_default_dtype(torch.float64)
    task = replace(_task(), training=replace(_task().training, optimiser=rule, schedule=schedule))
    job = Job(name, partial(methods.build, name, {"steps": 3} if name == "fedsr" else {}, task), toy.data(), 3)
    _agree(_run(job, Vectorised(device="cpu", chunk=2), 3), _plain(job, 3), 1e-9)


@pytest.mark.parametrize("server", [ServerMomentum(), ServerAdam()])
def test_rounds_with_a_server_optimiser(server: ServerOptimiser) -> None:
    torch.set_default_dtype(torch.float64)
    job = Job("fedavg", partial(methods.build, "fedavg", {}, _task(), server=server), toy.data(), 3)
    _agree(_run(job, Vectorised(device="cpu", chunk=2), 3), _plain(job, 3), 1e-9)


def test_test_rows_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "_ROWS", 12)  # 6 test rows of up to 6 clients
    job = _job("fedper")
    _agree(_run(job, Vectorised(device="cpu")), _plain(job), 1e-4)


def test_clients_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job("ditto")
    job = job._replace(data=replace(job.data, conditions=("", "dark")))  # the last two do not train
    ours, plain = _run(job, Vectorised(device="cpu")), _run(job, Sequential())
    assert {r.client for r in ours[1] if r.stage == "new"} == {4, 5}
    _agree(ours, plain, 1e-4)


def test_resumes_with_the_same_bits(tmp_path: Path) -> None:
    job = _job("fedpac")
    whole, _ = _run(job, Vectorised(device="cpu"), 4)
    half, _ = _run(job, Vectorised(device="cpu"), 2)
    save(half, tmp_path / "half")
    start = load(tmp_path / "half", begin(job.build(), job.data.clients, job.seed))
    end, _ = _run(job, Vectorised(device="cpu"), 4, start)
    for u, v in zip(tree.leaves((whole.server, *whole.clients)), tree.leaves((end.server, *end.clients)), strict=True):
        assert torch.equal(u, v)


@pytest.mark.parametrize("name", ["ditto", "fedper", "pfedhn", "fedem"])
def test_who_has_trained_and_who_has_not(name: str) -> None:
    job = _job(name)
    job = job._replace(data=replace(job.data, train=tuple(rows[:12] for rows in job.data.train[:3] * 2)))
    ours = _run(job, Vectorised(device="cpu"))
    assert 0 < len({r.client for r in ours[1] if r.stage == "local"}) < 6, "all are of a length, and some have trained"
    _agree(ours, _plain(job), 1e-4)


def test_nothing_of_a_chunk_is_kept_with_one_client() -> None:
    end, _ = _run(_job("fedper"), Vectorised(device="cpu"))
    for leaf in tree.leaves(list(end.clients)):
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()


# --- who is together


def _fewest(rows: list[int], padding: float) -> tuple[int, int]:
    """Groups and padded rows of the best partition of the sorted sizes, by trying all."""
    size, n = sorted(rows, reverse=True), len(rows)
    for cuts in range(n):
        spent = [
            sum(size[a] * (b - a) for a, b in zip((0, *at), (*at, n), strict=True))
            for at in combinations(range(1, n), cuts)
        ]
        if min(spent) - sum(rows) <= padding * min(spent):
            return cuts + 1, min(spent)
    raise AssertionError


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.sampled_from([0.1, 0.25, 0.5]))
def test_groups_are_the_fewest_with_little_padding(rows: list[int], padding: float) -> None:
    groups = plan(rows, padding)
    assert sorted(k for g in groups for k in g) == list(range(len(rows)))
    longest = [max(rows[k] for k in g) for g in groups]
    assert longest == sorted(longest, reverse=True)
    assert all(rows[g[0]] == top for g, top in zip(groups, longest, strict=True))
    padded = sum(top * len(g) for g, top in zip(groups, longest, strict=True))
    assert (len(groups), padded) == _fewest(rows, padding)


def test_nobody_makes_no_groups() -> None:
    assert plan([]) == []


def test_share_of_padding() -> None:
    """Sizes 16, 19, 12, 1, 5, 24 in training, 6 in tests, one round of everybody."""
    engine, job = Vectorised(device="cpu"), _job("fedavg")
    with engine:
        fit(job, engine, rounds=1)
    # 24 | 19 16 | 12 | 5 | 1 is the best of 5 groups, 3 rows of padding to 77; 4 groups have 7 or more
    padded = _fewest(list(toy.SIZES), 0.1)[1]
    assert engine.padding == pytest.approx(1 - (2 * 77 + 36) / (2 * padded + 36))
    assert 0 < engine.padding <= 0.1


def test_a_chunk_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    run, tried = vectorised.Chunks._local, []

    def limited(self: Any, round: int, ids: list[int], *rest: Any) -> Any:
        tried.append(len(ids))
        if len(ids) > 2:
            raise OUT_OF_MEMORY
        return run(self, round, ids, *rest)

    monkeypatch.setattr(vectorised.Chunks, "_local", limited)
    monkeypatch.setattr(vectorised, "plan", lambda rows, padding: plan(rows, 1.0))  # all together
    ours = _run(_job("fedper"), Vectorised(device="cpu"), 2)
    _agree(ours, _plain(_job("fedper"), 2), 1e-4)
    assert tried == [4, 2, 2, 2, 2]  # the second round knows


def test_the_first_chunk_on_a_gpu_says_how_large_the_next_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with 1,000 bytes free, of which 800 may be used, and clients of 16 rows that take 100 each."""
    bytes_of = {"memory_allocated": 50, "memory_reserved": 250, "max_memory_allocated": 450}
    for name, value in bytes_of.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (800, 2000))
    run, tried = vectorised.Chunks._local, []

    def noted(self: Any, round: int, ids: list[int], *rest: Any) -> Any:
        tried.append((len(ids), self._longest(ids)))
        return run(self, round, ids, *rest)

    monkeypatch.setattr(vectorised.Chunks, "_local", noted)
    job = _job("local")
    train = job.data.train[0]
    job = job._replace(data=replace(job.data, train=(*[train] * 14, *[train[:1]] * 20)))
    session = Vectorised(device="cpu").open(job)
    session._measures = True
    clients = [job.build().init_client(toy.key(), torch.tensor(0))] * 34
    session.map("local", 1, range(34), Down(), clients, lambda: False)
    assert tried == [(4, 16), (5, 16), (5, 16), (7, 1), (7, 1), (6, 1)], "4 at first, then at most 8, in like parts"
    assert session._fits["local"] == (8, 16)


def test_one_client_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OUT_OF_MEMORY

    monkeypatch.setattr(vectorised.Chunks, "_evaluate", full)
    with pytest.raises(RunError, match=r"fedper: client \d, round 1, evaluate: one client does not fit .*: choose"):
        _run(_job("fedper"), Vectorised(device="cpu"))


def test_rows_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OUT_OF_MEMORY

    job = _job("fedper")
    monkeypatch.setattr(Tensor, "to", full)
    with pytest.raises(RunError, match=r"the samples of toy \(0\.0 GB\) do not fit in the memory of cpu: choose"):
        Vectorised(device="cpu").open(job)


def test_sessions_on_the_same_data_share_its_rows() -> None:
    engine = Vectorised(device="cpu")
    engine.device = torch.device("meta")  # on the CPU the rows are shared with the data itself
    job, other = _job("fedavg"), _job("fedper")
    first, second = engine.open(job), engine.open(other._replace(data=job.data))
    assert first._x_R.is_meta
    assert first._x_R is second._x_R
    assert engine.open(other)._x_R is not first._x_R
    engine.__exit__(None, None, None)
    assert engine._rows is None


def test_who_has_trained_is_not_trained_to_be_measured() -> None:
    calls: list[str] = []

    def build(task: Task) -> Method:
        def local(down: Any, client: Any, data: Data, key: Tensor) -> Any:
            calls.append("local")
            model, loss = train_model(task, client.value, data, key)
            return trained(model), Up(), {"train_loss": loss}

        def predict(down: Any, client: Any, x_B: Tensor) -> Tensor:
            calls.append("predict")
            return log_softmax_of(task, client.value, x_B)

        def init_client(key: Tensor, id: Tensor) -> Any:
            return untrained(task.network.init(key))

        return Method(
            lambda key: (), init_client, lambda server, ids: Down(), local, (), lambda server, up, ids: (server, {}),
            joins_by_training(local), predict,
        )  # fmt: skip

    job, engine = Job("mine", partial(build, _task()), toy.data(), 3), Vectorised(device="cpu")
    groups = len(plan(list(toy.SIZES)))
    with engine:
        fit(job, engine, rounds=1)
    assert calls.count("local") == groups, "everybody has trained, and trains again to be measured"
    calls.clear()
    _run(job, engine)
    drawn = {r.client for r in _run(job, engine)[1] if r.stage == "local"}
    of_each = [len(plan([toy.SIZES[i] for i in range(6) if (i in drawn) == took_part])) for took_part in (True, False)]
    assert calls.count("local") == 2 * (of_each[0] + of_each[1]), "who did not take part trains to be measured"


# --- errors


def _failing(task: Task, what: str, culprit: int = 4) -> Method:
    """FedAvg in which one client, number 4 unless said, goes wrong."""
    method = methods.build("fedavg", {}, task)

    def send(server: Any, ids: Tensor) -> Down:
        return Down(server, ids)

    def local(down: Any, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = method.local(down, client, data, key)
        if what == "upload":
            up = up._replace(weight=torch.where(down.own == culprit, torch.nan, up.weight))
        if what == "raise":
            raise ValueError("boom")
        return client, up, info

    def predict(down: Any, client: Any, x_B: Tensor) -> Tensor:
        logp = method.predict(down, client, x_B)
        if what == "prediction":
            return torch.where(down.own == culprit, torch.nan, logp)
        return torch.where(down.own == culprit, logp + 1, logp) if what == "sum" else logp

    return method._replace(send=send, local=local, predict=predict)


@pytest.mark.parametrize(("what", "kind"), [("upload", Diverged), ("prediction", Diverged), ("sum", RunError)])
def test_a_client_that_fails_is_named_as_by_the_loop(what: str, kind: type[RunError]) -> None:
    job = Job("mine", partial(_failing, _task(), what), toy.data(), 3)
    with pytest.raises(kind) as plain:
        _run(job, Sequential())
    with pytest.raises(kind, match=re.escape(str(plain.value))):
        _run(job, Vectorised(device="cpu"))
    assert "mine: client 4, round 1" in str(plain.value)


def test_who_was_together_when_a_method_failed() -> None:
    job = Job("mine", partial(_failing, _task(), "raise"), toy.data(), 3)
    with pytest.raises(RunError, match=r"mine: client 5, round 1, local: ValueError: boom \(test_vectorised"):
        _run(job, Vectorised(device="cpu"))
    job = job._replace(data=replace(job.data, train=(job.data.train[0],) * 6))
    with pytest.raises(RunError, match=r"mine: clients 0, 1 and 4 others, round 1, local: ValueError: boom"):
        fit(job, Vectorised(device="cpu"), rounds=1)
    with pytest.raises(RunError, match=r"mine: clients 0, 1, round 1, local: ValueError: boom"):
        fit(job, Vectorised(device="cpu", chunk=2), rounds=1)


def test_a_method_that_does_not_map() -> None:
    job = Job("counting", counting.build, toy.data(), 3)
    with pytest.raises(RunError, match=r"because local takes a number out .* \(counting.py, line \d+\): "):
        _run(job, Vectorised(device="cpu"))


def test_batch_normalisation_by_the_batch_is_refused() -> None:
    job = Job("fedavg", partial(tiny_bn.build, "fedavg", {}, "local", toy.task()), toy.data(), 3)
    with pytest.raises(InputError, match="choose another engine than vectorised"):
        _run(job, Vectorised(device="cpu"))


def test_frozen_batch_normalisation() -> None:
    job = Job("fedavg", partial(tiny_bn.build, "fedavg", {}, "frozen", toy.task()), toy.data(), 3)
    _agree(_run(job, Vectorised(device="cpu")), _run(job, Sequential()), 1e-4)


def test_stops_between_chunks() -> None:
    job, asked = _job("fedavg"), iter([False, True])
    session = Vectorised(device="cpu", chunk=1).open(job)
    method = job.build()
    down = method.send(method.init_server(toy.key()), torch.tensor([0, 1]))
    with pytest.raises(Interrupted):
        session.map("local", 1, [0, 1], down, [(), ()], lambda: next(asked))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 2}, "workers=2 is not possible with the vectorised engine: leave it out"),
        ({"device": "gpu"}, "device=gpu is not a device: choose cpu, cuda or cuda:0"),
        ({"device": "mps"}, "device=mps cannot compute in float64: choose cpu or cuda"),
        ({"device": "cuda:99"}, r"device=cuda:99 does not exist: torch sees \d+ GPUs; choose cpu"),
        ({"chunk": 0}, "chunk=0 is not valid: input should be greater than or equal to 1"),
        ({"chunk": True}, "chunk=True is not valid"),
        ({"precision": "half"}, "precision='half' is not valid: input should be 'float32', 'tf32' or 'bf16'"),
        ({"convolution": "fft"}, "convolution='fft' is not valid"),
        ({"graphs": 1}, "graphs=1 is not valid"),
        ({"device": "cpu", "precision": "tf32"}, "precision=tf32 needs a CUDA device, not cpu: leave it out"),
        ({"device": "cpu", "graphs": True}, "graphs=true needs a CUDA device, not cpu: leave it out"),
    ],
)  # fmt: skip
def test_options_that_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Vectorised(**options)


# --- options


def test_mixed_precision_trains_and_stays_outside() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    ours = _run(_job("fedpac"), Vectorised(device="cpu", precision="bf16"), 2)
    plain = _plain(_job("fedpac"), 2)
    _agree(ours, plain, 0.1)  # bf16 has 8 bits: an error of a few per cent in a difference of weights
    with pytest.raises(AssertionError):
        _agree(ours, plain, 1e-4)
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


def test_tf32_is_as_asked_for_and_as_before_afterwards() -> None:
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    engine = Vectorised(device="cpu")
    for precision, allowed in (("float32", False), ("tf32", True)):
        before = [f.allow_tf32 for f in flags]
        engine.precision = precision  # type: ignore[assignment]
        with engine.arithmetic("local"):
            assert [f.allow_tf32 for f in flags] == [allowed, allowed]
        assert [f.allow_tf32 for f in flags] == before


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [((7, 9), (3, 5), 1, 0), ((8, 8), 3, 2, 1), ((9, 6), 1, (2, 1), 0), ((10, 10), (5, 3), (2, 3), (2, 1))],
)
def test_unfolded_convolution(size: tuple[int, int], kernel: Any, stride: Any, padding: Any) -> None:
    layer = torch.nn.Conv2d(3, 4, kernel, stride, padding).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def both() -> list[Tensor]:
        out = layer(x)
        ramp = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
        return [out, *torch.autograd.grad((out * ramp).sum(), [x, layer.weight, layer.bias])]

    plain = both()
    with _Counting(torch.conv2d) as counted, UnfoldMode():
        unfolded = both()
    assert counted.calls == 0
    for a, b in zip(unfolded, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"groups": 3}, {"dilation": 2}, {"padding": "same"}], ids=str)
def test_other_convolutions_stay(options: dict[str, Any]) -> None:
    layer, x = torch.nn.Conv2d(3, 6, 3, **options), torch.rand(2, 3, 8, 8)
    with _Counting(torch.conv2d) as counted, UnfoldMode():
        assert torch.equal(layer(x), torch.nn.functional.conv2d(x, layer.weight, layer.bias, **options))
    assert counted.calls == 2


class _Counting(TorchFunctionMode):
    """Counts the calls of one function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.calls = function, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += function is self.function
        return function(*args, **(kwargs or {}))


class _Replay:
    """Stands for a CUDA graph: what it was made for goes in, and what it gives lies in the same memory each time."""

    made = 0

    def __init__(self, function: Callable[..., Any], inputs: Any, pool: Any) -> None:
        type(self).made += 1
        self.function, self.inputs = function, tree.map(torch.clone, inputs)
        self.outputs = function(*self.inputs)

    def __call__(self, inputs: Any) -> Any:
        for kept, new in zip(tree.leaves(self.inputs), tree.leaves(inputs), strict=True):
            assert kept.shape == new.shape
            kept.copy_(new)
        for kept, new in zip(tree.leaves(self.outputs), tree.leaves(self.function(*self.inputs)), strict=True):
            kept.copy_(new)
        return self.outputs


def test_shapes_of_graphs_are_few_and_their_results_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(vectorised, "Graph", _Replay)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    engine = Vectorised(device="cpu")
    engine.graphs = True
    job = _job("fedpac")
    job = job._replace(data=replace(job.data, train=tuple(job.data.train[0][:n] for n in (11, 12, 11, 11, 12, 16))))
    _agree(_run(job, engine, 6), _run(job, Sequential(), 6), 1e-9)
    # two lengths, 16 (one client) and 12 (five clients), of which 3 or 4 take part in a round, filled up to 4
    assert _Replay.made == 2


# --- the meta device in place of a GPU: it holds no numbers, so that who asks for one fails


class _OneDevice(TorchDispatchMode):
    """Refuses tensors of the host in operations: several would go through, and copy it to the device in every step."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for a in tree.leaves((args, kwargs or {})):
            if isinstance(a, Tensor) and a.ndim and not a.is_meta:
                raise AssertionError(f"{function} takes a tensor of the host")
        return function(*args, **(kwargs or {}))


class _NoCopies(TorchFunctionMode):
    """Refuses to make tensors of numbers that the host holds."""

    refused = (torch.tensor, torch.as_tensor, torch.from_numpy, Tensor.new_tensor, Tensor.cpu, Tensor.numpy)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self.refused:
            raise AssertionError(f"{function} makes the host and the device wait for each other")
        return function(*args, **(kwargs or {}))


def _on_meta(build: Callable[[Task], Method], task: Task) -> None:
    """Three clients of 12 rows through the mapped functions, two steps each, everything on the meta device."""
    task = replace(task, training=replace(task.training, epochs=1))
    method, ids, device = build(task), torch.arange(3), torch.device("meta")
    down = method.send(method.init_server(toy.key("init")), ids)
    clients = tree.stack([method.init_client(toy.key("init"), torch.tensor(0))] * 3)
    x_R, y_R = toy.data().x_R, toy.data().y_R
    data = Data(x_R, y_R, torch.zeros(3, 12, dtype=torch.int64), torch.ones(3, 12))
    key = torch.stack([toy.key(i) for i in range(3)])
    down, clients, data, key = tree.map(lambda a: a.to(device), (down, clients, data, key))
    axes = (Down(None, 0), 0, Data(None, None, 0, 0, None, None, None), 0)
    with device:
        x_KB = torch.zeros(3, 9, 1, 4, 4, dtype=torch.uint8)
        task.inputs(x_KB[0])  # what is made once and kept
        with _OneDevice(), _NoCopies():
            personalised = vmap_of(method.personalise, axes)(down, clients, data, key)
            found = [
                vmap_of(method.local, axes)(down, clients, data, key),
                vmap_of(method.predict, (Down(None, 0), 0, 0))(down, personalised, x_KB),
            ]
    assert all(a.is_meta for a in tree.leaves((found, personalised)))


@pytest.mark.kinds
@pytest.mark.parametrize(("name", "options"), FORMS + OTHERS)
def test_no_method_asks_the_host(name: str, options: dict[str, Any]) -> None:
    _on_meta(partial(methods.build, name, options | SHORT.get(name, {})), _task())


@pytest.mark.parametrize(("name", "options"), BY_ADAM)
def test_nor_does_adam(name: str, options: dict[str, Any]) -> None:
    _on_meta(partial(methods.build, name, options), _task_by_adam())


def test_nor_does_a_convolution() -> None:
    for inside in (nullcontext(), UnfoldMode()):
        with inside:
            _on_meta(partial(methods.build, "fedavg", {}), _task("small_cnn"))


def _asking(task: Task, how: str) -> Method:
    method, kept = methods.build("fedavg", {}, task), torch.arange(100)

    def local(down: Any, client: Any, data: Data, key: Tensor) -> Any:
        if how == "kept":
            data = data._replace(row_N=kept[data.row_N])
        if how == "numbers":
            data = data._replace(real_N=data.real_N * torch.tensor([1.0]))
        if how == "item":
            assert down.shared.head["bias"].sum().item() > -100
        return method.local(down, client, data, key)

    return method._replace(local=local, personalise=unchanged)


@pytest.mark.parametrize(
    ("how", "says"),
    [("kept", "takes a tensor of the host"), ("numbers", "wait for each other"), ("item", "cannot be called on meta")],
)
def test_who_asks_the_host_is_found(how: str, says: str) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=says):
        _on_meta(partial(_asking, how=how), _task())


def test_buffers_are_where_the_rows_are() -> None:
    network = tiny_bn.network("frozen")
    model, x = network.init(toy.key()), torch.rand(5, 1, 4, 4)
    before, there = network(model, x), tree.map(lambda a: a.to("meta"), (model, x))
    assert network(*there).is_meta
    with _OneDevice():
        assert network(*there).is_meta
    assert torch.equal(network(model, x), before)


def test_what_is_made_once_outlives_the_transform_that_it_was_made_in() -> None:
    numbers = (0.25, 4.0, 17.5)  # nobody else's

    def scaled(x: Tensor) -> Tensor:
        assert tree.mapped(x)
        return (x * tree.constant(numbers, x.dtype, x.device)).sum()

    x_KC = torch.ones(2, 3)
    first, second = (torch.func.vmap(torch.func.grad(scaled))(x_KC) for _ in range(2))
    assert first.tolist() == second.tolist() == [list(numbers)] * 2
    kept = tree.constant(numbers, x_KC.dtype, x_KC.device)
    assert not torch._C._functorch.is_functorch_wrapped_tensor(kept)
    assert kept.tolist() == list(numbers)


def test_a_key_is_made_without_a_copy() -> None:
    with torch.device("meta"), _NoCopies():
        assert keys.key(0, "somebody").is_meta
    assert int(keys.key(0, "somebody")) == keys.number(0, "somebody")


# --- the benchmark


@pytest.mark.thorough
def test_the_benchmark_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    gpu = import_module("gpu")
    gpu.main(["--device", "cpu", "--small", "--methods", "fedpac,pfedfda", "--out", str(tmp_path / "gpu.json")])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["agrees"] for row in found["Agreement"]] == [True, True]
    assert [row["method"] for row in found["Seconds"]] == ["FedAvg", "pFedFDA", "FedPAC"]
    assert sum("needs a CUDA device" in row.get("note", "") for row in found["Options"]) == 4
    assert len(found["Convolutions"]) == 2
    printed = capsys.readouterr().out
    assert all(f"### {part}" in printed for part in ("Agreement", "Seconds", "Options", "Convolutions"))


def test_clients_one_by_one_in_the_benchmark_are_those_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    gpu, job = import_module("gpu"), _job("ditto")
    with gpu.one_by_one():
        ours = _run(job, Vectorised(device="cpu", chunk=1))
    _agree(ours, _plain(job), 0)
