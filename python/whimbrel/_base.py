"""Base of the estimators: a job from arrays and parameters, and its run.

An estimator is a job whose `[data]` is in memory. The parameters `method`, `uplink`, `downlink`,
`data` and `simulation` are tables of the job with all keys of the reference; a word in place of a
table is its `kind` or its codec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from . import _whimbrel
from ._job import job_text
from ._progress import Listener
from ._run import TEMPORARY, Run, Scratch, _predict, carry_out, checked_threads
from ._sklearn import BaseEstimator

Table = Mapping[str, Any]

_CLIENT, _TARGET, _ROW, _WEIGHT = "client", "target", "row", "weight"
_ALONE = "all"


def is_per_client(X: Any) -> bool:
    """Whether this is a list of arrays, one per client."""
    return isinstance(X, (list, tuple)) and len(X) > 0 and all(np.ndim(part) == 2 for part in X)


def joined(X: Any, y: Any, clients: Any) -> tuple[Any, Any, Any]:
    """One array from a list of per-client arrays; clients are named by position by default. `clients` can be
    a column of a frame, which is then not a feature."""
    if not is_per_client(X):
        if isinstance(clients, str):
            return _without(X, clients), y, _column(X, clients)
        return X, y, clients
    digits = len(str(len(X) - 1))
    names = clients if clients is not None else [f"{i:0{digits}}" for i in range(len(X))]
    names = client_names(names, len(X), "arrays")
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ValueError(f"two of the arrays belong to client {twice[0]!r}: names of clients must differ")
    if len({np.shape(part)[1] for part in X}) > 1:
        raise ValueError("the clients' arrays differ in their number of columns")
    _check_same_columns(X)
    if y is not None:
        if len(y) != len(X) or any(len(a) != len(b) for a, b in zip(X, y, strict=True)):
            raise ValueError("X and y have different lengths: y needs one array for each of X")
        y = np.concatenate([np.asarray(part) for part in y])
    owners = np.repeat(np.asarray(names, dtype=str), [len(part) for part in X])
    if all(hasattr(part, "iloc") for part in X):
        from pandas import concat

        return concat(list(X), ignore_index=True), y, owners
    if all(hasattr(part, "get_columns") for part in X):
        import polars

        return polars.concat(list(X)), y, owners
    return np.concatenate([np.asarray(part) for part in X]), y, owners


def _column(X: Any, name: str) -> np.ndarray:
    if name not in getattr(X, "columns", ()):
        raise ValueError(f"`clients` is {name!r}, which is not a column of X; it can also be a name for each row")
    return np.asarray(X[name])


def _without(X: Any, name: str) -> Any:
    """A frame without a column."""
    return X[[column for column in X.columns if column != name]] if hasattr(X, "columns") else _column(X, name)


def _check_same_columns(parts: Any) -> None:
    """Refuses data frames whose columns differ in name or order."""
    named = [(i, list(part.columns)) for i, part in enumerate(parts) if hasattr(part, "columns")]
    for i, columns in named[1:]:
        if columns != named[0][1]:
            first, those = named[0]
            raise ValueError(
                f"the clients' frames differ in their columns: {columns} at place {i}, {those} at place {first}"
            )


def client_names(clients: Any, rows: int, of: str = "rows") -> list[str]:
    """A name for each row."""
    names = np.asarray(clients)
    if names.ndim != 1 or len(names) != rows:
        raise ValueError(f"`clients` must name a client for each of the {rows} {of}, got shape {names.shape}")
    times = names.dtype.kind in "mM"
    if np.isnat(names).any() if times else any(map(_is_missing, names.tolist())):
        raise ValueError(f"`clients` has {of} without a client (None, NaN or an empty name)")
    return names.astype(str).tolist()


def _is_missing(name: Any) -> bool:
    """None, a non-finite number, pandas' NA, or an empty name."""
    if isinstance(name, float) and not np.isfinite(name):
        return True
    same = name == name
    return name is None or not isinstance(same, (bool, np.bool_)) or not same or name in ("", b"")


def columns_of(width: int) -> list[str]:
    """The names of an array's columns in a job."""
    return [f"x{j}" for j in range(width)]


def table(value: Any, kind: str) -> dict[str, Any]:
    """A parameter as a table of the job; a word is the value of the key `kind`."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {kind: value}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected a table (a dict) or a word, got {type(value).__name__}")


def checked_count(name: str, value: Any) -> int:
    """A parameter of the estimator that is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}")
    return int(value)


def checked_number(name: str, value: Any, below: float = np.inf) -> float:
    """A parameter of the estimator that is a non-negative number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value < below:
        limit = "" if below == np.inf else f" below {below:g}"
        raise ValueError(f"`{name}` must be a non-negative number{limit}, got {value!r}")
    return float(value)


_Class = TypeVar("_Class")


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def parameters(of: type[_Class]) -> type[_Class]:
    """Adds an `__init__` that stores the annotated parameters of a class and its bases unchanged, as
    scikit-learn expects."""
    return dataclass(eq=False, repr=False, kw_only=True)(of)


# Advice of jobs in terms of an estimator's parameters.
_PARAMETERS = (
    (" (`rounds` in [method])", ""),
    ("run more rounds", "raise `max_iter`"),
    ("write standardize = true in [data]", "set `standardize=True`"),
    ("use fewer components", "lower `n_components`"),
)


def _in_parameters(text: str) -> str:
    for of_job, of_estimator in _PARAMETERS:
        text = text.replace(of_job, of_estimator)
    return text


class _Listener(Listener):
    """Shows warnings in terms of parameters."""

    def warning(self, text: str) -> None:
        super().warning(_in_parameters(text))

    def stopped(self, text: str) -> None:
        super().stopped(_in_parameters(text))


@parameters
class Estimator(BaseEstimator):
    """An estimator: a job over rows in memory. A fit whose verdict is not `converged` sets `converged_` to
    False and warns (`ConvergenceWarning`) how far it was and what to do. `callback(progress)` is that of
    `whimbrel.run`; `n_jobs` is the number of threads, by default and with -1 one per core. With `tol` a fit ends
    at the first evaluation that lowers the objective by less than this fraction of it; `standardize` scales
    columns to mean 0 and variance 1 over all rows."""

    method: Any = None
    uplink: Any = None
    downlink: Any = None
    model: Any = None
    data: Any = None
    simulation: Any = None
    tol: float | None = None
    standardize: bool = False
    random_state: Any = None
    n_jobs: int | None = None
    callback: Any = None
    verbose: bool = False

    # Whether the rows are scaled here: for models whose job cannot standardise.
    _scales_rows: ClassVar[bool] = False

    def _method(self) -> dict[str, Any]:
        """The table `[method]`, with the estimator's default kind."""
        return {"kind": type(self).method, **table(self.method, "kind")}

    def _fit(
        self,
        X: np.ndarray,
        y: np.ndarray | None,
        clients: Any,
        model: Table,
        method: Table,
        weights: np.ndarray | None = None,
    ) -> Run:
        """Runs the job of this model and method over the rows."""
        pooled = method["kind"] == "em"
        scaled = {"standardize": True} if self.standardize and not self._scales_rows else {}
        if self.tol is not None:
            tolerance = checked_number("tol", self.tol, below=1)
            if method["kind"] == "newton":
                raise ValueError("`tol` is for methods of many rounds; 'newton' ends at the maximum")
            method = {"stop": {"patience": 1, "tolerance": tolerance}, **method}
        data = {"source": "csv", "columns": columns_of(X.shape[1]), **scaled, **table(self.data, "split")}
        texts = []
        if not pooled and "split" not in data:
            names = [_ALONE] * len(X) if clients is None else client_names(clients, len(X))
            data[_CLIENT], texts = _CLIENT, [(_CLIENT, names)]
        elif clients is not None:
            other = "`method` is 'em', which pools the rows" if pooled else "`data` has a `split`"
            raise ValueError(f"`clients` assigns rows to clients, but {other}: omit one of them")
        data["path"] = self._rows(X, y, texts, data, weights)
        job: dict[str, Any] = {
            "name": type(self).__name__,
            **self._seed(),
            "data": data,
            "model": dict(model),
            "method": dict(method),
        }
        codec = table(self.uplink, "codec")
        if isinstance(codec.get("codec"), str):
            codec["codec"] = {"kind": codec["codec"]}
        for name, value in [
            ("uplink", codec),
            ("downlink", table(self.downlink, "rule")),
            ("simulation", table(self.simulation, "lost")),
        ]:
            if value:
                job[name] = value
        text = job_text(job)
        threads = checked_threads(None if self.n_jobs == -1 else self.n_jobs, "n_jobs")
        work = lambda place, listener: _whimbrel.run(text, place, listener, threads)
        try:
            run = carry_out(work, TEMPORARY, "refuse", _Listener(self.verbose, self.callback))
        except (ValueError, ArithmeticError) as error:
            error.args = tuple(_in_parameters(arg) if isinstance(arg, str) else arg for arg in error.args)
            raise
        run.keep_files()
        self.run_, self.history_ = run, run.metrics
        self.converged_ = run.summary["ending"] == "converged"
        return run

    def _rows(
        self, X: np.ndarray, y: Any, texts: Any, data: dict[str, Any], weights: np.ndarray | None
    ) -> _whimbrel.Rows:
        names, target = columns_of(X.shape[1]), None
        if weights is not None:
            X, names = np.column_stack([X, weights]), [*names, _WEIGHT]
        if y is not None:
            data[_TARGET] = _TARGET
            if y.dtype.kind == "U":
                texts = [*texts, (_TARGET, y.tolist())]
            else:
                target = (_TARGET, np.ascontiguousarray(y, dtype=np.float64))
        return _whimbrel.Rows(X, names, target, texts)

    def _seed(self) -> dict[str, int]:
        """The seed as a key of the job; without `random_state` a random one, from NumPy's global generator."""
        seed = self.random_state
        if isinstance(seed, np.random.Generator):
            return {"seed": int(seed.integers(2**31))}
        if seed is None or isinstance(seed, np.random.RandomState):
            return {"seed": int(check_random_state(seed).randint(2**31))}
        if isinstance(seed, (int, np.integer)) and seed >= 0:
            return {"seed": int(seed)}
        raise ValueError(f"`random_state` must be a non-negative integer, a generator or None, got {seed!r}")

    def _new_rows(self, X: Any, gaps: bool = False) -> np.ndarray:
        """New rows, checked against the fit."""
        check_is_fitted(self)
        return self._array(X, reset=False, gaps=gaps)

    def _array(self, X: Any, reset: bool, gaps: bool = False, y: Any = "no_validation") -> Any:
        finite = "allow-nan" if gaps else True
        sparse = "csr" if self.__sklearn_tags__().input_tags.sparse else False
        return validate_data(
            self, X, y, reset=reset, dtype=np.float64, order="C", ensure_all_finite=finite, accept_sparse=sparse
        )

    def _labelled(self, X: Any, y: Any, clients: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """Sets `classes_`, and returns the rows, the indices of their classes, and the clients."""
        X, y, clients = joined(X, y, clients)
        X, y = self._array(X, reset=True, y=y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_, places = np.unique(y, return_inverse=True)
        return X, places, clients

    def _columns(self, X: np.ndarray, client: str | None) -> dict[str, tuple[np.ndarray, Any]]:
        return _predict(self.run_.folder, _whimbrel.Rows(X, columns_of(X.shape[1])), client)


class Personal:
    """Personal models of clients: prediction for a client, adaptation to a new one."""

    adapted_: Adapted

    def _each_client(self, X: np.ndarray, clients: Any) -> dict[str, tuple[np.ndarray, Any]]:
        """Columns of predictions, each row by its client's model."""
        if clients is None:
            return self._of_client(X, self._client())
        names = np.asarray(client_names(clients, len(X)))
        parts: dict[str, tuple[np.ndarray, Any]] = {}
        for name in np.unique(names):
            at = np.flatnonzero(names == name)
            found = self._of_client(np.ascontiguousarray(X[at]), self._known(str(name)))
            for column, (values, labels) in found.items():
                whole = parts.setdefault(column, (np.empty(len(X), values.dtype), labels))[0]
                whole[at] = values
        return parts

    def _of_client(self, X: np.ndarray, client: str | None) -> dict[str, tuple[np.ndarray, Any]]:
        """Columns of predictions by a client's model, or by the shared one without personal models."""
        shared = client in self.clients_ and not (self.run_.folder / "clients").is_dir()  # type: ignore[attr-defined]
        if (shared or client is None) and not self._shared_predicts:  # type: ignore[attr-defined]
            kind = self._method()["kind"]  # type: ignore[attr-defined]
            how = "adapt(X, y) fits one" if shared else "name the rows' clients in `clients`, or `adapt` to a new one"
            raise ValueError(f"{kind!r} predicts by a client's personal model: {how}")
        return self._columns(X, None if shared else client)  # type: ignore[attr-defined]

    def _known(self, name: str) -> str:
        if name not in self.clients_:  # type: ignore[attr-defined]
            some = ", ".join(list(self.clients_)[:5])  # type: ignore[attr-defined]
            raise ValueError(f"client {name!r} was not in the fit: use `adapt`; clients of the fit: {some}")
        return name

    def _client(self) -> str | None:
        """The default client for predictions: the adapted one, or the only one."""
        adapted = getattr(self, "adapted_", None)
        if adapted is not None:
            return str(adapted.folder)
        return self.clients_[0] if len(self.clients_) == 1 else None  # type: ignore[attr-defined]


class Adapted:
    """A new client's personal model, in memory, and figures."""

    def __init__(self, run: Run, rows: _whimbrel.Rows) -> None:
        self._scratch = Scratch()
        self.figures = run.adapt(rows, self._scratch.path)
        self._files = {path.name: path.read_bytes() for path in self._scratch.path.iterdir()}

    @property
    def folder(self) -> Path:
        """The model's folder; written again from memory if it is gone."""
        if not all((self._scratch.path / name).is_file() for name in self._files):
            self._scratch = Scratch()
            self._scratch.path.mkdir()
            for name, content in self._files.items():
                (self._scratch.path / name).write_bytes(content)
        return self._scratch.path

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self._files, "figures": self.figures}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._files, self.figures = state["files"], state["figures"]
        self._scratch = Scratch()
