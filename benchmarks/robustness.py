"""What a defence is worth: accuracy of the honest clients under attack, by method, attack and defence.

Each cell is a study of its own, all with the same data, seeds and settings (digits in noise: twenty clients, twelve
noisy images each, of three classes). Accuracy is the mean over the honest clients after the last
round, in per cent. The last table is differential privacy without attackers.

    python benchmarks/robustness.py [--rounds 10] [--seeds 0] [--out robustness.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import idiolect as idl
from idiolect.core.errors import Diverged, InputError
from idiolect.engines import Sequential
from idiolect.simulation import Record, fit
from idiolect.simulation.attacks import attackers

METHODS = ("fedlda", "fedpac", "pfedfda", "fedcr", "fedavg")
ATTACKS = {
    "nobody": (),
    "sign_flip": ("sign_flip:clients=0-3,scale=4",),
    "label_flip": ("label_flip:clients=0-3",),
    "noise": ("noise:clients=0-3,std=1",),
    "inflate": ("inflate:clients=0-3,factor=100",),
    "nan": ("nan:clients=0-3",),
}
DEFENCES = {
    "none": None,
    "trimmed mean": "trimmed_mean:share=0.2",
    "median": "median",
    "norm bound": "norm_bound:multiple=2",
}
NOISE = (0.0, 0.3, 1.0, 3.0)  # multipliers; 0: clipping alone
EXAMPLE = Path(__file__).parents[1] / "examples" / "digits_noise.yaml"


def measured(method: str, rounds: int, seeds: list[int], **settings: Any) -> dict[str, Any]:
    """Accuracy of the honest clients in per cent, mean and standard deviation over seeds; or why there is none."""
    base = idl.Study.read(EXAMPLE).model_dump(exclude_unset=True)
    study = idl.Study(**base | {"methods": [method], "rounds": rounds, "seeds": seeds} | settings)
    data = study.federation()
    hostile = attackers(study.attacks, data.trained)
    found, epsilon = [], None
    try:
        for _, job in study.jobs(data):
            records: list[Record] = []
            with Sequential() as engine:
                fit(job, engine, rounds=rounds, evaluate_every=rounds, on_round=lambda s, new, t: records.extend(new))  # noqa: B023
            own = [r.value for r in records if (r.stage, r.metric) == ("personalised", "accuracy")]
            found.append(100 * float(np.mean([a for i, a in enumerate(own) if i not in hostile])))
            epsilon = max((r.value for r in records if r.metric == "epsilon"), default=None)
    except InputError as error:
        return {"said": str(error), "text": "refused"}
    except Diverged as error:
        return {"said": str(error), "text": "stops"}
    text = f"{np.mean(found):.1f}" + (f" ± {np.std(found, ddof=1):.1f}" if len(found) > 1 else "")
    return {"accuracy": found, "text": text, "epsilon": epsilon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--norm", type=float, default=1.0, help="clipping norm of the differential privacy")
    parser.add_argument("--out", type=Path, default=Path("robustness.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    names, seeds = args.methods.split(","), [int(s) for s in args.seeds.split(",")]
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}

    def cell(key: str, method: str, **settings: Any) -> dict[str, Any]:
        if key not in found:  # an earlier start of this program has not measured it
            found[key] = measured(method, args.rounds, seeds, **settings)
            args.out.write_text(json.dumps(found, indent=1))
        return dict(found[key])

    titles = {m: idl.methods.get(m).title for m in names}
    print("| Attack | Defence | " + " | ".join(titles.values()) + " |")
    print("| :-- | :-- |" + " --: |" * len(names))
    for attack, attacks in ATTACKS.items():
        for defence, robust in DEFENCES.items():
            if attack == "nan" and defence in ("trimmed mean", "median"):  # refused before these rules: as norm bound
                continue
            cells = [cell(f"{m}/{attack}/{defence}", m, attacks=attacks, robust=robust) for m in names]
            print(f"| {attack} | {defence} | " + " | ".join(c["text"] for c in cells) + " |", flush=True)
    print("\n| Noise multiplier | Epsilon | " + " | ".join(titles.values()) + " |")
    print("| --: | --: |" + " --: |" * len(names))
    for noise in NOISE:
        spec = f"gaussian:norm={args.norm},noise_multiplier={noise},delta=0.001"
        how = {"privacy": spec} if noise else {"uploads": f"clip:norm={args.norm}"}
        cells = [cell(f"{m}/dp/{noise}", m, **how) for m in names]
        spent = [c["epsilon"] for c in cells if c.get("epsilon")]
        print(f"| {noise:g} | {np.max(spent):.1f} | " if spent else f"| {noise:g} | ∞ | ", end="")
        print(" | ".join(c["text"] for c in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
