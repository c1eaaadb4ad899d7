"""Whimbrel on Flower: our round machine in a `ServerApp`, our client half in a `ClientApp`.

The server's job lists the clients by name in `[federation]`; each SuperNode says with `data_fn` which
of them it is and where its rows are. Flower carries bytes: batches of questions one way, encoded
uploads the other, in an array of its own serialisation type. A client's state is kept in
`Context.state` and, as that goes with a SuperNode's process, in a folder of the node.

The result is that of `whimbrel.run` over the same rows, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from os import PathLike
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from . import _whimbrel
from ._job import JobLike, job_text
from ._learner import Learner, offered
from ._progress import Listener
from ._run import Existing, Out, Run, carry_out

__all__ = ["client_app", "server_app"]

STYPE = "whimbrel.bytes"
_RECORD = "whimbrel"

Data = str | PathLike[str] | tuple[np.ndarray, ...] | np.ndarray
DataFn = Callable[[Context], tuple[str, Data]]

# Seconds between two looks for nodes that have not come yet.
_POLL_SECONDS = 0.2


def server_app(
    job: JobLike,
    out: Out = None,
    *,
    learner: Learner | None = None,
    existing: Existing = "refuse",
    timeout: float | None = None,
    wait_seconds: float = 300.0,
    on_done: Callable[[Run], None] | None = None,
) -> ServerApp:
    """A `ServerApp` that runs a job over the clients that `[federation]` names.

    It waits up to `wait_seconds` until every client's node is there, and for each exchange up to
    `timeout` seconds; a client that does not answer takes no part in that exchange. The run goes to
    `out`, as with `whimbrel.run`; `on_done` is called with it. `learner` is an own model of the job, which
    the clients' apps need too.
    """
    text = job_text(job)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with offered(learner):
            offer, names = _whimbrel.offer(text)
        if not names:
            raise ValueError("[federation] must list the clients by name")
        carrier = _Carrier(grid, offer, names, timeout, wait_seconds)
        done = carry_out(
            lambda place, hear: _whimbrel.serve(text, place, len(names), False, hear),
            out,
            existing,
            carrier,
            learner,
        )
        if on_done is not None:
            on_done(done)

    return app


class _Carrier(Listener):
    """Sends batches to the nodes of the clients."""

    def __init__(
        self, grid: Grid, offer: str, names: list[str], timeout: float | None, wait_seconds: float
    ) -> None:
        super().__init__(progress=False)
        self._grid, self._offer, self._timeout = grid, offer, timeout
        self._nodes = self._find(names, wait_seconds)

    def _find(self, names: list[str], wait_seconds: float) -> list[int]:
        """The node of each client, by its number."""
        end = time.monotonic() + wait_seconds
        known: dict[int, str] = {}
        while True:
            new = [node for node in self._grid.get_node_ids() if node not in known]
            asked = [
                Message(
                    content=RecordDict(), dst_node_id=node, message_type=f"{MessageType.QUERY}.whimbrel"
                )
                for node in new
            ]
            for reply in self._grid.send_and_receive(asked, timeout=self._timeout) if asked else []:
                _raise_error(reply)
                known[reply.metadata.src_node_id] = str(reply.content[_RECORD]["name"])
            by_name = {name: node for node, name in known.items()}
            missing = [name for name in names if name not in by_name]
            if not missing:
                return [by_name[name] for name in names]
            if time.monotonic() > end:
                raise TimeoutError(f"no node holds the rows of {', '.join(missing)}")
            time.sleep(_POLL_SECONDS)

    def ask(self, batches: list[tuple[int, bytes]]) -> list[bytes]:
        def message(shard: int, batch: bytes) -> Message:
            content = RecordDict(
                {
                    _RECORD: ArrayRecord({"batch": _array(batch)}),
                    "offer": ConfigRecord({"offer": self._offer, "client": shard}),
                }
            )
            return Message(
                content=content,
                dst_node_id=self._nodes[shard],
                message_type=f"{MessageType.TRAIN}.whimbrel",
            )

        sent = [message(shard, batch) for shard, batch in batches]
        replies = self._grid.send_and_receive(sent, timeout=self._timeout)
        for reply in replies:
            _raise_error(reply)
        return [_bytes(reply.content[_RECORD]["answer"]) for reply in replies]


def client_app(
    data_fn: DataFn, state_dir: str | PathLike[str] | None = None, learner: Learner | None = None
) -> ClientApp:
    """A `ClientApp` for a client of a job.

    `data_fn(context)` returns the client's name in the job and its rows: a file, an array with the
    columns that the job names, or a pair of such an array and the targets. With `state_dir`, states
    are kept there too, so that they survive a restart of the SuperNode.
    """
    app = ClientApp()
    folder = None if state_dir is None else Path(state_dir)

    @app.query("whimbrel")
    def query(message: Message, context: Context) -> Message:
        name, _ = data_fn(context)
        content = RecordDict({_RECORD: ConfigRecord({"name": name})})
        return Message(content=content, reply_to=message)

    @app.train("whimbrel")
    def train(message: Message, context: Context) -> Message:
        told = message.content["offer"]
        place = None if folder is None else folder / f"{context.run_id}-{told['client']}.state"
        saved = _saved(context, place)
        with offered(learner):
            shard = _shard(context, data_fn, str(told["offer"]), int(told["client"]), saved)
            answer = shard.answer(_bytes(message.content[_RECORD]["batch"]))
        state = shard.save()
        _machines[(context.run_id, context.node_id)] = (state, shard)
        context.state[_RECORD] = ConfigRecord({"state": state})
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            half = place.with_suffix(".tmp")
            half.write_bytes(state)
            half.replace(place)
        return Message(
            content=RecordDict({_RECORD: ArrayRecord({"answer": _array(bytes(answer))})}), reply_to=message
        )

    return app


# Machines of this process with the states that they are in: Flower may ask another process next.
_machines: dict[tuple[int, int], tuple[bytes | None, _whimbrel.Shard]] = {}


def _saved(context: Context, place: Path | None) -> bytes | None:
    if _RECORD in context.state:
        return bytes(context.state[_RECORD]["state"])
    return place.read_bytes() if place is not None and place.is_file() else None


def _shard(
    context: Context, data_fn: DataFn, offer: str, client: int, saved: bytes | None
) -> _whimbrel.Shard:
    state, shard = _machines.get((context.run_id, context.node_id), (None, None))
    if shard is not None and state == saved:
        return shard
    offered = _whimbrel.Offered(offer)
    _, data = data_fn(context)
    if isinstance(data, (str, PathLike)):
        return offered.join(client, data, saved)
    X, y = data if isinstance(data, tuple) else (data, None)
    if (y is None) != (offered.target is None):
        raise ValueError("the job's model has targets and the rows have none, or the reverse")
    target = None if y is None else (str(offered.target), np.ascontiguousarray(y, dtype=np.float64))
    rows = _whimbrel.Rows(np.ascontiguousarray(X, dtype=np.float64), offered.columns, target)
    return offered.join(client, rows.path, saved)


def _array(content: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(content),), stype=STYPE, data=content)


def _bytes(array: Array) -> bytes:
    if array.stype != STYPE:
        raise ValueError(f"an array of serialisation type {array.stype!r} where {STYPE!r} belongs")
    return array.data


def _raise_error(reply: Message) -> None:
    if reply.has_error():
        raise ConnectionError(f"a node failed: {reply.error.reason}")
