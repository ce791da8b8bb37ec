"""A site as Flower's ClientApp: it answers one message, and its process may end after that."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from idiolect.core.errors import IdiolectError
from idiolect.federation.events import Events, warnings_as_events
from idiolect.federation.flower.envelope import content_of, fill, values_of
from idiolect.federation.flower.names import signature_of
from idiolect.federation.flower.site_file import Own

_NO_USE = "its site's settings cannot be used; its own log says why"


def app_of_site() -> ClientApp:
    """The app of a site, whose settings are in the file that its SuperNode's ``--node-config`` names."""
    app = ClientApp()

    def name(message: Message, context: Context) -> Message:
        say = Events()
        try:
            own = Own.of(context.node_config, context.run_config)
        except IdiolectError as error:
            say(f"takes no part: {error}", failed=True)
            return Message(fill({"refused": _NO_USE}), reply_to=message)
        values: dict[str, str | int | bytes] = {"site": own.site}
        if own.identity is not None:
            nonce = str(values_of(message.content).get("nonce", ""))
            values["signature"] = signature_of(own.identity, context.node_id, nonce)
        return Message(fill(values), reply_to=message)

    def answer(message: Message, context: Context) -> Message:
        say, values = Events(), values_of(message.content)
        try:
            own = Own.of(context.node_config, context.run_config)
            content = content_of(message.content)
            if content is None or values.get("site") != own.site:
                say(f"refused a message that is not for {own.site}", refused=True)
                return Message(fill({"refused": "the message is not for this site"}), reply_to=message)
            with warnings_as_events(say):
                reply = own.answer(content, int(values.get("number", -1)), say)
        except IdiolectError as error:
            say(f"failed: {error}", failed=True)
            return Message(fill({"refused": _NO_USE}), reply_to=message)
        except Exception as error:  # noqa: BLE001  Flower would send its text, which may have what is in a file
            say(f"failed ({type(error).__name__}: {error})", failed=True)
            return Message(fill({"refused": _NO_USE}), reply_to=message)
        return Message(fill({"site": own.site}, reply), reply_to=message)

    app.query()(name)
    app.train()(answer)
    return app
