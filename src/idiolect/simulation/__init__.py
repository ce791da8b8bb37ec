"""The loop over rounds and the code that runs a client, the same for all engines and methods."""

from idiolect.simulation.client_runner import Job
from idiolect.simulation.interfaces import Engine, Record, Session, State, TrainingJob
from idiolect.simulation.rounds import begin, fit, fit_jobs

__all__ = ["Engine", "Job", "Record", "Session", "State", "TrainingJob", "begin", "fit", "fit_jobs"]
