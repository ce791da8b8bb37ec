"""Bricks that two or more methods share: batches, local SGD, forward passes, weight averaging."""

from idiolect.training.batches import Batch, batches, rows
from idiolect.training.sgd import cross_entropy_mean, mean, sgd
from idiolect.training.whole import features, log_softmax_of, train_model, trained_loss

__all__ = [
    "Batch",
    "batches",
    "cross_entropy_mean",
    "features",
    "log_softmax_of",
    "mean",
    "rows",
    "sgd",
    "train_model",
    "trained_loss",
]
