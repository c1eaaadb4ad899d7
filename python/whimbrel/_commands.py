"""The commands of the command line beside `run`, one function each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from . import _whimbrel
from ._job import JobLike, job_text
from ._learner import Learner, offered
from ._progress import Listener
from ._run import Existing, Out, Report, Run, Scratch, checked_threads, chosen_folder


def check(job: JobLike, learner: Learner | None = None) -> str:
    """Checks a job against its data; returns the resolved job as TOML.

    >>> import whimbrel
    >>> job = {
    ...     "data": {"source": "mixture", "clients": 5, "rows": 20},
    ...     "model": {"kind": "gmm", "components": 2},
    ...     "method": {"kind": "fedem", "rounds": 3},
    ... }
    >>> "participation = 1.0" in whimbrel.check(job)
    True
    """
    with offered(learner):
        return _whimbrel.check(job_text(job))


def estimate(job: JobLike, learner: Learner | None = None) -> dict[str, Any]:
    """The costs of a job, estimated from trial rounds: the figures of `whimbrel check --json`.

    >>> import whimbrel
    >>> job = {
    ...     "data": {"source": "mixture", "clients": 5, "rows": 20},
    ...     "model": {"kind": "gmm", "components": 2},
    ...     "method": {"kind": "fedem", "rounds": 3},
    ... }
    >>> costs = whimbrel.estimate(job)
    >>> costs["clients"], costs["rounds"], costs["bits_up_per_round"] > 0
    (5, 3, True)
    """
    with offered(learner):
        return json.loads(_whimbrel.estimate(job_text(job), Listener(False)))


def new(data: str | PathLike[str] | None = None) -> str:
    """A commented job for a CSV, `.npy`, LIBSVM or idx file, or for the generator, as TOML.

    >>> import whimbrel
    >>> job = whimbrel.new()
    >>> "[method]" in whimbrel.check(job)
    True
    """
    return _whimbrel.new(None if data is None else Path(data))


def inspect(data: JobLike, client: str | None = None) -> dict[str, Any]:
    """A summary of a data file, or of each client's data in a job: `whimbrel data inspect --json`.

    A path that ends in `.toml`, TOML text and a dict are jobs. `client` is the client column of a file.

    >>> import whimbrel
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = Path(folder, "rows.csv")
    ...     _ = rows.write_text("ward,age\\nnorth,41\\nsouth,37\\nnorth,52\\n")
    ...     whimbrel.inspect(rows, client="ward")["clients"]
    {'north': 2, 'south': 1}
    """
    text = isinstance(data, str) and ("\n" in data or "=" in data)
    if isinstance(data, Mapping) or text or fspath(data).endswith(".toml"):
        return json.loads(_whimbrel.inspect_clients(job_text(data), Listener(False)))
    return json.loads(_whimbrel.inspect_data(Path(data), client))


def report(*runs: Run | str | PathLike[str]) -> Report:
    """A report of several runs on the same axes, like `whimbrel report RUN...`.

    >>> import whimbrel
    >>> job = {
    ...     "data": {"source": "mixture", "clients": 5, "rows": 20},
    ...     "model": {"kind": "gmm", "components": 2},
    ... }
    >>> methods = [{"kind": "fedem", "rounds": 3, "participation": p} for p in (0.5, 1.0)]
    >>> runs = [whimbrel.run({**job, "method": m}, whimbrel.TEMPORARY, progress=False) for m in methods]
    >>> "<svg" in str(whimbrel.report(*runs))
    True
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    return Report(_whimbrel.report(folders, Listener(False)))


class Comparison(dict[str, Run]):
    """Runs side by side, by the names of their jobs."""

    def __init__(self, runs: Iterable[tuple[str, Run]], scratch: Scratch | None = None) -> None:
        super().__init__(runs)
        self._scratch = scratch

    def __reduce__(self) -> Any:
        return (Comparison, (list(self.items()),))

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """The summaries by name."""
        return {name: run.summary for name, run in self.items()}

    def report(self) -> Report:
        """The report of all runs."""
        return report(*self.values())


def compare(
    jobs: Iterable[JobLike],
    out: Out = None,
    *,
    existing: Existing = "refuse",
    progress: bool = True,
    threads: int | None = None,
) -> Comparison:
    """Runs several jobs with different names, like `whimbrel compare`.

    Each run is a folder in `out` with the job's name; an `em` job is the reference of the others. A job
    that fails or is degenerate gives a warning and is marked in its summary; the others continue.
    `existing` is `"refuse"` or `"replace"`.

    >>> import whimbrel
    >>> job = {
    ...     "data": {"source": "mixture", "clients": 5, "rows": 20},
    ...     "model": {"kind": "gmm", "components": 2},
    ... }
    >>> jobs = [
    ...     {**job, "name": "pooled", "method": {"kind": "em", "rounds": 3}},
    ...     {**job, "name": "federated", "method": {"kind": "fedem", "rounds": 3}},
    ... ]
    >>> runs = whimbrel.compare(jobs, whimbrel.TEMPORARY, progress=False)
    >>> {name: run.summary["rounds"] for name, run in runs.items()}
    {'pooled': 3, 'federated': 3}
    """
    if isinstance(jobs, (str, PathLike, Mapping)):
        raise TypeError("`jobs` must be a list of jobs; whimbrel.run runs one")
    if existing not in ("refuse", "replace"):
        raise ValueError(f"`existing` is {existing!r}: it must be 'refuse' or 'replace'")
    texts = [job_text(job) for job in jobs]
    if not texts:
        raise ValueError("a comparison needs at least one job")
    scratch, folder = chosen_folder(out)
    listener = Listener(progress)
    try:
        place: Any = {"out": folder, "existing": existing}
        _, found = _whimbrel.compare(texts, place, listener, checked_threads(threads))
    finally:
        listener.close()
    return Comparison(((name, Run._in(scratch, Path(path))) for name, path in found), scratch)
