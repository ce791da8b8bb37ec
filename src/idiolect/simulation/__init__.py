"""The one round loop, and the code that runs a client, for all engines and methods."""

from idiolect.simulation.client_runner import Job
from idiolect.simulation.interfaces import Engine, Part, Record, Session, State
from idiolect.simulation.rounds import begin, fit, fit_together

__all__ = ["Engine", "Job", "Part", "Record", "Session", "State", "begin", "fit", "fit_together"]
