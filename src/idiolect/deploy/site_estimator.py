"""What the estimators of a site's models have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_array
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError, listed
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data.custom.columns import check_frame
from idiolect.data.custom.parts import Part
from idiolect.data.custom.texts import list_of_texts
from idiolect.deploy import samples
from idiolect.deploy.arrays import samples_of
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.groups import group_numbers
from idiolect.deploy.join import candidates_of, shipping_weights, site_of
from idiolect.deploy.labels import site_thresholds
from idiolect.deploy.schema import About, Inputs

TAKE: dict[TaskName, tuple[str, str]] = {
    "classification": ("classes", "PersonalClassifier"),
    "regression": ("numbers", "PersonalRegressor"),
    "multilabel": ("several labels", "PersonalMultilabelClassifier"),
}
"""What a bundle predicts, and the estimator for it."""


class SiteEstimator(BaseEstimator):  # type: ignore[misc]
    """A site's model from a bundle: what a classifier and a regressor share; see ``PersonalClassifier``."""

    _kind: TaskName

    def __init__(
        self, bundle: str | Path, client: str | int | None = None, ships: str | None = None, allow_import: bool = False,
        as_is: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.bundle, self.client, self.ships, self.allow_import = bundle, client, ships, allow_import
        self.as_is = as_is

    def _join(self, X: Any, y: ArrayLike | None, groups: ArrayLike | None) -> Self:
        """Make the site's model."""
        bundle = self._open()
        if bundle.about.kind != "join":
            raise InputError(f"{self.bundle} has models that are ready: predict with them, without fit")
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = self._checked(np.asarray(self._in_order(y)))
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
        output = candidates.choice.outputs[self._site.ships]
        self._at = next(iter(site_thresholds(bundle.about, output, own.y_N)), ())
        self._method, self.choice_ = bundle.method_of(self.weights_), candidates.choice
        return self

    def _in_order(self, y: ArrayLike) -> ArrayLike:
        """The targets; of a data frame with several columns (N, D) in the bundle's order, by their names.

        Raises:
            InputError: the columns are not those of the bundle.
        """
        about = self._open().about
        names = list(about.labels) or [target.name for target in about.targets]
        if len(names) < 2 or not hasattr(y, "columns"):
            return y
        frame = _named(y)
        if sorted(frame.columns) != sorted(names):
            raise InputError(
                f"y has the columns {listed(frame.columns, 8)}, and the bundle predicts {listed(names, 8)}: give "
                "exactly these columns, in any order, or an array with the columns in this order"
            )
        return frame[names]

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
                what, take = TAKE[bundle.about.task]
                raise InputError(f"{self.bundle} predicts {what}: take {take}")
            self._cache = key, bundle
        return self._cache[1]

    def _ready(self) -> tuple[Personal, Any]:
        bundle = self._open()
        if bundle.about.kind == "join":
            if not hasattr(self, "_model"):
                raise NotFittedError("this site has no model yet: call fit with its samples and labels")
        elif getattr(self, "_loaded", None) != (key := (str(self.bundle), self.client)):
            self._model, self._loaded, self._method = bundle.model(self.client), key, bundle.predicting
            for name in ("weights_", "choice_", "_site", "_at"):  # of a fit with another bundle
                self.__dict__.pop(name, None)
        if not hasattr(self, "_method"):
            weights = getattr(self, "weights_", None)
            self._method = bundle.predicting if weights is None else bundle.method_of(weights)
        return self._model, self._method

    def _about(self) -> About:
        """What the bundle says, with what ``fit`` found of the site."""
        self._ready()
        about = self._open().about
        return about.model_copy(update={"site": self._site}) if hasattr(self, "_site") else about

    def _thresholds(self) -> tuple[float, ...]:
        """From which probability on each label, or the second of two classes, is predicted; () for 1/2."""
        self._ready()
        own: tuple[float, ...] | None = getattr(self, "_at", None)
        return self._open().thresholds(self.client) if own is None else own

    def _samples(self, X: Any) -> Tree:
        inputs = self._open().about.inputs
        if inputs.kind == "table":
            return samples.Reader(inputs, "X", as_is=self.as_is).encode(Part(self._frame(X)))
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


def _named(X: Any) -> pd.DataFrame:
    frame = pd.DataFrame(X).set_axis([str(c) for c in X.columns], axis=1)
    if frame.columns.has_duplicates:
        check_frame(frame, "X")
    return frame
