"""Many clients at once, by torch.func.vmap: the engine for a GPU, where small networks alone keep it waiting."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, StrictBool
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from idiolect.core import keys, option_spec, tree
from idiolect.core.errors import CodeError, InputError, Interrupted, RunError, blame, option
from idiolect.core.method import Data, Down, Up
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.engines.vectorised.graphs import Graph, UnfoldMode, to_host, vmap_of
from idiolect.engines.vectorised.groups import plan
from idiolect.engines.vectorised.refusals import MapRefusal, naming_refusal
from idiolect.simulation.adding import Adder, Places
from idiolect.simulation.answer_checks import check_finite, check_state
from idiolect.simulation.client_runner import ClientRunner, EvaluationResult, Job, LocalResult, Phase, Stop

Precision = Literal["float32", "tf32", "bf16"]
Convolution = Literal["grouped", "unfold"]
_CHUNK = 16  # clients at a time if memory is not measured
_FIRST, _FILL = 4, 0.8  # clients of a GPU's first chunk, which is measured; share of free memory that others may use
_WINDOW = 512  # participants whose uploads are added up before the next ones train
_PADDING = 0.5  # the most on a GPU, which waits for the host: it is faster with few chunks
_ROWS = 4096  # test samples per prediction, of all clients of a chunk together
_OWN, _ROW = Down(None, 0), Data(None, None, 0, 0, None, None, None)  # type: ignore[arg-type]  # axes of the clients: what all clients share has none


class Vectorised:
    """Clients in chunks, each chunk computed together by torch.func.vmap: for a GPU.

    It agrees with ``Sequential`` except for rounding. All samples are on the device, the server is on the host. Both
    wait only between chunks (inside a chunk once, for a method that solves an eigenproblem). Clients of similar size
    are in one chunk: at most a tenth of the samples, on a GPU half, is padding (``padding``: the share so far).

    Args:
        workers: 1, or None for the same.
        device: such as ``cuda``, ``cuda:1`` or ``cpu``; None takes CUDA if there is a GPU.
        chunk: clients at a time, at most; None takes as many as fit in the GPU's free memory, measured with the first
            chunk, and 16 on a CPU. A chunk that does not fit is halved.
        precision: of the products in a client's training and prediction: ``float32``, ``tf32`` (a GPU's, with 10 bits
            of fraction), or ``bf16``: automatic mixed precision in ``local``, with 7.
        convolution: ``grouped``, as vmap computes the convolutions of several clients, or ``unfold``: windows are
            copied, and one batched product follows.
        graphs: capture ``local`` for each shape of a chunk as a CUDA graph and replay it. To have fewer shapes, chunks
            are filled up to 1, 2, 4, ... clients with copies of their first client.

    Raises:
        InputError: more or fewer than one worker, an option out of its range, or one that the device does not have.
    """

    name = "vectorised"
    workers = lanes = 1

    def __init__(
        self,
        workers: int | None = None,
        *,
        device: str | None = None,
        chunk: Annotated[int, Field(ge=1, strict=True)] | None = None,
        precision: Precision = "float32",
        convolution: Convolution = "grouped",
        graphs: StrictBool = False,
    ) -> None:
        if workers not in (None, 1):
            raise InputError(f"workers={workers} is not possible with the vectorised engine: leave it out")
        given = {"device": device, "chunk": chunk, "precision": precision, "convolution": convolution, "graphs": graphs}
        values = option_spec.check(Vectorised, given, "engine vectorised")
        self.options = {k: v for k, v in values.items() if v not in (None, "float32", "grouped", False)}
        self.device = _device(values["device"])
        for text, is_on in ((f"precision={precision}", precision == "tf32"), ("graphs=true", graphs)):
            if is_on and self.device.type != "cuda":
                raise InputError(f"engine vectorised: {text} needs a CUDA device, not {self.device}: leave it out")
        self.chunk, self.precision, self.convolution, self.graphs = chunk, precision, convolution, graphs
        self.seconds, self.total, self.real = 0.0, 0, 0
        self._rows: tuple[FederatedData, Tree, Tensor] | None = None

    @property
    def padding(self) -> float:
        """Padded samples, as a share of all samples that were computed so far."""
        return 1 - self.real / self.total if self.total else 0.0

    def __enter__(self) -> Vectorised:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows = None

    def open(self, job: Job) -> Chunks:
        """Start a job; jobs with the same data share the samples.

        Raises:
            RunError: the device has no room for the samples.
        """
        if self._rows is None or self._rows[0] is not job.data:
            self._rows = None  # before the next ones use their memory
            try:
                x_R = tree.map(lambda a: a.to(self.device), job.data.x_R)
                self._rows = job.data, x_R, job.data.target_R.to(self.device)
            except torch.cuda.OutOfMemoryError:
                size = f"{tree.nbytes(job.data.x_R) / 1e9:.1f} GB"
                what = f"the samples of {job.data.name} ({size}) do not fit in the memory of {self.device}"
                raise RunError(f"{what}: choose {option('engine', 'processes')}") from None
        return Chunks(job, self, *self._rows[1:])

    @contextmanager
    def arithmetic(self, phase: Phase) -> Iterator[None]:
        """Inside, tensors are made on the device, and products have the precision asked for."""
        flags: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
        before = [f.allow_tf32 for f in flags]
        is_half = self.precision == "bf16" and phase == "local"
        try:
            for f in flags:
                f.allow_tf32 = self.precision == "tf32"
            with (
                self.device,
                torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext(),
                UnfoldMode() if self.convolution == "unfold" else nullcontext(),
                torch.autocast(self.device.type, torch.bfloat16, enabled=is_half, cache_enabled=False),
            ):
                yield
        finally:
            for f, setting in zip(flags, before, strict=True):
                f.allow_tf32 = setting


def _device(name: str | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"engine vectorised: device={name} is not a device: choose cpu, cuda or cuda:0") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"engine vectorised: device={name} cannot compute in float64: choose cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"engine vectorised: device={name} does not exist: torch sees {count} GPUs; choose cpu")
    return device


class Chunks:
    """A job whose clients run in chunks."""

    def __init__(self, job: Job, engine: Vectorised, x_R: Tree, y_R: Tensor) -> None:
        self.seconds, self._engine, self._device = 0.0, engine, engine.device
        self._runner, self._x_R, self._y_R = ClientRunner(job), x_R, y_R
        self._group_R = tree.map(lambda a: a.to(self._device), job.data.groups)
        self._fits: dict[Phase, Fit] = {}
        self._measures = self._device.type == "cuda" and engine.chunk is None
        self._graphs: dict[Any, Graph] = {}
        self._pool = torch.cuda.graph_pool_handle() if engine.graphs else None
        self._padding = _PADDING if self._device.type == "cuda" else 0.1
        every = plan([len(rows) for rows in job.data.train], self._padding) if engine.graphs else []
        self._lengths = sorted(len(job.data.train[group[0]]) for group in every)

    def map(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop,
        places: Places | None = None,
    ) -> list[LocalResult] | list[EvaluationResult]:  # fmt: skip
        """One phase for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

        Raises:
            RunError: a client failed.
            Interrupted: ``stop`` returned true.
        """
        start = time.perf_counter()
        shared = self._put(down.shared)
        results: list[Any] = [None] * len(ids)
        adder = Adder(self._runner.job, self._runner.method, places.total) if places else None
        # where uploads are added up, groups are of one window, so that few branches of the sum wait for others
        wide = _WINDOW if adder else max(1, len(ids))
        windows = [range(len(ids))[k : k + wide] for k in range(0, len(ids), wide)]
        waiting = [group for some in windows for group in self._groups(phase, ids, clients, some)]
        while waiting:
            chunk = waiting.pop(0)
            if stop():
                raise Interrupted
            if (chunks := -(-len(chunk) // self._room(phase, [ids[k] for k in chunk]))) > 1:
                first = -(-len(chunk) // chunks)
                waiting[:0] = [chunk[:first], chunk[first:]]  # the first chunk decides how the rest is split
                continue
            some = [ids[k] for k in chunk]
            own = tree.rows(down.own, torch.tensor(chunk))
            answers = self._attempt(phase, round, some, shared, own, [clients[k] for k in chunk])
            if answers is None:
                self._fits[phase] = Fit(len(chunk) // 2, self._longest(some))
                waiting.insert(0, chunk)
                continue
            for k, result in zip(chunk, answers, strict=True):
                results[k] = adder.take(round, ids[k], places.at[k], result) if adder and places else result
        if adder:
            results[-1] = results[-1].with_sums(adder.rest())
        elapsed = time.perf_counter() - start
        self.seconds += elapsed
        self._engine.seconds += elapsed
        return results

    def close(self) -> None:
        """Free the device's memory."""
        self._graphs.clear()

    # --- who is together

    def _groups(self, phase: Phase, ids: Sequence[int], clients: Sequence[Tree], window: range) -> list[list[int]]:
        """Places in ``ids``, within a window, of the clients that are padded to one length, the longest first.

        For an evaluation, clients that have trained and clients that have not are in different groups: together, all
        would compute what only some need.
        """
        rows = {k: len(self._runner.job.data.train[ids[k]]) for k in window}
        if phase == "local" and self._engine.graphs:
            lengths = {k: self._lengths[bisect.bisect_left(self._lengths, n)] for k, n in rows.items()}
            every = sorted(set(lengths.values()), reverse=True)
            return [[k for k, n in lengths.items() if n == length] for length in every]
        kinds = {k: (tree.switch(clients[k]) if phase != "local" else None) or 0.0 for k in window}
        groups = []
        for kind in sorted(set(kinds.values())):
            of_kind = [k for k, other in kinds.items() if other == kind]
            groups += [[of_kind[k] for k in group] for group in plan([rows[k] for k in of_kind], self._padding)]
        return groups

    def _longest(self, ids: Sequence[int]) -> int:
        return max(len(self._runner.job.data.train[i]) for i in ids)

    def _room(self, phase: Phase, ids: Sequence[int]) -> int:
        """How many clients of this length fit at a time."""
        most = self._engine.chunk or len(ids)
        if phase in self._fits:
            clients, rows = self._fits[phase]
            return max(1, min(most, clients * rows // max(rows, self._longest(ids))))
        return self._engine.chunk or (_FIRST if self._measures else _CHUNK)

    # --- what runs

    def _attempt(
        self, phase: Phase, round: int, ids: Sequence[int], shared: Tree, own: Tree, clients: Sequence[Tree]
    ) -> list[Any] | None:
        """One phase of a chunk, or None if it does not fit in memory."""
        where = f"{self._runner.job.name}: {_who(ids)}, round {round}, {phase}"
        measuring = self._measures and phase not in self._fits
        if measuring:
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
        ways = {"local": self._local, "stand_by": self._stand_by}
        run = ways.get(phase) or partial(self._evaluate, phase)
        with blame(where):
            try:
                results = run(round, ids, shared, own, clients)
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                if len(ids) > 1:
                    return None
                what = f"{where}: one client does not fit in the memory of {self._device}"
                raise RunError(f"{what}: choose a smaller batch_size, or {option('engine', 'processes')}") from None
            except MapRefusal as error:
                what = f"{where}: the method does not map over clients, because {error}"
                raise CodeError(f"{what}; or choose {option('engine', 'sequential')} or processes") from error
        if measuring:
            peak = torch.cuda.max_memory_allocated(self._device) - before
            free, _ = torch.cuda.mem_get_info(self._device)
            free += torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
            self._fits[phase] = Fit(max(1, int(_FILL * free * len(ids) / max(1, peak))), self._longest(ids))
        return results

    def _local(
        self, round: int, ids: Sequence[int], shared: Tree, own: Tree, clients: Sequence[Tree]
    ) -> list[LocalResult]:
        graphs, at, length = self._engine.graphs, list(range(len(ids))), self._longest(ids)
        if graphs:
            length = self._lengths[bisect.bisect_left(self._lengths, length)]
            at += [0] * ((1 << (len(at) - 1).bit_length()) - len(at))
        down = Down(shared, self._put(tree.rows(own, torch.tensor(at))))
        some = [ids[k] for k in at]
        data = self._data(self._runner.job.data.train, some, round, length)
        inputs = down, self._put(tree.stack([clients[k] for k in at])), data, self._keys("local", round, some)
        with self._engine.arithmetic("local"), naming_refusal("local"):
            back = tree.map(to_host, self._replay(inputs) if graphs else self._train(*inputs))
        check_state(self._runner.where(round, ids[0], "local"), "local", tree.rows(back[0], 0), clients[0])
        results = [LocalResult(tree.copy(tree.rows(back[0], k)), *tree.rows(back[1:], k)) for k in range(len(ids))]
        job = self._runner.job
        if tree.not_finite(back) is None and not (job.uploads or job.attacks or job.secure):
            return results
        return [self._runner.outgoing(round, i, one, old) for i, one, old in zip(ids, results, clients, strict=True)]

    def _stand_by(
        self, round: int, ids: Sequence[int], shared: Tree, own: Tree, clients: Sequence[Tree]
    ) -> list[LocalResult]:
        down, client = Down(shared, self._put(own)), self._put(tree.stack(clients))
        data, key = self._data(self._runner.job.data.train, ids, round), self._keys("stand_by", round, ids)
        assert self._runner.method.stand_by is not None
        with self._engine.arithmetic("local"), naming_refusal("stand_by"):
            stand_by = vmap_of(self._runner.method.stand_by, (_OWN, 0, _ROW, 0))
            states = tree.map(to_host, stand_by(down, client, data, key))
        check_state(self._runner.where(round, ids[0], "stand_by"), "stand_by", tree.rows(states, 0), clients[0])
        results = [LocalResult(tree.copy(tree.rows(states, k)), Up(), {}) for k in range(len(ids))]
        for i, one in zip(ids, results, strict=True):
            check_finite(self._runner.where(round, i, "stand_by"), {"client": one.client})
        return results

    def _train(self, down: Down, client: Tree, data: Data, key: Tensor) -> Tree:
        return vmap_of(self._runner.method.local, (_OWN, 0, _ROW, 0))(down, client, data, key)

    def _replay(self, inputs: Tree) -> Tree:
        shapes = tuple((a.shape, a.dtype) for a in tree.leaves(inputs))
        if shapes not in self._graphs:
            self._graphs[shapes] = Graph(self._train, inputs, self._pool)
        return self._graphs[shapes](inputs)

    def _evaluate(
        self, phase: Phase, round: int, ids: Sequence[int], shared: Tree, own: Tree, clients: Sequence[Tree]
    ) -> list[EvaluationResult]:
        method, data = self._runner.of(phase), self._runner.job.data
        rows = [data.measured(i) for i in ids]
        client: Tree = self._put(tree.stack(clients))
        axis: Any = 0
        if tree.switch(clients[0]) is not None:  # equal in a group, so that ``tree.when`` computes only one side
            name = clients[0].switch
            axis = client._make(None if field == name else 0 for field in client._fields)
            client = client._replace(**{name: getattr(clients[0], name)})
        down, train = Down(shared, self._put(own)), self._data(data.train, ids)
        key = self._keys("evaluate", round, ids)
        with self._engine.arithmetic("evaluate"), naming_refusal("personalise"):
            personal = self._put(vmap_of(method.personalise, (_OWN, axis, _ROW, 0))(down, client, train, key))
        empty = torch.zeros(0, data.outputs)
        results: list[Any] = [
            self._runner.measure(round, i, empty) if not len(rows[k]) else None for k, i in enumerate(ids)
        ]
        with_samples = [k for k, r in enumerate(rows) if len(r)]
        for group in plan([len(rows[k]) for k in with_samples], self._padding):
            places = [with_samples[k] for k in group]
            at = torch.tensor(places, device=self._device)
            some, states = Down(shared, tree.rows(down.own, at)), tree.rows(personal, at)
            row_KN = self._data(rows, places).row_N
            parts = torch.split(row_KN, max(1, _ROWS // len(places)), 1)
            with self._engine.arithmetic("evaluate"), naming_refusal("predict"), torch.no_grad():
                predict = vmap_of(method.predict, (_OWN, 0, 0))
                logp_KNC = torch.cat([predict(some, states, tree.rows(self._x_R, at_KN)) for at_KN in parts], 1).cpu()
            for k, logp_NC in zip(places, logp_KNC, strict=True):
                results[k] = self._runner.measure(round, ids[k], logp_NC[: len(rows[k])])
        if self._runner.job.watch is None:
            return results
        down, personal = tree.map(to_host, Down(shared, own)), tree.map(to_host, personal)
        for k, i in enumerate(ids):  # observed one after another on the host, which takes little time
            own_down = Down(down.shared, tree.rows(down.own, k))
            results[k] = results[k]._replace(
                observations=self._runner.observe(phase, round, i, own_down, tree.rows(personal, k))
            )
        return results

    # --- what goes up

    def _put(self, value: Tree) -> Tree:
        return tree.map(lambda a: a.to(self._device), value)

    def _keys(self, phase: Phase, round: int, ids: Sequence[int]) -> Tensor:
        return torch.tensor([keys.number(self._runner.job.seed, round, i, phase) for i in ids], device=self._device)

    def _data(
        self, rows: Sequence[Tensor], ids: Sequence[int], round: int | None = None, length: int | None = None
    ) -> Data:
        """The samples of some clients, padded to the longest of them or to a length, and the round if there is one."""
        row_KN = pad_sequence([rows[i] for i in ids], batch_first=True)
        row_KN = pad(row_KN, (0, (length or row_KN.shape[1]) - row_KN.shape[1]))
        count_K = torch.tensor([len(rows[i]) for i in ids])
        real_KN = (torch.arange(row_KN.shape[1]) < count_K[:, None]).to(torch.get_default_dtype())
        self._engine.total += row_KN.numel()
        self._engine.real += int(count_K.sum())
        times = (0, 0) if round is None else (round, self._runner.job.rounds)
        now, last = torch.tensor(times, device=self._device)
        return Data(
            self._x_R, self._y_R, row_KN.to(self._device), real_KN.to(self._device), now, last, self._group_R
        )  # fmt: skip


class Fit(NamedTuple):
    """How many clients fit in memory together, at how many samples each."""

    clients: int
    rows: int


def _who(ids: Sequence[int]) -> str:
    if len(ids) <= 3:
        return f"client{'s' * (len(ids) > 1)} {', '.join(map(str, ids))}"
    return f"clients {ids[0]}, {ids[1]} and {len(ids) - 2} others"
