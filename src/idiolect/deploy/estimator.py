"""A bundle as an estimator of scikit-learn: ``fit`` joins, ``predict`` and its like predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.objectives import TaskName
from idiolect.data.custom.columns import text_of
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.labels import can_have_or_lack, probabilities
from idiolect.deploy.numbers import half_widths, unscaled
from idiolect.deploy.predict import threshold_of
from idiolect.deploy.site_estimator import SiteEstimator
from idiolect.deploy.target_columns import labels, numbers_of
from idiolect.simulation.thresholds import HALF


class PersonalClassifier(ClassifierMixin, SiteEstimator):  # type: ignore[misc]
    """A site's classifier from a bundle.

    From a bundle for new clients, ``fit`` makes the site's model and compares it with others, and the better
    one predicts. From one with models that are ready it predicts at once, and ``fit`` is refused.

    Args:
        bundle: the folder.
        client: whose model, where the bundle has several.
        ships: take "global" (if the method has such a model), "personal" or "local", whatever the comparison says.
        allow_import: whether a network or a method of one's own may be imported.
        as_is: columns whose numbers are right although they look like those of another unit.

    Attributes:
        classes_: the bundle's classes; numbers where all are whole numbers, false and true where they are these.
        weights_: after ``fit``, the exponents of the global, the personal and the local model.
        n_features_in_: the number of columns, or of pixels and channels.
        feature_names_in_: of a table, the names of its columns.
        choice_: after ``fit``, what the comparison found (``idiolect.deploy.harm.Choice``).
    """

    _kind = "classification"

    def fit(self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Make the site's model.

        Args:
            X: a data frame with the bundle's columns, an array (N, columns), or images, 8-bit, (N, H, W), (N, C, H, W),
                (N, H, W, C) or (N, pixels); other arrays as in training; several by name in a dict.
            y: the labels (N,), each one of the bundle's classes.
            groups: which samples belong together, as those of one patient (N,): the comparison keeps them together.

        Raises:
            InputError: the samples or labels are not what the bundle takes, or it has models that are ready.
        """
        return self._join(X, y, groups)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class (N,) of each sample, or the second of two above the bundle's threshold."""
        p_NC, at = self.predict_proba(X), self._thresholds()
        labels: NDArray[Any] = np.take(self.classes_, p_NC[:, 1] > at[0] if at else p_NC.argmax(1))
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (N, C), in the order of ``classes_``."""
        p_NC = self._outputs(X).exp().double()
        total_N = p_NC @ torch.ones(p_NC.shape[1], dtype=p_NC.dtype)  # faster than a sum over few classes
        return cast(NDArray[np.float64], p_NC.div_(total_N[:, None]).numpy())

    def predict_set(self, X: Any, level: float = 0.9) -> NDArray[np.bool_]:
        """Whether each class could be right (N, C), in the order of ``classes_``.

        The classes that could be hold the right one for the share ``level`` of samples like the site's own, by
        conformal prediction with the probabilities of ``fit``. They may be several or none, and are all where the site
        had too few samples.

        Raises:
            InputError: the level is not between 0 and 1, or the bundle was made without a site's samples.
        """
        threshold = threshold_of(self._about(), level)
        return cast(NDArray[np.bool_], (self._outputs(X).exp() >= threshold).numpy())

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes: numbers where all are whole numbers, false and true where they are these, else texts."""
        names = self._open().about.classes
        if sorted(names) == ["False", "True"]:
            return np.array([name == "True" for name in names])
        whole = all(name.lstrip("-").isdecimal() and text_of(int(name)) == name for name in names)
        return np.array([int(name) for name in names] if whole else names)

    def _checked(self, y: NDArray[Any]) -> NDArray[Any]:
        if count := int(pd.isna(y).sum()):
            raise InputError(f"y is missing for {count} of {len(y)} samples: leave these samples out")
        check_classification_targets(y)
        return y

    def _targets(self, y: NDArray[Any], count: int) -> Tensor:
        if y.ndim != 1 or len(y) != count:
            raise ValueError(f"y has the shape {y.shape} for {count} samples: give one label per sample")
        return torch.from_numpy(labels(pd.Series(y), self._open().about.classes, "y"))


class PersonalRegressor(RegressorMixin, SiteEstimator):  # type: ignore[misc]
    """A site's model of numbers from a bundle; ``fit`` and what it takes are as for ``PersonalClassifier``.

    Args:
        bundle: the folder.
        client: whose model, where the bundle has several.
        ships: take "global" (if the method has such a model), "personal" or "local", whatever the comparison says.
        allow_import: whether a network or a method of one's own may be imported.
        as_is: columns whose numbers are right although they look like those of another unit.

    Attributes:
        weights_: after ``fit``, the weights of the global, the personal and the local model in their mean.
        n_features_in_: the number of columns, or of pixels and channels.
        feature_names_in_: of a table, the names of its columns.
        choice_: after ``fit``, what the comparison found (``idiolect.deploy.harm.Choice``).
    """

    _kind = "regression"

    def fit(self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Make the site's model.

        Args:
            X: the samples, as for ``PersonalClassifier``.
            y: the numbers (N,), or (N, D) where the bundle predicts several, in the units of its training. Several
                columns of a data frame are found by the bundle's names, in any order; those of an array are taken in
                the bundle's order.
            groups: which samples belong together, as those of one patient (N,): the comparison keeps them together.

        Raises:
            InputError: the samples or numbers are not what the bundle takes, or it has models that are ready.
        """
        return self._join(X, y, groups)

    def predict(
        self, X: Any, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The numbers (N,), or (N, D) where the bundle predicts several.

        With ``return_std`` also the standard deviation of each, of the same shape: the root of the mean squared error
        for the site's samples, by models made without them.

        Raises:
            InputError: a standard deviation is asked for, and the bundle was made without a site's samples.
        """
        value_ND = unscaled(self._outputs(X), self._open().about.targets).numpy()
        if not return_std:
            return _narrow(value_ND)
        site = self._about().site
        if site is None or not site.errors:
            raise InputError(
                f"{self.bundle} was made without samples, which a standard deviation needs: join with it first"
            )
        std_ND = np.tile([part.std for part in site.errors], (len(value_ND), 1))
        return _narrow(value_ND), _narrow(std_ND)

    def predict_interval(self, X: Any, level: float = 0.9) -> NDArray[np.float64]:
        """The ends of intervals, (N, 2), or (N, D, 2) where the bundle predicts several numbers.

        They hold the number for the share ``level`` of samples like the site's own, by conformal prediction with the
        errors of ``fit``; infinite where the site had too few samples, which is said.

        Raises:
            InputError: the level is not between 0 and 1, or the bundle was made without a site's samples.
        """
        half_D = np.array(half_widths(self._about(), level))
        value_ND = unscaled(self._outputs(X), self._open().about.targets).numpy()
        return _narrow(np.stack([value_ND - half_D, value_ND + half_D], -1))

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R2, the mean of several numbers' where the bundle predicts several; ``y`` is as for ``fit``.

        Raises:
            InputError: as ``fit``.
        """
        return float(super().score(X, self._in_order(y), sample_weight))

    def _checked(self, y: NDArray[Any]) -> NDArray[Any]:
        checked: NDArray[Any] = check_array(y, ensure_2d=False, dtype="numeric", input_name="y", estimator=self)
        return checked

    def _targets(self, y: NDArray[Any], count: int) -> Tensor:
        targets = self._open().about.targets
        y_ND = y.reshape(len(y), -1)
        if y.ndim > 2 or y_ND.shape != (count, len(targets)):
            what = "one number" if len(targets) == 1 else f"{len(targets)} numbers"
            raise ValueError(f"y has the shape {y.shape} for {count} samples: give {what} per sample")
        names = [target.name for target in targets]
        return numbers_of(pd.DataFrame(y_ND, columns=names), names, targets, "y")


class PersonalMultilabelClassifier(ClassifierMixin, SiteEstimator):  # type: ignore[misc]
    """A site's model of several labels from a bundle; ``fit`` and what it takes are as for ``PersonalClassifier``.

    Args:
        bundle: the folder.
        client: whose model, where the bundle has several.
        ships: take "global" (if the method has such a model), "personal" or "local", whatever the comparison says.
        allow_import: whether a network or a method of one's own may be imported.
        as_is: columns whose numbers are right although they look like those of another unit.

    Attributes:
        classes_: the names of the labels.
        weights_: after ``fit``, the exponents of the global, the personal and the local model.
        n_features_in_: the number of columns, or of pixels and channels.
        feature_names_in_: of a table, the names of its columns.
        choice_: after ``fit``, what the comparison found (``idiolect.deploy.harm.Choice``).
    """

    _kind = "multilabel"

    def fit(self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Make the site's model.

        Args:
            X: the samples, as for ``PersonalClassifier``.
            y: 1 where a sample has a label, else 0 (N, L). The columns of a data frame are found by their names, those
                of ``classes_`` in any order; the columns of an array are taken in the order of ``classes_``.
            groups: which samples belong together, as those of one patient (N,): the comparison keeps them together.

        Raises:
            InputError: the samples or labels are not what the bundle takes, or it has models that are ready.
        """
        return self._join(X, y, groups)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 for each label that a sample is predicted to have, else 0 (N, L)."""
        at = np.array(self._thresholds() or (HALF,))
        return (self.predict_proba(X) > at).astype(np.int64)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each label (N, L), in the order of ``classes_``."""
        return cast(NDArray[np.float64], probabilities(self._outputs(X)).numpy())

    def predict_set(self, X: Any, level: float = 0.9) -> NDArray[np.bool_]:
        """Whether each sample could be without each label, and with it (N, L, 2), in the order of ``classes_``.

        Label by label, what could be holds what is for the share ``level`` of samples like the site's own, by conformal
        prediction with the errors of ``fit``. Both could be where a label is undecided.

        Raises:
            InputError: the level is not between 0 and 1, or the bundle was made without a site's samples.
        """
        half_L = half_widths(self._about(), level)
        return np.stack(can_have_or_lack(probabilities(self._outputs(X)), half_L)[::-1], -1)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The share of samples whose labels are all right; ``y`` is as for ``fit``.

        Raises:
            InputError: as ``fit``.
        """
        return float(super().score(X, self._in_order(y), sample_weight))

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels."""
        return np.array(self._open().about.labels)

    def _checked(self, y: NDArray[Any]) -> NDArray[Any]:
        return y

    def _targets(self, y: NDArray[Any], count: int) -> Tensor:
        labels = self._open().about.labels
        y_NL = y.reshape(len(y), -1)
        if y.ndim > 2 or y_NL.shape != (count, len(labels)) or not np.isin(y_NL, (0, 1)).all():
            raise ValueError(
                f"y has the shape {y.shape} for {count} samples: give 0 or 1 for each of {len(labels)} labels"
            )
        return torch.from_numpy(y_NL.astype(np.float64))


_KINDS: dict[TaskName, type[SiteEstimator]] = {
    "classification": PersonalClassifier, "regression": PersonalRegressor, "multilabel": PersonalMultilabelClassifier,
}  # fmt: skip


def load(
    path: str | Path, *, client: str | int | None = None, allow_import: bool = False, as_is: Sequence[str] = ()
) -> Any:
    """A bundle, or a site's model, as an estimator of scikit-learn: a classifier, of labels too, or a regressor.

    Numbers of the columns ``as_is`` are right although they look like those of another unit.

    Raises:
        InputError: as ``Bundle.read``, or there is no such client.
    """
    bundle = Bundle.read(path, allow_import=allow_import)
    estimator = _KINDS[bundle.about.task](path, client=client, allow_import=allow_import, as_is=as_is)
    estimator._cache = (str(path), allow_import), bundle
    if bundle.about.kind == "models":
        estimator._ready()
    return estimator


def _narrow(value_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same without the axis of the numbers, where there is one."""
    return value_ND if value_ND.shape[1] > 1 else value_ND[:, 0]
