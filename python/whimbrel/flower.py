"""Whimbrel on Flower: the server in a `ServerApp`, the clients in `ClientApp`s.

The server's job lists the clients by name in `[federation]`; `data_fn` of each SuperNode returns its
client's name and rows. Flower carries bytes: batches of questions and encoded uploads, in an array with
its own serialisation type. A client's state is kept in `Context.state` and, since that ends with the
SuperNode's process, in a folder of the node.

The result has the bits of `whimbrel.run` over the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from . import _whimbrel
from ._job import JobLike, job_text, with_keys
from ._learner import Learner, offered
from ._progress import Listener
from ._run import Existing, Out, Run, carry_out, refuse_resume

__all__ = ["client_app", "identity", "server_app"]

STYPE = "whimbrel.bytes"
_RECORD = "whimbrel"

Data = str | PathLike[str] | tuple[np.ndarray, ...] | np.ndarray
DataFn = Callable[[Context], tuple[str, Data]]

_LOG = logging.getLogger("whimbrel")
_TRUSTED = (
    "this client answers the server's job without a consent screen, minimum numbers of rows and, unless `roster` is "
    "given, a check of the other clients' keys; `whimbrel join` has them (docs/guide/flower.md, Limits)"
)

# Seconds between polls for missing nodes.
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

    It waits up to `wait_seconds` for the nodes of all clients, and up to `timeout` seconds in each exchange;
    a client without an answer does not take part in that exchange. A node that returns is recognised by
    the name of its client. `out` is the run's folder, as in `whimbrel.run`; the run cannot be resumed, so
    `existing` is `"refuse"` or `"replace"`. `on_done` is called with the run. `learner` is an own model of
    the job, which the clients' apps need too.

    Keys of Flower's `run_config` that begin with `job.` replace those of the job (`flwr run . --run-config
    'job.method.rounds=20'`), and `out` is the run's folder. The server prints the folder's path at the end.
    """
    refuse_resume(existing, "Flower")
    job_text(job)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        keys = {k.removeprefix("job."): v for k, v in context.run_config.items() if k.startswith("job.")}
        text = with_keys(job, keys)
        place = context.run_config.get("out", out)
        with offered(learner):
            offer, names = _whimbrel.offer(text)
        if not names:
            raise ValueError("[federation] must list the clients by name")
        carrier = _Carrier(grid, offer, names, timeout, wait_seconds)
        done = carry_out(
            lambda place, listener: _whimbrel.serve(text, place, len(names), False, listener),
            place if isinstance(place, str) else out,
            existing,
            carrier,
            learner,
        )
        ended = f"{done.summary['ending']} after {done.summary['rounds']} rounds"
        print(f"whimbrel: {ended}; the run is in {done.folder.resolve()}", flush=True)
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
        self._names, self._wait_seconds = names, wait_seconds
        # The clients' names by node, in order of arrival.
        self._known: dict[int, str] = {}
        self._said: set[tuple[str, str]] = set()
        self._batches, self._heard = 0, False
        # By client, the first unconfirmed batch, which has the fate of the last upload.
        self._owed: dict[int, tuple[int, bytes]] = {}
        missing = self._wait(names, len(names))
        if missing:
            reasons = "".join(f"; {who} said: {why}" for who, why in sorted(self._said))
            raise TimeoutError(f"no node holds the rows of {', '.join(missing)}{reasons}")

    def _wait(self, names: list[str], enough: int) -> list[str]:
        """Waits for `enough` of these clients; returns the names of the missing ones."""
        end = time.monotonic() + self._wait_seconds
        while True:
            nodes = self._nodes()
            missing = [name for name in names if name not in nodes]
            if len(names) - len(missing) >= enough or time.monotonic() > end:
                return missing
            time.sleep(_POLL_SECONDS)

    def _nodes(self) -> dict[str, int]:
        """The node of each connected client. A node that returns has a new number."""
        there = set(self._grid.get_node_ids())
        found = self._found(there)
        new = sorted(there - self._known.keys()) if any(name not in found for name in self._names) else []
        query = f"{MessageType.QUERY}.whimbrel"
        asked = [Message(content=RecordDict(), dst_node_id=node, message_type=query) for node in new]
        for reply in self._send(asked):
            node = reply.metadata.src_node_id
            if reply.has_error():
                self._complain(f"node {node}" if node in new else "a node", reply.error.reason)
            else:
                self._known[node] = str(reply.content[_RECORD]["name"])
        return self._found(there)

    def _found(self, there: set[int]) -> dict[str, int]:
        return {name: node for node, name in self._known.items() if node in there}

    def _send(self, messages: list[Message]) -> list[Message]:
        return list(self._grid.send_and_receive(messages, timeout=self._timeout)) if messages else []

    def _complain(self, who: str, why: str) -> None:
        if (who, why) not in self._said:
            self._said.add((who, why))
            self.warning(f"{who} does not answer: {why}")

    def ask(self, batches: list[tuple[int, bytes]]) -> list[bytes]:
        """The answers, without clients that are absent, fail or are late."""
        if not batches:
            return []
        self._batches += 1
        questions = dict(batches)
        self._wait([self._names[client] for client in questions], 1)
        answers: dict[int, bytes] = {}
        tried: set[int] = set()
        # Repeated for clients whose node was replaced meanwhile.
        while len(answers) < len(questions):
            there = self._nodes()
            nodes = {
                node: client
                for client in questions
                if client not in answers
                and (node := there.get(self._names[client])) is not None
                and node not in tried
            }
            if not nodes:
                break
            tried.update(nodes)
            sent = [self._message(node, client, questions[client]) for node, client in nodes.items()]
            self._receive(sent, nodes, answers)
        self._heard = self._heard or bool(answers)
        if not self._heard:
            reasons = "; ".join(f"{who}: {why}" for who, why in sorted(self._said))
            raise ConnectionError(f"no client answered: {reasons or 'all timed out'}")
        for client, batch in batches:
            if client in answers:
                self._owed.pop(client, None)
            else:
                self._owed.setdefault(client, (self._batches, batch))
        return list(answers.values())

    def _receive(self, sent: list[Message], nodes: dict[int, int], answers: dict[int, bytes]) -> None:
        for reply in self._send(sent):
            node = reply.metadata.src_node_id
            if not reply.has_error():
                answers[nodes[node]] = _bytes(reply.content[_RECORD]["answer"])
            else:
                # Errors of the SuperLink have no client.
                who = f"client {self._names[nodes[node]]!r}" if node in nodes else "a client"
                self._complain(who, reply.error.reason)

    def _message(self, node: int, client: int, batch: bytes) -> Message:
        told: dict[str, str | int] = {"offer": self._offer, "client": client, "number": self._batches}
        arrays = {"batch": _array(batch)}
        if client in self._owed:
            told["earlier"], earlier = self._owed[client]
            arrays["earlier"] = _array(earlier)
        content = RecordDict({_RECORD: ArrayRecord(arrays), "offer": ConfigRecord(told)})
        return Message(content=content, dst_node_id=node, message_type=f"{MessageType.TRAIN}.whimbrel")


def client_app(
    data_fn: DataFn,
    state_dir: str | PathLike[str] | None = None,
    learner: Learner | None = None,
    mods: Sequence[Any] = (),
    *,
    roster: str | None = None,
) -> ClientApp:
    """A `ClientApp` for a client of a job.

    `data_fn(context)` returns the client's name in the job and its rows: a file, an array with the job's
    columns, or a pair of such an array and the targets. With `state_dir`, states survive a restart of the
    SuperNode. `mods` are Flower's; they may observe messages and delay them, but not change their arrays, which
    are encoded bytes: mods that clip, add noise or mask (`fixedclipping_mod`, `secaggplus_mod`) end in an error,
    and the job's `[privacy]` has these.

    `roster` is the roster that this client accepts in a job with `masks`, as in `whimbrel join --roster`: a line
    `name fingerprint` for each client, the fingerprint of the whole roster, or `@FILE`. The client's identity is
    kept in the folder `NAME` of `state_dir`; `identity` shows its line. Under another roster the client sends no
    masked words, and its answers are errors.
    """
    app = ClientApp(mods=list(mods))
    folder = None if state_dir is None else Path(state_dir)
    if roster is not None and folder is None:
        raise ValueError("`roster` needs `state_dir`, which keeps the client's identity")

    @app.query("whimbrel")
    def query(message: Message, context: Context) -> Message:
        name, _ = data_fn(context)
        content = RecordDict({_RECORD: ConfigRecord({"name": name})})
        return Message(content=content, reply_to=message)

    @app.train("whimbrel")
    def train(message: Message, context: Context) -> Message:
        told = message.content["offer"]
        place = None if folder is None else folder / f"{context.run_id}-{told['client']}.state"
        seen, saved = _saved(context, place)
        number, arrays = int(told["number"]), message.content[_RECORD]
        with offered(learner):
            trusted = None if roster is None or folder is None else (folder, roster)
            shard = _shard(context, data_fn, str(told["offer"]), int(told["client"]), saved, trusted)
            if "earlier" in told and int(told["earlier"]) > seen:
                shard.answer(_bytes(arrays["earlier"]))
            answer = shard.answer(_bytes(arrays["batch"]))
        state = shard.save()
        _machines[(context.run_id, context.node_id)] = (state, shard)
        kept = number.to_bytes(_NUMBER_BYTES, "little") + state
        context.state[_RECORD] = ConfigRecord({"state": kept})
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            half = place.with_suffix(".tmp")
            half.touch(mode=0o600)
            half.write_bytes(kept)
            half.replace(place)
        return Message(
            content=RecordDict({_RECORD: ArrayRecord({"answer": _array(bytes(answer))})}), reply_to=message
        )

    return app


# Clients of this process with their states: Flower may use another process next.
_machines: dict[tuple[int, int], tuple[bytes | None, _whimbrel.Shard]] = {}


# A saved client: the number of the last answered batch, and its state.
_NUMBER_BYTES = 8


def _saved(context: Context, place: Path | None) -> tuple[int, bytes | None]:
    if _RECORD in context.state:
        kept = bytes(context.state[_RECORD]["state"])
    elif place is not None and place.is_file():
        kept = place.read_bytes()
    else:
        return 0, None
    return int.from_bytes(kept[:_NUMBER_BYTES], "little"), kept[_NUMBER_BYTES:]


def identity(folder: str | PathLike[str]) -> str:
    """The line of a client for the rosters of the others, like `whimbrel identity FOLDER`: the folder's name and a
    fingerprint. The secret in the folder is drawn on first use."""
    return _whimbrel.identity(Path(folder))


def _shard(
    context: Context,
    data_fn: DataFn,
    offer: str,
    client: int,
    saved: bytes | None,
    trusted: tuple[Path, str] | None,
) -> _whimbrel.Shard:
    state, shard = _machines.get((context.run_id, context.node_id), (None, None))
    if shard is not None and state == saved:
        return shard
    if saved is None:
        _LOG.warning(_TRUSTED)
    offered = _whimbrel.Offered(offer)
    name, data = data_fn(context)
    roster = None
    if trusted is not None:
        folder, given = trusted
        roster = (folder / name, Path(given[1:]).read_text() if given.startswith("@") else given)
    if isinstance(data, (str, PathLike)):
        return offered.join(client, data, saved, roster)
    X, y = data if isinstance(data, tuple) else (data, None)
    if (y is None) != (offered.target is None):
        raise ValueError("either the job or the rows have targets, but not both")
    target = None if y is None else (str(offered.target), np.ascontiguousarray(y, dtype=np.float64))
    rows = _whimbrel.Rows(np.ascontiguousarray(X, dtype=np.float64), offered.columns, target)
    return offered.join(client, rows, saved, roster)


def _array(content: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(content),), stype=STYPE, data=content)


def _bytes(array: Array) -> bytes:
    if array.stype != STYPE:
        raise ValueError(f"an array has the serialisation type {array.stype!r}, expected {STYPE!r}")
    return array.data
