"""A federation on the network of Flower: the server is a ServerApp, and a site a ClientApp of its SuperNode.

Flower carries the messages in place of ``link``. What is asked, answered, checked and kept is the same. Only names of
Flower's public interface are used: ``flwr.app``, ``flwr.serverapp`` and ``flwr.clientapp``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp


def client_app() -> ClientApp:
    """The app of a site, whose settings are in the file that its SuperNode's ``--node-config`` names."""
    from idiolect.federation.flower.client import app_of_site

    return app_of_site()


def server_app(study: Path) -> ServerApp:
    """The app of a server that runs the study in a file."""
    from idiolect.federation.flower.server import app_of_server

    return app_of_server(study)
