"""Finding or starting a Ray cluster."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from typing import Any

import torch

from idiolect.core.errors import InputError
from idiolect.core.processor import cores
from idiolect.engines.ray.messages import one_line

_PATIENCE = 15.0  # seconds after which a cluster that does not answer counts as missing


def connect(address: str | None, workers: int | None) -> None:
    """Start Ray on this machine, or join a cluster, without output on the terminal.

    Raises:
        InputError: no cluster answers, or this machine is not one of its nodes.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_ray()
    fix = "start one with ray start --head, or leave out the address to use only this machine"
    if address is not None and not _answers(address):
        raise InputError(f"no Ray cluster answers at {address}: {fix}")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            with _on_loopback():
                ray.init("local", num_cpus=workers or cores(), include_dashboard=False, **quiet)
        else:
            ray.init(address, **quiet)
    except Exception as error:
        what = f"cannot join the Ray cluster at {address}" if address is not None else "cannot start Ray"
        raise InputError(f"{what} ({one_line(error)}): {fix}") from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, handler)  # Ray has changed it


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Inside, Ray's processes listen on the loopback address, as on Windows and macOS; Linux has no option for it.

    Raises:
        RuntimeError: this version of Ray would listen elsewhere; it is shut down.
    """
    ray = import_ray()
    constants: Any = import_module("ray._private.ray_constants")
    usual = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = usual
    at = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(at).is_loopback:
        ray.shutdown()
        raise RuntimeError(f"Ray {ray.__version__} listens on {at}, where other machines can reach it")


def _answers(address: str) -> bool:
    """Whether a cluster answers; ``ray.init`` itself would try for minutes."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        process = subprocess.run(command, timeout=_PATIENCE, capture_output=True, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False
    return process.returncode == 0


def import_ray() -> Any:
    """Ray, if it is installed."""
    return import_module("ray")


def versions() -> str:
    """The versions that must be the same on all nodes, in words."""
    return f"idiolect {metadata.version('idiolect')} and torch {torch.__version__}"


def name_of(node: dict[str, Any]) -> str:
    """A node's name, for a reader."""
    return f"{node['NodeName']} ({node['NodeID'][:8]})"
