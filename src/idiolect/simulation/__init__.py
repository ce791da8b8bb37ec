"""The one round loop, and what runs a client. It knows no engine and no method."""

from idiolect.simulation.client_runner import Job
from idiolect.simulation.rounds import Engine, Record, Session, State, begin, fit

__all__ = ["Engine", "Job", "Record", "Session", "State", "begin", "fit"]
