"""Whimbrel on Ray: a job whose clients are in actors.

An actor holds a shard of the clients with their rows and states, in Rust. In each exchange it receives
one batch (common parts of messages once) and returns its clients' uploads, summed exactly if possible,
otherwise one by one. The result does not depend on the number of shards, and has the bits of
`whimbrel.run`.

An actor that dies is restarted from its last snapshot and receives the later batches again: clients
answer a repeated question with the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from . import _whimbrel
from ._job import JobLike, JobText, job_text
from ._learner import Learner, offered
from ._progress import Listener
from ._run import Existing, Out, Run, carry_out, refuse_resume

__all__ = ["run"]

# Exchanges between snapshots of a shard.
SNAPSHOT_EVERY = 64
# Seconds without an actor before a warning.
START_S = 30.0


def run(
    job: JobLike,
    shards: int = 2,
    out: Out = None,
    *,
    data: Any = None,
    clients: Any = None,
    learner: Learner | None = None,
    existing: Existing = "refuse",
    progress: bool = True,
    actor_options: dict[str, Any] | None = None,
) -> Run:
    """Runs a job with its clients in `shards` Ray actors.

    Actors read the job's data, so its files must be readable on their machines; `data` and `clients` are rows in
    memory instead, as in `whimbrel.run`, which Ray sends to the actors. `actor_options` are Ray's (`num_cpus`,
    `resources`, ...); actors that the cluster cannot hold are refused. `learner` is an own model that can be pickled; its clients train one at a
    time. Losses and late joins of `[simulation]`, `seeds` and `unseen` are refused; only `whimbrel.run`
    simulates them. A run cannot be resumed: `existing` is `"refuse"` or `"replace"`.
    """
    if not isinstance(shards, int) or shards < 1:
        raise ValueError(f"`shards` must be at least 1, got {shards!r}")
    refuse_resume(existing, "Ray")
    sent = job_text(job, data, clients, _Parts)
    if sent["rows"] is not None and not isinstance(sent["rows"], _Parts):
        raise TypeError("`path` of `data` has rows in memory: give them as `data=` instead")
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    check_resources(shards, actor_options or {}, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    text = _with_rows(sent)
    driver = _Driver(sent, shards, learner, progress, actor_options or {})
    try:
        driver.await_start()
        done = carry_out(
            lambda place, listener: _whimbrel.serve(text, place, shards, True, listener),
            out,
            existing,
            driver,
            learner,
        )
        driver.keep_own(done)
    finally:
        driver.stop()
    return done


class _Parts:
    """Rows in memory that can be pickled: the arguments of `Rows`."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


def _with_rows(job: JobText) -> JobText:
    """The job with the rows of its parts."""
    parts = job["rows"]
    return {**job, "rows": _whimbrel.Rows(*parts.parts)} if isinstance(parts, _Parts) else job


def check_resources(shards: int, options: dict[str, Any], nodes: list[dict[str, float]]) -> None:
    """Refuses actors that would wait forever: each must fit on a node, with `memory` in bytes.

    >>> check_resources(4, {"num_cpus": 2}, [{"CPU": 4.0}, {"CPU": 3.0}])
    Traceback (most recent call last):
    ValueError: 4 actors with num_cpus=2 do not fit on the cluster, whose 2 nodes hold 3: use fewer shards or smaller actors
    """
    asked = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    needs = {word: (name, options[word]) for word, name in asked.items() if options.get(word)}
    needs |= {name: (name, each) for name, each in (options.get("resources") or {}).items() if each}
    if not needs:
        return
    held = sum(min(int(node.get(name, 0.0) / each + 1e-9) for name, each in needs.values()) for node in nodes)
    if held < shards:
        wanted = ", ".join(f"{word}={each:g}" for word, (_, each) in needs.items())
        raise ValueError(
            f"{shards} actors with {wanted} do not fit on the cluster, whose {len(nodes)} nodes hold {held}: "
            "use fewer shards or smaller actors"
        )


class _Shard:
    """The actor."""

    def __init__(
        self, job: JobText, learner: Learner | None, index: int, of: int, saved: bytes | None
    ) -> None:
        job = _with_rows(job)
        # Registered for the life of the process: later stages need the learner.
        self._offered = offered(learner)
        self._offered.__enter__()
        self._shard = _whimbrel.Shard(job, index, of, saved)

    def answer(self, batch: bytes) -> np.ndarray:
        # Ray transfers an array without a copy, and pickles bytes.
        return np.frombuffer(self._shard.answer(batch), np.uint8)

    def save(self) -> bytes:
        return self._shard.save()

    def own(self) -> list[tuple[str, bytes]]:
        return self._shard.own()


class _Driver(Listener):
    """Asks the actors, and restarts dead ones."""

    def __init__(
        self,
        job: JobText,
        shards: int,
        learner: Learner | None,
        progress: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(progress)
        # The rows go to Ray's object store once.
        self._job, self._learner, self._of = ray.put(job), learner, shards
        self._actor = ray.remote(_Shard).options(**options) if options else ray.remote(_Shard)
        self._saved: list[bytes | None] = [None] * shards
        self._since: list[list[bytes]] = [[] for _ in range(shards)]
        self.actors = [self._start(index) for index in range(shards)]

    def await_start(self) -> None:
        """Warns about actors that wait for resources, which other work on the cluster may hold."""
        starts = [actor.__ray_ready__.remote() for actor in self.actors]
        waiting = ray.wait(starts, num_returns=self._of, timeout=START_S)[1]
        if waiting:
            self.warning(
                f"{len(waiting)} of {self._of} actors have not started in {START_S:g} seconds: the run waits until the "
                "cluster has free resources for them (`ray status` lists those in use)"
            )

    def _start(self, index: int) -> Any:
        return self._actor.remote(self._job, self._learner, index, self._of, self._saved[index])

    def ask(self, batches: list[tuple[int, bytes]]) -> list[np.ndarray]:
        refs = [self.actors[shard].answer.remote(batch) for shard, batch in batches]
        answers = [
            self._get(ref, shard, batch)
            for ref, (shard, batch) in zip(refs, batches, strict=True)
        ]
        for shard, batch in batches:
            self._since[shard].append(batch)
            if len(self._since[shard]) >= SNAPSHOT_EVERY:
                self._snapshot(shard)
        return answers

    def _get(self, ref: Any, shard: int, batch: bytes) -> np.ndarray:
        try:
            return _of_actor(ref)
        except ray.exceptions.RayActorError:
            return _of_actor(self._restart(shard).answer.remote(batch))

    def _restart(self, shard: int) -> Any:
        again = f"{len(self._since[shard])} exchanges are repeated"
        self.warning(f"the actor of shard {shard} died and is restarted; {again}")
        actor = self.actors[shard] = self._start(shard)
        for earlier in self._since[shard]:
            actor.answer.remote(earlier)  # Ray keeps the order of one caller's calls.
        return actor

    def _snapshot(self, shard: int) -> None:
        try:
            self._saved[shard] = _of_actor(self.actors[shard].save.remote())
            self._since[shard].clear()
        except ray.exceptions.RayActorError:
            pass  # The next question restarts it.

    def keep_own(self, run: Run) -> None:
        """Writes the clients' personal models into the run's folder."""
        for shard, actor in enumerate(self.actors):
            try:
                found = _of_actor(actor.own.remote())
            except ray.exceptions.RayActorError:
                found = _of_actor(self._restart(shard).own.remote())
            for name, own in found:
                _whimbrel.keep_own(run.folder, name, own)

    def stop(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


def _of_actor(ref: Any) -> Any:
    """The result of an actor; its exception is raised unchanged."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
