"""All benchmarks one after the other, as ``make bench`` runs them; some 20 minutes on two cores.

Every script prints ratios from one run. ``--write`` keeps what they print in RESULTS.md, with the machine and the date;
of a part of them, named with ``--only``, their sections alone are written anew.
What needs a GPU (gpu.py) is left out where there is none, and so is what needs a pretrained backbone where
$IDIOLECT_BACKBONE names no folder of one for texts, and $IDIOLECT_TEXTS no table of texts (see pretrained.py).

    python benchmarks/run.py [--write] [--only engine,methods]
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

from idiolect.core.processor import cores

HERE = Path(__file__).parent
BACKBONE = "$IDIOLECT_BACKBONE $IDIOLECT_TEXTS"
RESULTS = HERE / "RESULTS.md"
SCRIPTS = {
    "methods": (
        "A round of a method relative to FedAvg, in the setting of pFedFDA's Table 6 and beside its figures",
        "--model cifar_cnn --rows 500 --clients 2 --turns 11 "
        "--methods fedbabu,fedrep,fedlda,pfedfda,fedpac,fedcr,apfl,ditto",
    ),
    "methods fedlda": (
        "FedLDA with its own paper's network, for which there is no such figure",
        "--model wrn16_2 --rows 100 --clients 1 --turns 7 --methods fedlda",
    ),
    "methods small": (
        "The same where clients are small and their statistics weigh more",
        "--turns 11 --methods fedbabu,fedrep,fedlda,pfedfda,fedpac",
    ),
    "method_loops": ("A round of six methods against bare loops of the same definitions", ""),
    "precision": ("A training step with bfloat16 beside float32", ""),
    "breakdown": ("Where a client's time goes", ""),
    "server": ("The server's steps", ""),
    "evaluation": ("Evaluation of 1,000 clients with one shared body", ""),
    "study": ("How busy a study keeps the workers", ""),
    "shared": ("Methods that train alike, together and apart", ""),
    "tuning": ("A search against its trials one by one to the end", ""),
    "many": ("Many clients", "--rounds 10"),
    "deploy": ("Every method outside of a run, and predictions against a plain loop", ""),
    "whole": ("Whole commands, with what a user waits for beside the rounds", ""),
    "federation": ("A federation beside its link alone, and beside the simulator", ""),
    "pretrained": ("Features of a frozen backbone against its library's own encoding", BACKBONE),
    "pretrained_rounds": ("Rounds on the features of a frozen backbone", BACKBONE),
    "lora": ("Adapters: a round against a bare loop, and the memory of four workers", BACKBONE),
    "engine": ("The engine against a bare loop, and workers against one", ""),
    "gpu": ("The vectorised engine on a GPU", ""),
}


def missing(name: str, arguments: str) -> str:
    """What a script needs and this machine does not have; "" if there is all."""
    if name == "gpu" and not torch.cuda.is_available():
        return "GPU"
    if arguments == BACKBONE and "$" in os.path.expandvars(BACKBONE):
        return "pretrained backbone"
    return ""


def machine() -> str:
    """Processor, cores, memory, versions."""
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    cpu = next((line.partition(": ")[2] for line in about.splitlines() if line.startswith("model name")), "")
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{cpu or platform.machine()}, {cores()} cores{gpu}; {versions}"


def run(name: str, arguments: str) -> str:
    """What a script prints, shown as it comes."""
    lines = []
    command = [sys.executable, "-u", str(HERE / f"{name.split()[0]}.py"), *map(os.path.expandvars, arguments.split())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        sys.exit(f"{name}.py ended with {process.returncode}")
    return "".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the output in RESULTS.md")
    parser.add_argument("--only", default=",".join(SCRIPTS), help="scripts, separated by commas")
    asked = parser.parse_args()
    about = f"{datetime.datetime.now(datetime.UTC).date()}, {machine()}"
    print(about)
    parts: dict[str, str] = {}
    names = asked.only.split(",")
    for name in names:
        title, arguments = SCRIPTS[name]
        shown = f"python benchmarks/{name.split()[0]}.py {arguments}".rstrip()
        print(f"\n{title}\n{shown}", flush=True)
        if absent := missing(name, arguments):
            said = f"Not yet measured: there was no {absent}.\n"
            print(said, end="")
        else:
            said = run(name, arguments)
        parts[title] = f"`{shown}`\n\n```\n{said}```\n"
    if asked.write:
        write(parts, about, names == list(SCRIPTS))


def write(parts: dict[str, str], about: str, everything: bool) -> None:
    """RESULTS.md with these sections, by title; of a part of them, each with its own date beside what was there."""
    head = f"# What was measured\n\nBy `make bench`, {about}.\nTimes of a shared machine are noisy: read the ratios.\n"
    if not everything:
        kept = sections(RESULTS.read_text()) if RESULTS.exists() else {"": head}
        head, parts = kept.pop(""), kept | {title: f"By itself, {about}.\n\n{body}" for title, body in parts.items()}
    titles = [title for title, _ in SCRIPTS.values() if title in parts]
    RESULTS.write_text("\n".join([head, *(f"## {title}\n\n{parts[title]}" for title in titles)]))


def sections(text: str) -> dict[str, str]:
    """RESULTS.md by its headings; what stands before the first goes by ""."""
    first, *rest = text.split("\n## ")
    return {"": first} | {title: body for title, _, body in (part.partition("\n\n") for part in rest)}


if __name__ == "__main__":
    main()
