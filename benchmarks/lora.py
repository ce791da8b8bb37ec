"""A round of FedAvg on adapters against a bare loop of transformers and peft, and the memory of four workers.

    python benchmarks/lora.py FOLDER TEXTS.csv [--rows 64] [--turns 5]

FOLDER and TEXTS.csv are those of benchmarks/pretrained.py. Ten clients of as many texts train one epoch in batches of
16, rank 8 beside queries and values, with the backbone's own dropout. The bare loop is what one would write by hand:
peft's model, a linear head on the mean over tokens, torch.optim.SGD(fused=True), the same texts in the same batches, as
wide as the longest text. Both run on one thread and take turns; processor seconds, which other programs touch least.

Then the memory of the program with four workers (Linux): how much of the frozen weights they have mapped, added up, and
how much that takes where pages that they share count once; and the peak with one worker and with four.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModel

import idiolect as idl
from common import Peak
from idiolect import data
from idiolect.core import keys
from idiolect.core.method import Data
from idiolect.engines import Processes, Sequential
from idiolect.simulation import Job, begin
from idiolect.training import batches

CLIENTS, BATCH, RANK = 10, 16, 8


class Bare(nn.Module):
    """Adapters on a backbone, the mean over tokens, a linear head."""

    def __init__(self, folder: str, classes: int) -> None:
        super().__init__()
        backbone = AutoModel.from_pretrained(folder, dtype=torch.float32)
        config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["query", "value"])
        self.backbone: Any = get_peft_model(backbone, config)
        self.head = nn.Linear(backbone.config.hidden_size, classes)

    def forward(self, id_BL: torch.Tensor, real_BL: torch.Tensor) -> torch.Tensor:
        """Logits (B, C)."""
        z_BLd = self.backbone(input_ids=id_BL, attention_mask=real_BL).last_hidden_state
        weight_BL1 = real_BL[..., None].float()
        return self.head((z_BLd * weight_BL1).sum(1) / weight_BL1.sum(1))  # type: ignore[no-any-return]


def bare_round(network: Bare, start: list[torch.Tensor], plans: list[Any], fed: data.FederatedData) -> float:
    """Processor seconds of all clients' training, each from the same weights."""
    weights = [p for p in network.parameters() if p.requires_grad]
    begun = time.process_time()
    for rows, plan in zip(fed.train, plans, strict=True):
        with torch.no_grad():
            for w, first in zip(weights, start, strict=True):
                w.copy_(first)
        optimiser = torch.optim.SGD(weights, lr=0.01, momentum=0.5, weight_decay=5e-4, fused=True)
        for batch in plan:
            at_B = rows[batch.at_B]
            stored_BL = fed.x_R[at_B].long()
            stored_BL = stored_BL[:, : int((stored_BL != 0).sum(1).max())]
            logit_BC = network((stored_BL - 1).clamp(min=0), (stored_BL != 0).long())
            loss = cross_entropy(logit_BC, fed.y_R[at_B])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return time.process_time() - begun


def job_of(folder: str, table: Path, rows: int) -> tuple[Job, idl.Study, data.FederatedData]:
    """FedAvg on adapters; as many training samples at every client."""
    frame = pd.read_csv(table, header=None)
    texts = frame[frame.columns[1:]].agg("\n".join, axis=1).tolist()
    source = data.from_arrays(texts, frame[0].to_numpy(), tokens=f"hf:{folder}")
    study = idl.Study(
        data=source, model=f"hf:{folder},adapt=lora(r={RANK})", partition="iid", clients=CLIENTS, keep=rows,
        methods=["fedavg"], local_epochs=1, batch_size=BATCH,
    )  # fmt: skip
    fed = study.federation()
    return study.job(study.methods[0], 0, fed), study, fed


def speed(folder: str, job: Job, study: idl.Study, fed: data.FederatedData, turns: int) -> None:
    """Print both times and their ratio."""
    torch.set_num_threads(1)
    training = study.task_of(fed).training
    network = Bare(folder, fed.classes).train()
    start = [p.detach().clone() for p in network.parameters() if p.requires_grad]
    method = job.build()
    state, ids = begin(method, CLIENTS, 0), list(range(CLIENTS))
    down = method.send(state.server, torch.tensor(ids))
    ours, theirs = [], []
    with Sequential() as engine:
        session = engine.open(job)
        for turn in range(turns + 1):
            plans = [
                batches(
                    Data(fed.x_R, fed.y_R, rows, torch.ones(len(rows))), training, keys.key(0, turn + 1, k, "local")
                )
                for k, rows in enumerate(fed.train)
            ]
            theirs.append(bare_round(network, start, plans, fed))
            begun = time.process_time()
            session.map("local", turn + 1, ids, down, list(state.clients), lambda: False)
            ours.append(time.process_time() - begun)
    ratios = sorted(a / b for a, b in zip(ours[1:], theirs[1:], strict=True))  # the first turn warms up
    print(
        f"a round of {CLIENTS} clients, {sum(map(len, fed.train))} texts: idiolect {statistics.median(ours[1:]):.2f} s,"
        f" bare loop {statistics.median(theirs[1:]):.2f} s, ratio {statistics.median(ratios):.3f} (median of {turns}; "
        f"{ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


def memory(job: Job) -> None:
    """Print what four workers and the program have of the frozen weights, and how much each more worker takes."""
    method = job.build()
    state, ids = begin(method, CLIENTS, 0), list(range(CLIENTS))
    down = method.send(state.server, torch.tensor(ids))
    assert isinstance(job.build, partial)
    frozen = frozen_of(job.build.args[2].network)
    peak, mapped, held = {}, 0.0, 0.0
    for workers in (1, 4):
        with Processes(workers) as engine:
            session = engine.open(job)
            session.map("local", 1, ids, down, list(state.clients), lambda: False)
            with Peak() as most:
                session.map("local", 2, ids, down, list(state.clients), lambda: False)
            mapped, held = pages_of(frozen.handle.identity[2])
        peak[workers] = most.bytes / 1e6
    size = sum(a.nbytes for a in frozen.tensors.values()) / 1e6
    print(
        f"frozen weights: {size:.0f} MB; the program and 4 workers map {mapped:.0f} MB of them, held once: {held:.0f}"
    )
    more = (peak[4] - peak[1]) / 3
    print(f"at most {peak[1]:.0f} MB with 1 worker, {peak[4]:.0f} MB with 4: {more:.0f} MB for each more")


def frozen_of(network: Any) -> Any:
    """The network's frozen weights, as all processes of the machine share them."""
    return network._frozen


def pages_of(inode: int) -> tuple[float, float]:
    """MB of a file that this process and those below it have mapped and touched: added up, and shared pages once."""
    processes, mapped, held, ours = [Path(f"/proc/{os.getpid()}")], 0, 0, False
    for process in processes:  # the list grows as it is read
        with suppress(OSError):
            processes += [Path(f"/proc/{c}") for p in process.glob("task/*/children") for c in p.read_text().split()]
            for line in (process / "smaps").read_text().splitlines():
                words = line.split()
                if "-" in words[0]:  # the first line of a mapping
                    ours = words[4] == str(inode)
                elif ours and words[0] == "Rss:":
                    mapped += int(words[1])
                elif ours and words[0] == "Pss:":
                    held += int(words[1])
    return mapped * 1024 / 1e6, held * 1024 / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5, help="0 for the memory alone")
    asked = parser.parse_args()
    job, study, fed = job_of(asked.folder, asked.table, asked.rows)
    if asked.turns:
        speed(asked.folder, job, study, fed, asked.turns)
    memory(job)


if __name__ == "__main__":
    main()
