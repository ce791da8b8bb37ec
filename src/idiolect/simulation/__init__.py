"""The one round loop, and the code that runs a client, for all engines and methods."""

from idiolect.simulation.client_runner import Job
from idiolect.simulation.rounds import Engine, Record, Session, State, begin, fit

__all__ = ["Engine", "Job", "Record", "Session", "State", "begin", "fit"]
