"""The result of a run, read from its folder."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from idiolect import report
from idiolect.core.arrow_tables import to_frame
from idiolect.core.errors import InputError, nearest, option
from idiolect.report import defences
from idiolect.report.by_client import frame
from idiolect.runs import predictions
from idiolect.runs.environment import starts
from idiolect.runs.folder import PAGE_FILE, STUDY_FILE
from idiolect.studies.config import Study
from idiolect.studies.method_use import Use, title_of

if TYPE_CHECKING:
    from idiolect.deploy import Bundle
    from idiolect.report.charts import Charts


log = logging.getLogger(__name__)


@dataclass(frozen=True, init=False)
class Result:
    """A finished (or stopped) run; ``Result("runs/first")`` opens it again.

    Args:
        folder: of the run.
        study: what was run; None reads it from the folder's ``study.yaml``. Give it where its data or its partition
            are objects of Python, which that file does not have: ``bundle`` needs them.
        allow_import: whether that file may name code by its import path, which is then imported and run.

    Raises:
        InputError: without ``study``: there is no such folder, one of its files is missing, broken or has changed, or
            it names code without ``allow_import``.
    """

    folder: Path
    study: Study

    def __init__(self, folder: str | Path, study: Study | None = None, *, allow_import: bool = False) -> None:
        folder = Path(folder)
        if study is None:
            report.read(folder)  # it notices what is missing, or was changed
            study = Study.read(folder / STUDY_FILE, allow_import=allow_import)
        object.__setattr__(self, "folder", folder)
        object.__setattr__(self, "study", study)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The engine and machine of the run, once for each time that it was started or resumed and did some rounds.

        ``engine``, its ``options``, ``workers``, ``seconds`` of the rounds, ``busy`` (the share of time in which the
        workers worked), ``versions``, ``dtype`` and ``machine``.
        """
        return starts(self.folder)

    @property
    def diverged(self) -> list[report.Divergence]:
        """The methods and seeds whose training diverged: ``method``, ``seed``, ``round`` and the message ``said``."""
        return report.divergences(self.folder)

    @property
    def records(self) -> Any:
        """Every number of the run, long format, as a pandas DataFrame."""
        return report.read(self.folder).records

    def score(self) -> Any:
        """The number that the table shows, as a pandas Series by method and seed: an accuracy is 0 to 1.

        It is the score that the study's protocol asks for: of its clients, at its stage, in its round. The table has
        the mean over seeds. Methods without a result are left out. Only the clients count that all methods have; if
        there are others, a warning names them, and so does ``attrs["notes"]``, a list of sentences.

        Raises:
            InputError: no test sample was measured.
        """
        return self._scores("test")

    def accuracy(self) -> Any:
        """``score`` of a classification.

        Raises:
            InputError: numbers are predicted, or no test sample was measured.
        """
        self._check_classes("score()")
        return self._scores("test")

    def _check_classes(self, instead: str) -> None:
        run = report.read(self.folder)
        if run.task != "classification":
            what = "numbers" if run.task == "regression" else "several labels"
            raise InputError(f"this run predicts {what}, which have no accuracy: call {instead}")

    def validation(self) -> Any:
        """The same on validation samples: the mean over those of clients that train, in the protocol's round.

        It needs the protocol's ``validation``. Choose settings by it, not by ``score``, so that no test sample
        decides.

        Raises:
            InputError: no validation sample was measured.
        """
        return self._scores("validation")

    def _scores(self, part: Literal["test", "validation"]) -> Any:
        run = report.read(self.folder)
        self._check(run, part)
        series = report.scores(run, part)
        for note in report.left_out_notes(run):
            log.warning("%s", note)
        series.attrs["notes"] = list(report.left_out_notes(run))
        return series

    def client_accuracy(self) -> Any:
        """``client_score`` of a classification.

        Raises:
            InputError: numbers are predicted, or no test sample was measured.
        """
        self._check_classes("client_score()")
        return self.client_score()

    def client_score(self) -> Any:
        """The score of every client, as a pandas DataFrame: a row per client, a column per method and seed.

        Raises:
            InputError: no test sample was measured.
        """
        run = report.read(self.folder)
        self._check(run, "test")
        return report.client_scores(run)

    @staticmethod
    def _check(run: report.Run, part: Literal["test", "validation"]) -> None:
        """Check that samples of a part were measured."""
        if part == "test" and run.part == "validation":
            raise InputError("no test sample was measured in this run: call validation()")
        if part == "validation" and not any(run.sizes_of("validation").values()):
            raise InputError("this run has no validation samples: give the study protocol='validation=0.2'")

    def clients(self, measure: str | None = None) -> Any:
        """Which method for which client: a pandas DataFrame with a row per client, indexed by its number.

        Columns: ``name``; ``test_samples``, or ``validation_samples`` where these are measured; for each method its
        mean over seeds, and ``LABEL low`` and ``LABEL high``, the ends of Wilson's 95 % interval, if the measure is a
        proportion of samples (accuracy, recall, sensitivity, specificity); ``best``; ``alike``, the methods that cannot
        be told apart from the best (missing for measures that are not a proportion). ``report.by_client`` says how this
        is tested.

        Args:
            measure: a metric of test samples that the run recorded, as ``macro_f1``, ``auroc`` or ``recall[3]``, or
                ``validation_accuracy``. None takes the score, if there are no test samples that of validation samples.

        Raises:
            InputError: the run did not record it.
        """
        return frame(report.by_client(report.read(self.folder), measure))

    def predictions(self) -> Any:
        """The predictions of the test samples after the last round, as a pandas DataFrame: a row for each sample.

        Columns: ``method``, ``seed``, ``client``, ``stage`` (the protocol's, or ``new``), ``sample`` (its place within
        the client's test samples), ``label``, and ``probability[c]`` for each class c.

        Raises:
            InputError: the study does not save predictions, or has not been run to its end.
        """
        return to_frame(predictions.read(self.folder))

    def rows(self) -> list[report.Row]:
        """The table's rows, one per method, as numbers."""
        return report.summary(report.read(self.folder))

    def table(self) -> Table:
        """The table as a terminal shows it."""
        run = report.read(self.folder)
        precision = "" if run.precision == "float32" else f"Computed in {run.precision}."
        more = " ".join(filter(None, (report.official_words(run.manifest), precision, defences.caption(run))))
        return report.render(
            report.summary(run), run.said(report.whose(run)), report.columns_of(run), more, report.said(run)
        )

    def notes(self) -> list[str]:
        """What stands below the table: which clients do not count and why, and whose training seems not finished."""
        return list(report.said(report.read(self.folder)))

    def new_clients(self) -> list[report.NewClients]:
        """The score of new clients, a row for each condition; empty if there are none."""
        return report.new_clients(report.read(self.folder))

    def new_clients_table(self) -> Table | None:
        """The same as a terminal shows it."""
        run = report.read(self.folder)
        rows = report.new_clients(run)
        return report.render_new_clients(rows, run.titles, run.score, report.unlike_trained(run)) if rows else None

    def bundle(
        self, method: str, out: str | Path, *, seed: int | None = None, client: str | int | None = None
    ) -> Bundle:
        """Write what a method trained as a bundle: what a site needs to join, or personal models.

        The data are read again; of a federation's run they are at its sites, which keep the personal models too.

        Args:
            method: its label, or its name.
            out: the bundle's folder, new or empty.
            seed: one of the study's; None takes the first.
            client: None for what a new client gets, from which a site makes its own model; the name or the number of a
                client for its personal model; "all" for those of all clients that trained.

        Raises:
            InputError: there is no such method, seed or client, the run is not finished, its data have changed, or the
                folder is not empty.
            RunError: the disk is full, or a personal model cannot be made.
        """
        from idiolect.deploy.make import make

        use = self._use(method)
        is_first, seed = seed is None, self.study.seeds[0] if seed is None else seed
        if seed not in self.study.seeds:
            raise InputError(f"seed {seed} is not in this run: its seeds are {', '.join(map(str, self.study.seeds))}")
        if is_first and len(self.study.seeds) > 1:
            log.warning(
                "the bundle has the models of seed %d, the first of %d; the table is about all: give %s for another",
                seed, len(self.study.seeds), option("seed"),
            )  # fmt: skip
        federation = self.study.federation()
        job = self.study.job(use, seed, federation)
        return make(
            self.folder,
            Path(out),
            job,
            federation,
            self.study.of(use).model_dump(mode="json"),
            method={"name": use.name, "title": title_of(use), "options": use.options},
            labels=[u.label for u in self.study.methods],
            client=client,
            elsewhere=self.study.elsewhere(job),
        )

    def _use(self, method: str) -> Use:
        uses = [u for u in self.study.methods if method == u.label] or [
            u for u in self.study.methods if method == u.name
        ]
        if not uses:
            raise InputError(
                f"this run has no method {method!r}; {nearest(method, [u.label for u in self.study.methods])}"
            )
        return uses[0]

    def compare(self, method: str, base: str, measure: str | None = None) -> report.Comparison:
        """Two methods compared client by client: by how much one is better, how certain, and for which clients.

        Args:
            method: by its label or name.
            base: the other.
            measure: a metric that the run recorded of clients' samples, as ``auroc``; None is the run's score.

        Raises:
            InputError: one of them did not run or diverged, they have no results of the same client and seed, or the
                run did not record the measure.
        """
        return report.compare(report.read(self.folder), method, base, measure)

    def figures(self) -> Charts:
        """The figures of the page, as Altair charts by name, which one can change and save.

        ``result.figures()["rounds"].save("rounds.pdf")`` writes one; ``.svg``, ``.png`` and ``.json`` work too.

        Raises:
            InputError: Altair is not installed, or the run cannot be read.
        """
        from idiolect.report.charts import charts_of_run

        return charts_of_run(self.folder)

    def _repr_html_(self) -> str:
        from idiolect.report.notebook import html
        from idiolect.report.run_html import run_html

        try:
            return run_html(report.read(self.folder))
        except InputError as error:  # a notebook would show a traceback
            return html(below=[str(error)])

    @property
    def page(self) -> Path:
        """Where its page is."""
        return self.folder / PAGE_FILE

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page (by default ``report.html`` in the run's folder) and return its path."""
        return report.write([self.folder], Path(out) if out else self.page)
