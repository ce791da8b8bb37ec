"""A study: which methods are compared on which data, as one frozen, checked object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import pydantic
from pydantic import Field, PositiveInt

from idiolect import data, methods, models
from idiolect.core.defaults import USUAL_CLIENTS, USUAL_DATASET, USUAL_PARTITION
from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.import_path import by_path, may_import, no_imports
from idiolect.core.method import Task
from idiolect.core.network import Precision
from idiolect.core.objectives import TaskName
from idiolect.core.option_spec import Spec, joined, split_list
from idiolect.core.schedules import check_schedule
from idiolect.data import FederatedData, Normalise, Source
from idiolect.data.datasets.dataset import Header, Unlabelled
from idiolect.data.partitions.apart import complete_splitting
from idiolect.simulation import Job, thresholds
from idiolect.simulation.attacks import flip_labels, on_uploads
from idiolect.simulation.measures import check, specs_of
from idiolect.simulation.privacy import mechanism_of
from idiolect.simulation.robust import rule_of
from idiolect.simulation.uploads import step_of
from idiolect.studies.backbones import check_augment, on_backbone
from idiolect.studies.class_weights import objective_of
from idiolect.studies.clients import warn_of_no_clients
from idiolect.studies.defences import COMPLETE, check_defences
from idiolect.studies.display import Display
from idiolect.studies.local_training import LocalTraining
from idiolect.studies.method_use import Name, Use
from idiolect.studies.naming import (
    all_different,
    complete_partition,
    is_path,
    known_name,
    new_clients_of,
    path_of_model,
    seeds_of,
    share_of,
)
from idiolect.studies.observing import check_observed
from idiolect.studies.settings import field
from idiolect.studies.source import OBJECT, check_reading, source_of
from idiolect.studies.study_file import names_code, settings_of_file
from idiolect.training import training_of
from idiolect.training.server_optimisers import server_optimiser_of

if TYPE_CHECKING:
    from idiolect.deploy.make import Elsewhere

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Names = Annotated[str | None, pydantic.BeforeValidator(joined)]
Keep = Annotated[float, Field(gt=0, le=1)] | Annotated[int, Field(ge=1, le=2**40)]
_USUAL = Spec.parse(USUAL_PARTITION)
_TRIED = 3  # samples on which a network of one's own is tried


class Study(Display, LocalTraining):
    """Methods compared on one federation of clients.

    The same study gives the same numbers with every engine, except ``vectorised``, whose numbers differ by rounding.

    Raises:
        InputError: a setting is unknown, misspelt or out of range.
    """

    name: Name = field("name")
    dataset: str | None = field("dataset")
    data_dir: str | None = field("data_dir")
    data: str | Source | None = field("data")
    target: Names = field("target")
    task: TaskName | None = field("task")
    client_column: str | None = field("client_column")
    group_column: str | None = field("group_column")
    drop: tuple[str, ...] = field("drop")
    resize: str | None = field("resize")
    text: Names = field("text")
    tokens: Literal["words", "characters", "bytes"] | None = field("tokens")
    max_tokens: PositiveInt | None = field("max_tokens")
    header: Header | None = field("header")
    columns: Names = field("columns")
    missing: Names = field("missing")
    unlabelled: Unlabelled | None = field("unlabelled")
    categorical: Names = field("categorical")
    layout: str | None = field("layout")
    partition: Any = field("partition")
    split: Annotated[Spec, pydantic.AfterValidator(complete_splitting)] = field("split")
    sizes: tuple[Annotated[int, Field(ge=1, le=2**40)], ...] = field("sizes")
    keep: Keep | None = field("keep")
    shifts: tuple[Spec, ...] = field("shifts")
    new_clients: PositiveInt | str | None = field("new_clients")
    new_shifts: tuple[Spec, ...] = field("new_shifts")
    normalise: Normalise = field("normalise")
    model: str = field("model")
    methods: tuple[Use, ...] = field("methods", min_length=1, validate_default=True)
    clients: PositiveInt | None = field("clients")
    rounds: PositiveInt = field("rounds")
    participation: Annotated[float, Field(gt=0, le=1)] = field("participation")
    uploads: tuple[Spec, ...] = field("uploads")
    privacy: Spec | None = field("privacy")
    robust: Spec | None = field("robust")
    secure_aggregation: bool = field("secure_aggregation")
    attacks: tuple[Spec, ...] = field("attacks")
    precision: Precision = field("precision")
    seeds: tuple[Seed, ...] = field("seeds", min_length=1)
    data_seed: Seed = field("data_seed")
    protocol: Protocol = field("protocol")
    measures: Annotated[tuple[str, ...], pydantic.BeforeValidator(specs_of)] = field("measures")
    evaluate_every: PositiveInt | None = field("evaluate_every")
    patience: PositiveInt | None = field("patience")
    save_predictions: bool = field("save_predictions")
    checkpoint_every: PositiveInt = field("checkpoint_every")

    def __init__(self, /, **settings: Any) -> None:
        super().__init__(**settings)  # a type checker takes any settings; pydantic checks them

    @pydantic.model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill in what depends on other settings: the data set, the partition, the number of clients."""

        def resolve(**values: Any) -> None:
            for name, value in values.items():
                object.__setattr__(self, name, value)

        check_schedule(self.lr_schedule, self.rounds, self.lr)
        for use in self.methods:
            self.of(use)
        if self.patience is not None:
            resolve(protocol=self.protocol.with_patience(self.patience, self.save_predictions))
        if self.data is None:
            resolve(dataset=known_name("dataset", self.dataset or USUAL_DATASET, data.names()))
        elif self.dataset is not None or self.data_dir is not None:
            raise ValueError("give data (your own) or dataset and data_dir (one by name), not both")
        check_reading(self)
        if self.partition is None:
            column = self.client_column
            if column is None and self.dataset is not None:
                column = data.describe(self.dataset)["client_column"]
            elif self.data is not None and column is None:
                return self  # this depends on the data, which are read later
            options = {"column": column} if column and self.data is None else {}
            resolve(partition=complete_partition(Spec(name="natural", options=options) if column else _USUAL))
        if self.protocol.clients == "new" and not self.new_clients:
            raise ValueError("protocol clients=new needs new clients: add new_clients, as 20%, or leave it out")
        readable = isinstance(self.partition, Spec) and (may_import() or not is_path(self.partition))
        if self.clients is None and readable and not data.follows_a_column(self.partition):
            resolve(clients=USUAL_CLIENTS)
        return self

    @pydantic.field_validator("data", mode="before")
    @classmethod
    def _data(cls, value: object) -> object:
        if value is not None and not isinstance(value, str | Path | Source):
            how = "from_frame" if hasattr(value, "columns") else "from_arrays or from_dataset"
            kind = type(value).__name__
            raise ValueError(f"data is a {kind}: give a path, or read it with idiolect.data.{how} first")
        return str(value) if isinstance(value, Path) else value

    @pydantic.field_serializer("data")
    def _data_text(self, value: str | Source | None) -> str | None:
        return f"{OBJECT}{value.name}, {data.digest(value)}" if isinstance(value, Source) else value

    @pydantic.field_validator("partition", mode="before")
    @classmethod
    def _partitioner(cls, value: object) -> object:
        if value is None or hasattr(value, "load_partition") or (isinstance(value, str) and value.startswith(OBJECT)):
            return value
        return complete_partition(Spec.model_validate(value))

    @pydantic.field_serializer("partition")
    def _partition_text(self, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        return value.model_dump() if isinstance(value, Spec) else f"{OBJECT}{type(value).__name__}"

    @pydantic.field_validator("sizes", "drop", mode="before")
    @classmethod
    def _names(cls, value: object, info: pydantic.ValidationInfo) -> object:
        if isinstance(value, str) and info.field_name == "drop":  # a + may be part of a name, which the data say
            return [value]
        if isinstance(value, str):
            return [piece.strip() for piece in value.split("+")]
        return [value] if isinstance(value, int) else value

    @pydantic.field_validator("keep", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        return share_of(value)

    @pydantic.field_validator("new_clients", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        return new_clients_of(value)

    @pydantic.field_validator("methods", "shifts", "new_shifts", "uploads", "attacks", "seeds", mode="before")
    @classmethod
    def _texts(cls, value: object, info: pydantic.ValidationInfo) -> object:
        if isinstance(value, str):
            return seeds_of(value) if info.field_name == "seeds" else split_list(value)
        return [value] if isinstance(value, int | Spec | Use | Mapping) else value

    @pydantic.field_validator("model")
    @classmethod
    def _model(cls, name: str) -> str:
        if (path := path_of_model(name)) and may_import():
            by_path(path, "model")
        return name

    @pydantic.field_validator("shifts", "new_shifts", "uploads", "attacks")
    @classmethod
    def _all_options(cls, specs: tuple[Spec, ...], info: pydantic.ValidationInfo) -> tuple[Spec, ...]:
        every = data.conditions_of(specs) if info.field_name == "new_shifts" else specs
        return tuple(COMPLETE[str(info.field_name)](spec) for spec in every)

    @pydantic.field_validator("privacy", "robust")
    @classmethod
    def _options(cls, spec: Spec | None, info: pydantic.ValidationInfo) -> Spec | None:
        return spec and COMPLETE[str(info.field_name)](spec)

    @pydantic.field_validator("methods")
    @classmethod
    def _labels(cls, uses: tuple[Use, ...]) -> tuple[Use, ...]:
        return all_different("method", uses, [u.label for u in uses])

    @pydantic.field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        return all_different("seed", seeds, seeds)

    @classmethod
    def read(cls, path: str | Path, *, allow_import: bool = False) -> Self:
        """A study from a YAML file.

        Args:
            path: of the file.
            allow_import: whether the file may name code by its import path, which is then imported and run. Only for
                files, and modules in the current folder, that you trust.

        Raises:
            InputError: no such file, not YAML, a setting is wrong, or it names code without ``allow_import``.
        """
        if allow_import:
            return cls._of_file(path, settings_of_file(path))
        study = cls.look(path)
        if paths := study.imports():
            raise names_code(path, paths)
        return study

    @classmethod
    def look(cls, path: str | Path) -> Self:
        """As ``read``, but code that the file names is not imported: to compare or show a study, not to run it.

        Raises:
            InputError: there is no such file, it is not YAML, or a setting is wrong.
        """
        with no_imports():
            return cls._of_file(path, settings_of_file(path))

    @classmethod
    def _of_file(cls, path: str | Path, settings: dict[str, Any]) -> Self:
        try:
            return cls(**settings)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def imports(self) -> dict[str, str]:
        """The settings that are import paths of code, with the paths; of several methods the first."""
        partition, uses = self.partition, (use.name for use in self.methods)
        paths = {
            "model": path_of_model(self.model),
            "partition": partition.name if isinstance(partition, Spec) and is_path(partition) else None,
            "methods": next(filter(methods.registry.is_path, uses), None),
            "data": self.data if isinstance(self.data, str) and data.is_program(self.data) else None,
        }
        return {setting: path for setting, path in paths.items() if path}

    def of(self, use: Use) -> Self:
        """The study as one of its methods trains: with the settings that the method has for itself.

        Raises:
            InputError: these do not go together.
        """
        if not use.settings:
            return self
        try:
            own = self.model_copy(update=self.local_training(use.settings))
            check_schedule(own.lr_schedule, own.rounds, own.lr)
            return own
        except InputError as error:
            raise InputError(f"method {use.label}: {error}") from None

    @property
    def evaluation(self) -> int:
        """Rounds between evaluations: ``evaluate_every``, or about ten of them in a run."""
        return self.evaluate_every or max(1, self.rounds // 10)

    def with_methods(self, uses: Sequence[Use]) -> Self:
        """The study with other methods.

        Raises:
            InputError: there is none, two have one label, or a method's own settings do not go with the study's.
        """
        if not uses:
            raise InputError("a study needs at least one method")
        study = self.model_copy(update={"methods": all_different("method", tuple(uses), [u.label for u in uses])})
        for use in study.methods:
            study.of(use)
        return study

    def federation(self) -> FederatedData:
        """The clients' data: loaded, partitioned, shifted, and as features where a frozen backbone makes them.

        Raises:
            InputError: as ``samples``, or the backbone cannot be read or does not take the samples.
        """
        return on_backbone(self, self.samples())

    def samples(self) -> FederatedData:
        """The clients' data before a backbone sees them.

        Raises:
            InputError: the data are missing or broken, or do not allow the partition.
        """
        source, partition = source_of(self), self.partition
        if isinstance(partition, str):
            raise InputError(f"partition {partition}: it was given in a Python program: run the study from there")
        no_clients = partition is None and source.client_column is None
        if partition is None:
            few = _USUAL.model_copy(update={"options": _USUAL.options | {"min_rows": 2}})  # there may be few samples
            few = few if source.targets is None else Spec(name="iid")
            partition = complete_partition(Spec(name="natural") if source.client_column else few)
        federation = data.build(
            source, partition, self.shifts, self.clients, self.data_seed, sizes=self.sizes, keep=self.keep,
            new_clients=self.new_clients, new_shifts=self.new_shifts, normalise=self.normalise,
            validation=self.protocol.validation, split=self.split,
        )  # fmt: skip
        if no_clients:
            warn_of_no_clients(federation, source, partition)
        return flip_labels(federation, self.attacks)

    def task_of(self, federation: FederatedData) -> Task:
        """The task that the methods get.

        Raises:
            InputError: the network, the augmentation or the class weights do not fit the samples.
        """
        check_augment(self, federation)
        inputs, outputs = federation.preprocessing, federation.outputs
        some = inputs(federation.some(_TRIED)) if federation.samples else None
        how = objective_of(self.class_weights, federation)
        return Task(
            models.build(self.model, federation.inputs, outputs, self.precision, some), outputs, federation.trained,
            training_of(self), inputs, how.loss, how.output, how.mixture, federation.task,
        )  # fmt: skip

    def jobs(self, federation: FederatedData) -> list[tuple[Use, Job]]:
        """One job per method and seed.

        Raises:
            InputError: a measure, a threshold or what is observed is not defined for the target, or a method cannot
                take the privacy, the robust rule or the steps that change uploads.
        """
        check(self.measures, federation.task, federation.classes)
        thresholds.check(self.protocol.threshold, federation.task, federation.classes)
        check_observed(self.protocol, federation.task)
        jobs = [(u, self.job(u, seed, federation)) for u in self.methods for seed in self.seeds]
        check_defences(jobs[:: len(self.seeds)], self.protocol, self.participation)
        return jobs

    def job(self, use: Use, seed: int, federation: FederatedData) -> Job:
        """The job of a method and a seed."""
        own = self.of(use)
        server = server_optimiser_of(own.server_optimiser)
        # each job has its own network: a network holds weights while it computes, and jobs run side by side
        build = partial(
            methods.build, use.name, use.options, own.task_of(federation), server=server, personal_weights=own.personal
        )
        return Job(
            use.label, build, federation, seed, uploads=tuple(map(step_of, self.uploads)), measures=self.measures,
            attacks=on_uploads(self.attacks, federation.trained),
            robust=None if self.robust is None else rule_of(self.robust),
            privacy=None if self.privacy is None else mechanism_of(self.privacy), secure=self.secure_aggregation,
            rounds=self.rounds, threshold=self.protocol.threshold,
        )  # fmt: skip

    def elsewhere(self, job: Job) -> Elsewhere | None:
        """What is known of samples and clients' states that are not where the run is; None if they are."""
        return None
