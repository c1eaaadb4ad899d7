"""Imputation of tables with missing cells."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from . import _whimbrel
from ._base import _ROW, Estimator, checked_number, columns_of, joined, parameters, table
from ._progress import Listener
from ._run import _table
from ._sklearn import OneToOneFeatureMixin, TransformerMixin


@parameters
class LowRankImputer(OneToOneFeatureMixin, TransformerMixin, Estimator):
    """Imputes missing cells (NaN) by a low-rank fit to the cells observed by clients.

    `family` is "gaussian", "poisson" or "bernoulli"; `rank` and `penalty` (the ridge `lambda`) are numbers
    or "auto". Observed cells are unchanged. `intervals()` returns an estimate, a standard error and an
    interval for every cell of the fitted table; `transform` of other rows fits only these rows, with the
    columns' factors fixed. Estimates have six significant digits. `standardize` scales columns to mean 0 and
    variance 1 for the fit, by default for the family "gaussian"; results have the units of the data.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=(60, 1)) @ rng.normal(size=(1, 8))
    >>> X = np.where(rng.random(truth.shape) < 0.3, np.nan, truth + 0.01 * rng.normal(size=truth.shape))
    >>> filled = LowRankImputer(rank=1).fit_transform(X, clients=np.arange(60) % 3)
    >>> bool(np.abs(filled - truth).mean() < 0.2)
    True
    """

    family: str = field(default="gaussian", kw_only=False)
    rank: Any = "auto"
    penalty: Any = "auto"
    epochs: float = 100
    standardize: bool | None = None  # type: ignore[assignment]
    method: Any = "fedmiss"
    _scales_rows: ClassVar[bool] = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any = None, clients: Any = None) -> Self:
        """Fits a table whose rows belong to `clients`, or a list of the clients' arrays."""
        X, _, clients = joined(X, None, clients)
        X = self._array(X, reset=True, gaps=True)
        fitted = _digest(X)
        self._mean, self._scale = self._scaling(X)
        X = (X - self._mean) / self._scale
        model = {
            "kind": "low-rank",
            "family": self.family,
            "rank": self.rank,
            "lambda": self.penalty,
            **table(self.model, "effects"),
        }
        method = {"batch": "full", "step": "auto", **self._method()}
        if "rounds" not in method:
            method.setdefault("epochs", checked_number("epochs", self.epochs))
        self._fit(X, None, clients, model, method)
        self._fitted = fitted
        text, _ = _whimbrel.impute(self.run_.folder, Listener(False), self._held)
        self._cells = self._in_units(_table(text), X.shape)
        del self._held
        return self

    def _scaling(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from each column, and its divisor."""
        gaussian = self.family == "gaussian"
        if self.standardize and not gaussian:
            raise ValueError(f"`standardize` is for the family 'gaussian', not {self.family!r}")
        if not gaussian or self.standardize is False:
            return np.zeros(X.shape[1]), np.ones(X.shape[1])
        seen = ~np.isnan(X)
        count = np.maximum(seen.sum(axis=0), 1)
        mean = np.where(seen, X, 0).sum(axis=0) / count
        scale = np.sqrt((np.where(seen, X - mean, 0) ** 2).sum(axis=0) / count)
        return mean, np.where(scale > 0, scale, 1)

    def _in_units(self, cells: dict[str, np.ndarray], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Estimates, errors and intervals in the units of the data."""
        shift = {"se": 0.0}
        for name in ("estimate", "se", "lower", "upper"):
            values = cells[name].reshape(shape) * self._scale + shift.get(name, self._mean)
            cells[name] = values.reshape(-1)
        return cells

    def _rows(
        self, X: np.ndarray, y: Any, texts: Any, data: dict[str, Any], weights: np.ndarray | None
    ) -> _whimbrel.Rows:
        data[_ROW] = _ROW
        labels = [(_ROW, _row_labels("r", len(X)))]
        self._held = _whimbrel.Rows(X, columns_of(X.shape[1]), None, [*texts, *labels])
        return self._held

    def transform(self, X: Any) -> np.ndarray:
        """The table with missing cells imputed."""
        X = self._new_rows(X, gaps=True)
        if _digest(X) == self._fitted:
            estimates = self._cells["estimate"].reshape(X.shape)
        else:
            estimates = self._of_new_rows(X)
        return np.where(np.isnan(X), estimates, X)

    def fit_transform(self, X: Any, y: Any = None, clients: Any = None) -> np.ndarray:
        """Fits a table and imputes its missing cells."""
        return self.fit(X, clients=clients).transform(joined(X, None, clients)[0])

    def intervals(self) -> dict[str, np.ndarray]:
        """`estimate`, `se`, `lower` and `upper` of every cell of the fitted table."""
        shape = (-1, self.n_features_in_)
        return {name: self._cells[name].reshape(shape) for name in ("estimate", "se", "lower", "upper")}

    def _of_new_rows(self, X: np.ndarray) -> np.ndarray:
        X = (X - self._mean) / self._scale
        texts = [(_ROW, _row_labels("new", len(X)))]
        rows = _whimbrel.Rows(X, columns_of(X.shape[1]), None, texts)
        with tempfile.TemporaryDirectory(prefix="whimbrel-") as folder:
            self.run_.adapt(rows, folder)
            found = _table((Path(folder) / "imputed.csv").read_text(encoding="utf-8"))
        return found["estimate"].reshape(X.shape) * self._scale + self._mean


def _row_labels(prefix: str, rows: int) -> list[str]:
    """Labels in the order of the rows."""
    digits = len(str(max(rows - 1, 0)))
    return [f"{prefix}{i:0{digits}}" for i in range(rows)]


def _digest(X: np.ndarray) -> bytes:
    return hashlib.sha256(X.tobytes() + repr(X.shape).encode()).digest()

