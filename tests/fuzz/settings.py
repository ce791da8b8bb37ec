"""Settings: on the command line, in study files and from Python; valid ones, nearly valid ones and hostile ones."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from damage import TEXTS, damage, edited
from harness import Case, refuse

METHODS = (
    "local",
    "fedavg",
    "fedavg_ft",
    "fedpac",
    "pfedfda",
    "ditto",
    "fedrep",
    "knnper",
    "fedlda",
    "fedem",
    "pfedhn",
)
BASE = {"data": "t.csv", "client_column": "site", "methods": "fedavg", "rounds": 1, "local_epochs": 1}
VALID: dict[str, tuple[str, ...]] = {
    "--dataset": ("digits", "fashion_mnist", "cifar10"),
    "--methods": (
        *METHODS, "fedavg,local", "fedpac:alignment=0.5", "fedpac:alignment=0,threshold=0,local", "fedrep:preset=paper",
    ),
    "--set": ("fedavg.momentum=0.5", "fedpac.alignment=0.5", "pfedfda.ridge=0.5", "ditto.strength=1"),
    "--model": ("auto", "mlp", "linear", "small_cnn", "mlp:hidden=8", "resnet18"),
    "--seeds": ("0", "1,2", "0,9223372036854775807"),
    "--data-dir": (".", "pictures"),
    "--normalise": ("reference", "training", "symmetric"),
    "--data": ("t.csv", "./t.csv", "t.parquet", "pictures", "clients", "t.jsonl"),
    "--target": ("label", "site", "a"),
    "--client-column": ("site", "c", "label"),
    "--drop": ("b", "c+b", "site"),
    "--resize": ("4", "4x3", "512"),
    "--clients": ("1", "2", "3", "5"),
    "--partition": (
        "iid", "dirichlet:alpha=0.5", "natural", "pathological:classes=1", "natural:column=site", "dirichlet",
    ),
    "--sizes": ("5", "4+6"),
    "--keep": ("50%", "3", "0.5"),
    "--shift": ("rotate:degrees=90", "corrupt:kind=each,severity=3", "labels:clients=0", "rotate:groups=2"),
    "--new-clients": ("1", "50%", "x", "x+y"),
    "--new-shift": ("rotate:degrees=90", "corrupt"),
    "--data-seed": ("0", "7"),
    "--rounds": ("1", "2"),
    "--participation": ("0.5", "1"),
    "--local-epochs": ("1", "2"),
    "--batch-size": ("1", "4", "50"),
    "--optimiser": ("sgd", "adam", "adamw"),
    "--server-optimiser": ("average", "momentum:momentum=0.5", "adam:lr=0.1,tau=1e-2"),
    "--lr": ("0.01", "1e-3", "1"),
    "--lr-schedule": ("constant", "cosine:warmup=1", "step:every=1,factor=0.5", "exponential"),
    "--clip": ("1", "1e-2"),
    "--momentum": ("0", "0.9"),
    "--weight-decay": ("0", "1e-4"),
    "--augment": ("none", "crop_flip"),
    "--protocol": (
        "stage=received,weighting=sample", "round=best_validation,validation=0.2", "clients=new", "observe=features",
    ),
    "--measure": ("auroc,recall", "sensitivity"),
    "--evaluate-every": ("1", "5"),
    "--patience": ("1", "3"),
    "--engine": ("sequential", "vectorised", "vectorised:chunk=2", "processess", "processes:chunk=1", "ray:addres=1"),
    "--ray-address": ("auto", "127.0.0.1:1"),
    "--workers": ("1", "2"),
    "--out": ("out", "out/deep/er"),
    "--track": ("tensorboard:out/tb", "mlflow", "wandb:x", "nothing"),
}  # fmt: skip
_SKIPPED = ("--help", "--quiet", "--json", "--resume", "--drop-last", "--save-predictions", "--track", "--version")
_TABLES = ("fedpac/table1", "pfedfda/table1", "nothing/table9", "fedpac", "/")


def prepare(here: Path) -> None:
    """The small data that the settings speak of, and a module that nobody should import."""
    rng = np.random.default_rng(0)
    lines = ["a,b,c,site,label"]
    for i in range(24):
        lines.append(f"{rng.normal():.3f},{rng.normal() + i % 2:.3f},{i % 3},{'xy'[i // 12]},{i % 2}")
    (here / "t.csv").write_text("\n".join(lines) + "\n")
    code = "from pathlib import Path\nPath('executed').touch()\n\ndef net(*a, **k):\n    raise RuntimeError\n"
    (here / "evil.py").write_text(code)


def case(rng: random.Random, here: Path, known: dict[str, list[str]]) -> Case:
    """One case; ``known`` are the options of each command."""
    prepare(here)
    return rng.choice([_options] * 5 + [_file] * 4 + [_python] * 3 + [_other])(rng, here, known)


def _value(option: str, rng: random.Random) -> str:
    valid = VALID.get(option, ("x",))
    text = rng.choice(valid)
    pick = rng.random()
    value = text if pick < 0.2 else edited(text, rng) if pick < 0.55 else rng.choice(TEXTS)
    if pick > 0.92:  # a hostile value of an inner option
        value = rng.choice(valid).split("=")[0] + "=" + rng.choice(TEXTS)
    return value.replace("\x00", "")  # which no shell can give


def _options(rng: random.Random, here: Path, known: dict[str, list[str]]) -> Case:
    command = rng.choice(("run", "run", "run", "describe"))
    options = [o for o in known[command] if o not in _SKIPPED]
    given = {"--data": "t.csv", "--client-column": "site"}
    if command == "run":
        given |= {
            "--methods": "fedavg",
            "--rounds": "1",
            "--local-epochs": "1",
            "--engine": "sequential",
            "--out": "out",
        }
    chosen = rng.sample(options, rng.choice((1, 1, 1, 2, 3)))
    if {"--dataset", "--data-dir"} & set(chosen):
        del given["--data"], given["--client-column"]
        given["--data-dir"] = "nowhere"  # no set is fetched
    given |= {option: _value(option, rng) for option in chosen}
    arguments = [command, *(piece for option, value in given.items() for piece in (option, value))]
    if command == "run":
        arguments += ["--quiet"] + ["--json"] * (rng.random() < 0.2) + ["--drop-last"] * (rng.random() < 0.1)
    if rng.random() < 0.1:
        arguments[rng.randrange(len(arguments))] = rng.choice(TEXTS).replace("\x00", "")
    out = given.get("--out", "out")
    whole = command == "run" and out == "out" and "out" in arguments
    return Case(
        "settings", f"{', '.join(chosen)}", arguments, ("out", "runs", *_below(out, here)), "out" if whole else "",
        encoding=rng.choice(("utf-8", "utf-8", "utf-8", "cp1252", "ascii")),
    )  # fmt: skip


def _below(out: str, here: Path) -> tuple[str, ...]:
    """The part of a folder's name that would be made."""
    parts = Path(out).parts
    if not parts or parts[0] in ("/", "..", "."):
        return ()
    try:
        return () if (here / parts[0]).exists() else (parts[0],)
    except OSError:  # a name that is too long
        return ()


def _hostile(rng: random.Random, depth: int = 0) -> Any:
    """A value of an odd type, as YAML or Python may give it."""
    simple: list[Callable[[], Any]] = [
        lambda: rng.choice(TEXTS), lambda: rng.choice((0, 1, -1, 2**31, 2**63, 2**64, 10**400, -(10**400))),
        lambda: rng.choice((0.0, -0.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"))),
        lambda: rng.choice((True, False, None)),
        lambda: rng.choice((datetime.date(2024, 2, 29), datetime.datetime(2024, 1, 1, 12), b"\xff\x00", {"a"}, set())),
    ]  # fmt: skip
    if depth > 2 or rng.random() < 0.6:
        return rng.choice(simple)()
    if rng.random() < 0.5:
        return [_hostile(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    keys = ("name", "label", "options", "clients", "stage", "alpha", "degrees", 1, None, True, "")
    return {rng.choice(keys): _hostile(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def _study(rng: random.Random) -> dict[str, Any]:
    """A study with a few settings that are valid or not."""
    from idiolect.studies import Study

    study: dict[str, Any] = dict(BASE)
    for name in rng.sample(list(Study.model_fields), rng.choice((0, 1, 1, 1, 2))):
        pick = rng.random()
        valid = VALID.get(f"--{name.rstrip('s').replace('_', '-')}") or VALID.get(f"--{name.replace('_', '-')}", ("x",))
        study[name] = (
            rng.choice(valid) if pick < 0.15 else edited(rng.choice(valid), rng) if pick < 0.4 else _hostile(rng)
        )
    if {"dataset", "data_dir"} & set(study) and rng.random() < 0.7:
        study.pop("data"), study.pop("client_column")
        study["data_dir"] = "nowhere"
    if rng.random() < 0.03:
        study[rng.choice(("round", "Lr", "", "lr ", "é", "__init__", "model_config"))] = _hostile(rng)
    return study


_ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_BOMBS = (
    _ALIASES, "name: " + "[" * 50_000, "name: " + "{a: " * 5000, "name: 2024-02-30", "lr: !!int abc",
    "rounds: " + "9" * 5000, "name: &a [*a]", "name: !!python/object/apply:os.system [touch executed]",
    "model: evil.net\ndata: t.csv\n", "data: evil.net\n", "partition: evil.net\ndata: t.csv\n", "!!binary abc",
    "? [a]\n: b", "<<: {lr: 1}\nlr: 2", "--- 1\n--- 2", "lr: 1\nlr: 2", "%YAML 9.9\n---\na: 1", "\t- a", "", "null",
    "[]", "- a", "1: 2", "name: !!timestamp 99999-99-99", "lr: 1:30:00", "methods: !!set {fedavg}",
    "methods: !!omap [a: 1]", 'name: "\\ud800"', 'name: "\\x00"', "name: |\n  a\n  b",
    "protocol: {clients: {clients: 1}}", "shifts: [[[[[]]]]]", "- " * 2000 + "a",
    "methods: [{name: fedavg, options: {a: {b: c}}}]",
)  # fmt: skip


def _file(rng: random.Random, here: Path, known: dict[str, list[str]]) -> Case:
    path = here / "study.yaml"
    if rng.random() < 0.25:
        which = rng.randrange(len(_BOMBS))
        path.write_bytes(_BOMBS[which].encode("utf-8", "surrogatepass"))
        what = f"study file {which}"
    else:
        study = _study(rng)
        try:
            text = yaml.safe_dump(study, sort_keys=False, allow_unicode=True)
        except yaml.YAMLError:
            text = str(study)
        what = "study of odd settings"
        if rng.random() < 0.4:
            lines = text.splitlines()
            at = rng.randrange(len(lines))
            lines[at] = rng.choice(
                (edited(lines[at], rng), lines[at] * 2, "  " + lines[at], lines[at].replace(":", ""))
            )
            text, what = "\n".join(lines), f"study with a slip in line {at}"
        path.write_bytes(text.encode("utf-8", "surrogateescape" if "\udcff" in text else "surrogatepass"))
    if rng.random() < 0.25:
        what += f", {damage(path, rng)}"
    if rng.random() < 0.35:
        return Case("settings", what, ["describe", "study.yaml"], ("runs",))
    arguments = ["run", "study.yaml", "--out", "out", "--engine", "sequential", "--quiet"]
    return Case("settings", what, arguments, ("out",), "out")


def _python(rng: random.Random, here: Path, known: dict[str, list[str]]) -> Case:
    """A study from Python, which raises an ``InputError`` or nothing, and is the same once written and read."""
    study = _study(rng)

    def entry(arguments: Sequence[str]) -> None:
        from idiolect.core.errors import InputError
        from idiolect.studies import Study

        try:
            made = Study(**study)
        except InputError as error:
            refuse(error)
        Path("again.yaml").write_text(made.to_yaml(), encoding="utf-8")
        again = Study.read("again.yaml", allow_import=True)
        if again != made:
            raise AssertionError(f"{again} is not {made}")

    return Case("settings", f"Study(**{study})"[:300], [], ("again.yaml",), entry=entry)


def _other(rng: random.Random, here: Path, known: dict[str, list[str]]) -> Case:
    """The other commands, with words that name nothing."""
    command = rng.choice(("list", "reproduce", "diff", "report", "report", "nothing"))
    words = [rng.choice((*TEXTS, *_TABLES, "t.csv", ".", "methods", "models")) for _ in range(rng.randint(0, 2))]
    if command == "list":
        words = [rng.choice(("methods", "datasets", "partitions", "shifts", "models", "engines", "method", ""))]
    if command == "reproduce":
        words = [
            rng.choice(_TABLES),
            *rng.choice((["--only", rng.choice(TEXTS)], ["--methods", "nothing"], ["--seeds", "x"])),
        ]
        words += ["--budget", rng.choice(TEXTS), "--dry-run", "--rounds", "-1"]
    options = [o for o in known.get(command, []) if o not in ("--help", "--dry-run", "--rounds")]
    if options and rng.random() < 0.5:
        words += [rng.choice(options), rng.choice(TEXTS)]
    arguments = [word.replace("\x00", "") for word in (command, *words) if word != "" or rng.random() < 0.1]
    return Case("settings", "other commands", arguments)
