"""``idiolect federation`` and ``idiolect site``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli.form import Categorical, Columns, GroupColumn, Header, Missing, Samples, Target, Unlabelled
from idiolect.cli.options import Command, Group, Quiet, flag, option
from idiolect.cli.output import err_console, out_console, say

if TYPE_CHECKING:
    from idiolect.studies import Result

app = typer.Typer(
    cls=Group, no_args_is_help=True, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)
LogJson = Annotated[bool, flag("log-json", "Write each event as a line of JSON.")]
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="Folder that idiolect federation provision made.")]


@app.callback()
def federation() -> None:
    """Train between sites that keep their data, each on its own machine."""


@app.command("provision", cls=Command)
def provision_command(
    description: Annotated[Path, typer.Argument(metavar="FEDERATION.yaml", help="Who takes part.")],
    out: Annotated[Path, option("Folder for the kits.", "kits")] = Path("kits"),
    ca: Annotated[Path | None, option("Your own authority's certificate, in PEM.", "a new one")] = None,
    ca_key: Annotated[Path | None, option("The key of that authority, in PEM.")] = None,
) -> None:
    """Make the kits of the server, of each site and of the operator: addresses, certificates and keys.

    Example: idiolect federation provision federation.yaml --out kits
    """
    _check_packages()
    from idiolect.federation.trust.authority import provision
    from idiolect.federation.trust.kits import describe

    for folder in provision(describe(description), out, ca=ca, ca_key=ca_key):
        say(out_console, str(folder))
    say(out_console, "Give each site its own folder on a safe way. Keep operator to yourself.")


Operator = Annotated[
    Path, typer.Argument(metavar="OPERATOR", help="The operator's kit, which has the authority's key.")
]
SiteName = Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")]
AuthorityKey = Annotated[Path | None, option("The authority's key, if it is not in this kit.")]


@app.command("add", cls=Command)
def add_command(
    operator: Operator,
    site: SiteName,
    request: Annotated[
        Path | None, option("What idiolect federation request made at the site.", "a new key", metavar="FILE")
    ] = None,
    out: Annotated[Path | None, option("Folder for the site's kit.", "site-SITE beside OPERATOR")] = None,
    ca_key: AuthorityKey = None,
) -> None:
    """Add a site, also to a federation that runs; no other site's kit changes.

    Example: idiolect federation add kits/operator coast
    """
    _check_packages()
    from idiolect.federation.trust import authority

    place = operator.parent / f"site-{site}" if out is None else out
    with authority.operator(operator, ca_key) as who:
        authority.add(who, site, place, request)
    say(out_console, f"{place}: give it to {site}" + ("" if request is None else ", which puts its site.key into it"))
    _next_step(operator)


@app.command("renew", cls=Command)
def renew_command(operator: Operator, ca_key: AuthorityKey = None) -> None:
    """Sign the certificates of the server and of all sites again; sites get theirs from the running server.

    Example: idiolect federation renew kits/operator
    """
    _check_packages()
    from idiolect.federation.trust import authority

    with authority.operator(operator, ca_key) as who:
        roster = authority.renew(who)
    ends = min(m.x509.not_valid_after_utc for m in roster.members if not m.revoked)
    say(out_console, f"The certificates are valid until {ends:%Y-%m-%d}.")
    _next_step(operator, "server.pem and ")


@app.command("revoke", cls=Command)
def revoke_command(operator: Operator, site: SiteName, ca_key: AuthorityKey = None) -> None:
    """Refuse a site's key from now on; no other site's kit changes.

    Example: idiolect federation revoke kits/operator coast
    """
    _check_packages()
    from idiolect.federation.trust import authority

    with authority.operator(operator, ca_key) as who:
        authority.revoke(who, site)
    say(out_console, f"The key of {site} is revoked.")
    _next_step(operator)


@app.command("request", cls=Command)
def request_command(
    site: SiteName,
    out: Annotated[Path, option("Folder for the key and the request.", "request")] = Path("request"),
) -> None:
    """At a site: make its key, which stays here, and a request for the operator to sign.

    Example: idiolect federation request coast
    """
    _check_packages()
    from idiolect.federation.trust import authority

    request = authority.ask(site, out)
    say(out_console, f"Send {request} to the operator, who gives it to: idiolect federation add OPERATOR {site}")
    say(out_console, f"Keep {out / 'site.key'} here, and copy it into the kit that comes back.")


def _next_step(operator: Path, more: str = "") -> None:
    """Say how the server learns of a change."""
    if (operator.parent / "server" / "server.json").exists():
        say(out_console, "The server's kit beside it has the new roster; a running server takes it within seconds.")
    else:
        say(out_console, f"Copy {more}roster.json of {operator} into the server's kit; a running server takes it over.")


@app.command("app", cls=Command)
def app_command(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study, without data.")],
    out: Annotated[Path, option("Folder for the app.", "app")] = Path("app"),
    run: Annotated[
        Path, option("Folder of the run on the SuperLink's machine; a run in it continues.", "run", "--run")
    ] = Path("run"),
    sites: Annotated[
        str | None, option("Names of the sites, joined by commas, in the order of the clients' numbers.")
    ] = None,
    kit: Annotated[
        Path | None, option("The server's kit, in place of --sites: SuperNodes prove their names by their sites' kits.")
    ] = None,
    simulate: Annotated[
        Path | None, option("Folder with a file SITE.yaml for each site, for Flower's simulation.", metavar="FOLDER")
    ] = None,
) -> None:
    """Write the study as an app of Flower, which flwr run starts on a SuperLink and its SuperNodes.

    Example: idiolect federation app study.yaml --sites north,south,east --out app
    """
    _check_packages("flwr", extra="flower")
    from idiolect.federation.flower.app_folder import write_app

    names = tuple(name.strip() for name in (sites or "").split(",") if name.strip())
    every = write_app(study, out, run, sites=names, kit=kit, simulated=simulate)
    say(out_console, f"{out}: start it with flwr run {out}; it runs at {', '.join(every)}")


@app.command("serve", cls=Command)
def serve_command(
    kit: Kit,
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.yaml", help="The study, without data; or a folder of studies, run in turn.")
    ],
    out: Annotated[Path, option("Folder of the run, or of the runs; what is there continues.", "run")] = Path("run"),
    listen: Annotated[
        str | None, option("Where to listen.", "the port of the kit's address", metavar="HOST:PORT")
    ] = None,
    page: Annotated[
        str | None,
        option("Show sites, rounds and alarms to a browser at this port of this machine.", metavar="[HOST:]PORT"),
    ] = None,
    metrics_token: Annotated[
        Path | None,
        option("File of the token that reads /metrics of this page, made if it does not exist.", metavar="FILE"),
    ] = None,
    min_sites: Annotated[
        int | None,
        option("Sites without which a round of all does not close; of fewer, the same share.", "more than half"),
    ] = None,
    start_with: Annotated[
        int | None, option("Sites that must be there before the first round; others may come later.", "all sites")
    ] = None,
    deadline: Annotated[float, option("Seconds after which a round closes with those that answered.", "600")] = 600.0,
    lost_after: Annotated[float, option("Seconds of silence after which a site is not waited for.", "30")] = 30.0,
    most_norm: Annotated[
        float, option("An upload counts up to this many times the median norm of a round.", "100")
    ] = 100.0,
    log_json: LogJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a study at the sites, and compare the methods in a table and a page.

    Example: idiolect federation serve kits/server study.yaml --out run
    """
    _check_packages(*([] if page is None else ["prometheus_client"]))
    from idiolect.core.errors import InputError
    from idiolect.federation.events import Events
    from idiolect.federation.programs import serve, serve_queue
    from idiolect.federation.rounds.conversation import Patience
    from idiolect.federation.server.conduct import Terms
    from idiolect.federation.trust.kits import server_kit
    from idiolect.studies import watcher
    from idiolect.studies.progress import Watcher

    for name, value in (("deadline", deadline), ("lost-after", lost_after), ("most-norm", most_norm)):
        if not value > 0:
            raise InputError(f"--{name} {value:g} is not possible: give a number above 0")
    least = len(server_kit(kit, out).roster.keys()) // 2 + 1 if min_sites is None else min_sites
    terms = Terms(Patience(least, deadline, lost_after), most_norm, start_with)
    show = Watcher() if quiet or log_json or not err_console.is_terminal else watcher(err_console)
    how: dict[str, Any] = {
        "listen": listen, "page": page, "metrics_token": metrics_token, "terms": terms, "watcher": show,
        "say": Events(quiet=quiet, as_json=log_json),
    }  # fmt: skip

    def show_result(result: Result) -> None:
        out_console.print(result.table())
        say(out_console, f"Report: {result.page}")

    if study.is_dir():
        serve_queue(kit, study, out, **how, on_result=show_result)
    result = serve(kit, study, out, **how)
    show_result(result)
    if result.diverged:
        raise typer.Exit(1)


def site_command(
    kit: Kit,
    data: Samples,
    target: Target = None,
    test: Annotated[Path | None, option("Samples to test on.", "a fifth of the samples", metavar="WHERE")] = None,
    drop: Annotated[list[str] | None, option("A column to leave out; repeat.", metavar="COLUMN")] = None,
    as_is: Annotated[
        list[str] | None,
        option("A column whose numbers are right although they look like another unit's; repeat.", metavar="COLUMN"),
    ] = None,
    group_column: GroupColumn = None,
    header: Header = None,
    columns: Columns = None,
    missing: Missing = None,
    unlabelled: Unlabelled = None,
    categorical: Categorical = None,
    state: Annotated[Path, option("Folder of the personal model and of what it needs.", "state")] = Path("state"),
    state_key: Annotated[
        Path | None, option("File of the key that encrypts this folder, made if it does not exist.", metavar="FILE")
    ] = None,
    policy: Annotated[Path | None, option("What the server may ask of this site.", metavar="POLICY.yaml")] = None,
    dry_run: Annotated[bool, flag("dry-run", "Show what would be sent, and to whom; connect to nobody.")] = False,
    study: Annotated[
        Path | None, option("With --dry-run: the study, for the uploads of its methods.", metavar="STUDY.yaml")
    ] = None,
    log_json: LogJson = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation with the samples of this site, which stay here.

    Example: idiolect site kits/site-north --data my.csv --target diagnosis --state state
    """
    _check_packages()
    from idiolect.core.errors import InputError
    from idiolect.data.custom.form import form_of
    from idiolect.federation.data.samples import SiteFiles
    from idiolect.federation.events import Events
    from idiolect.federation.preview import preview
    from idiolect.federation.programs import take_part
    from idiolect.federation.trust.kits import site_kit
    from idiolect.federation.trust.policy import Policy

    if study is not None and not dry_run:
        raise InputError("--study is for --dry-run: a real study comes from the server")
    samples = SiteFiles(
        data, target=target, test=test, drop=drop or (), as_is=as_is or (),
        form=form_of(header, columns, missing, unlabelled, categorical), group_column=group_column,
    )  # fmt: skip
    if dry_run:
        rules = Policy() if policy is None else Policy.read(policy)
        for line in preview(site_kit(kit), samples, rules, study, state, state_key):
            say(out_console, line)
        return
    take_part(kit, samples, state, policy=policy, key=state_key, say=Events(quiet=quiet, as_json=log_json))


def _check_packages(*more: str, extra: str = "federation") -> None:
    """Say how to install what a federation needs, and ``more`` of an extra.

    Raises:
        InputError: it is not installed.
    """
    from importlib.util import find_spec

    from idiolect.core.errors import InputError

    for package in ("cryptography", "Crypto", "h11", "httpx", *more):
        if find_spec(package) is None:
            raise InputError(f'this needs the package {package}: pip install "idiolect[{extra}]"')
