"""Bundles: folders that hold what a site needs to join and to predict, and nothing that runs when it is read.

``bundle.json`` says what it is (see ``idiolect.deploy.schema``), ``model.safetensors`` holds numbers, ``README.md`` is
for people. The file of numbers has the leaves of what all models share as tensors ``shared/PATH``. Of what each model
has for itself, a leaf of all models together is one flat tensor ``own/PATH``, so that one model is read without the
others: ``ends/PATH`` (n,) says where each model's numbers end, ``shapes/PATH`` (n, dimensions) their shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from idiolect import methods, models
from idiolect.core import files, keys, tree
from idiolect.core.documents import sealed_json
from idiolect.core.errors import InputError, RunError, blame, nearest, option
from idiolect.core.inputs import blank
from idiolect.core.method import Data, Down, Method, Task
from idiolect.core.tree import Tree
from idiolect.deploy import code, global_model
from idiolect.deploy.about_file import ABOUT, CARD, FIX, NUMBERS, about_features, read_about
from idiolect.deploy.alone import alone
from idiolect.deploy.blended import blended
from idiolect.deploy.harm import OF_CLASSES, Judge, Name
from idiolect.deploy.harm_of_labels import OF_LABELS
from idiolect.deploy.harm_of_numbers import judge_of
from idiolect.deploy.limits import limited
from idiolect.deploy.numbers_file import content
from idiolect.deploy.reweighted import reweighted
from idiolect.deploy.schema import About
from idiolect.simulation.rounds import first_state
from idiolect.training import Preprocessing, training_of, trial
from idiolect.training.chunks import in_chunks

_CHECKED = 2**28  # bytes of numbers up to which every reading compares their digest
_CHUNK = 256  # images at a time, as in the simulator; rows of a table are smaller


class Personal(NamedTuple):
    """A model that is ready to predict: what its client received, and the client's state."""

    down: Down
    client: Tree


class Bundle:
    """A bundle on disk.

    Attributes:
        folder: where it is.
        about: what it says about itself.
    """

    def __init__(self, folder: Path, about: About, digest: str) -> None:
        self.folder, self.about, self.digest = folder, about, digest

    @classmethod
    def read(cls, folder: str | Path, *, allow_import: bool = False) -> Bundle:
        """Open a bundle.

        Args:
            folder: of the bundle.
            allow_import: whether a network or a method of one's own, named by its import path, may be imported.

        Raises:
            InputError: there is no bundle, it is broken, has changed or is of a newer version, or it names code
                without ``allow_import``.
        """
        folder = Path(folder)
        about, digest = read_about(folder)
        bundle = cls(folder, about, digest)
        numbers = folder / NUMBERS
        if not numbers.is_file():
            raise InputError(f"{folder} has no {NUMBERS}: {FIX}")
        if numbers.stat().st_size <= _CHECKED:
            bundle._compare(NUMBERS)
        code.check(folder, about, allow_import)
        bundle._check_sizes(numbers.stat().st_size)
        return bundle

    def _repr_html_(self) -> str:
        from idiolect.deploy.bundle_html import bundle_html  # draws with the page's templates, which a site need not

        return bundle_html(self.folder, self.about)

    def _check_sizes(self, size: int) -> None:
        """Check that what is built for these ``size`` bytes of numbers is not much larger than they are."""
        about = self.about
        if about.network.frozen:
            assert self.task  # frozen weights are not in the bundle, but on this machine, whatever they take
        with limited(self.folder, size, about.method.options, FIX), blame(f"method {about.method.name}, on a sample"):
            x_R, down, fresh = self._blank, self.message, self.fresh
            if self.task.network.buffers != "local":  # which has no statistics before its samples have been seen
                self.received.predict(down, fresh, x_R)

    def ready(self) -> None:
        """Check that the bundle holds models that are ready.

        Raises:
            InputError: it holds what a new client gets.
        """
        if self.about.kind == "join":
            raise InputError(f"{self.folder} is not a site's model yet: join with it first")

    def unwatched(self, least: int) -> str:
        """Why a site's model cannot be watched, which takes so many of the site's own samples."""
        count = self.about.site.samples if self.about.site else 0
        if count < least:
            return f"it was made from {count} samples, and {least} are needed: join again with more samples"
        return "its network normalises by each client's own statistics: train with buffers=aggregate or frozen"

    def check(self) -> None:
        """Compare every file with its digest.

        Raises:
            InputError: one is missing or has changed.
        """
        for name in self.about.files:
            self._compare(name)

    def other(self, name: str) -> bytes:
        """The content of one more file, whose digest is compared.

        Raises:
            InputError: it is missing or has changed.
        """
        self._compare(name)
        return files.read(self.folder / name)

    def _compare(self, name: str) -> None:
        try:
            digest = _sha256(self.folder / name)
        except OSError as error:
            raise InputError(f"{self.folder / name} cannot be read ({error.strerror}): {FIX}") from None
        if digest != self.about.files.get(name):
            raise InputError(f"{self.folder / name} has changed since the bundle was made: {FIX}")

    @cached_property
    def task(self) -> Task:
        """What the method is told about the problem."""
        about = self.about
        of = about.network.features
        network = models.build(
            about.network.model,
            about.inputs.form,
            about.outputs,
            features=None if of is None else (of.mean, of.std),
        )
        if (about.network.frozen or "") != network.frozen_digest:
            raise InputError(
                f"{self.folder} was made with other frozen weights of {about.network.model} than those that are here: "
                "use the weights of that time"
            )
        inputs, how = Preprocessing(*about.inputs.moments), about.objective
        training, each = training_of(about.training), (how.loss, how.output, how.mixture)
        return Task(network, about.outputs, about.clients, training, inputs, *each, about.task)

    @cached_property
    def method(self) -> Method:
        """The method."""
        return self._built(self.task)

    @cached_property
    def received(self) -> Method:
        """The method whose ``personalise`` leaves clients as they are."""
        return self._built(self.task, personal=False)

    def _built(self, task: Task, *, personal: bool = True) -> Method:
        about = self.about
        kept = about.training.personal
        return methods.build(about.method.name, about.method.options, task, personal=personal, personal_weights=kept)

    @cached_property
    def methods(self) -> dict[Name, Method]:
        """The methods of a site's models, by name."""
        return {"global": self.received, "personal": self.method, "local": alone(self.task)}

    @cached_property
    def predicting(self) -> Method:
        """The method by which the models of this bundle predict."""
        shift = self.about.site.prior_shift if self.about.site else ()
        return reweighted(self.unshifted, shift) if shift else self.unshifted

    @cached_property
    def unshifted(self) -> Method:
        """The same, with the proportions of the classes in the samples that the models were made from."""
        return self.method_of(self.about.site.weights if self.about.site else {"personal": 1.0})

    def method_of(self, weights: Mapping[Name, float]) -> Method:
        """The method by which models with these weights predict."""
        return blended(self.methods, weights, self.judge) if len(weights) > 1 else self.methods[next(iter(weights))]

    @property
    def judge(self) -> Judge:
        """How a site's models are compared and put together."""
        if self.about.labels:
            return OF_LABELS
        return judge_of(self.about.targets) if self.about.targets else OF_CLASSES

    def key(self, purpose: str = "evaluate", client: int | None = None) -> Tensor:
        """The key of a joining client's draws, the same as in the simulator."""
        part = self.about.key
        return keys.key(part.seed, part.round, part.client if client is None else client, purpose)

    @cached_property
    def fresh(self) -> Tree:
        """The state of a client that has done nothing."""
        return first_state(self.method, self.about.key.seed, self.about.key.client)

    @cached_property
    def message(self) -> Down:
        """A message of the form that the server sends; the numbers mean nothing."""
        # Of most methods of this library the form is the same for few clients, for which the server's state is small.
        count = self.about.clients
        if self.about.method.name in methods.ours() and count > 3:
            few, more = self._down_among(2), self._down_among(3)
            if [a.shape for a in tree.leaves(few)] == [a.shape for a in tree.leaves(more)]:
                return few
        return self._down_among(count)

    def _down_among(self, clients: int) -> Down:
        method = self._built(replace(self.task, clients=clients))
        down = method.send(method.init_server(keys.start(0)), torch.tensor([self.about.clients]))
        return Down(down.shared, tree.rows(down.own, 0))

    @cached_property
    def _template(self) -> Personal:
        """A model of the bundle's structure; the numbers mean nothing."""
        if self.about.network.features is not None:
            return self.on_features()._template  # which needs no backbone
        with blame(f"method {self.about.method.name}, on synthetic samples"):
            down = self.message
            if self.about.kind == "join":
                return Personal(down, ())
            data = self.synthetic(2 * self.about.outputs)
            return Personal(down, self.predicting.personalise(down, self.fresh, data, keys.key(0)))

    def synthetic(self, rows: int) -> Data:
        """So many samples, as stored; the numbers mean nothing."""
        about, images = self.about, self.about.inputs.kind == "images"
        [data] = trial.samples(about.inputs.form, about.outputs, rows, images=images, task=about.task)
        return data

    @cached_property
    def has_global(self) -> bool:
        """Whether there is a global model; see ``global_model.exists``. Bundles of before 2026-11-26 do not say it."""
        if self.about.global_model is not None:
            return self.about.global_model
        if self.about.network.features is not None:
            return self.on_features().has_global
        return global_model.exists(self)

    def on_features(self) -> Bundle:
        """The same models behind a frozen backbone: their network takes its features, with the same weights."""
        return Bundle(self.folder, about_features(self.about), self.digest)

    @property
    def _blank(self) -> Tree:
        """A sample of nothing in particular, as stored."""
        one = blank(self.about.inputs.form, 1)
        return one.to(torch.uint8) if self.about.inputs.kind == "images" else one

    @cached_property
    def _file(self) -> Any:
        try:
            return safetensors.safe_open(self.folder / NUMBERS, framework="pt")
        except (SafetensorError, OSError) as error:
            raise InputError(f"{self.folder / NUMBERS} is not readable ({error}): {FIX}") from None

    @cached_property
    def _shared(self) -> Tree:
        form = tree.named(self._template.down.shared)
        with self._reading():
            tensors = {path: self._file.get_tensor(f"shared/{path}") for path in form}
            if [(a.shape, a.dtype) for a in tensors.values()] != [(a.shape, a.dtype) for a in form.values()]:
                raise ValueError("its tensors have other shapes")
        return tree.flatten(self._template.down.shared)[1](list(tensors.values()))

    def model(self, name: str | int | None = None) -> Personal:
        """One of the models, by its name, else by its place; only its own numbers are read.

        Raises:
            InputError: there is no such model, or the file is not that of this bundle.
        """
        at = self._place(name)
        own = Down((), self._template.down.own), self._template.client
        leaves = []
        with self._reading():
            for path, like in tree.named(own).items():
                ends = self._file.get_slice(f"ends/{path}")
                start = int(ends[at - 1 : at][0]) if at else 0
                shape = self._file.get_slice(f"shapes/{path}")[at : at + 1][0].tolist()
                flat = self._file.get_slice(f"own/{path}")[start : int(ends[at : at + 1][0])]
                if len(shape) != like.ndim or flat.dtype != like.dtype:
                    raise ValueError(f"{path} has another form")
                leaves.append(flat.view(shape))
        down, client = tree.flatten(own)[1](leaves)
        return Personal(Down(self._shared, down.own), client)

    def thresholds(self, name: str | int | None = None) -> tuple[float, ...]:
        """From which probability on one of the models predicts each label, or the second of two classes; () for 1/2.

        Raises:
            InputError: there is no such model.
        """
        return self.about.thresholds[self._place(name)] if self.about.thresholds else ()

    def _place(self, name: str | int | None) -> int:
        names = self.about.models
        if name is None:
            if len(names) > 1:
                raise InputError(
                    f"{self.folder} has the models of {len(names)} clients: give {option('client')} as one of "
                    f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
                )
            return 0
        if isinstance(name, int) and str(name) not in self._places and 0 <= name < len(names):
            return name
        if str(name) not in self._places:
            raise InputError(f"{self.folder} has no model of client {name!r}; {nearest(str(name), names)}")
        return self._places[str(name)]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.about.models)}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
            if isinstance(error, InputError | RunError):
                raise
            what = " ".join(str(error).split())[:200]
            raise InputError(f"{self.folder / NUMBERS} is not of this method and network ({what}): {FIX}") from None


def write(
    folder: Path,
    about: About,
    shared: Tree,
    own: Iterable[tuple[Tree, Tree]],
    card: str,
    more: Mapping[str, str | bytes] | None = None,
) -> Bundle:
    """Write a bundle, whole or not at all.

    Args:
        folder: a new or empty folder.
        about: what to say; the digests are filled in.
        shared: what all models receive (``Down.shared``).
        own: for each model what it received for itself (``Down.own``) and the client's state.
        card: the text for people.
        more: other files, by name.

    Raises:
        InputError: the folder exists and is not empty.
        RunError: the disk is full or the folder cannot be written.
    """
    files.vacant(folder)
    numbers = content(shared, own)
    with files.drafted_folder(folder) as draft:
        files.write(draft / NUMBERS, numbers)
        others = {CARD: card, **(more or {})}
        for name, text in others.items():
            files.write(draft / name, text)
        digests = {name: _sha256(draft / name) for name in (NUMBERS, *others)}
        about = about.model_copy(update={"files": digests})
        files.write(draft / ABOUT, sealed_json(about.model_dump(mode="json")))
        try:
            Bundle.read(draft, allow_import=True)  # what cannot be used is not left behind
        except InputError as error:
            raise InputError(str(error).replace(str(draft), str(folder))) from None
    return Bundle.read(folder, allow_import=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def log_probabilities(model: Personal, method: Method, x_R: Tree) -> Tensor:
    """Log-probabilities (R, C) of samples as stored, or scaled numbers (R, D), or log-probabilities (R, L, 2)."""
    is_table = isinstance(x_R, Tensor) and x_R.ndim == 2 and x_R.dtype.is_floating_point
    with torch.no_grad():
        return in_chunks(partial(method.predict, model.down, model.client), x_R, 32 * _CHUNK if is_table else _CHUNK)
