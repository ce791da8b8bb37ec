"""The training of a client, as settings say it."""

from __future__ import annotations

from typing import Protocol

from idiolect.core.method import SGD, Adam, AdamW, Augment, Optimiser, Training
from idiolect.core.option_spec import Spec
from idiolect.core.schedules import schedule_of


class TrainingSettings(Protocol):
    """The settings of a study, or of a bundle, that say how a client trains."""

    @property
    def local_epochs(self) -> int:
        """Epochs per round."""

    @property
    def batch_size(self) -> int:
        """Samples per step."""

    @property
    def optimiser(self) -> str:
        """``sgd``, ``adam`` or ``adamw``."""

    @property
    def lr(self) -> float:
        """Learning rate."""

    @property
    def momentum(self) -> float:
        """Momentum of ``sgd``."""

    @property
    def weight_decay(self) -> float:
        """L2 penalty, or with ``adamw`` decoupled decay."""

    @property
    def clip(self) -> float | None:
        """The largest norm of a step's gradient; None for no bound."""

    @property
    def lr_schedule(self) -> Spec:
        """How the learning rate changes over the rounds."""

    @property
    def augment(self) -> Augment:
        """How training images are augmented."""

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete batch is left out."""


def training_of(settings: TrainingSettings) -> Training:
    """The training that these settings describe."""
    rule: Optimiser = SGD(settings.lr, settings.momentum, settings.weight_decay, settings.clip)
    if settings.optimiser != "sgd":
        adam = AdamW if settings.optimiser == "adamw" else Adam
        rule = adam(settings.lr, weight_decay=settings.weight_decay, clip=settings.clip)
    return Training(
        settings.local_epochs, settings.batch_size, rule, augment=settings.augment, drop_last=settings.drop_last,
        schedule=schedule_of(settings.lr_schedule),
    )  # fmt: skip
