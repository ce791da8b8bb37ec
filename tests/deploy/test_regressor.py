"""A bundle of numbers as a regressor of scikit-learn."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import idiolect as idl
from idiolect.deploy.bundle import Bundle


def rows(count: int, seed: int, slope: float | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, two numbers in units of their own, and clients."""
    draw = np.random.default_rng(seed)
    x, client = draw.normal(size=(count, 2)), np.arange(count) % 3
    own = 1 + client if slope is None else slope
    first = 50 + 10 * (x[:, 0] * own + x[:, 1]) + draw.normal(size=count)
    return x, np.column_stack([first, 1e-3 * x[:, 1] + 1e-4 * draw.normal(size=count)]), client


def bundle_of(folder: Path, numbers: int) -> Bundle:
    x, y, client = rows(120, 0)
    y = y if numbers == 2 else y[:, 0]
    source = idl.data.from_arrays(x, y, clients=client, task="regression")
    study = idl.Study(data=source, methods=["fedshrink"], rounds=2, local_epochs=2, batch_size=20, lr=0.05)
    return idl.run(study, folder / "run", engine="sequential").bundle("fedshrink", folder / "bundle")


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(tmp_path_factory.mktemp("two"), 2)


@pytest.mark.parametrize("numbers", [1, 2])
def test_fit_predict_score(of_one: Bundle, of_two: Bundle, numbers: int) -> None:
    bundle = of_one if numbers == 1 else of_two
    x, y, _ = rows(110, 1, 2.5)
    y = y[:, 0] if numbers == 1 else y
    model = idl.load(bundle.folder)
    assert isinstance(model, idl.PersonalRegressor)
    assert is_regressor(model)
    with pytest.raises(NotFittedError, match="call fit"):
        model.predict(x)
    assert model.fit(x[:60], y[:60]) is model
    value, std = model.predict(x[60:], return_std=True)
    assert value.shape == std.shape == y[60:].shape
    assert model.score(x[60:], y[60:]) == pytest.approx(r2_score(y[60:], value))
    assert model.score(x[60:], y[60:]) > 0.8
    error = value - y[60:]
    assert (np.abs(error).mean(0) < 2 * std.reshape(50, -1)[0]).all()
    ends = model.predict_interval(x[60:], level=0.8)
    assert ends.shape == (*value.shape, 2)
    np.testing.assert_allclose(ends.mean(-1), value)
    inside = (ends[..., 0] <= y[60:]) & (y[60:] <= ends[..., 1])
    assert inside.mean() > 0.65
    assert sum(model.weights_.values()) == pytest.approx(1)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x[60:]), value)
    np.testing.assert_array_equal(again.predict_interval(x[60:], level=0.8), ends)


def test_the_columns_of_a_frame_are_found_by_name(of_one: Bundle, of_two: Bundle) -> None:
    x, y, _ = rows(60, 1, 2.5)
    first, second = (one.name for one in of_two.about.targets)
    frame = pd.DataFrame({second: y[:, 1], first: y[:, 0]})
    by_place, by_name = idl.load(of_two.folder).fit(x, y), idl.load(of_two.folder).fit(x, frame)
    np.testing.assert_array_equal(by_name.predict(x), by_place.predict(x))
    assert by_name.score(x, frame) == by_place.score(x, y)
    said = f"y has the columns a, b, and the bundle predicts {first}, {second}: give exactly these columns"
    with pytest.raises(idl.InputError, match=f"^{re.escape(said)}"):
        idl.load(of_two.folder).fit(x, frame.set_axis(["a", "b"], axis=1))
    one = idl.load(of_one.folder).fit(x, pd.DataFrame({"pressure": y[:, 0]}))
    np.testing.assert_array_equal(one.predict(x), idl.load(of_one.folder).fit(x, y[:, 0]).predict(x))


def test_it_works_inside_scikit_learn(of_one: Bundle) -> None:
    x, y, _ = rows(60, 1, 2.5)
    model = idl.PersonalRegressor(of_one.folder, ships="personal")
    assert clone(model).get_params() == model.get_params()
    scores = cross_val_score(make_pipeline(FunctionTransformer(lambda x: x), model), x, y[:, 0], cv=3)
    assert (scores > 0.6).all()


def test_a_site_that_has_its_model(of_one: Bundle, tmp_path: Path) -> None:
    from idiolect.deploy.join import join
    from idiolect.deploy.samples import read

    x, y, _ = rows(60, 1, 2.5)
    np.savez(tmp_path / "my.npz", x=x, y=y[:, 0])
    own = read(tmp_path / "my.npz", of_one.about.inputs, (), None, targets=of_one.about.targets)
    join(of_one, own, tmp_path / "site", ships="personal")
    site = idl.load(tmp_path / "site")
    fitted = idl.PersonalRegressor(of_one.folder, ships="personal").fit(x, y[:, 0])
    np.testing.assert_allclose(site.predict(x), fitted.predict(x), rtol=1e-5)
    np.testing.assert_allclose(site.predict_interval(x), fitted.predict_interval(x), rtol=1e-5)
    with pytest.raises(idl.InputError, match="models that are ready"):
        site.fit(x, y[:, 0])


def test_models_without_a_site_have_no_errors(of_one: Bundle, tmp_path: Path) -> None:
    result = idl.Result(of_one.folder.parent / "run", _study(of_one))
    ready = idl.load(result.bundle("fedshrink", tmp_path / "ready", client="0").folder)
    x = rows(5, 1)[0]
    assert ready.predict(x).shape == (5,)
    with pytest.raises(idl.InputError, match="made without samples, which a standard deviation needs"):
        ready.predict(x, return_std=True)
    with pytest.raises(idl.InputError, match="made without samples, which a level needs"):
        ready.predict_interval(x)


def _study(bundle: Bundle) -> idl.Study:
    x, y, client = rows(120, 0)
    source = idl.data.from_arrays(x, y[:, 0], clients=client, task="regression")
    return idl.Study(data=source, methods=["fedshrink"], rounds=2, local_epochs=2, batch_size=20, lr=0.05)


def test_wrong_numbers(of_one: Bundle, of_two: Bundle) -> None:
    x, y, _ = rows(20, 1)
    one, two = idl.load(of_one.folder), idl.load(of_two.folder)
    with pytest.raises(ValueError, match="give one number per sample"):
        one.fit(x, y)
    with pytest.raises(ValueError, match="give one number per sample"):
        one.fit(x, y[:19, 0])
    with pytest.raises(ValueError, match="give 2 numbers per sample"):
        two.fit(x, y[:, 0])
    with pytest.raises(ValueError, match="Input y contains NaN"):
        one.fit(x, np.where(np.arange(20) == 3, np.nan, y[:, 0]))
    with pytest.raises(ValueError, match="Input y contains infinity"):
        one.fit(x, np.where(np.arange(20) == 3, np.inf, y[:, 0]))
    with pytest.raises(idl.InputError, match="in all 20 samples"):
        one.fit(x, np.ones(20))
    with pytest.raises(idl.InputError, match="looks like another unit"):
        one.fit(x, 1e4 * y[:, 0])
    with pytest.raises(ValueError, match="requires y to be passed"):
        one.fit(x)
    with pytest.raises(ValueError, match="give one per sample"):
        one.fit(x, y[:, 0], groups=[1, 2])


def test_the_kind_of_estimator_is_the_bundles(of_one: Bundle, of_table: Bundle) -> None:
    with pytest.raises(idl.InputError, match="predicts numbers: take PersonalRegressor"):
        idl.PersonalClassifier(of_one.folder).fit([[1, 2]], [1])
    with pytest.raises(idl.InputError, match="predicts classes: take PersonalClassifier"):
        idl.PersonalRegressor(of_table.folder).fit([[1, 2]], [1])
    assert isinstance(idl.load(of_table.folder), idl.PersonalClassifier)


def test_groups(of_one: Bundle) -> None:
    x, y, _ = rows(60, 1, 2.5)
    model = idl.load(of_one.folder).fit(x, y[:, 0], groups=pd.Series([f"p{k % 5}" for k in range(60)]))
    assert np.isinf(model.predict_interval(x[:3], level=0.9)).all()
    assert np.isfinite(model.predict_interval(x[:3], level=0.8)).all()


COLUMNS = "its data have another number of columns than the bundle"
UNIT = "its data are far from the bundle's, and are refused as those of another unit"
EXCEPTIONS = dict.fromkeys(
    (
        "check_fit_score_takes_y",
        "check_dont_overwrite_parameters",
        "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit",
        "check_estimators_dtypes",
        "check_dtype_object",
        "check_pipeline_consistency",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_regressors_train",
        "check_regressor_data_not_an_array",
        "check_regressors_no_decision_function",
        "check_supervised_y_2d",
        "check_regressors_int",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_fit2d_1sample",
        "check_fit2d_1feature",
        "check_dict_unchanged",
        "check_fit2d_predict1d",
    ),
    COLUMNS,
) | {
    "check_fit_idempotent": UNIT,
    "check_fit_check_is_fitted": UNIT,
    "check_estimators_nan_inf": "missing values are allowed, and infinite ones are refused in other words",
    "check_n_features_in": "the bundle says it before fit",
}
"""scikit-learn's checks that cannot hold, because a bundle fixes the columns, their scale and that of the numbers."""


def test_scikit_learns_own_checks(tmp_path: Path) -> None:
    estimator_checks = pytest.importorskip("sklearn.utils.estimator_checks")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2))
    source = idl.data.from_arrays(x, x.sum(1), clients=np.repeat([0, 1, 2], 30))
    run = idl.run(idl.Study(data=source, methods=["fedavg"], rounds=2), tmp_path / "run", engine="sequential")
    run.bundle("fedavg", tmp_path / "bundle")
    model = idl.PersonalRegressor(str(tmp_path / "bundle"), ships="personal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = estimator_checks.check_estimator(
                model, expected_failed_checks=EXCEPTIONS, on_fail=None, on_skip=None
            )
        except TypeError:
            pytest.skip("scikit-learn before 1.6 does not know expected failures")
    by = {s: {one["check_name"] for one in made if one["status"] == s} for s in ("failed", "passed", "xfail")}
    assert by["failed"] == set()
    assert len(by["passed"]) >= 20
    assert by["xfail"] == set(EXCEPTIONS)
