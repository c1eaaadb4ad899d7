"""Estimators with a personal model for each client."""

from __future__ import annotations

import copy
from dataclasses import field
from typing import Any, Self

import numpy as np

from . import _whimbrel
from ._base import (
    _TARGET,
    Adapted,
    Estimator,
    Personal,
    checked_count,
    columns_of,
    joined,
    parameters,
    table,
)
from ._sklearn import ClassifierMixin, RegressorMixin


# The models that predict numbers; all others predict classes.
_REGRESSIONS = ("linear", "linear-representation")


@parameters
class _PersonalModel(Personal, Estimator):
    """Local training of a model with personal parts."""

    max_iter: int = 100
    standardize: bool = True

    def _train(self, X: np.ndarray, y: np.ndarray, clients: Any, usual: str) -> None:
        model = {"kind": usual, **table(self.model, "kind")}
        kind = model["kind"]
        if kind in _REGRESSIONS and usual not in _REGRESSIONS:
            raise ValueError(f"`model` is {kind!r}, which predicts numbers: a classifier takes 'softmax' or a network")
        if kind not in _REGRESSIONS and usual in _REGRESSIONS:
            these = " and ".join(map(repr, _REGRESSIONS))
            raise ValueError(f"`model` is {kind!r}, which predicts classes: those that predict numbers are {these}")
        method = self._method()
        if "epochs" not in method:
            method.setdefault("rounds", checked_count("max_iter", self.max_iter))
        run = self._fit(X, y, clients, model, method)
        self.n_iter_ = int(run.summary["rounds"])
        self.clients_ = list(run.clients)
        self._shared_predicts = _whimbrel.shared_predicts(run.job)

    def _adapted(self, X: np.ndarray, y: np.ndarray) -> Any:
        target = (_TARGET, np.ascontiguousarray(y, dtype=np.float64))
        rows = _whimbrel.Rows(X, columns_of(X.shape[1]), target)
        other = copy.copy(self)
        other.adapted_ = Adapted(self.run_, rows)
        return other


@parameters
class _MixtureModel(_PersonalModel):
    n_components: int = field(default=3, kw_only=False)
    step: Any = 0.1
    batch: Any = "full"
    local_epochs: int = 1
    method: Any = "fedmix"

    def _method(self) -> dict[str, Any]:
        usual = {"step": self.step, "batch": self.batch, "local_epochs": self.local_epochs}
        method = {**usual, **super()._method()}
        if method["kind"] == "fedmix":
            method.setdefault("components", self.n_components)
        return method


class _Classifier(ClassifierMixin, _PersonalModel):
    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Fits rows with classes that belong to `clients`, or lists of arrays."""
        X, codes, clients = self._labelled(X, y, clients)
        if len(self.classes_) < 2:
            raise ValueError("the data have one class; a classifier needs at least two")
        self._train(X, codes, clients, "softmax")
        return self

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """The most probable class of each row, by its client's model."""
        of, _ = self._each_client(self._new_rows(X), clients)["label"]
        return self.classes_[of.astype(np.intp)]

    def predict_proba(self, X: Any, clients: Any = None) -> np.ndarray:
        """The probability of each class, by row."""
        columns = self._each_client(self._new_rows(X), clients)
        each = [values for name, (values, _) in columns.items() if name.startswith("p_")]
        return np.column_stack(each).astype(np.float64)

    def predict_log_proba(self, X: Any, clients: Any = None) -> np.ndarray:
        """The logarithm of the probability of each class, by row."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, clients))

    def score(self, X: Any, y: Any, sample_weight: Any = None, clients: Any = None) -> float:
        """The accuracy."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def adapt(self, X: Any, y: Any) -> Self:
        """A copy that predicts for a new client with these rows."""
        X, y = self._new_rows(X), np.asarray(y)
        unknown = set(np.unique(y).tolist()) - set(self.classes_.tolist())
        if unknown:
            raise ValueError(f"class {sorted(unknown)[0]!r} was not in the fit")
        return self._adapted(X, np.searchsorted(self.classes_, y))


class MixtureClassifier(_Classifier, _MixtureModel):
    """A classifier: each client has its own mixture of shared components.

    `model` is a word or a table of `[model]`: "softmax" (the default), "mlp", ...; `method` is
    "fedmix" or another method over local training ("fedavg", "fedrep", ...). Without personal models
    ("fedavg", "fedprox", "fedopt"), all clients predict by the shared model. `standardize` scales every
    column to mean 0 and variance 1.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(600, 2))
    >>> clients = np.arange(600) % 6
    >>> y = ((X[:, 0] > 0) ^ (clients % 2 == 1)).astype(int)      # odd clients label the other way
    >>> model = MixtureClassifier(2, step=1.0, random_state=0).fit(X, y, clients=clients)
    >>> bool(model.score(X, y, clients=clients) > 0.9)
    True
    >>> new = model.adapt(X[:50], (X[:50, 0] <= 0).astype(int))   # a new client
    >>> bool(new.score(X, (X[:, 0] <= 0).astype(int)) > 0.9)
    True
    """


class MixtureRegressor(RegressorMixin, _MixtureModel):
    """A regression: each client has its own mixture of shared components.

    `model` is "linear" (the default) or "linear-representation"; other parameters are those of `MixtureClassifier`.
    The target is not standardised.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(600, 2))
    >>> clients = np.arange(600) % 6
    >>> y = X[:, 0] * np.where(clients % 2 == 1, 2.0, -2.0)       # odd clients have the other slope
    >>> model = MixtureRegressor(2, step=0.2, random_state=0).fit(X, y, clients=clients)
    >>> bool(model.score(X, y, clients=clients) > 0.9)
    True
    """

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Fits rows with targets that belong to `clients`, or lists of arrays."""
        X, y, clients = joined(X, y, clients)
        X, y = self._array(X, reset=True, y=y)
        self._train(X, np.asarray(y, dtype=np.float64), clients, "linear")
        return self

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """One value per row, by its client's model."""
        columns = self._each_client(self._new_rows(X), clients)
        return columns["prediction"][0].astype(np.float64)

    def score(self, X: Any, y: Any, sample_weight: Any = None, clients: Any = None) -> float:
        """The coefficient of determination."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def adapt(self, X: Any, y: Any) -> Self:
        """A copy that predicts for a new client with these rows."""
        return self._adapted(self._new_rows(X), np.asarray(y, dtype=np.float64))


@parameters
class BayesianClassifier(_Classifier):
    """A classifier: each client has its own posterior under a shared, learned prior.

    The method is `fedsoul`: Langevin chains on the clients, whose means update the shared parameters.
    `model` is a word or a table of `[model]`; further keys of `[method]` (`steps`, `chains`, `prior`, ...)
    go into `method`. `standardize` scales every column to mean 0 and variance 1.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> model = BayesianClassifier(max_iter=50).fit(X, y, clients=np.arange(300) % 3)
    >>> bool(model.score(X, y, clients=np.arange(300) % 3) > 0.8)
    True
    >>> sorted(model.predict_uncertainty(X, clients=np.arange(300) % 3))
    ['entropy', 'mutual_information']
    """

    method: Any = "fedsoul"

    def predict_uncertainty(self, X: Any, clients: Any = None) -> dict[str, np.ndarray]:
        """The predictive entropy of each row, and its epistemic part (mutual information), in nats."""
        columns = self._each_client(self._new_rows(X), clients)
        if "entropy" not in columns:
            kind = self._method()["kind"]
            raise ValueError(f"{kind!r} has no posterior: only 'fedsoul' has uncertainties")
        return {name: columns[name][0] for name in ("entropy", "mutual_information")}
