"""A bundle as a classifier of scikit-learn: ``fit`` joins, ``predict`` and ``predict_proba`` predict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.tree import Tree
from idiolect.data.custom.columns import text_of
from idiolect.data.custom.parts import Part
from idiolect.data.custom.texts import list_of_texts
from idiolect.deploy import samples
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.groups import group_numbers
from idiolect.deploy.join import candidates_of, shipping_weights
from idiolect.deploy.schema import Inputs, TensorPart


class PersonalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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

    def __init__(
        self, bundle: str | Path, client: str | int | None = None, ships: str | None = None, allow_import: bool = False
    ) -> None:
        self.bundle, self.client, self.ships, self.allow_import = bundle, client, ships, allow_import

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
        bundle = self._open()
        if bundle.about.kind != "join":
            raise InputError(f"{self.bundle} has models that are ready: predict with them, without fit")
        if y is None:
            raise ValueError("PersonalClassifier requires y to be passed, but the target y is None")
        y = np.asarray(y)
        check_classification_targets(y)
        x_N = self._samples(X)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        count = len(tree.leaves(x_N)[0])
        if y.ndim != 1 or len(y) != count:
            raise ValueError(f"y has the shape {y.shape} for {count} samples: give one label per sample")
        y_N = torch.from_numpy(samples.labels(pd.Series(y), bundle.about.classes, "y"))
        group_N = None
        if groups is not None:
            if np.shape(groups) != (count,):
                raise ValueError(f"groups has the shape {np.shape(groups)} for {count} samples: give one per sample")
            group_N = group_numbers(pd.Series(np.asarray(groups)), "groups", "X")
        candidates = candidates_of(bundle, samples.Samples(x_N, y_N, group_N))
        if self.ships not in (None, "global", "personal", "local"):
            raise InputError(f"ships={self.ships!r} is not global, personal or local: leave it out")
        self.weights_ = shipping_weights(candidates, self.ships)  # type: ignore[arg-type]
        self._model = Personal(bundle.model().down, candidates.client(self.weights_))
        self._method, self.choice_ = bundle.method_of(self.weights_), candidates.choice
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class (N,) of each sample."""
        labels: NDArray[Any] = np.take(self.classes_, self.predict_proba(X).argmax(1))
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (N, C), in the order of ``classes_``."""
        model, method = self._ready()
        p_NC = log_probabilities(model, method, self._samples(X)).exp().double()
        total_N = p_NC @ torch.ones(p_NC.shape[1], dtype=p_NC.dtype)  # faster than a sum over few classes
        return cast(NDArray[np.float64], p_NC.div_(total_N[:, None]).numpy())

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes."""
        names = self._open().about.classes
        whole = all(name.lstrip("-").isdecimal() and text_of(int(name)) == name for name in names)
        return np.array([int(name) for name in names] if whole else names)

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
            self._cache = key, Bundle.read(self.bundle, allow_import=self.allow_import)
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
        if inputs.kind == "images":
            return _images(np.asarray(X), inputs.shape)
        if inputs.channels and hasattr(X, "columns"):
            return samples.Reader(inputs, "X").encode(Part(_named(X)))
        if inputs.tokens is not None and (texts := self._texts(X, inputs)) is not None:
            return texts
        return _tensors(X, inputs.tensors) if inputs.tensors else _tensor(X, inputs, "X")

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


def load(path: str | Path, *, client: str | int | None = None, allow_import: bool = False) -> PersonalClassifier:
    """A bundle, or a site's model, as a classifier of scikit-learn.

    Raises:
        InputError: as ``Bundle.read``, or there is no such client.
    """
    classifier = PersonalClassifier(path, client=client, allow_import=allow_import)
    if classifier._open().about.kind == "models":
        classifier._ready()
    return classifier


def _named(X: Any) -> pd.DataFrame:
    return pd.DataFrame(X).set_axis([str(c) for c in X.columns], axis=1)


def _tensors(X: Any, forms: Mapping[str, TensorPart]) -> dict[str, Tensor]:
    if not isinstance(X, Mapping) or set(X) != set(forms):
        got = f"the names {', '.join(map(str, X))}" if isinstance(X, Mapping) else f"a {type(X).__name__}"
        raise ValueError(f"X is {got}: give a dict of arrays with the names {', '.join(forms)}")
    x_N = {name: _tensor(X[name], form, f"X[{name!r}]") for name, form in forms.items()}
    if len(lengths := {len(leaf) for leaf in x_N.values()}) > 1:
        raise ValueError(
            f"the arrays of X have {' and '.join(map(str, sorted(lengths)))} samples: give as many of each"
        )
    return x_N


def _tensor(X: Any, form: TensorPart, what: str) -> Tensor:
    """Samples (N, ...) of a form; whole numbers stay so."""
    x_N = np.asarray(X)
    if x_N.dtype.kind not in "biuf" or x_N.ndim == 0 or x_N[:1].size not in (0, math.prod(form.shape)):
        raise ValueError(f"{what} has the shape {x_N.shape} of {x_N.dtype}: give numbers of shape (N, *{form.shape})")
    if form.ids is None:
        return torch.from_numpy(x_N.astype(np.float32).reshape(-1, *form.shape))
    if x_N.dtype.kind == "f" or (x_N.size and not 0 <= x_N.min() <= x_N.max() < (form.ids or np.inf)):
        most = f" below {form.ids}" if form.ids else ""
        raise ValueError(f"{what} has numbers that are no ids: give whole numbers from 0 on{most}")
    return torch.from_numpy(x_N.astype(np.int64).reshape(-1, *form.shape))


def _images(x_N: NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    channels, height, width = shape
    whole = x_N.dtype == np.uint8 or (
        np.issubdtype(x_N.dtype, np.number) and ((x_N >= 0) & (x_N <= 255) & (x_N == np.round(x_N))).all()
    )
    if not whole:
        raise ValueError("X holds numbers that are not pixels: give 8-bit images, 0 to 255")
    x_N = x_N.astype(np.uint8)
    if x_N.ndim == 4 and x_N.shape[1:] == (height, width, channels) != (channels, height, width):
        x_N = x_N.transpose(0, 3, 1, 2)
    if x_N.ndim < 2 or x_N[:1].size != channels * height * width:
        raise ValueError(
            f"X has the shape {x_N.shape}: give images of {width}x{height} pixels with {channels} channels"
        )
    return torch.from_numpy(np.ascontiguousarray(x_N).reshape(-1, channels, height, width))
