"""A bundle as an estimator of scikit-learn: ``fit`` joins, ``predict`` and its like predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data.custom.columns import text_of
from idiolect.data.custom.parts import Part
from idiolect.data.custom.texts import list_of_texts
from idiolect.deploy import samples
from idiolect.deploy.arrays import samples_of
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.groups import group_numbers
from idiolect.deploy.join import candidates_of, shipping_weights, site_of
from idiolect.deploy.numbers import half_widths, unscaled
from idiolect.deploy.schema import About, Inputs
from idiolect.deploy.target_columns import labels, numbers_of


class SiteEstimator(BaseEstimator):  # type: ignore[misc]
    """A site's model from a bundle: what a classifier and a regressor share; see ``PersonalClassifier``."""

    _kind: TaskName

    def __init__(
        self, bundle: str | Path, client: str | int | None = None, ships: str | None = None, allow_import: bool = False
    ) -> None:
        self.bundle, self.client, self.ships, self.allow_import = bundle, client, ships, allow_import

    def _join(self, X: Any, y: ArrayLike | None, groups: ArrayLike | None) -> Self:
        """Make the site's model."""
        bundle = self._open()
        if bundle.about.kind != "join":
            raise InputError(f"{self.bundle} has models that are ready: predict with them, without fit")
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = self._checked(np.asarray(y))
        x_N = self._samples(X)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        count = len(tree.leaves(x_N)[0])
        y_N = self._targets(y, count)
        group_N = None
        if groups is not None:
            if np.shape(groups) != (count,):
                raise ValueError(f"groups has the shape {np.shape(groups)} for {count} samples: give one per sample")
            group_N = group_numbers(pd.Series(np.asarray(groups)), "groups", "X")
        own = samples.Samples(x_N, y_N, group_N)
        candidates = candidates_of(bundle, own)
        if self.ships not in (None, "global", "personal", "local"):
            raise InputError(f"ships={self.ships!r} is not global, personal or local: leave it out")
        self.weights_ = shipping_weights(candidates, self.ships)  # type: ignore[arg-type]
        self._site = site_of(bundle.about, candidates, own, self.weights_)
        self._model = Personal(bundle.model().down, candidates.client(self.weights_))
        self._method, self.choice_ = bundle.method_of(self.weights_), candidates.choice
        return self

    def _checked(self, y: NDArray[Any]) -> NDArray[Any]:
        """The targets, where scikit-learn takes them so."""
        raise NotImplementedError

    def _targets(self, y: NDArray[Any], count: int) -> Tensor:
        """What is learnt of the targets of so many samples."""
        raise NotImplementedError

    def _outputs(self, X: Any) -> Tensor:
        """What the model predicts (N, ...), as its method does."""
        model, method = self._ready()
        return log_probabilities(model, method, self._samples(X))

    @property
    def n_features_in_(self) -> int:
        """The number of columns, of pixels and channels, or of other numbers of a sample."""
        inputs = self._open().about.inputs
        if inputs.kind == "table":
            return len(inputs.columns)
        return sum(int(np.prod(one.shape)) for one in inputs.tensors.values()) or int(np.prod(inputs.shape))

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Of a table, the names of its columns."""
        if self._open().about.inputs.kind != "table":
            raise AttributeError("only bundles for tables have names of features")
        return np.array([column.name for column in self._open().about.inputs.columns], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model") or self._open().about.kind == "models"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k not in ("_cache", "_method")}

    def _open(self) -> Bundle:
        key = (str(self.bundle), self.allow_import)
        if getattr(self, "_cache", (None, None))[0] != key:
            bundle = Bundle.read(self.bundle, allow_import=self.allow_import)
            if bundle.about.task != self._kind:
                what = "numbers" if bundle.about.targets else "classes"
                raise InputError(f"{self.bundle} predicts {what}: take {_KINDS[bundle.about.task].__name__}")
            self._cache = key, bundle
        return self._cache[1]

    def _ready(self) -> tuple[Personal, Any]:
        bundle = self._open()
        if not hasattr(self, "_model"):
            if bundle.about.kind == "join":
                raise NotFittedError("this site has no model yet: call fit with its samples and labels")
            self._model = bundle.model(self.client)
        if not hasattr(self, "_method"):
            weights = getattr(self, "weights_", None)
            self._method = bundle.predicting if weights is None else bundle.method_of(weights)
        return self._model, self._method

    def _samples(self, X: Any) -> Tree:
        inputs = self._open().about.inputs
        if inputs.kind == "table":
            return samples.Reader(inputs, "X").encode(Part(self._frame(X)))
        if inputs.channels and hasattr(X, "columns"):
            return samples.Reader(inputs, "X").encode(Part(_named(X)))
        if inputs.tokens is not None and (texts := self._texts(X, inputs)) is not None:
            return texts
        return samples_of(X, inputs, "X")

    def _texts(self, X: Any, inputs: Inputs) -> Tensor | None:
        """The ids of a frame's texts, or of a list of them; None of anything else, such as ids."""
        assert inputs.tokens is not None
        reader = samples.Reader(inputs, "X")
        if hasattr(X, "columns"):
            return reader.encode(Part(_named(X)))
        texts = list_of_texts(X, "X", few=True)
        return None if texts is None else reader.ids(texts, inputs.tokens.tokens)

    def _frame(self, X: Any) -> pd.DataFrame:
        names = [column.name for column in self._open().about.inputs.columns]
        if hasattr(X, "columns"):
            return _named(X)
        array = check_array(X, dtype=None, ensure_all_finite="allow-nan", estimator=self)
        if array.shape[1] != len(names):
            raise ValueError(
                f"X has {array.shape[1]} features, but {type(self).__name__} is expecting {len(names)} features as "
                "input"
            )
        return pd.DataFrame({name: array[:, k] for k, name in enumerate(names)}).infer_objects()


class PersonalClassifier(ClassifierMixin, SiteEstimator):  # type: ignore[misc]
    """A site's classifier from a bundle.

    From a bundle for new clients, ``fit`` makes the site's model and compares it with the global one, and the better
    one predicts. From one with models that are ready it predicts at once, and ``fit`` is refused.

    Args:
        bundle: the folder.
        client: whose model, where the bundle has several.
        ships: take "global", "personal" or "local", whatever the comparison says.
        allow_import: whether a network or a method of one's own may be imported.

    Attributes:
        classes_: the bundle's classes; numbers where all are whole numbers.
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
        """The most likely class (N,) of each sample."""
        labels: NDArray[Any] = np.take(self.classes_, self.predict_proba(X).argmax(1))
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (N, C), in the order of ``classes_``."""
        p_NC = self._outputs(X).exp().double()
        total_N = p_NC @ torch.ones(p_NC.shape[1], dtype=p_NC.dtype)  # faster than a sum over few classes
        return cast(NDArray[np.float64], p_NC.div_(total_N[:, None]).numpy())

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes."""
        names = self._open().about.classes
        whole = all(name.lstrip("-").isdecimal() and text_of(int(name)) == name for name in names)
        return np.array([int(name) for name in names] if whole else names)

    def _checked(self, y: NDArray[Any]) -> NDArray[Any]:
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
        ships: take "global", "personal" or "local", whatever the comparison says.
        allow_import: whether a network or a method of one's own may be imported.

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
            y: the numbers (N,), or (N, D) where the bundle predicts several, in the units of its training.
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

    def _about(self) -> About:
        """What the bundle says, with what ``fit`` found of the site."""
        self._ready()
        about = self._open().about
        return about.model_copy(update={"site": self._site}) if hasattr(self, "_site") else about

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


_KINDS: dict[TaskName, type[SiteEstimator]] = {
    "classification": PersonalClassifier, "regression": PersonalRegressor,
}  # fmt: skip


def load(path: str | Path, *, client: str | int | None = None, allow_import: bool = False) -> Any:
    """A bundle, or a site's model, as an estimator of scikit-learn: a classifier, or a regressor of numbers.

    Raises:
        InputError: as ``Bundle.read``, or there is no such client.
    """
    bundle = Bundle.read(path, allow_import=allow_import)
    estimator = _KINDS[bundle.about.task](path, client=client, allow_import=allow_import)
    estimator._cache = (str(path), allow_import), bundle
    if bundle.about.kind == "models":
        estimator._ready()
    return estimator


def _narrow(value_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same without the axis of the numbers, where there is one."""
    return value_ND if value_ND.shape[1] > 1 else value_ND[:, 0]


def _named(X: Any) -> pd.DataFrame:
    return pd.DataFrame(X).set_axis([str(c) for c in X.columns], axis=1)
