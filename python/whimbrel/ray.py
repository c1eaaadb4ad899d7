"""Whimbrel on Ray: a job whose clients live in actors.

An actor holds a shard of the clients, their rows and their states, in Rust. In each exchange it gets
one batch (what the server sends, a message that clients have in common once) and returns its
clients' uploads, summed exactly where that can be done and encoded one by one elsewhere. The result does
not depend on the number of shards, and is that of `whimbrel.run` to the bit.

An actor that dies is started again from its last snapshot and gets the batches since then once more:
clients answer a question twice with the same bytes.
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

# Exchanges between two snapshots of a shard.
SNAPSHOT_EVERY = 64


def run(
    job: JobLike,
    shards: int = 2,
    out: Out = None,
    *,
    learner: Learner | None = None,
    existing: Existing = "refuse",
    progress: bool = True,
    actor_options: dict[str, Any] | None = None,
) -> Run:
    """Runs a job with its clients in `shards` Ray actors.

    Actors read the job's data themselves, so its files must be readable wherever they run;
    `actor_options` are Ray's (`num_cpus`, `resources`, ...). `learner` is an own model that can be pickled;
    its clients train one by one. Losses and late joins of `[simulation]`
    are simulated by `whimbrel.run` alone and refused here, as are `seeds` and `unseen`. A run cannot be
    resumed here: `existing` is `"refuse"` or `"replace"`.
    """
    if not isinstance(shards, int) or shards < 1:
        raise ValueError(f"`shards` must be at least 1, got {shards!r}")
    refuse_resume(existing, "Ray")
    text = job_text(job)
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    driver = _Driver(text, shards, learner, progress, actor_options or {})
    try:
        done = carry_out(
            lambda place, hear: _whimbrel.serve(text, place, shards, True, hear),
            out,
            existing,
            driver,
            learner,
        )
        driver.keep_own(done)
    finally:
        driver.stop()
    return done


class _Shard:
    """The actor."""

    def __init__(
        self, job: JobText, learner: Learner | None, index: int, of: int, saved: bytes | None
    ) -> None:
        # For as long as the process lives: stages are built as they come.
        self._offered = offered(learner)
        self._offered.__enter__()
        self._shard = _whimbrel.Shard(job, index, of, saved)

    def answer(self, batch: bytes) -> np.ndarray:
        # Ray carries an array's memory as it is, and bytes in a pickle.
        return np.frombuffer(self._shard.answer(batch), np.uint8)

    def save(self) -> bytes:
        return self._shard.save()

    def own(self) -> list[tuple[str, bytes]]:
        return self._shard.own()


class _Driver(Listener):
    """Asks the actors, and starts those again that died."""

    def __init__(
        self,
        job: JobText,
        shards: int,
        learner: Learner | None,
        progress: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(progress)
        self._job, self._learner, self._of = job, learner, shards
        self._actor = ray.remote(_Shard).options(**options) if options else ray.remote(_Shard)
        self._saved: list[bytes | None] = [None] * shards
        self._since: list[list[bytes]] = [[] for _ in range(shards)]
        self.actors = [self._start(index) for index in range(shards)]

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
        actor = self.actors[shard] = self._start(shard)
        for earlier in self._since[shard]:
            actor.answer.remote(earlier)  # Ray keeps the order of one caller's calls.
        return actor

    def _snapshot(self, shard: int) -> None:
        try:
            self._saved[shard] = _of_actor(self.actors[shard].save.remote())
            self._since[shard].clear()
        except ray.exceptions.RayActorError:
            pass  # The next question finds it out.

    def keep_own(self, run: Run) -> None:
        """Writes what clients have of their own into the run's folder."""
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
    """A result; an exception of ours is raised as it was in the actor."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
