"""Some rounds in which every node gets one file and sends back another; the seconds of each are written to a third."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

FOLDER = Path(os.environ["BARE"])
server = ServerApp()
client = ClientApp()


def record(name: str) -> RecordDict:
    """The bytes of a file, as an array."""
    return RecordDict({"m": ArrayRecord({"m": Array(np.frombuffer((FOLDER / name).read_bytes(), np.uint8))})})


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    nodes, rounds = (int(part) for part in (FOLDER / "how").read_text().split())
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.2)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        asked = [Message(record("down"), dst_node_id=node, message_type="query") for node in grid.get_node_ids()]
        replies: Iterable[Message] = grid.send_and_receive(asked)
        assert [reply.has_error() for reply in replies] == [False] * nodes
        seconds.append(time.perf_counter() - start)
    (FOLDER / "draft").write_text("\n".join(map(str, seconds)))
    (FOLDER / "draft").rename(FOLDER / "seconds")


@client.query()
def answer(message: Message, context: Context) -> Message:
    """The reply."""
    return Message(record("up"), reply_to=message)
