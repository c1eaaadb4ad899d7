"""Runs of jobs and their folders."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
import tomllib
import weakref
from collections.abc import Iterable
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from . import _whimbrel
from ._data import rows_for
from ._job import JobLike, check_takes_device, check_takes_learner, job_text
from ._learner import Learner, offered
from ._progress import Callback, Listener


class _Temporary:
    """A destination of runs: a temporary folder, removed with the `Run`."""

    def __repr__(self) -> str:
        return "whimbrel.TEMPORARY"


TEMPORARY = _Temporary()


class Scratch:
    """A temporary folder of a run, and of its search, removed with the last reference in the process that
    created it; a forked child leaves it to its parent."""

    def __init__(self) -> None:
        whole = Path(tempfile.mkdtemp(prefix="whimbrel-"))
        self.path = whole / "run"
        weakref.finalize(self, _remove, whole, os.getpid())


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


Existing = Literal["refuse", "resume", "replace"]
Out = str | PathLike[str] | _Temporary | None

# The files of a pickled run: all that the methods of `Run` read.
_KEPT = ("*.json", "*.jsonl", "*.csv", "job.toml", "model/*", "clients/*/*")
_KEPT_SEEDS = tuple(f"seed-*/{pattern}" for pattern in _KEPT)


class History(dict[str, np.ndarray]):
    """The figures of a run's evaluations, one array each; missing values are NaN.

    A list-valued figure (`weights`) has one row per evaluation.
    """

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with one row per evaluation."""
        from pandas import DataFrame

        return DataFrame({name: list(each) if each.ndim > 1 else each for name, each in self.items()})


class Summary(dict[str, Any]):
    """The content of `summary.json`. A call returns the coefficients of a regression as a frame."""

    def __call__(self) -> Any:
        """The coefficients of a regression: a `pandas.DataFrame` with a row per term."""
        from pandas import DataFrame

        if "coefficients" not in self:
            raise ValueError("the run is not a regression with inference: its model is not `glm` or `cox`")
        return DataFrame(self["coefficients"]).set_index("term")


class Model(dict[str, np.ndarray]):
    """A model's tensors by name; `info` is the content of `model.json`."""

    info: dict[str, Any]

    def __init__(self, tensors: Iterable[tuple[str, np.ndarray]], info: dict[str, Any]) -> None:
        super().__init__(tensors)
        self.info = info

    def __reduce__(self) -> Any:
        return (Model, (list(self.items()), self.info))


class Report:
    """A run's report: displays in a notebook; `save` writes it, `str` is its HTML."""

    def __init__(self, html: str) -> None:
        self.html = html

    def __str__(self) -> str:
        return self.html

    def _repr_html_(self) -> str:
        frame = 'width="100%" height="720" style="border:0"'
        return f'<iframe srcdoc="{escape(self.html, quote=True)}" {frame}></iframe>'

    def save(self, path: str | PathLike[str]) -> Path:
        """Writes the report to a new file."""
        path = Path(path)
        with path.open("x", encoding="utf-8") as file:
            file.write(self.html)
        return path


class Run:
    """A run's folder. `Run(folder)` opens one written by the command line or Python.

    `learner` is the own learner of the job, if any, for `predict` and `adapt`. A run can be pickled with
    its model, figures, learner and the clients' personal models.
    """

    def __init__(self, folder: str | PathLike[str], learner: Learner | None = None) -> None:
        self._folder: Path | None = Path(folder)
        self._learner = learner
        self._files: dict[str, bytes] | None = None
        self._scratch: Scratch | None = None
        if not (self._folder / "job.toml").is_file():
            raise FileNotFoundError(f"{folder} is not a run's folder: it has no job.toml")

    @classmethod
    def _in(cls, scratch: Scratch | None, folder: Path, learner: Learner | None = None) -> Run:
        """A run in a scratch folder, which it keeps alive."""
        run = cls(folder, learner)
        run._scratch = scratch
        return run

    @property
    def folder(self) -> Path:
        """The folder; written again from memory if it is gone."""
        gone = self._folder is None or not (self._folder / "job.toml").is_file()
        if gone and self._files is not None:
            self._scratch = Scratch()
            self._folder = self._scratch.path
            for name, content in (self._files or {}).items():
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        assert self._folder is not None
        return self._folder

    def keep_files(self) -> None:
        """Holds the files in memory, so that the run outlives its folder."""
        self._files = self.__getstate__()["files"]

    def __getstate__(self) -> dict[str, Any]:
        folder = self.folder
        paths = (path for pattern in _KEPT + _KEPT_SEEDS for path in folder.glob(pattern) if path.is_file())
        files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        return {"files": files, "learner": self._learner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._folder, self._files, self._scratch = None, state["files"], None
        self._learner = state["learner"]

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """The report, for notebooks; the folder's name before the run has one."""
        try:
            return self.report()._repr_html_()
        except ValueError:
            return f"<code>{escape(repr(self))}</code>"

    @property
    def job(self) -> str:
        """The resolved job, as TOML."""
        return (self.folder / "job.toml").read_text(encoding="utf-8")

    @property
    def summary(self) -> Summary:
        """The content of `summary.json`; `summary()` is the table of a regression's coefficients."""
        return Summary(_json(self.folder / "summary.json"))

    @property
    def metrics(self) -> History:
        """The figures of all evaluations."""
        text = self._file("metrics.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        names = dict.fromkeys(name for row in rows for name in row)
        return History((name, _figure([row.get(name) for row in rows])) for name in names)

    @property
    def model(self) -> Model:
        """The fitted model."""
        info = _json(self.folder / "model" / "model.json")
        return Model(_tensors(self.folder / "model" / "model.safetensors"), info)

    @property
    def clients(self) -> dict[str, dict[str, str]]:
        """The lines of `clients.csv`, by client."""
        with self._file("clients.csv").open(encoding="utf-8", newline="") as file:
            return {row["client"]: row for row in csv.DictReader(file)}

    @property
    def seeds(self) -> dict[int, Run]:
        """The runs of a job with several `seeds`, by seed; empty for one seed.

        >>> import whimbrel
        >>> job = {
        ...     "seeds": 2,
        ...     "data": {"source": "mixture", "clients": 5, "rows": 20},
        ...     "model": {"kind": "gmm", "components": 2},
        ...     "method": {"kind": "fedem", "rounds": 3},
        ... }
        >>> run = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
        >>> {seed: len(each.metrics["round"]) for seed, each in run.seeds.items()}
        {1: 4, 2: 4}
        """
        numbers = sorted(int(path.name.removeprefix("seed-")) for path in self.folder.glob("seed-*"))
        open_run = lambda seed: Run._in(self._scratch, self.folder / f"seed-{seed}", self._learner)
        return {seed: open_run(seed) for seed in numbers}

    @property
    def search(self) -> dict[str, Any] | None:
        """The candidates and the choice of `[method] search`; None without a search."""
        path = self.folder.parent / f"{self.folder.name}-search" / "search.json"
        return _json(path) if path.is_file() else None

    def _file(self, name: str) -> Path:
        """A file of a run over one seed."""
        if not (self.folder / name).is_file() and (seeds := self.seeds):
            raise FileNotFoundError(
                f"{self.folder} is a run over {len(seeds)} seeds, each with its own {name}: "
                f"`seeds[{next(iter(seeds))}]` is the first of {', '.join(f'seed-{seed}' for seed in seeds)}"
            )
        return self.folder / name

    def coefficients(self) -> Any:
        """The coefficients of a regression: a `pandas.DataFrame` with a row per term."""
        return self.summary()

    def client_model(self, client: str) -> Model:
        """A client's personal model."""
        path = _whimbrel.own_names(self.folder, client)
        if not Path(path).is_file():
            raise ValueError(f"the run has no personal model of client {client!r}")
        return Model(_tensors(Path(path)), {})

    def parameters(self, client: str | None = None) -> list[tuple[float, dict[str, np.ndarray]]]:
        """The tensors of the trained learner by name, with a weight: several for a mixture (`fedmix`).

        With `client`, those that predict for the client.
        """
        tensors, models = learned(self, client)

        def named(w: np.ndarray) -> dict[str, np.ndarray]:
            ends = np.cumsum([int(np.prod(shape)) for _, shape in tensors])
            parts = np.split(w, ends[:-1])
            return {name: part.reshape(shape) for (name, shape), part in zip(tensors, parts, strict=True)}

        return [(weight, named(w)) for weight, w in models]

    def report(self) -> Report:
        """The report."""
        return Report(_whimbrel.report([self.folder], Listener(False)))

    def export(
        self, *, tensorboard: str | PathLike[str] | None = None, mlflow: str | PathLike[str] | None = None
    ) -> list[Path]:
        """Writes the figures for TensorBoard or MLflow, like `whimbrel export`; returns the paths.

        `whimbrel.tracking` logs them during a run.
        """
        if tensorboard is None and mlflow is None:
            raise ValueError("`export` needs a folder: tensorboard=... or mlflow=...")
        return _whimbrel.export(self.folder, tensorboard, mlflow)

    def predict(self, data: Any, client: str | None = None, libsvm: bool = False) -> dict[str, np.ndarray]:
        """Predictions for each row, by column; labels are arrays of text.

        `data` is a file, or rows as in `whimbrel.run`: an array of the run's columns (inputs of any shape, for
        a run over such), a frame or a table; a target is not needed. `client` is a client of the run, or a folder
        written by `adapt`; `libsvm` is the file's format.

        >>> import numpy as np
        >>> import whimbrel
        >>> X = np.repeat([[-3.0, 0.0], [3.0, 1.0]], 50, axis=0) + np.random.default_rng(0).normal(size=(100, 2))
        >>> job = {"seed": 1, "model": {"kind": "gmm", "components": 2}, "method": {"kind": "fedem"}}
        >>> run = whimbrel.run(job, whimbrel.TEMPORARY, data=X, clients=np.arange(100) % 4, progress=False)
        >>> sorted(run.predict(X[:3]))
        ['label', 'log_density', 'p1', 'p2']
        """
        with offered(self._learner):
            columns = _predict(self.folder, self._rows(data), client, libsvm)
        named = {name: np.asarray(labels)[of] for name, (of, labels) in columns.items() if labels}
        return {name: named.get(name, values) for name, (values, _) in columns.items()}

    def impute(
        self,
        data: Any = None,
        client: str | None = None,
        draws: int = 0,
        wide: bool = False,
    ) -> dict[str, np.ndarray]:
        """Estimate, standard error and interval of each cell of a low-rank run or a mixed table, by column.

        `data` is a file, or rows as in `whimbrel.run`; by default the job's file. `draws` adds imputations. With
        `wide`, the completed table: observed values, and estimates of missing cells or, with `draws=k`, the
        k-th imputation of them.
        """
        rows = None if data is None else self._rows(data)
        text, _ = _whimbrel.impute(self.folder, Listener(False), rows, client, wide, draws)
        return _table(text)

    def adapt(self, data: Any, out: str | PathLike[str], draws: int = 0) -> dict[str, Any]:
        """Fits a new client's personal model into an empty folder; returns figures.

        `data` is a file, or rows with targets as in `whimbrel.run`.
        """
        out = Path(out)
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ValueError(f"{out} is not empty")
        with offered(self._learner):
            return json.loads(_whimbrel.adapt(self.folder, self._rows(data), out, Listener(False), draws))

    def _rows(self, data: Any) -> Any:
        """A path or `Rows` as they are; other data as rows for this run's model."""
        if isinstance(data, (str, PathLike, _whimbrel.Rows)):
            return data
        info = _json(self.folder / "model" / "model.json")
        return rows_for(data, tomllib.loads(self.job).get("data", {}), info.get("columns"))


def run(
    job: JobLike,
    out: Out = None,
    *,
    data: Any = None,
    clients: Any = None,
    learner: Learner | None = None,
    existing: Existing = "refuse",
    progress: bool = True,
    callback: Callback | None = None,
    threads: int | None = None,
    replay: str | PathLike[str] | None = None,
    device: str | None = None,
    tf32: bool | None = None,
) -> Run:
    """Runs a job like `whimbrel run`.

    `job` is the path of a job file, TOML text, or a dict of its tables. `out` is the run's folder, by
    default a new one in `runs`; `whimbrel.TEMPORARY` is removed with the returned run. `data` replaces the
    file of `[data]`: a two-dimensional array, a pair of inputs of any shape and targets, a data set of
    PyTorch, a frame of pandas or polars, a table of pyarrow, a dict of these by client, or a list with one for each client; `clients` names the
    client of each row, or the column that does. `existing` is the
    treatment of an existing run: `"refuse"`, `"resume"` or `"replace"`. Ctrl-C ends a run after the
    current round; `existing="resume"` resumes it. `learner` is an own model, for a job whose `[model]`
    has `kind = "own"`. `callback(progress)` is called after each round and each evaluation with a
    `whimbrel.Progress`; if it returns true, the run ends there as `stopped`, with its model. `threads` is the number of threads, by default the number of cores; the result
    does not depend on it. `replay` is the path of another run's `journal`, whose participation, late
    joins and losses replace `[simulation]`. `device` (`"cuda"`, `"cuda:1"`, `"cpu"`) trains a built-in network
    with PyTorch, to rounding errors and not to the bit; `tf32` allows or forbids TensorFloat-32 there.

    Wrong jobs and data raise `ValueError`, numerical failures `whimbrel.NumericalError`, and a degenerate
    fit `whimbrel.DegenerateFit` unless the job allows it. `KeyboardInterrupt` has the folder in `run`.

    >>> import numpy as np
    >>> import whimbrel
    >>> rng = np.random.default_rng(0)
    >>> wards = {name: rng.normal(at, 1, (100, 2)) for name, at in [("north", -3), ("south", 3)]}
    >>> job = {"model": {"kind": "gmm", "components": 2}, "method": {"kind": "fedem"}}
    >>> seen = []
    >>> done = whimbrel.run(job, whimbrel.TEMPORARY, data=wards, callback=seen.append, progress=False)
    >>> done.summary["ending"], seen[-1].stage, "objective" in seen[-1].metrics
    ('converged', 'fit', True)
    """
    text = job_text(job, data, clients)
    if learner is not None:
        check_takes_learner(text["text"])
    on = None
    if device is not None:
        check_takes_device(text["text"])
        on = _on_device(device, tf32)
    elif tf32 is not None:
        raise ValueError("`tf32` is for a `device`, which is absent")
    journal = None if replay is None else Path(replay)
    work = lambda place, listener: _whimbrel.run(text, place, listener, checked_threads(threads), journal, on)
    return carry_out(work, out, existing, Listener(progress, callback), learner)


def learned(
    run: Run, client: str | None = None, learner: Learner | None = None
) -> tuple[list[tuple[str, list[int]]], list[tuple[float, np.ndarray]]]:
    """The names and shapes of a trained learner's tensors, and its parameter vectors with their weights."""
    with offered(run._learner if learner is None else learner):
        tensors, models = _whimbrel.learned(run.folder, Listener(False), client)
    return tensors, [(weight, np.frombuffer(w, "<f4")) for weight, w in models]


def _on_device(device: str, tf32: bool | None) -> Any:
    try:
        from .torch import on_device
    except ImportError as error:
        raise ImportError("`device` needs PyTorch: pip install 'whimbrel[torch]'") from error
    return on_device(device, tf32)


def carry_out(
    work: Any,
    out: Out,
    existing: Existing,
    progress: bool | Listener,
    learner: Learner | None = None,
) -> Run:
    """Calls `work(place, listener)` and returns its folder as a `Run`."""
    if existing not in ("refuse", "resume", "replace"):
        raise ValueError(f"`existing` is {existing!r}: it must be 'refuse', 'resume' or 'replace'")
    scratch, folder = chosen_folder(out)
    listener = progress if isinstance(progress, Listener) else Listener(progress)
    try:
        with offered(learner):
            where, ending, why = work({"out": folder, "existing": existing}, listener)
    except KeyboardInterrupt as error:
        if (place := getattr(error, "folder", None)) is not None:
            error.run = Run._in(scratch, Path(place), learner)  # type: ignore[attr-defined]
        raise
    finally:
        listener.close()
    done = Run._in(scratch, Path(where), learner)
    if ending == "interrupted":
        interrupted = KeyboardInterrupt()
        interrupted.run = done  # type: ignore[attr-defined]
        raise interrupted
    if ending == "stopped":
        listener.stopped(f"stopped {why}")
    if ending == "degenerate":
        error = _whimbrel.DegenerateFit(f"the fit is degenerate: {why}")
        error.run = done
        raise error
    return done


def chosen_folder(out: Out) -> tuple[Scratch | None, Path | None]:
    """The folder of `out`, and the object that removes a temporary one."""
    if isinstance(out, _Temporary):
        scratch = Scratch()
        return scratch, scratch.path
    if out is None or isinstance(out, (str, PathLike)):
        return None, None if out is None else Path(out)
    raise TypeError(f"`out` must be a folder's path, whimbrel.TEMPORARY or None, not {type(out).__name__}")


def checked_threads(threads: Any, name: str = "threads") -> int | None:
    """The number of threads, checked."""
    if threads is None or (isinstance(threads, (int, np.integer)) and threads >= 1):
        return None if threads is None else int(threads)
    raise ValueError(f"`{name}` must be at least 1, got {threads!r}")


def refuse_resume(existing: str, where: str) -> None:
    """Refuses to resume a run whose clients are remote: they start from scratch with each run."""
    if existing == "resume":
        raise ValueError(
            f"`existing` is 'resume': a run on {where} cannot be resumed; "
            "use 'refuse' or 'replace', which starts over"
        )


def _predict(
    folder: Path, data: Any, client: str | None, libsvm: bool = False
) -> dict[str, tuple[np.ndarray, Any]]:
    """Columns of predictions: numbers, or indices and the labels they stand for."""
    columns = _whimbrel.predict(folder, data, Listener(False), client, libsvm)
    return {
        name: (np.frombuffer(content, dtype=f"<{kind}"), labels)
        for name, kind, labels, content in columns
    }


def _tensors(path: Path) -> list[tuple[str, np.ndarray]]:
    return [
        (name, np.frombuffer(content, dtype=f"<{kind}").reshape(shape))
        for name, kind, shape, content in _whimbrel.tensors(path)
    ]


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: the run is unfinished, or it failed")
    return json.loads(path.read_text(encoding="utf-8"))


def _figure(values: list[Any]) -> np.ndarray:
    """Numbers of evaluations, or lists of equal length; missing values are NaN."""
    lists = {len(value) for value in values if isinstance(value, list)}
    if len(lists) == 1:
        nothing = [np.nan] * lists.pop()
        return np.array([value if isinstance(value, list) else nothing for value in values])
    return np.array([value if isinstance(value, (int, float)) else np.nan for value in values])


def _table(text: str) -> dict[str, np.ndarray]:
    """A CSV table by column; a column of numbers and empty cells is numeric."""
    head, *rows = csv.reader(io.StringIO(text))

    def column(cells: tuple[str, ...]) -> np.ndarray:
        try:
            return np.array([float(cell) if cell else np.nan for cell in cells])
        except ValueError:
            return np.array(cells)

    return dict(zip(head, map(column, zip(*rows, strict=True)), strict=True))
