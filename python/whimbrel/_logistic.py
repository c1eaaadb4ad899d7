"""Logistic regression."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ._base import Estimator, parameters, table
from ._sklearn import ClassifierMixin


@parameters
class LogisticRegression(ClassifierMixin, Estimator):
    """Logistic regression with two classes, by gradients over compressed channels.

    The loss is the mean over all rows plus `ridge` times half the squared norm of the coefficients without the
    intercept.
    `method` is a word or a table of `[method]` ("sgd", "diana", "mcm", ...); the other tables are those
    of the job. `max_iter` is the number of rounds.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 3))
    >>> y = np.where(X @ [1, -2, 0.5] + rng.normal(size=400) > 0, "yes", "no")
    >>> model = LogisticRegression(ridge=1e-2).fit(X, y, clients=np.arange(400) % 4)
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    ridge: float = 1e-3
    fit_intercept: bool = True
    max_iter: int = 200
    method: Any = "sgd"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Fits rows with classes that belong to `clients`, or lists of arrays."""
        X, codes, clients = self._labelled(X, y, clients)
        if len(self.classes_) != 2:
            raise ValueError(
                f"Only binary classification is supported: the data have {len(self.classes_)} "
                "class(es). For more classes, use MixtureClassifier"
            )
        model = {
            "kind": "logistic",
            "ridge": self.ridge,
            "intercept": self.fit_intercept,
            **table(self.model, "ridge"),
        }
        method = self._method()
        if "epochs" not in method:
            method.setdefault("rounds", self.max_iter)
        run = self._fit(X, codes, clients, model, method)
        weights = run.model["weights"]
        self.coef_ = weights[: X.shape[1]].reshape(1, -1)
        self.intercept_ = weights[X.shape[1] :] if self.fit_intercept else np.zeros(1)
        self.n_iter_ = int(run.summary["rounds"])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The likelier class of each row."""
        of, _ = self._columns(self._new_rows(X), None)["label"]
        return self.classes_[of.astype(np.intp)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, by row."""
        p, _ = self._columns(self._new_rows(X), None)["probability"]
        return np.column_stack([1 - p, p])

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of the second class."""
        return self._new_rows(X) @ self.coef_[0] + self.intercept_[0]
