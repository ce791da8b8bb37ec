"""A bundle as a classifier of scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.deploy.conftest import hospitals

import idiolect as idl
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.samples import stream


@pytest.fixture
def x(graz: pd.DataFrame) -> pd.DataFrame:
    return graz.drop(columns="diagnosis")


def test_fit_predict_score(of_table: Bundle, graz: pd.DataFrame, x: pd.DataFrame) -> None:
    made = idl.load(of_table.folder)
    with pytest.raises(NotFittedError, match="call fit"):
        made.predict(x)
    assert made.classes_.tolist() == ["benign", "malignant"]
    assert made.n_features_in_ == 6
    assert made.feature_names_in_.tolist() == list(x)
    assert made.fit(x[:60], graz["diagnosis"][:60]) is made
    p_NC = made.predict_proba(x[60:])
    np.testing.assert_allclose(p_NC.sum(1), 1)
    assert made.predict(x[60:]).tolist() == made.classes_[p_NC.argmax(1)].tolist()
    assert made.score(x[60:], graz["diagnosis"][60:]) > 0.8
    assert set(made.weights_) <= {"global", "personal", "local"}
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.predict_proba(x[60:]), p_NC)


def test_sets_of_classes(of_table: Bundle, graz: pd.DataFrame, x: pd.DataFrame, tmp_path: Path) -> None:
    from idiolect.deploy.join import join
    from idiolect.deploy.samples import read

    graz[:60].to_csv(tmp_path / "graz.csv", index=False)
    mine = read(tmp_path / "graz.csv", of_table.about.inputs, of_table.about.classes, "diagnosis")
    join(of_table, mine, tmp_path / "site", ships="personal")
    site, fitted = idl.load(tmp_path / "site"), idl.PersonalClassifier(of_table.folder, ships="personal")
    fitted.fit(x[:60], graz["diagnosis"][:60])
    score_N = np.sort(Bundle.read(tmp_path / "site").about.site.scores)
    assert len(score_N) == 60
    for level in (0.5, 0.9):
        expected_NC = site.predict_proba(x[60:]) >= score_N[int(np.floor(61 * (1 - level))) - 1]
        assert expected_NC.shape == (len(x) - 60, 2)
        for one in (site, fitted, pickle.loads(pickle.dumps(fitted))):
            np.testing.assert_array_equal(one.predict_set(x[60:], level=level), expected_NC)
    assert site.predict_set(x[60:], level=0.99).all(), "60 samples are too few for it"
    with pytest.raises(idl.InputError, match="level=1 is not between 0 and 1"):
        site.predict_set(x, level=1)


def test_it_works_inside_scikit_learn(of_table: Bundle, graz: pd.DataFrame, x: pd.DataFrame) -> None:
    made = idl.PersonalClassifier(of_table.folder, ships="personal")
    assert clone(made).get_params() == made.get_params()
    same = FunctionTransformer(lambda frame: frame)
    scores = cross_val_score(make_pipeline(same, made), x[:60], graz["diagnosis"][:60], cv=3)
    assert (scores > 0.6).all()


def test_a_site_that_has_its_model(of_table: Bundle, graz: pd.DataFrame, x: pd.DataFrame, tmp_path: Path) -> None:
    from idiolect.deploy.join import join
    from idiolect.deploy.samples import read

    graz[:60].to_csv(tmp_path / "graz.csv", index=False)
    mine = read(tmp_path / "graz.csv", of_table.about.inputs, of_table.about.classes, "diagnosis")
    join(of_table, mine, tmp_path / "site", ships="personal")
    site = idl.load(tmp_path / "site")
    fitted = idl.PersonalClassifier(of_table.folder, ships="personal").fit(x[:60], graz["diagnosis"][:60])
    np.testing.assert_allclose(site.predict_proba(x[60:]), fitted.predict_proba(x[60:]), atol=1e-6)
    with pytest.raises(idl.InputError, match="models that are ready"):
        site.fit(x, graz["diagnosis"])


def test_arrays_take_the_columns_in_their_order(of_table: Bundle, graz: pd.DataFrame, x: pd.DataFrame) -> None:
    made = idl.PersonalClassifier(of_table.folder, ships="personal").fit(x[:60], graz["diagnosis"][:60])
    np.testing.assert_array_equal(made.predict_proba(x.to_numpy()[60:]), made.predict_proba(x[60:]))
    with pytest.raises(ValueError, match="X has 5 features, but PersonalClassifier is expecting 6"):
        made.predict(x.to_numpy()[:, :5])


@pytest.fixture(scope="module")
def of_digits(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    study = idl.Study(dataset="digits", clients=4, rounds=2, local_epochs=1, methods=["fedlda"], model="mlp")
    folder = tmp_path_factory.mktemp("digits")
    return idl.run(study, folder / "run", engine="sequential").bundle("fedlda", folder / "bundle")


def test_images_of_every_layout(of_digits: Bundle) -> None:
    source = idl.data.load("digits")
    images, labels = source.x_R[:200, 0].numpy(), source.y_R[:200].numpy()
    made = idl.load(of_digits.folder)
    assert made.classes_.tolist() == list(range(10))
    assert made.n_features_in_ == 64
    made.fit(images[:100], labels[:100])
    p_NC = made.predict_proba(images[100:])
    for same in (
        images[100:, None],
        images[100:, ..., None],
        images[100:].reshape(100, 64),
        images[100:].astype(float),
    ):
        np.testing.assert_array_equal(made.predict_proba(same), p_NC)
    assert made.predict(images[100:]).dtype.kind == "i"
    with pytest.raises(ValueError, match="not pixels"):
        made.predict(images[100:] / 255)
    with pytest.raises(ValueError, match="images of 8x8 pixels"):
        made.predict(images[100:, :5])


def test_another_client_has_another_model(table: idl.Result, x: pd.DataFrame, tmp_path: Path) -> None:
    models = table.bundle("pfedfda", tmp_path / "models", client="all")
    one = idl.load(models.folder, client="Lyon")
    before = one.predict_proba(x)
    of_oslo = one.set_params(client="Oslo").predict_proba(x)
    assert (of_oslo != before).any()
    np.testing.assert_array_equal(of_oslo, idl.load(models.folder, client="Oslo").predict_proba(x))


def test_a_client_whose_name_is_a_number_is_asked_for_by_its_name(x: pd.DataFrame, tmp_path: Path) -> None:
    source = idl.data.from_frame(
        hospitals().assign(hospital=lambda frame: frame["hospital"].map({"Graz": 2, "Lyon": 3, "Oslo": 1, "Porto": 5})),
        client_column="hospital",
    )
    study = idl.Study(data=source, methods=["fedper"], rounds=1)
    result = idl.run(study, tmp_path / "run", engine="sequential")
    folder = result.bundle("fedper", tmp_path / "all", client="all").folder
    by_name = {name: idl.load(folder, client=name).predict_proba(x) for name in "1235"}
    for client, name in {1: "1", 2: "2", 3: "3", 5: "5", 0: "1"}.items():
        np.testing.assert_array_equal(idl.load(folder, client=client).predict_proba(x), by_name[name])


def test_another_bundle_has_another_method(table: idl.Result, x: pd.DataFrame, tmp_path: Path) -> None:
    one, other = (table.bundle(name, tmp_path / name, client="Lyon").folder for name in ("pfedfda", "knnper"))
    estimator = idl.load(one)
    p_NC = estimator.predict_proba(x)
    expected_NC = idl.load(other).predict_proba(x)
    assert not np.allclose(p_NC, expected_NC)
    np.testing.assert_array_equal(estimator.set_params(bundle=other).predict_proba(x), expected_NC)


def test_colour_images_of_numbers_have_their_channels_where_training_takes_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x_N, y_N = rng.random((80, 6, 8, 3), np.float32), rng.integers(0, 2, 80)
    np.savez(tmp_path / "train.npz", x=x_N, y=y_N, site=np.arange(80) % 4)
    study = idl.Study(
        data=str(tmp_path / "train.npz"), target="y", client_column="site", model="mlp", methods=["fedper"], rounds=1
    )
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedper", tmp_path / "bundle")
    classifier = idl.load(bundle.folder).fit(x_N, y_N)
    p_NC = classifier.predict_proba(x_N)
    np.testing.assert_array_equal(classifier.predict_proba(x_N.transpose(0, 3, 1, 2)), p_NC)
    np.savez(tmp_path / "none.npz", x=x_N[:0])
    with pytest.raises(idl.InputError, match=r"none.npz has 'x' without rows"):
        list(stream(tmp_path / "none.npz", bundle.about.inputs))


def test_classes_that_are_true_and_false(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(160, 3))
    y = x[:, 0] > 0
    source = idl.data.from_arrays(x, y, clients=np.arange(160) % 3)
    study = idl.Study(data=source, methods=["fedavg"], rounds=2)
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "bundle")
    site = idl.load(bundle.folder).fit(x[:60], y[:60])
    assert site.predict(x[60:]).dtype == bool
    assert site.score(x[60:], y[60:]) == (site.predict(x[60:]) == y[60:]).mean()


def test_frames_and_labels_that_cannot_be(of_table: Bundle, graz: pd.DataFrame, x: pd.DataFrame) -> None:
    made = idl.load(of_table.folder)
    gap = graz["diagnosis"][:20].where(np.arange(20) != 3)
    with pytest.raises(idl.InputError, match="y is missing for 1 of 20 samples: leave these samples out"):
        made.fit(x[:20], gap)
    with pytest.raises(idl.InputError, match="X uses 1 column names more than once"):
        made.fit(pd.concat([x, x[["radius"]]], axis=1)[:20], graz["diagnosis"][:20])


def test_wrong_labels(of_table: Bundle, graz: pd.DataFrame, x: pd.DataFrame) -> None:
    made = idl.load(of_table.folder)
    with pytest.raises(idl.InputError, match="has the label 'ill'"):
        made.fit(x[:20], ["ill"] * 20)
    with pytest.raises(ValueError, match="give one label per sample"):
        made.fit(x[:20], graz["diagnosis"][:19])
    with pytest.raises(idl.InputError, match="of one class"):
        made.fit(x[:5], ["benign"] * 5)


COLUMNS = "its data have another number of columns than the bundle"
CLASSES = "its data have classes that the bundle does not know"
SCALE = "its data are 100 standard deviations away from the bundle's, which are refused as those of another unit"
EXCEPTIONS = {
    "check_fit_score_takes_y": COLUMNS, "check_dont_overwrite_parameters": COLUMNS,
    "check_n_features_in_after_fitting": COLUMNS, "check_estimators_dtypes": COLUMNS, "check_dtype_object": COLUMNS,
    "check_pipeline_consistency": COLUMNS, "check_estimators_pickle": COLUMNS,
    "check_f_contiguous_array_estimator": COLUMNS, "check_supervised_y_2d": COLUMNS,
    "check_methods_sample_order_invariance": COLUMNS, "check_methods_subset_invariance": COLUMNS,
    "check_dict_unchanged": COLUMNS, "check_fit2d_predict1d": COLUMNS, "check_fit2d_1sample": COLUMNS,
    "check_fit2d_1feature": COLUMNS, "check_positive_only_tag_during_fit": COLUMNS,
    "check_estimators_overwrite_params": CLASSES, "check_estimators_fit_returns_self": CLASSES,
    "check_readonly_memmap_input": CLASSES, "check_classifier_data_not_an_array": CLASSES,
    "check_classifiers_classes": CLASSES, "check_classifiers_train": CLASSES,
    "check_fit_idempotent": SCALE, "check_fit_check_is_fitted": SCALE,
    "check_estimators_nan_inf": "missing values are allowed, and infinite ones are refused in other words",
    "check_classifiers_one_label": "a site with one class cannot be compared on",
    "check_n_features_in": "the bundle says it before fit",
}  # fmt: skip
"""scikit-learn's checks that cannot hold, because a bundle fixes the columns, their scale and the classes."""


def test_scikit_learns_own_checks(tmp_path: Path) -> None:
    estimator_checks = pytest.importorskip("sklearn.utils.estimator_checks")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2))
    source = idl.data.from_arrays(x, (x.sum(1) > 0).astype(int), clients=np.repeat([0, 1, 2], 30))
    run = idl.run(idl.Study(data=source, methods=["fedlda"], rounds=2), tmp_path / "run", engine="sequential")
    run.bundle("fedlda", tmp_path / "bundle")
    made = idl.PersonalClassifier(str(tmp_path / "bundle"), ships="personal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = estimator_checks.check_estimator(
                made, expected_failed_checks=EXCEPTIONS, on_fail=None, on_skip=None
            )
        except TypeError:
            pytest.skip("scikit-learn before 1.6 does not know expected failures")
    by = {s: {one["check_name"] for one in found if one["status"] == s} for s in ("failed", "passed", "xfail")}
    assert by["failed"] == set()
    assert len(by["passed"]) >= 20
    assert by["xfail"] == set(EXCEPTIONS)
