"""What happens to uploads on their way, against numpy; and that the server's memory does not grow with participants."""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

import idiolect as idl
from idiolect.core import keys, reduce, tree
from idiolect.core.errors import Diverged, InputError
from idiolect.core.method import Method, Up
from idiolect.core.option_spec import Spec
from idiolect.core.reduction import Additions, reduced
from idiolect.engines import Processes, Sequential, Vectorised
from idiolect.simulation import Job, Record, State, adding, fit, rounds, uploads
from idiolect.simulation.attacks import Attackers, NotANumber, SignFlip
from idiolect.simulation.privacy import GaussianMechanism
from idiolect.simulation.uploads import Clip, Noise, Quantise, TopK
from idiolect.studies.progress import Watcher

KEY = keys.key(7)
VALUE = {"a": torch.tensor([[3.0, -4.0], [0.0, 1.0]]), "b": torch.tensor([12.0, -0.5]), "n": torch.tensor([2, 3])}


def _numbers(value: Any) -> np.ndarray:
    return np.concatenate([value["a"].double().numpy().ravel(), value["b"].double().numpy()])


def test_clip_bounds_the_norm_of_all_numbers_together() -> None:
    size = math.sqrt(9 + 16 + 1 + 144 + 0.25)
    np.testing.assert_allclose(_numbers(Clip(norm=2.0)(VALUE, KEY)), _numbers(VALUE) * 2 / size, rtol=1e-6)
    np.testing.assert_array_equal(_numbers(Clip(norm=100.0)(VALUE, KEY)), _numbers(VALUE))
    zeros = tree.zeros(VALUE)
    np.testing.assert_array_equal(_numbers(Clip(norm=1.0)(zeros, KEY)), _numbers(zeros))


def test_noise_has_its_deviation_and_is_its_keys() -> None:
    many = {"w": torch.zeros(200, 500), "v": torch.zeros(100_000), "n": torch.tensor([1])}
    noisy = Noise(std=0.3)(many, KEY)
    for name in ("w", "v"):
        assert abs(float(noisy[name].mean())) < 0.3 * 4 / math.sqrt(100_000)
        assert float(noisy[name].std()) == pytest.approx(0.3, rel=0.01)
    assert not torch.equal(noisy["w"].flatten(), noisy["v"]), "each tensor has draws of its own"
    assert torch.equal(noisy["n"], many["n"]), "whole numbers are left as they are"
    assert torch.equal(noisy["w"], Noise(std=0.3)(many, KEY)["w"])
    assert not torch.equal(noisy["w"], Noise(std=0.3)(many, keys.key(8))["w"])


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_quantised_numbers_are_on_the_grid_and_unbiased(bits: int) -> None:
    a = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = 2**bits - 1
    draws = torch.stack([Quantise(bits=bits)({"a": a}, keys.key(k))["a"] for k in range(4000)])
    low, width = float(a.min()), float(a.max() - a.min()) / steps
    at = (draws.numpy() - low) / width
    np.testing.assert_allclose(at, at.round(), atol=1e-6)
    assert np.abs(draws.numpy() - a.numpy()).max() <= width * (1 + 1e-9)
    assert np.abs(draws.mean(0).numpy() - a.numpy()).max() < 5 * width / 2 / math.sqrt(4000)
    assert torch.equal(Quantise(bits=bits)({"a": torch.full((3,), 2.5)}, KEY)["a"], torch.full((3,), 2.5))


def test_the_largest_are_kept() -> None:
    kept = TopK(share=0.5)(VALUE, KEY)
    np.testing.assert_array_equal(_numbers(kept), [3, -4, 0, 0, 12, 0])
    np.testing.assert_array_equal(_numbers(TopK(share=1.0)(VALUE, KEY)), _numbers(VALUE))


def test_the_largest_of_each_part_are_kept() -> None:
    """Class means are a thousand times larger than increments."""
    value = {
        "body": {"w": torch.tensor([0.1, -0.4, 0.2]), "b": torch.tensor([0.3])},
        "head": torch.tensor([0.0, 2.0]),
        "means": torch.tensor([500.0, 700.0]),
    }
    got = TopK(share=0.5)(value, KEY)
    np.testing.assert_array_equal(got["body"]["w"], torch.tensor([0.0, -0.4, 0.0]))
    np.testing.assert_array_equal(got["body"]["b"], torch.tensor([0.3]))
    np.testing.assert_array_equal(got["head"], [0.0, 2.0])
    np.testing.assert_array_equal(got["means"], [0.0, 700.0])
    assert uploads.nbytes((TopK(share=0.5),), Up(value)) == 4 * 8


def test_bytes_are_those_of_the_last_that_compresses() -> None:
    up = Up({"a": torch.zeros(10, 10), "b": torch.zeros(7)}, torch.zeros(()))
    assert uploads.nbytes((), up) == 4 * 107 + 4
    assert uploads.nbytes((Clip(norm=1), Noise(std=1)), up) == 4 * 107 + 4
    assert uploads.nbytes((Clip(norm=1), Quantise(bits=4)), up) == (50 + 8) + (4 + 8) + 4
    assert uploads.nbytes((Quantise(bits=4), TopK(share=0.1)), up) == 11 * 8 + 4


def _job(name: str = "fedavg", **how: Any) -> Job:
    return Job(name, partial(toy.builder(name), toy.task()), toy.data(), 3, **how)


def _run(job: Job, engine: Any, count: int = 2) -> tuple[State, list[Record]]:
    records: list[Record] = []
    with engine as e:
        return fit(job, e, rounds=count, on_round=lambda s, new, t: records.extend(new)), records


def test_steps_act_on_every_upload_one_after_another() -> None:
    """The server of a round is that of uploads which were made so by hand."""
    steps = (Clip(norm=0.05), Noise(std=0.01))
    job = _job()
    method: Method = job.build()
    start = rounds.begin(method, len(toy.SIZES), job.seed)
    ups = []
    for i in range(len(toy.SIZES)):
        down = method.send(start.server, torch.tensor([i]))
        rows = toy.rows(job.data, i)
        up = method.local(down, (), rows, keys.key(job.seed, 1, i, "local"))[1]
        size = math.sqrt(sum(float(a.double().square().sum()) for a in tree.leaves(up.value)))
        assert size > 0.05
        key = keys.fold(keys.key(job.seed, 1, i, "upload"), 1)
        flat, build = tree.flatten(up.value)
        value = [a * (0.05 / size) + 0.01 * keys.normal(keys.fold(key, k), tuple(a.shape)) for k, a in enumerate(flat)]
        ups.append(up._replace(value=build(value)))
    want, _ = method.aggregate(start.server, reduced(method.reduce, tree.stack(ups)), torch.arange(len(ups)))
    got, _ = _run(job._replace(uploads=steps), Sequential(), 1)
    for a, b in zip(tree.leaves(want), tree.leaves(got.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    plain, _ = _run(job, Sequential(), 1)
    assert not torch.equal(tree.leaves(plain.server)[0], tree.leaves(got.server)[0])


@pytest.mark.parametrize("name", ["fedavg", "fedpac", "pfedfda"])
def test_engines_agree_on_what_is_sent(name: str) -> None:
    hostile = {"attacks": (Attackers(frozenset({1}), SignFlip(scale=1.5)),)}
    job = _job(name, uploads=(Clip(norm=1.0), Noise(std=0.001), Quantise(bits=8)), **hostile)
    want, said = _run(job, Sequential())
    got, records = _run(job, Processes(2))
    assert records == said
    for a, b in zip(tree.leaves(want.server), tree.leaves(got.server), strict=True):
        assert torch.equal(a, b)
    steps = () if name == "fedpac" else (Clip(norm=1.0), Noise(std=0.001))
    close, _ = _run(_job(name, uploads=steps, **hostile), Vectorised(device="cpu"), 1)
    alone, _ = _run(_job(name, uploads=steps, **hostile), Sequential(), 1)
    for a, b in zip(tree.leaves(close.server), tree.leaves(alone.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_the_wire_is_what_was_compressed() -> None:
    sent = {
        steps: {r.value for r in _run(_job(uploads=steps), Sequential(), 1)[1] if r.metric == "bytes_up"}
        for steps in ((), (Quantise(bits=8),))
    }
    (plain,), (small,) = sent[()], sent[(Quantise(bits=8),)]
    assert 3.5 < plain / small < 4


# --- many participants


def _crowd(count: int) -> Job:
    """The toy's clients over and over."""
    data = toy.data()
    k = [i % len(toy.SIZES) for i in range(count)]
    many = data.__class__(**{
        **{f: getattr(data, f) for f in data.__dataclass_fields__},
        "train": tuple(data.train[i] for i in k), "test": tuple(data.test[i] for i in k), "shifts": ("",) * count,
    })  # fmt: skip
    return Job("fedavg", partial(toy.builder("fedavg"), toy.task()), many, 3)


class _Each:
    """A method's builder whose server asks for each upload, and takes their mean itself."""

    def __init__(self, build: Any) -> None:
        self.build = build

    def __call__(self, **how: Any) -> Method:
        def aggregate(server: Any, up: Any, ids: torch.Tensor) -> Any:
            return tree.add(server, tree.mean(up.value, up.weight_m)), {}

        return self.build(**how)._replace(reduce=reduce.each(), aggregate=aggregate)


def test_uploads_of_many_are_added_where_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sums are in memory at a time; the result is that of all together, but for rounding."""
    job, gathered, held = _crowd(300), [], []
    gather, add = tree.gather, Additions.add

    def spy(trees: list[Any]) -> Any:
        gathered.append(len(trees))
        return gather(trees)

    def count(self: Any, branch: Any) -> None:
        add(self, branch)
        held.append(len(self._branches))

    monkeypatch.setattr(tree, "gather", spy)
    monkeypatch.setattr(Additions, "add", count)
    end, records = _run(job, Sequential(), 1)
    assert not gathered
    assert max(held) <= 9  # one for each level of the tree
    assert len([r for r in records if r.metric == "bytes_up"]) == 300
    whole, others = _run(job._replace(build=_Each(job.build)), Sequential(), 1)
    assert gathered == [300]
    assert {r for r in records if r.stage == "wire"} == {r for r in others if r.stage == "wire"}
    for a, b in zip(tree.leaves(end.server), tree.leaves(whole.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def _bits(job: Job, *engines: Any) -> list[Any]:
    """The same bits from all engines, and the same records."""
    want, said = _run(job, engines[0], 2)
    for engine in engines[1:]:
        got, records = _run(job, engine, 2)
        assert records == said
        for a, b in zip(tree.leaves((got.server, list(got.clients))), tree.leaves((want.server, list(want.clients))),
                        strict=True):  # fmt: skip
            assert torch.equal(a, b)
    return said


def test_additions_are_of_the_round_and_not_of_the_engine() -> None:
    """Many are added up by workers, of whom some train clients of another's branch."""
    _bits(_crowd(150), Sequential(), Processes(1), Processes(2), Processes(5))


@pytest.mark.thorough(but=["scaffold"])
@pytest.mark.parametrize("name", ["ditto", "scaffold", "fedcr"])
def test_additions_of_other_messages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "_FEW", 1)
    job = _crowd(20)._replace(name=name, build=partial(toy.builder(name), toy.task()))
    _bits(job, Sequential(), Processes(2), Processes(5))


@pytest.mark.thorough(but=["3", "17"])
@pytest.mark.parametrize("count", [3, 16, 17, 40])
def test_the_server_and_workers_add_alike(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = _crowd(count)
    few = _bits(job, Sequential(), Processes(2))
    by_server, _ = _run(job, Sequential(), 2)
    monkeypatch.setattr(adding, "_FEW", 1)
    assert _bits(job, Sequential(), Processes(2)) == few
    by_workers, _ = _run(job, Sequential(), 2)
    for a, b in zip(tree.leaves(by_server.server), tree.leaves(by_workers.server), strict=True):
        assert torch.equal(a, b)


def test_large_models_are_added_early(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _crowd(6)
    method, size = job.build(), 4 * sum(w.numel() for w in tree.leaves(job.build().init_server(keys.start(0))))
    assert not adding.adds(job, method, 6, size)
    assert adding.adds(job, method, 6, 2**27)
    assert adding.adds(job, method, 129, size)
    assert not adding.adds(job, method._replace(reduce=reduce.each()), 129, size)


def test_what_counts_as_zeros_is_recorded_wherever_it_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are bounded, and refused, before the sum: by workers as by the server."""
    nan = Attackers(frozenset({2, 7, 19}), NotANumber())
    privacy = GaussianMechanism(norm=0.05, noise_multiplier=1.0, delta=1e-3)
    job = _crowd(20)._replace(attacks=(nan,), privacy=privacy)
    few, by_server = _run(job, Sequential(), 1)
    assert sorted(r.client for r in by_server if r.metric == "refused") == [2, 7, 19]
    monkeypatch.setattr(adding, "_FEW", 1)
    for engine in (Sequential(), Processes(2), Vectorised(device="cpu")):
        end, log = _run(job, engine, 1)
        assert [r for r in log if r.stage == "server"] == [r for r in by_server if r.stage == "server"]
        for a, b in zip(tree.leaves(end.server), tree.leaves(few.server), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_what_is_hostile_is_refused_before_the_sum() -> None:
    nan = Attackers(frozenset({7, 140}), NotANumber())
    job = _crowd(150)
    with pytest.raises(Diverged, match=r"client 7, round 1, upload: .* is not a finite number; .*norm_bound"):
        _run(job._replace(attacks=(nan,)), Sequential(), 1)
    with pytest.raises(Diverged, match=r"client (7|140), round 1, upload"):
        _run(job._replace(attacks=(nan,)), Processes(2), 1)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("clip:norm=1", Clip(norm=1)), ("noise:std=0.5", Noise(std=0.5)), ("quantise", Quantise(bits=8)),
        ("top_k:share=0.1", TopK(share=0.1)),
        ("clip", "upload clip needs norm: write clip:norm=0.1, or another number"),
        ("clip:norm=0", "norm=0"),
        ("quantise:bits=17", "bits=17"), ("clap:norm=1", "unknown upload 'clap'; did you mean 'clip'"),
    ],
)  # fmt: skip
def test_steps_by_name(spec: str, said: Any) -> None:
    if isinstance(said, str):
        with pytest.raises(InputError, match=re.escape(said)):
            uploads.step_of(Spec.parse(spec))
    else:
        assert uploads.step_of(Spec.parse(spec)) == said


def test_a_study_says_what_happens_to_uploads(tmp_path: Path) -> None:
    study = idl.Study(clients=4, rounds=1, methods="fedavg", uploads=["clip:norm=0.1", "quantise:bits=4"])
    assert [str(s) for s in study.uploads] == ["clip:norm=0.1", "quantise:bits=4"]
    whole, small = (
        idl.run(study.model_copy(update=how), tmp_path / name, engine="sequential", watcher=Watcher())
        for name, how in (("plain", {"uploads": ()}), ("small", {}))
    )
    (up,), (less,) = (set(r.records.query("metric == 'bytes_up'")["value"]) for r in (whole, small))
    assert up / less > 7
    again = idl.Study.read(tmp_path / "small" / "study.yaml")
    assert again.uploads == study.uploads


def test_sums_of_whole_numbers_give_the_same_but_for_rounding() -> None:
    """Of many clients in parts, too, and where an engine maps them."""
    job = _crowd(70)
    plain, said = _run(job, Sequential(), 1)
    job = job._replace(secure=True)
    whole, records = _run(job, Sequential(), 1)
    other, same = _run(job, Vectorised(), 1)
    assert len(records) == len(said) == len(same)
    for a, b, c in zip(*(tree.leaves(s.server) for s in (plain, whole, other)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(b, c, rtol=1e-5, atol=1e-6)
    up = [next(r.value for r in some if r.metric == "bytes_up") for some in (said, records)]
    assert up[1] == 2 * up[0]
