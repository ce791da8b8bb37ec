"""Studies: what is compared on what, run, and what came out; recipes of the papers' tables and figures."""

from idiolect.experiments.progress import watcher
from idiolect.experiments.result import Result
from idiolect.experiments.runner import run
from idiolect.experiments.study import Study, Use, use

__all__ = ["Result", "Study", "Use", "run", "use", "watcher"]
