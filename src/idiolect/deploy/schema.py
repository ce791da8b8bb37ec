"""``bundle.json``: what a bundle says about itself. Its JSON schema is published in the documentation."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from idiolect.core import inputs as forms
from idiolect.core.evaluation_protocol import Threshold
from idiolect.core.method import Augment
from idiolect.core.objectives import OBJECTIVES, Objective, TaskName
from idiolect.core.option_spec import Spec, complete
from idiolect.core.schedules import schedule_of
from idiolect.data.datasets.dataset import Encoding
from idiolect.data.text.tokens import Tokens, tokens_of
from idiolect.deploy.limits import COUNT
from idiolect.training.class_weights import weighted

VERSION = 1
Kind = Literal["images", "table", "texts", "windows", "numbers"]  # of samples
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Count = Annotated[int, Field(ge=1, le=2**40)]
_Weight = Annotated[float, Field(gt=0, le=3)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MethodPart(_Part):
    """The method with all its options. ``code`` says of which file it is, and of which package if not of idiolect."""

    name: _Name
    title: str
    options: dict[str, Any]
    code: str = ""


class FeaturesPart(_Part):
    """Mean and standard deviation of a frozen backbone's features, by which what follows it takes them."""

    mean: tuple[_Finite, ...]
    std: tuple[_Size, ...]


class NetworkPart(_Part):
    """The network. ``code`` is the SHA-256 of the file that defines a network of one's own, else None.

    ``frozen`` is the SHA-256 of the network's frozen weights, which are not in the bundle; None if it has none.
    """

    model: _Name
    code: _Digest | None = None
    frozen: _Digest | None = None
    features: FeaturesPart | None = None


class TrainingPart(_Part):
    """How a client trains, for methods whose personal model needs steps, and what stays there: as in ``Study``."""

    local_epochs: Annotated[int, Field(ge=1, le=COUNT)]
    batch_size: _Count
    optimiser: Literal["sgd", "adam", "adamw"]
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    lr_schedule: Annotated[Spec, AfterValidator(partial(complete, build=schedule_of))]
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    augment: Augment
    drop_last: bool
    personal: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class Scale(_Part):
    """How large the numbers of a column are, with two digits, so that another site's can be compared with them.

    Attributes:
        quartiles: of the absolute values that are neither missing nor 0; None if there are too few.
        zeros: the share of the known numbers that are 0.
    """

    quartiles: tuple[_Size, _Size, _Size] | None = None
    zeros: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.quartiles is not None and not self.quartiles[0] <= self.quartiles[1] <= self.quartiles[2]:
            raise ValueError("quartiles are not ascending")
        return self


class TensorPart(_Part):
    """One tensor of a sample; its fields are those of ``Inputs``."""

    shape: Annotated[tuple[_Count, ...], Field(max_length=4)] = ()
    mean: tuple[_Finite, ...] = ()
    std: tuple[_Size, ...] = ()
    ids: Annotated[int, Field(ge=0, le=2**40)] | None = None

    @property
    def input(self) -> forms.Input:
        """Its form, as a network takes it."""
        return forms.Input(self.shape, self.ids is not None, self.ids or 0)


class TokensPart(_Part):
    """How texts become ids: the columns that have them, what makes ids of a text, and how many ids are used."""

    columns: tuple[_Name, ...] = ()
    encoder: _Name
    most: _Count

    @property
    def tokens(self) -> Tokens:
        """The same, ready to be used.

        Raises:
            InputError: there is no such encoder.
        """
        return tokens_of(self.encoder, self.most, self.columns)


class Inputs(TensorPart):
    """The samples that the network takes.

    Attributes:
        kind: "images" are 8-bit, (channels, height, width); a "table" has named columns; "texts" are rows of ids;
            "windows" are (channels, time), in columns of lists; "numbers" are anything else.
        shape: of one sample as stored; () where it has several tensors.
        columns: of a table, in the order of their features.
        mean, std: per channel (on a scale of 0 to 1) or feature; () for whole numbers and for several tensors.
        ids: of whole numbers, one more than the largest that may occur, 0 if that is not known; None for others.
        tensors: by name, where a sample has several.
        scales: of a table, for each column how large its numbers are in training; () if that is not known.
        tokens: of texts, how they become ids.
        channels: of windows, the columns of lists; one may have all channels.
        bits: of the grey values of images, before they become 8; None if that is not known.
    """

    kind: Kind
    columns: tuple[Encoding, ...] = ()
    tensors: dict[_Name, TensorPart] = Field(default_factory=dict)
    scales: tuple[Scale, ...] = ()
    tokens: TokensPart | None = None
    channels: tuple[_Name, ...] = ()
    bits: Annotated[int, Field(ge=8, le=16)] | None = None

    @property
    def form(self) -> forms.Inputs:
        """The form of a sample, as a network takes it."""
        return {name: one.input for name, one in self.tensors.items()} or self.input

    @property
    def moments(self) -> tuple[forms.Moments, forms.Moments]:
        """Mean and standard deviation, by name where a sample has several tensors."""
        if not self.tensors:
            return self.mean, self.std
        return {n: one.mean for n, one in self.tensors.items()}, {n: one.std for n, one in self.tensors.items()}

    @model_validator(mode="after")
    def _scale_of_every_column(self) -> Self:
        if self.scales and len(self.scales) != len(self.columns):
            raise ValueError("scales does not have one for each column")
        return self

    @model_validator(mode="after")
    def _tokens_of_texts(self) -> Self:
        if (self.kind == "texts") != (self.tokens is not None) or (self.tokens and len(self.shape) != 1):
            raise ValueError("tokens belongs to texts, whose shape has one number")
        return self

    @model_validator(mode="after")
    def _channels_of_windows(self) -> Self:
        if (self.kind == "windows") != bool(self.channels) or (self.channels and len(self.shape) != 2):
            raise ValueError("channels belongs to windows, whose shape has two numbers")
        return self


class TargetPart(_Part):
    """A number that is predicted, with the mean and standard deviation by which networks learn it."""

    name: _Name
    mean: _Finite
    std: _Size


class KeyPart(_Part):
    """What the random draws of a joining client depend on: the run's seed and round, and the client's number."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    round: _Count
    client: Annotated[int, Field(ge=0, le=2**40)]


class ClientPart(_Part):
    """A client of the run, measured on its test samples after the last round; NaN is written as null."""

    name: str
    train: int
    test: int
    received: _Finite | None = None
    """Accuracy of the model that the server sends, 0 to 1; of numbers the mean squared error."""
    personal: _Finite | None = None
    """The same of its personal model."""
    new: bool = False
    """Whether it did not train."""


class Evaluation(_Part):
    """What the run measured of this method."""

    protocol: str
    clients: tuple[ClientPart, ...]
    loss: _Finite | None = None
    calibration_error: _Finite | None = None


class Revealed(_Part):
    """The messages that made the model: their parts by name, with symbolic shapes, and bytes."""

    down: dict[str, str]
    up: dict[str, str]
    bytes_down: int
    bytes_up: int
    uploads_are_sums: bool
    joins_by: str
    per_sample: bool = False
    """Whether the models hold numbers for each of a client's training samples, as kNN-Per's memory does."""


class Provenance(_Part):
    """Where it is from."""

    made: str
    versions: dict[str, str]
    study: dict[str, Any]
    dataset: str
    data_digest: str
    samples: tuple[int, ...]
    """Training samples of each class over all clients that trained; of numbers those of all clients."""
    participants: _Count | None = None
    """Clients that trained in a round and whose upload counted; None where this is not known, as at a site."""


class ErrorsPart(_Part):
    """How far a site's model was from a number of the target, in its units, for samples that it was made without.

    Of a label, how far its probability was from 1 where a sample has it, and from 0 where it has not.

    Attributes:
        std: the root of the mean squared error.
        sizes: the absolute errors, sorted.
        weights: of these, where samples belong to groups, as ``Site.score_weights``; () where each stands for itself.
    """

    std: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    sizes: Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], Field(min_length=1)]
    weights: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()

    @model_validator(mode="after")
    def _weight_of_every_error(self) -> Self:
        if len(self.weights) not in (0, len(self.sizes)):
            raise ValueError(f"weights has {len(self.weights)} numbers for {len(self.sizes)} errors")
        return self


class Site(_Part):
    """How a site's model was chosen, for bundles that ``join`` wrote.

    Attributes:
        ships: which model it is: one, or a blend of several.
        weights: the exponent of each model in a product of experts; of numbers, its weight in their mean.
        why: a sentence.
        samples: how many the site had.
        compared: for each model its out-of-fold accuracy and log loss, or errors, and its difference to ``against``.
        against: the model that the others are compared with: the global one, or the local one where there is no global
            one; None where a model was compared with none.
        scores: for each of the site's samples the probability of the right class, by a model made without the sample;
            sorted.
        score_weights: of the scores, where samples belong to groups: 1 / ((G + 1) n) for one of n samples of one of G
            groups. () where each sample stands for itself.
        prior_shift: for each class the log of its proportion now over that in the site's samples, where the model was
            adapted to other proportions.
        errors: of each number of the target, or label.
    """

    ships: Literal["global", "personal", "local", "blend"]
    weights: dict[Literal["global", "personal", "local"], _Weight] = Field(min_length=1)
    why: str
    samples: _Count
    compared: dict[str, dict[str, _Finite | None]]
    against: Literal["global", "local"] | None = "global"
    scores: tuple[Annotated[float, Field(ge=0, le=1.01)], ...] = ()
    score_weights: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    prior_shift: tuple[_Finite, ...] = ()
    errors: tuple[ErrorsPart, ...] = ()

    @model_validator(mode="after")
    def _weight_of_every_score(self) -> Self:
        if len(self.score_weights) not in (0, len(self.scores)):
            raise ValueError(f"score_weights has {len(self.score_weights)} numbers for {len(self.scores)} scores")
        return self


class About(_Part):
    """The content of ``bundle.json``.

    Attributes:
        format: always "idiolect bundle".
        version: of this format.
        kind: "join": what a new client gets, from which a site makes its own model; "models": personal models that are
            ready to predict.
        classes: the names of the classes; () where numbers or several labels are predicted.
        targets: the numbers that are predicted; () where classes are.
        labels: the names of those of which a sample can have several; () where classes or numbers are predicted.
        threshold: how it is chosen from which probability on a label, or the second of two classes, is predicted.
        class_weights: what training samples weigh in the loss by class (1, C), or without and with each label (L, 2);
            () where all weigh 1.
        thresholds: for each model those of the labels, or that of the second class; () for 1/2.
        global_model: whether there is a global model: a client that has done nothing predicts with what it receives,
            and with nothing that is untrained; None where this is not said.
        models: the names of the personal models, in the order in which they are stored.
        files: SHA-256 of each other file of the folder.
    """

    format: Literal["idiolect bundle"] = "idiolect bundle"
    version: Literal[1] = 1
    kind: Literal["join", "models"]
    method: MethodPart
    network: NetworkPart
    classes: tuple[_Name, ...] = Field(default=(), max_length=100_000)
    targets: tuple[TargetPart, ...] = Field(default=(), max_length=100_000)
    labels: tuple[_Name, ...] = Field(default=(), max_length=100_000)
    threshold: Threshold = "half"
    class_weights: tuple[tuple[_Size, ...], ...] = ()
    thresholds: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...] = ()
    clients: _Count
    training: TrainingPart
    inputs: Inputs
    key: KeyPart
    global_model: bool | None = None
    models: tuple[str, ...] = ()
    evaluation: Evaluation | None = None
    revealed: Revealed | None = None
    provenance: Provenance | None = None
    site: Site | None = None
    files: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(default_factory=dict)

    @property
    def task(self) -> TaskName:
        """What is predicted."""
        return "regression" if self.targets else "multilabel" if self.labels else "classification"

    @property
    def objective(self) -> Objective:
        """The loss, what predictions are, and the score."""
        return weighted(OBJECTIVES[self.task], self.class_weights)

    @property
    def outputs(self) -> int:
        """How many numbers the network returns for a sample."""
        return len(self.targets or self.labels or self.classes)

    @model_validator(mode="after")
    def _classes_or_targets(self) -> Self:
        if sum(map(bool, (self.classes, self.targets, self.labels))) != 1:
            raise ValueError("classes, targets and labels: it has several of them or none")
        names = [target.name for target in self.targets] or self.labels
        if len(set(names)) < len(names):
            raise ValueError("targets or labels: a name occurs twice")
        lengths = [len(self.classes)] if self.classes else [2] * len(self.labels)
        if self.class_weights and [len(row) for row in self.class_weights] != lengths:
            raise ValueError("class_weights are not one for each class, or two for each label")
        if self.site and self.site.errors and len(self.site.errors) != len(names):
            raise ValueError("site.errors does not have one for each number of the target, or label")
        return self

    @model_validator(mode="after")
    def _threshold_of_every_model(self) -> Self:
        count = len(self.labels) or 1
        if self.thresholds and (
            self.targets
            or (self.classes and len(self.classes) != 2)
            or len(self.thresholds) != len(self.models)
            or any(len(of_one) != count for of_one in self.thresholds)
        ):
            raise ValueError("thresholds does not have one for each label, or for the second of two classes, by model")
        return self

    @model_validator(mode="after")
    def _shift_of_every_class(self) -> Self:
        if self.site and self.site.prior_shift and len(self.site.prior_shift) != len(self.classes):
            raise ValueError("site.prior_shift does not have one number for each class")
        return self
