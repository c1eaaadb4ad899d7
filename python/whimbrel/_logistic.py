"""Logistic regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight

from ._base import _WEIGHT, Estimator, checked_count, checked_number, parameters, table
from ._sklearn import ClassifierMixin


@parameters
class LogisticRegression(ClassifierMixin, Estimator):
    """Logistic regression with two or more classes.

    The loss is the mean over all rows plus `ridge` times half the squared norm of the coefficients without the
    intercept; `penalty=None` leaves the norm out. `method` is a word or a table of `[method]`. "newton", the default, is the pooled fit from sums of
    the clients in a few rounds; with several classes, log-odds are against the first of them, whose coefficients
    are zero. The gradient methods ("sgd", "diana", "mcm", ...) fit two classes over compressed channels, in
    `max_iter` rounds (200 by default). After "newton", `summary()` has the coefficients with standard errors; with
    `standardize` they are those of the standardised columns, while `coef_` has the units of the data. Sparse
    rows are made dense for the fit.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 3))
    >>> y = np.where(X @ [1, -2, 0.5] + rng.normal(size=400) > 0, "yes", "no")
    >>> model = LogisticRegression(ridge=1e-2).fit(X, y, clients=np.arange(400) % 4)
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    penalty: str | None = "l2"
    ridge: float = 1e-3
    fit_intercept: bool = True
    max_iter: int | None = None
    class_weight: Any = None
    method: Any = "newton"
    _scales_rows: ClassVar[bool] = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fits rows with classes that belong to `clients`, or lists of arrays."""
        X, codes, clients = self._labelled(X, y, clients)
        X = X.toarray() if issparse(X) else X
        classes = len(self.classes_)
        if classes < 2:
            raise ValueError(f"the data have {classes} class: a classifier needs at least two")
        method = self._method()
        newton = method["kind"] == "newton"
        if self.penalty not in ("l2", None):
            raise ValueError(f"`penalty` is {self.penalty!r}: it must be 'l2', by `ridge`, or None")
        ridge = checked_number("ridge", self.ridge) if self.penalty else 0.0
        model = {"kind": "glm" if newton else "logistic", "ridge": ridge, "intercept": self.fit_intercept}
        weights = self._weights(X, codes, sample_weight)
        if newton:
            model["family"] = "binomial" if classes == 2 else "multinomial"
        elif classes > 2:
            raise ValueError(f"{method['kind']!r} fits two classes, and the data have {classes}: use 'newton'")
        elif weights is not None:
            raise ValueError(f"{method['kind']!r} takes no weights of rows or classes: use 'newton'")
        if weights is not None:
            # A row without weight is absent; it may hold the only case of a class.
            used = weights > 0
            X, codes, weights = X[used], codes[used], weights[used]
            if len(np.unique(codes)) < 2:
                raise ValueError("the rows with positive weight have one class: a classifier needs at least two")
            clients = None if clients is None else np.asarray(clients)[used]
            model["weights"] = _WEIGHT
        rounds = None if self.max_iter is None else checked_count("max_iter", self.max_iter)
        if rounds is not None or not newton and "epochs" not in method:
            method.setdefault("rounds", 200 if rounds is None else rounds)
        mean, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.standardize:
            # Without an intercept rows are not centred: the model would be another one.
            mean, scale = X.mean(axis=0) * self.fit_intercept, X.std(axis=0)
            scale[scale == 0] = 1
            X = (X - mean) / scale
        digits = len(str(classes - 1))
        target = codes if classes == 2 else np.array([f"{code:0{digits}}" for code in codes])
        found = self._fit(X, target, clients, {**model, **table(self.model, "ridge")}, method, weights)
        self.n_iter_ = int(found.summary["rounds"])
        self._keep(found.model["coefficients" if newton else "weights"], X.shape[1], newton)
        self.coef_ = self.coef_ / scale
        if self.fit_intercept:
            self.intercept_ = self.intercept_ - self.coef_ @ mean
        return self

    def _weights(self, X: np.ndarray, codes: np.ndarray, sample_weight: Any) -> np.ndarray | None:
        """The weight of each row; `None` if all are equal by default."""
        if sample_weight is None and self.class_weight is None:
            return None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not (weights > 0).any():
            raise ValueError("all rows have weight zero")
        if self.class_weight is not None:
            by_class = self.class_weight
            if isinstance(by_class, Mapping):
                unknown = set(by_class) - set(self.classes_.tolist())
                if unknown:
                    raise ValueError(f"`class_weight` names class {sorted(unknown, key=str)[0]!r}, which the data lack")
                by_class = {code: by_class.get(name, 1.0) for code, name in enumerate(self.classes_.tolist())}
            weights = weights * compute_sample_weight(by_class, codes)
        return weights

    def _keep(self, values: np.ndarray, width: int, newton: bool) -> None:
        """Sets `coef_` and `intercept_` from the model's vector."""
        each = values.reshape(-1, width + self.fit_intercept)
        constant = each[:, :1] if newton else each[:, width:]
        slopes = each[:, self.fit_intercept :] if newton else each[:, :width]
        if not self.fit_intercept:
            constant = np.zeros((len(each), 1))
        if len(self.classes_) > 2:
            slopes, constant = (np.vstack([np.zeros((1, part.shape[1])), part]) for part in (slopes, constant))
        self.coef_, self.intercept_ = slopes.copy(), constant[:, 0].copy()

    def summary(self) -> Any:
        """The coefficients with standard errors and intervals, as a `pandas.DataFrame`."""
        return self.run_.summary()

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        scores = self.decision_function(X)
        of = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[of]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, by row."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of the probability of each class, by row."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of the second class; with several classes, those of each against the first."""
        scores = self._new_rows(X) @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores
