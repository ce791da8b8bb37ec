"""How a pretrained backbone is written as a model: ``hf:NAME_OR_FOLDER,adapt=frozen,body=mlp:64``."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from idiolect.core import option_spec
from idiolect.core.errors import InputError, nearest
from idiolect.core.files import expanded
from idiolect.core.import_path import is_dotted
from idiolect.core.option_spec import Spec

LIBRARIES = ("hf", "timm", "torch")
"""What models begin with: the packages transformers and timm, and torch for code of one's own."""
Pooling = Literal["mean", "cls"]
_BODIES = "identity, linear:64 or mlp:64"
_EXAMPLES = {
    "hf": "hf:sentence-transformers/all-MiniLM-L6-v2, or the folder of one after hf:",
    "timm": "timm:resnet18",
    "torch": "torch:my_package.my_backbone",
}


@dataclass(frozen=True)
class LoRA:
    """Adapters of low rank beside the layers of a backbone, which stays as it is.

    Attributes:
        r: the rank.
        targets: the last parts of the names of the layers, as ("query", "value"); () takes those of queries and
            values.
        alpha: what an adapter adds is multiplied by alpha / r; None for 2 r.
        dropout: of an adapter's input.

    Source: Hu et al., LoRA: Low-rank adaptation of large language models (ICLR 2022).
    """

    r: int = 8
    targets: tuple[str, ...] = ()
    alpha: float | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class Pretrained:
    """A pretrained backbone and what is done with it.

    Attributes:
        library: of ``LIBRARIES``.
        name: of the backbone in that library, or its folder.
        adapt: "frozen" learns on its features, "full" trains all its weights, ``LoRA`` adapters beside its layers.
        body: what is learnt between the features and the head: its kind and width, 0 for none.
        pooling: "mean" is the mean over a text's tokens or an image's places, "cls" takes the class token.
        weights: a folder that is read in place of ``name``, or a file of weights for the network that ``name`` has.
    """

    library: str
    name: str
    adapt: Literal["frozen", "full"] | LoRA = "frozen"
    body: tuple[str, int] = ("identity", 0)
    pooling: Pooling | None = None
    weights: str | None = None

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"model {self.library}:{self.name}"


def files_of(settings: Pretrained) -> tuple[tuple[str, int, int], ...]:
    """What shows whether the files of a backbone on this machine have changed: place, size and time of each."""
    files = []
    for text in (settings.name, settings.weights or ""):
        place = Path(os.path.abspath(expanded(text)))
        for file in sorted(place.iterdir()) if place.is_dir() and text else [place]:
            with suppress(OSError):
                about = file.stat()
                files.append((str(file), about.st_size, about.st_mtime_ns))
    return tuple(files)


def code_of(model: str) -> str | None:
    """The import path of the code that a model names; None if it names none.

    >>> code_of("torch:my_nets.eyes,adapt=full"), code_of("my_nets.small"), code_of("hf:owner/name.v2")
    ('my_nets.eyes', 'my_nets.small', None)
    """
    spec = spec_of(model)
    if is_pretrained(spec):
        return str(spec.options.get("name", "")) if spec.name == "torch" else None
    return spec.name if "." in spec.name else None


def is_pretrained(model: Spec | str) -> bool:
    """Whether a model is a pretrained backbone."""
    name = model.name if isinstance(model, Spec) else model.partition(":")[0].strip()
    return name in LIBRARIES


def spec_of(model: str) -> Spec:
    """A model's name and options; after ``hf:`` and ``timm:`` comes the backbone's name, without ``name=``.

    Raises:
        InputError: the text cannot be read.

    >>> spec_of("hf:/models/minilm,body=mlp:64").options
    {'name': '/models/minilm', 'body': 'mlp:64'}
    """
    library, colon, rest = (piece.strip() for piece in model.partition(":"))
    if library not in LIBRARIES or not colon or re.match(r"\w+\s*=", rest):
        return Spec.parse(model)
    name, _, options = rest.partition(",")
    more = Spec.parse(f"{library}:{options}").options
    if "name" in more:
        raise InputError(f"model {library} has two names, {name.strip()!r} and {more['name']!r}: leave one out")
    return Spec(name=library, options={"name": name.strip(), **more})


def text_of(spec: Spec) -> str:
    """How ``spec_of`` reads a pretrained backbone."""
    rest = Spec(name=spec.name, options={k: v for k, v in spec.options.items() if k != "name"})
    options = str(rest).partition(":")[2]
    return f"{spec.name}:{spec.options.get('name', '')}" + (f",{options}" if options else "")


def settings_of(spec: Spec) -> Pretrained:
    """What a model's text says, checked.

    Raises:
        InputError: an option is unknown or not possible, or there is no name.
    """
    what = f"model {spec.name}"
    values = option_spec.check(_options, spec.options, what, beside=["buffers"])
    name = str(values.get("name", "")).strip()
    if not name:
        raise InputError(f"{what} does not say which: write {_EXAMPLES[spec.name]}")
    if spec.name == "torch" and not is_dotted(name):
        raise InputError(f"{what}: {name!r} is not the import path of a function: write {_EXAMPLES['torch']}")
    adapt, body = _adapt(str(values.get("adapt", "frozen")), what), _body(str(values.get("body", "identity")), what)
    return Pretrained(spec.name, name, adapt, body, values.get("pooling"), values.get("weights"))


def _options(
    *, name: str = "", adapt: str = "frozen", body: str = "identity", pooling: Pooling | None = None,
    weights: str | None = None,
) -> None:  # fmt: skip
    """The options of a pretrained backbone."""


def _adapt(text: str, what: str) -> Literal["frozen", "full"] | LoRA:
    spec = Spec.parse(text)
    if spec.name == "lora":
        values = option_spec.check(_lora, spec.options, f"{what}: adapt=lora")
        targets = tuple(name.strip() for name in values.pop("targets", "").split("+") if name.strip())
        return LoRA(targets=targets, **values)
    if spec.options or spec.name not in ("frozen", "full"):
        raise InputError(f"{what}: adapt={text} is not valid; {nearest(spec.name, ['frozen', 'full', 'lora(r=8)'])}")
    return "full" if spec.name == "full" else "frozen"


def _lora(
    *, r: PositiveInt = 8, targets: str = "", alpha: PositiveFloat | None = None,
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> None:  # fmt: skip
    """The options of ``LoRA``."""


def _body(text: str, what: str) -> tuple[str, int]:
    match = re.fullmatch(r"(linear|mlp)[:(]\s*([1-9]\d{0,5})\s*\)?", text.strip())
    if match:
        return match[1], int(match[2])
    if text.strip() == "identity":
        return "identity", 0
    raise InputError(f"{what}: body={text} is not valid: write {_BODIES}")
