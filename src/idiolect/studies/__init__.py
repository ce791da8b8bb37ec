"""Studies: what is compared on what, run, and what came out; recipes of the papers' tables and figures."""

from idiolect.studies.config import Study, Use, use
from idiolect.studies.progress import watcher
from idiolect.studies.result import Result
from idiolect.studies.runner import run

__all__ = ["Result", "Study", "Use", "run", "use", "watcher"]
