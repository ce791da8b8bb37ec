"""The training of a client, as settings say it."""

from __future__ import annotations

from typing import Protocol

from idiolect.core.method import SGD, Adam, Augment, Optimiser, Training


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
        """``sgd`` or ``adam``."""

    @property
    def lr(self) -> float:
        """Learning rate."""

    @property
    def momentum(self) -> float:
        """Momentum of ``sgd``."""

    @property
    def weight_decay(self) -> float:
        """L2 penalty."""

    @property
    def augment(self) -> Augment:
        """How training images are augmented."""

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete batch is left out."""


def training_of(settings: TrainingSettings) -> Training:
    """The training that these settings describe."""
    rule: Optimiser = SGD(settings.lr, settings.momentum, settings.weight_decay)
    if settings.optimiser == "adam":
        rule = Adam(settings.lr, weight_decay=settings.weight_decay)
    return Training(
        settings.local_epochs, settings.batch_size, rule, augment=settings.augment, drop_last=settings.drop_last
    )
