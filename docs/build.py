"""Write docs/methods: an overview of all methods, and a page for each with its equations beside the code.

Everything is read from the methods' own files and from a run on synthetic samples; the cost of a round comes from
docs/results/cost.json, which benchmarks/methods.py measures. The tables of docs/threat-model.md are written too, and
those of docs/tables.py.

    python docs/build.py [--check]      # --check writes nothing, and fails where a page is out of date
"""

from __future__ import annotations

import ast
import html
import inspect
import io
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import exposure
import generated
import tables
import takes

from idiolect import methods, models
from idiolect.core.errors import IdiolectError
from idiolect.core.option_spec import plain
from idiolect.methods import profile
from idiolect.methods.profile import Anatomy, MessageForm

HERE = Path(__file__).parent
PAGES, COST = HERE / "methods", HERE / "results" / "cost.json"
SOURCE = "../../src/idiolect/methods"
COLUMNS, SHOWN = 64, 10  # of code beside an equation; parts of a message before the rest is counted
NETWORK, SHAPE, CLASSES, CLIENTS = "cifar_cnn", (3, 32, 32), 10, 20
LABEL = re.compile(r"\s*\[(\d+)\]")
THREATS = HERE / "threat-model.md"


class Equation(NamedTuple):
    """A line of the docstring that ends in [number], with the lines that lead up to it."""

    place: str
    text: str
    number: str


class Docstring(NamedTuple):
    """A method's docstring, taken apart."""

    summary: str
    equations: list[Equation]
    prose: list[str]
    options: dict[str, str]


def read(build: Any) -> Docstring:
    """Take a method's docstring apart."""
    summary, _, rest = (inspect.getdoc(build) or "").partition("\n")
    out = Docstring(summary, [], [], {})
    for paragraph in re.split(r"\n\s*\n", rest.strip("\n")):
        if paragraph.startswith("Args:"):
            out.options.update(_options(paragraph))
            continue
        place, begun = "", list[str]()
        for line in paragraph.splitlines():
            if head := re.match(r"([A-Z][^:\[<=]*):(.*)", line):
                if begun:
                    out.prose.append("\n".join(begun))
                place, line, begun = head[1], head[2], []
            if number := re.search(LABEL.pattern + "$", line):
                begun.append(line[: number.start()])
                out.equations.append(Equation(place, textwrap.dedent("\n".join(begun)).strip(), number[1]))
                begun = []
            elif place and not begun and not out.equations and not line.strip():
                continue
            else:
                begun.append(f"{place}: {line.strip()}" if head and line.strip() else line)
        if text := "\n".join(begun).strip():
            out.prose.append(text)
    return out


def _options(paragraph: str) -> Iterator[tuple[str, str]]:
    for entry in re.split(r"\n(?=    \w)", paragraph)[1:]:
        name, _, text = entry.strip().partition(":")
        yield name, " ".join(text.split())


def statements(source: str, file: str = "the source") -> dict[str, list[tuple[int, int]]]:
    """First and last line of the statements that carry each number in a comment: # [1]."""
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt)
    ]
    found: dict[str, list[tuple[int, int]]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (numbers := LABEL.findall(token.string)):
            line = token.start[0]
            touching = [s for s in spans if line in s]
            if not touching:
                raise ValueError(f"{file}, line {line}: write {token.string} at the end of a line of a statement")
            for number in numbers:
                found.setdefault(number, []).append(min(touching, key=lambda s: s[1] - s[0]))
    return found


def page(name: str, known: Anatomy) -> str:
    """The page of one method."""
    entry = methods.get(name)
    doc = read(entry.build)
    path = Path(inspect.getsourcefile(entry.build) or "")
    files = [path, *sorted(path.parent.glob(f"_{path.stem}_*.py"))]  # a long method has parts of its own
    lines = {file.name: file.read_text().splitlines() for file in files}
    marked: dict[str, list[tuple[str, int, int]]] = {}
    for file in files:
        for number, spans in statements(file.read_text(), file.name).items():
            marked.setdefault(number, []).extend((file.name, *span) for span in spans)
    numbers = {e.number for e in doc.equations}
    if numbers != set(marked):
        raise ValueError(
            f"{path.name} has equations {', '.join(sorted(numbers)) or 'none'} in the docstring and "
            f"{', '.join(sorted(marked)) or 'none'} in the code: give an equation and its statements the same number"
        )
    out = [f"# {entry.title}", "", f"{_upper(entry.summary)}", ""]
    links = " and ".join(f"[{file.name}]({SOURCE}/{file.name})" for file in files)
    out += [f"{'One file' if len(files) == 1 else 'Code'}: {links}. On the command line: `--methods {name}`.", ""]
    if doc.equations:
        out += ["## Equations and code", "", "<table>"]
        places = [""] + [e.place for e in doc.equations]
        spans = [span for e in doc.equations for span in marked[e.number]]
        narrow = iter(_narrow([_plain(lines[file], first, last) for file, first, last in spans]))
        for before, equation in zip(places, doc.equations, strict=False):
            if equation.place != before:
                out += [f'<tr><td colspan="3"><b>{html.escape(equation.place)}</b></td></tr>']
            parts = re.split(r"\s{2,}|\n", equation.text.replace("``", ""))
            lines_of = "<br>".join(f"<code>{html.escape(p)}</code>" for p in parts if p)
            out += ["<tr>", f"<td>[{equation.number}]</td>", f"<td>{lines_of}</td>", "<td>", ""]
            for span in marked[equation.number]:
                out += _code(next(narrow), *span)
            out += ["</td>", "</tr>"]
        out += ["</table>", ""]
    out += ["## What is sent and what stays", "", "| | what | bytes |", "| :-- | :-- | --: |"]
    rows = {
        "down, for all": known.down_shared,
        "down, for one client": known.down_own,
        "up": known.up_value,
        "up, as weights": known.up_weight,
        "at the client": known.client,
        "at the server": known.server,
    }
    out += [f"| {what} | {_listed(message, numbers=True)} | {message.bytes:,} |" for what, message in rows.items()]
    needs = {
        "yes": "The server needs only weighted sums of the uploads",
        "no": "The server needs to see single uploads",
        "nothing sent": "Nothing is sent up",
    }
    out += ["", f"{needs[sums(known)]}; {_joins(known)}."]
    out += [
        f"Bytes are for the {NETWORK} network, 10 classes, 20 clients. C classes, d features, K clients,",
        "N samples.",
    ]
    if known.note:
        out += ["", f"{_upper(known.note)}."]
    out += ["", "## Notes", ""]
    for paragraph in doc.prose:
        out += [_prose(paragraph), ""]
    if entry.options:
        out += ["## Options", "", "| option | default | |", "| :-- | :-- | :-- |"]
        out += [f"| `{k}` | `{plain(v)}` | {tables.cell(doc.options.get(k, ''))} |" for k, v in entry.options.items()]
        out += [""]
    named = {f"preset={k}": v for k, v in entry.presets.items()} | entry.variants
    if named:
        out += ["| named | options |", "| :-- | :-- |"]
        out += [f"| {k} | {', '.join(f'`{o}={plain(v)}`' for o, v in v.items())} |" for k, v in named.items()]
        out += [""]
    return "\n".join(out)


def _plain(lines: list[str], first: int, last: int) -> str:
    """Lines of code without their numbers of equations."""
    return textwrap.dedent("\n".join(re.sub(r"\s*#(\s*\[\d+\])+\s*$", "", line) for line in lines[first - 1 : last]))


def _narrow(texts: list[str]) -> list[str]:
    """Each of them formatted for a narrow column, by one process."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{k}.py") for k in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        told = ["--line-length", str(COLUMNS), "--isolated", "--no-cache", "--quiet", folder]
        subprocess.run([sys.executable, "-m", "ruff", "format", *told], capture_output=True, check=True)
        return [file.read_text() for file in files]


def _code(text: str, file: str, first: int, last: int) -> list[str]:
    where = f"#L{first}" if first == last else f"#L{first}-L{last}"
    return ["```python", *text.splitlines(), "```", "", f"[{file}:{first}]({SOURCE}/{file}{where})", ""]


def _listed(message: MessageForm, numbers: bool = False) -> str:
    """Parts of the network by their names, other tensors by name and shape; single numbers where they are asked for."""
    network = ("model", "body", "head")

    def said(path: str, what: str) -> str:
        if what == "()":
            return "a number" if path == "tensor" else f"{path} (a number)"
        if what.split()[-1] not in network:
            return what if path == "tensor" else f"{path} {what}"
        named = path.split("/")[-1] in (*network, what.split()[-1] + "s", "value")
        return what if named else f"{path} (like {what})"

    parts = [said(path.removeprefix("value/"), what) for path, what in message.parts.items() if numbers or what != "()"]
    if len(parts) > SHOWN:
        parts[SHOWN:] = [f"and {len(parts) - SHOWN} more tensors"]
    return ", ".join(parts) or "nothing"


def sums(known: Anatomy) -> str:
    """Whether the server needs only sums."""
    return "nothing sent" if not known.up_value.parts else "yes" if known.uploads_are_sums else "no"


def _joins(known: Anatomy) -> str:
    if known.joins_by == "what it receives":
        return "a new client uses what it receives, as it is"
    return f"a new client gets its model by {known.joins_by}" + (" only" if known.joins_by == "forward passes" else "")


def _prose(paragraph: str) -> str:
    return "\n".join(line.strip() for line in paragraph.replace("``", "`").splitlines())


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def overview(known: dict[str, Anatomy], variants: dict[str, dict[str, Anatomy]]) -> str:
    """The page that lists all methods."""
    cost = json.loads(COST.read_text()) if COST.exists() else {"methods": {}}
    one = known["fedavg"]
    unit = one.down_shared.bytes
    out = ["# All methods", "", _ABOUT.format(unit=unit, **cost.get("about", {"rounds": "?", "setting": "?"})), ""]
    out += ["| method | shared | each client's own | down | up | sums | a new client | cost | source |"]
    out += ["| :-- | :-- | :-- | --: | --: | :-- | :-- | --: | :-- |"]
    for name, a in known.items():
        entry = methods.get(name)
        source = entry.summary.rpartition("(")[2] if "(" in entry.summary else ""
        for title, form in {f"[{entry.title}]({name}.md)": a, **variants[name]}.items():
            own = _listed(form.down_own)
            kept = _listed(form.client)
            personal = ", ".join(p for p in dict.fromkeys((own, kept)) if p != "nothing") or "nothing"
            down = (form.down_shared.bytes + form.down_own.bytes) / unit
            up = (form.up_value.bytes + form.up_weight.bytes) / unit
            spent = cost["methods"].get(title.strip("[").split("]")[0])
            shared = _listed(form.down_shared)
            cells = [title, shared, personal, f"{down:.2f}", f"{up:.2f}", sums(form), form.joins_by]
            cells += [f"{spent:.2f}" if spent else "", source.rstrip(").")]
            out.append("| " + " | ".join(cells) + " |")
    out += ["", _TAKES, "", *takes.rows(models.build(NETWORK, SHAPE, CLASSES), CLASSES, CLIENTS), "", _LEFT_OUT]
    return "\n".join([*out, ""])


_TAKES = """\
## What methods take

Beside samples with one class each, SGD and plain averages:

- **numbers**: a [regression](../data.md#numbers-to-predict).
- **several labels**: [several labels for a sample](../data.md#several-labels-for-a-sample).
- **class weights**: [the setting `class_weights`](../data.md#unequal-classes).
- **AdamW**: the setting `optimiser: adamw`.
- **weights that stay**: [a rule `personal`](../runs.md#weights-that-stay-at-each-client), here of the body's biases.
- **server optimiser**: [the setting `server_optimiser`](../runs.md#optimisers).

What a method does not take, it refuses in one sentence that says why."""
_LEFT_OUT = """\
## Not here

- **MetaFed** (Chen et al., 2023): its clients work one after another, each from the model that the one before it has
  just made. Here the clients of a round work at the same time.
- **PeFLL** (Scott et al., 2024): a client and the server exchange messages twice in a round; here they do once.
- **FedMD, FedFed** and others that need a public data set, or a generator trained outside of the federation."""


_ABOUT = """\
All methods in one table: what clients share, what is personal, what is sent, and what it costs. Each method has a page
with its equations beside the code. To run methods, give their names, which are those of their pages:

```
idiolect run --methods local,fedavg,fedrep
```

- **shared**: what all clients receive, the same for all.
- **each client's own**: what only one client receives, or keeps from round to round. It need not be a personal model:
  SCAFFOLD's clients keep a correction of their gradients.
- **down**, **up**: bytes that a client receives and sends in a round, relative to FedAvg ({unit:,} bytes: CIFAR-CNN, 10
  classes).
- **sums**: "yes" if the server needs only weighted sums over clients, so that it need not see any single upload.
- **a new client**: how it gets its model without taking part in a round.
- **cost**: seconds of a round relative to FedAvg, without evaluation: the median of {rounds} rounds, in turns with
  FedAvg ({setting}, 5 local epochs, batches of 50). Every method has its defaults: FedRep trains the head for 5 epochs
  and the body for 5, and pFedHN takes 50 batches where five epochs are 20.

C classes, d features, K clients, N samples of the client. `docs/build.py` makes this page and the pages of the methods
from the code; what is sent and what stays is read off the messages of a round on synthetic samples."""


def threats(known: dict[str, Anatomy], variants: dict[str, dict[str, Anatomy]]) -> str:
    """The threat model with the tables of who sees what, and of what each protection does."""
    seen = ["| method | the server, of each site | all sites | one site | of a single other site | stays at the site |"]
    seen += ["| :-- | :-- | :-- | :-- | :-- | :-- |"]
    done = ["| method | the server needs | `privacy` | `trimmed_mean`, `median` | bytes up | bytes down |"]
    done += ["| :-- | :-- | :-- | :-- | --: | --: |"]
    for name, anatomy in known.items():
        entry = methods.get(name)
        forms = {entry.title: ({}, anatomy)} | {t: (entry.forms[t], a) for t, a in variants[name].items()}
        for title, (options, form) in forms.items():
            found = exposure.of(name, options, form)
            sent = " + ".join(x for x in (_listed(found.server, numbers=True), _counts(found.counts)) if x)
            alone = ", ".join(found.alone) or "nothing"
            cells = [title, sent, _listed(found.others), _listed(found.other), alone, _listed(found.stays)]
            seen.append("| " + " | ".join(cells) + " |")
            nothing = not found.server.parts
            needs = "nothing" if nothing else "only sums" if found.sums else "each upload"
            private, robust = ("-" if nothing else "yes" if can else "refused" for can in (found.private, found.robust))
            up, down = found.server.bytes + found.counts.bytes, found.others.bytes + found.other.bytes
            done.append(f"| {title} | {needs} | {private} | {robust} | {up:,} | {down:,} |")
    return tables.with_table(THREATS, "protections", done, tables.with_table(THREATS, "who sees what", seen))


def _counts(weights: MessageForm) -> str:
    if any("C" in what for what in weights.parts.values()):
        return "a weight for each class"
    return "one weight" if weights.parts else ""


def pages() -> dict[Path, str]:
    """Every page by its path."""
    network = models.build(NETWORK, SHAPE, CLASSES)
    known = {n: profile.of(n, {}, network, CLASSES, CLIENTS) for n in sorted(methods.ours())}
    variants = {
        n: {t: profile.of(n, o, network, CLASSES, CLIENTS) for t, o in methods.get(n).forms.items() if o} for n in known
    }
    out = {PAGES / f"{n}.md": page(n, a) for n, a in known.items()}
    return out | {PAGES / "index.md": overview(known, variants), THREATS: threats(known, variants)} | tables.pages()


def present() -> set[Path]:
    """The pages that are there, without those that are written by hand."""
    return {path for path in PAGES.glob("*.md") if not path.stem.endswith("-protocol")}


def main() -> None:
    """Write or compare."""
    check = generated.parser(__doc__).parse_args().check
    try:
        made = pages()
    except (ValueError, IdiolectError) as error:
        sys.exit(f"docs/build.py: {error}")
    generated.settle(made, check=check, gone=present() - set(made))


if __name__ == "__main__":
    main()
