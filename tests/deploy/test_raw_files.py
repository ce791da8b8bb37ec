"""A site's files as they are: without names, with marks of missing values, compressed, several, and with a question."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as idl
from idiolect import cli
from idiolect.core.errors import InputError
from idiolect.data.custom.form import form_of
from idiolect.data.partitions.apart import Splitting
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.join import join
from idiolect.deploy.predict import predict
from idiolect.deploy.samples import read, stream
from idiolect.deploy.usual import Usual
from idiolect.federation.data.agreement import Agreement, common_form
from idiolect.federation.data.samples import SiteFiles

NAMES = "age+dose+ward+grade"


def raw(seed: int, rows: int = 60) -> pd.DataFrame:
    """Rows of a hospital: -9 and . are missing, and a grade above 1 is what counts."""
    rng = np.random.default_rng(seed)
    grade = rng.integers(0, 4, rows)
    frame = pd.DataFrame({
        "age": (50 + 10 * (grade > 1) + rng.normal(0, 5, rows)).round(1).astype(str),
        "dose": (grade + rng.normal(0, 1, rows)).round(2).astype(str),
        "ward": rng.choice(["A", "B"], rows), "grade": grade.astype(str),
    })  # fmt: skip
    frame.loc[::7, "age"], frame.loc[3::11, "dose"] = "-9", "."
    return frame


def clean(frame: pd.DataFrame) -> pd.DataFrame:
    """The same by pandas alone, with the answer in place of the grade."""
    numbers = {name: pd.to_numeric(frame[name].replace({"-9": None, ".": None})) for name in ("age", "dose")}
    return frame.assign(**numbers, high=np.where(frame["grade"].astype(int) > 1, "yes", "no")).drop(columns="grade")


def write(frame: pd.DataFrame, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False, header=False)
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    for k, name in enumerate(["oslo", "porto", "bern"]):
        write(raw(k), tmp_path / "sites" / f"{name}.data")
    study = idl.Study(
        data=str(tmp_path / "sites" / "*.data"), columns=NAMES, target="grade>1", missing="-9+.", rounds=2, lr=0.05,
        methods=["fedper"],
    )  # fmt: skip
    return idl.run(study, tmp_path / "run", engine="sequential").bundle("fedper", tmp_path / "bundle")


FORM = form_of("none", NAMES, "-9+.")


@pytest.mark.parametrize("place", ["new.csv", "new.csv.gz", "new.data", "new/*.csv"])
def test_a_new_site_gives_its_files_as_they_are(bundle: Bundle, place: str, tmp_path: Path) -> None:
    frame, about = raw(7, 50), bundle.about
    assert about.classes == ("no", "yes")
    clean(frame).to_csv(tmp_path / "clean.csv", index=False)
    expected = read(tmp_path / "clean.csv", about.inputs, about.classes, "high")
    if "*" in place:
        write(frame[:20], tmp_path / "new" / "a.csv")
        write(frame[20:], tmp_path / "new" / "b.csv")
    else:
        write(frame, tmp_path / place)
    samples = read(tmp_path / place, about.inputs, about.classes, "grade>1", form=FORM)
    torch.testing.assert_close(samples.x_N, expected.x_N, equal_nan=True, rtol=0, atol=0)
    assert samples.y_N.tolist() == expected.y_N.tolist()
    x_N = torch.cat([x_B for x_B, _ in stream(tmp_path / place, about.inputs, form=FORM)])
    torch.testing.assert_close(x_N, expected.x_N, equal_nan=True, rtol=0, atol=0)


def test_join_predict_and_watch_take_the_same_options(bundle: Bundle, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write(raw(7), tmp_path / "va.data")
    write(raw(8), tmp_path / "new" / "march.csv")
    write(raw(9, 10), tmp_path / "new" / "april.csv")
    how = f"--columns {NAMES} --missing -9+."
    for line in (
        f"join bundle --data va.data {how} --target grade>1 --out site",
        f"predict site --data new/*.csv {how} --out p.csv",
        f"watch site --data new/march.csv {how} --level 0.0001",
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        assert ended.value.code == 0, capsys.readouterr().err
    table = pd.read_csv("p.csv")
    assert table["file"].tolist() == ["april.csv"] * 10 + ["march.csv"] * 60
    for frame in (raw(9, 10), raw(8)):
        clean(frame).to_csv("clean.csv", index=False)
        predict(Bundle.read("site"), "clean.csv", Path("q.csv"))
        same = table[: len(frame)] if len(frame) == 10 else table[10:]
        np.testing.assert_allclose(same["p_yes"], pd.read_csv("q.csv")["p_yes"], atol=1e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("join bundle --data va.data --target grade>1", "looks like data: add a first line of column names"),
        (f"join bundle --data va.data --columns {NAMES} --missing -9+. --target grad>1", "has no column 'grad'"),
        (f"join bundle --data va.data --columns {NAMES} --missing dos=. --target grade>1", "there is no column 'dos'"),
        (f"join bundle --data va.data --columns {NAMES} --target grade>1", "texts where the bundle takes numbers"),
    ],
)
def test_what_is_not_said_right_is_a_sentence(bundle, line, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write(raw(7), tmp_path / "va.data")
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(line), "--out", "site"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert message in " ".join(err.split())
    assert not Path("site").exists()


@pytest.mark.parametrize("mark", ["?", "", "unknown"])
def test_rows_without_a_target_are_left_out(bundle: Bundle, mark: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """A site is as if these rows were not in its file; predictions are made for them too."""
    monkeypatch.chdir(tmp_path)
    whole = raw(7)
    gone = whole.index.isin([4, 9, 59])
    write(whole.assign(grade=whole["grade"].mask(gone, mark)), tmp_path / "va.data")
    write(whole[~gone], tmp_path / "known.data")
    marks = "-9+.+grade=unknown"
    how = f"--columns {NAMES} --missing {marks}"
    join_it = f"join bundle --data va.data {how} --target grade>1 --out site"
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(join_it))
    assert ended.value.code == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "target 'grade' of va.data is missing in 3 of 60 rows (the first is row 5, counting from 1)" in err
    assert "give --unlabelled drop to leave such rows out" in err
    for line in (f"{join_it} --unlabelled drop", f"predict site --data va.data {how} --out p.csv"):
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        assert ended.value.code == 0, capsys.readouterr().err
    assert len(pd.read_csv("p.csv")) == 60
    form = form_of("none", NAMES, marks, "drop")
    about = bundle.about
    left = read("va.data", about.inputs, about.classes, "grade>1", form=form)
    known = read("known.data", about.inputs, about.classes, "grade>1", form=FORM)
    torch.testing.assert_close(left.x_N, known.x_N, equal_nan=True, rtol=0, atol=0)
    assert left.y_N.tolist() == known.y_N.tolist()
    of_left = SiteFiles("va.data", target="grade>1", form=form)
    of_known = SiteFiles("known.data", target="grade>1", form=FORM)
    assert (len(of_left), of_left.offer()) == (57, of_known.offer())
    with pytest.raises(InputError, match=r"is missing in 3 of 60 rows \(the first is row 5"):
        SiteFiles("va.data", target="grade>1", form=form_of("none", NAMES, marks))


@pytest.mark.parametrize("place", ["{}.csv", "{}.csv.gz", "{}/*.data"])
def test_a_site_of_a_federation_gives_its_files_as_they_are(place: str, tmp_path: Path) -> None:
    offers, plain = {}, {}
    for k, name in enumerate(["oslo", "porto"]):
        if "*" in place:
            write(raw(k)[:30], tmp_path / name / "a.data")
            write(raw(k)[30:], tmp_path / name / "b.data")
        else:
            write(raw(k), tmp_path / place.format(name))
        clean(raw(k)).to_csv(tmp_path / f"clean-{name}.csv", index=False)
        site = SiteFiles(tmp_path / place.format(name), target="grade>1", form=FORM)
        other = SiteFiles(tmp_path / f"clean-{name}.csv", target="high")
        offers[name], plain[name] = site.offer(), other.offer()
        assert offers[name] == plain[name]
    inputs, classes = common_form(offers)
    assert classes == ("no", "yes")
    agreement = Agreement(inputs=inputs, classes=classes, train=(), test=(), validation=(), names=())
    one, two = (s.encode(agreement.inputs, classes, 0, 1, look=False) for s in (site, other))
    torch.testing.assert_close(one.x_N, two.x_N, equal_nan=True, rtol=0, atol=0)
    assert one.y_N.tolist() == two.y_N.tolist()


# --- samples that belong together


def grouped(seed: int, patients: int = 20, each: int = 4) -> pd.DataFrame:
    """Visits of patients: the label is the patient's own, and so is what a model can remember of it."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), each)
    label = rng.integers(0, 2, patients)[patient]
    return pd.DataFrame({
        "age": rng.normal(50, 20, patients)[patient].round(2),
        "dose": (label + rng.normal(0, 1, len(patient))).round(2),
        "patient": [f"s{seed} p{k}" for k in patient], "y": np.where(label, "ill", "well"),
    }).sample(frac=1, random_state=seed).reset_index(drop=True)  # fmt: skip


@pytest.fixture
def of_patients(tmp_path: Path) -> Bundle:
    for k, name in enumerate(["oslo", "porto", "bern"]):
        grouped(k).to_csv(tmp_path / f"{name}.csv", index=False)
    study = idl.Study(
        data=str(tmp_path / "*.csv"), target="y", group_column="patient", rounds=2, lr=0.05, methods=["fedper"],
        protocol={"validation": 0.25},
    )  # fmt: skip
    result = idl.run(study, tmp_path / "run", engine="sequential")
    data = study.federation()
    sides = [set(data.group_R[torch.cat([*rows])].tolist()) for rows in (data.train, data.test, data.validation)]
    assert sum(map(len, sides)) == len(set().union(*sides)) == 60
    return result.bundle("fedper", tmp_path / "bundle")


def test_a_new_site_keeps_its_patients_together(of_patients: Bundle, tmp_path: Path, caplog) -> None:
    about, study = of_patients.about, of_patients.about.provenance.study
    assert [column.name for column in about.inputs.columns] == ["age", "dose"]
    frame = grouped(9)
    frame.to_csv(tmp_path / "new.csv", index=False)
    frame.rename(columns={"patient": "mrn"}).to_csv(tmp_path / "mrn.csv", index=False)
    numbers = pd.factorize(frame["patient"], sort=True)[0]
    how = {"usual": Usual(study["group_column"])}
    samples = read(tmp_path / "new.csv", about.inputs, about.classes, "y", **how)
    assert "the samples of one 'patient' are kept together, as the training does" in caplog.text
    other = read(tmp_path / "mrn.csv", about.inputs, about.classes, "y", group_column="mrn", **how)
    for one in (samples, other):
        codes = one.group_N.numpy()
        assert (codes[:, None] == codes).tolist() == (numbers[:, None] == numbers).tolist()
        assert one.x_N.shape == (80, 2)
    assert read(tmp_path / "mrn.csv", about.inputs, about.classes, "y", **how).group_N is None
    assert "has no column 'patient', by which the training keeps samples together" in caplog.text
    site = join(of_patients, samples, tmp_path / "site").about.site
    assert sum(site.score_weights) == pytest.approx(20 / 21)
    alone = join(of_patients, samples._replace(group_N=None), tmp_path / "alone").about.site
    assert alone.score_weights == ()
    # a local model of 4 copies of each patient looks better than it is where copies are on both sides
    assert site.compared["local"]["accuracy"] <= alone.compared["local"]["accuracy"]


def test_the_estimator_takes_groups(of_patients: Bundle) -> None:
    frame = grouped(9)
    model = idl.load(of_patients.folder)
    x, y = frame[["age", "dose"]], frame["y"]
    with_groups = model.fit(x, y, groups=frame["patient"]).choice_.outputs["local"]
    without = model.fit(x, y).choice_.outputs["local"]
    assert not torch.equal(with_groups, without)
    with pytest.raises(ValueError, match="groups has the shape"):
        model.fit(x, y, groups=[1, 2])


@pytest.mark.parametrize("given", [None, "patient"])
@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_a_site_of_a_federation_keeps_its_patients_together(given, validation, tmp_path: Path) -> None:
    frame = grouped(3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    site = SiteFiles(tmp_path / "t.csv", target="y", group_column=given)
    usual = None if given else "patient"
    offer = site.offer(group=usual)
    assert [column.name for column in offer.columns] == ["age", "dose"]
    inputs, classes = common_form({"one": offer, "two": offer})
    ready = site.encode(inputs, classes, 0, 1, look=False, validation=validation, group=usual)
    sides = [set(ready.group_N[rows].tolist()) for rows in (ready.train_N, ready.test_N, ready.validation_N)]
    assert sum(map(len, sides)) == len(set().union(*sides)) == 20
    assert len(sides[1]) == 4  # a fifth of 20 patients with 4 visits each
    assert bool(sides[2]) == bool(validation)


def test_a_site_of_a_federation_tests_on_its_last_samples(tmp_path: Path) -> None:
    frame = pd.DataFrame({"time": np.arange(50.0), "y": ["u", "v"] * 25})
    frame.to_csv(tmp_path / "t.csv", index=False)
    site = SiteFiles(tmp_path / "t.csv", target="y")
    inputs, classes = common_form({"one": site.offer(), "two": site.offer()})
    ready = site.encode(inputs, classes, 0, 1, look=False, validation=0.25, way=Splitting(ordered=True, gap=2))
    assert ready.test_N.tolist() == list(range(40, 50))
    assert ready.validation_N.tolist() == list(range(28, 38))
    assert ready.train_N.tolist() == list(range(26))


@pytest.mark.parametrize(
    ("activities", "test", "validation", "train"),
    [
        ("u" * 10 + "v" * 10, [8, 9, 18, 19], [5, 6, 16], [*range(4), *range(11, 15)]),
        ("u" * 5 + "v" * 10 + "u" * 5, [13, 14, 18, 19], [10, 11, 16], [*range(9)]),
        ("v" * 19 + "u", [15, 16, 17, 18], [10, 11, 12, 13], [*range(9)]),
    ],
)
def test_a_site_of_a_federation_tests_on_the_last_samples_of_each_class(activities, test, validation, train, tmp_path):
    frame = pd.DataFrame({"time": np.arange(20.0), "y": list(activities)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    site = SiteFiles(tmp_path / "t.csv", target="y")
    inputs, _ = common_form({"one": site.offer(), "two": site.offer()})
    way = Splitting(ordered=True, gap=1, each_class=True)
    ready = site.encode(inputs, ["u", "v"], 0, 1, look=False, validation=0.25, way=way)
    assert [part.tolist() for part in (ready.test_N, ready.validation_N, ready.train_N)] == [test, validation, train]


# --- dates and notes


def dated(seed: int, rows: int = 60, year: int = 2023) -> pd.DataFrame:
    """Admissions, more of which end badly in winter, with notes that nobody reads."""
    rng = np.random.default_rng(seed)
    day = pd.Timestamp(year, 1, 1) + pd.to_timedelta(rng.integers(0, 360, rows), unit="D")
    return pd.DataFrame({
        "Admission": day.strftime("%Y-%m-%d"), "dose": rng.normal(0, 1, rows).round(2),
        "notes": [f"seen on ward {k} for a cough" for k in range(rows)], "y": np.where(day.month < 4, "bad", "good"),
    })  # fmt: skip


def test_dates_at_a_new_site_become_the_numbers_of_the_training(tmp_path: Path, caplog) -> None:
    for k, name in enumerate(["oslo", "porto", "bern"]):
        dated(k).to_csv(tmp_path / f"{name}.csv", index=False)
    study = idl.Study(data=str(tmp_path / "*.csv"), target="y", rounds=2, lr=0.05, methods=["fedper"])
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedper", tmp_path / "bundle")
    about = bundle.about
    names = [f"Admission {part}" for part in ("month", "weekday", "days")]
    assert [column.name for column in about.inputs.columns] == [*names, "dose"]
    frame = dated(9, year=2031)  # far from the training, and no other unit
    moment = pd.to_datetime(frame["Admission"])
    expected = np.stack(
        [moment.dt.month, moment.dt.day_of_week + 1, (moment - pd.Timestamp(0)).dt.days, frame["dose"]], 1
    )
    written = {
        "a.csv": frame, "b.csv": frame.assign(Admission=moment.dt.strftime("%d.%m.%Y")),
        "c.csv": frame.assign(Admission=moment.dt.strftime("%b %d, %Y")).rename(columns={"Admission": "admission"}),
    }  # fmt: skip
    for name, table in written.items():
        table.to_csv(tmp_path / name, index=False)
        x_N = read(tmp_path / name, about.inputs, about.classes, "y").x_N
        np.testing.assert_allclose(x_N.numpy(), expected, rtol=1e-6)
        streamed = torch.cat([x_B for x_B, _ in stream(tmp_path / name, about.inputs)])
        torch.testing.assert_close(streamed, x_N)
    frame.assign(Admission=moment).to_parquet(tmp_path / "d.parquet")
    torch.testing.assert_close(read(tmp_path / "d.parquet", about.inputs, about.classes, "y").x_N, x_N)
    frame.assign(Admission=["soon"] * 60).to_csv(tmp_path / "e.csv", index=False)
    with pytest.raises(idl.InputError, match=r"column 'Admission' of \S*e.csv has values that are no dates"):
        read(tmp_path / "e.csv", about.inputs, about.classes, "y")
    offers = {}
    for name in ("oslo", "porto"):
        site = SiteFiles(tmp_path / f"{name}.csv", target="y")
        offers[name] = site.offer()
    inputs, classes = common_form(offers)
    assert [column.name for column in inputs.columns] == [*names, "dose"]
    assert "cough" not in str(offers)
    ready = site.encode(inputs, classes, 0, 1, look=False)
    moment = pd.to_datetime(dated(1)["Admission"])
    np.testing.assert_array_equal(ready.x_N[:, 0].numpy(), moment.dt.month)


def test_the_cards_commands_have_the_question_and_the_names_and_marks_of_training(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bundle.folder)
    text = (bundle.folder / "README.md").read_text(encoding="utf-8")
    commands = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("    idiolect ")]
    write(raw(8, 40), bundle.folder / "my.csv")
    write(raw(9, 20), bundle.folder / "new.csv")
    assert [command[0] for command in commands] == ["join", "predict"]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            cli.main(command)
        assert ended.value.code == 0
    assert "grade>1" in commands[0]
    assert all(command[-4:] == ["--columns", NAMES, "--missing", "-9+."] for command in commands)
    assert len(pd.read_parquet("predictions.parquet")) == 20


def test_texts_that_look_like_numbers_or_answers_stay_texts(tmp_path: Path) -> None:
    """Where a site has only these, and its file is read whole or in pieces."""
    rng = np.random.default_rng(0)

    def visits(rows: int, *, all_of_them: bool) -> pd.DataFrame:
        some = slice(None) if all_of_them else slice(2)
        frame = pd.DataFrame({"a": rng.normal(size=rows)})
        for name, texts in {"ward": ["01", "02", "1A"], "smoker": ["true", "false", "unknown"]}.items():
            frame[name] = rng.choice(texts[some], rows)
        return frame.assign(y=np.where(frame["a"] + (frame["ward"] == "01") > 0.3, "pos", "neg"))

    for k in range(3):
        visits(80, all_of_them=True).to_csv(tmp_path / f"site{k}.csv", index=False)
    study = idl.Study(data=str(tmp_path / "site*.csv"), target="y", methods=["fedavg"], rounds=1)
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "bundle")
    inputs = bundle.about.inputs
    assert [(c.name, set(c.texts)) for c in inputs.columns if c.kind == "text"] == [
        ("ward", {"01", "02", "1A"}), ("smoker", {"true", "false", "unknown"}),
    ]  # fmt: skip
    own = visits(30, all_of_them=False)
    own.to_csv(tmp_path / "own.csv", index=False)
    want = np.concatenate(
        [own[["a"]], *(own[[c.name]].to_numpy() == np.array(c.texts) for c in inputs.columns if c.kind == "text")], 1
    )
    whole = read(tmp_path / "own.csv", inputs, bundle.about.classes, "y")
    pieces = next(iter(stream(tmp_path / "own.csv", inputs)))[0]
    np.testing.assert_allclose(whole.x_N, want, atol=1e-6)
    np.testing.assert_allclose(pieces, want, atol=1e-6)
    marked = next(iter(stream(tmp_path / "own.csv", inputs, form=form_of(missing="a=-9"))))[0]
    np.testing.assert_allclose(marked, want, atol=1e-6)
    join(bundle, whole, tmp_path / "mine")
