"""Gaussian mixtures."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Self

import numpy as np

from ._base import Estimator, joined, parameters, table
from ._sklearn import DensityMixin

_COVARIANCES = {"full": "full", "tied": "tied", "diag": "diagonal", "diagonal": "diagonal"}


@parameters
class GaussianMixture(DensityMixin, Estimator):
    """A Gaussian mixture, fitted by federated EM to rows that clients hold.

    `n_components`, `covariance_type` ("full", "tied" or "diag"), `reg_covar`, `n_init` and `max_iter`
    are scikit-learn's, but a fit with `max_iter` does so many rounds; without, it ends once it has converged.
    `method` is a word or a
    table of `[method]`: by default pooled EM where the rows have no clients, and `fedem` where they
    have. `uplink` is a codec's word or the table `[uplink]`; `downlink`, `data` and `simulation` are
    those tables, and `model` holds further keys of `[model]`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-3, 1, (300, 2)), rng.normal(3, 1, (300, 2))])
    >>> clients = np.arange(600) % 10
    >>> mixture = GaussianMixture(2, uplink="dithering", random_state=1).fit(X, clients=clients)
    >>> sorted(round(m) for m in mixture.means_[:, 0])
    [-3, 3]
    >>> bool(mixture.history_["bits_up"][-1] > 0)
    True
    """

    n_components: int = field(default=1, kw_only=False)
    covariance_type: str = "full"
    reg_covar: float = 1e-6
    max_iter: int | None = None
    n_init: int = 1
    init_params: str = "federated-kmeans"
    method: Any = "auto"
    allow_degenerate: bool = False

    def fit(self, X: Any, y: Any = None, clients: Any = None) -> Self:
        """Fits rows that belong to `clients`, or a list of the clients' arrays."""
        X, _, clients = joined(X, None, clients)
        X = self._array(X, reset=True)
        if self.covariance_type not in _COVARIANCES:
            raise ValueError(
                f"`covariance_type` is {self.covariance_type!r}: it must be 'full', 'tied' or 'diag'"
            )
        if len(X) < 2:
            raise ValueError(f"a mixture needs at least two rows, got n_samples = {len(X)}")
        model = {
            "kind": "gmm",
            "components": self.n_components,
            "covariance": _COVARIANCES[self.covariance_type],
            "reg_covar": self.reg_covar,
            "init": self.init_params,
            **({"starts": self.n_init} if self.n_init != 1 else {}),
            **table(self.model, "init"),
        }
        method = table(self.method, "kind")
        if method.get("kind", "auto") == "auto":
            split = "split" in table(self.data, "split")
            method["kind"] = "em" if clients is None and not split else "fedem"
        if self.max_iter is not None:
            method.setdefault("rounds", self.max_iter)
        method.setdefault("allow_degenerate", self.allow_degenerate)
        run = self._fit(X, None, clients, model, method)
        fitted, summary = run.model, run.summary
        self.weights_, self.means_ = fitted["weights"], fitted["means"]
        self.covariances_ = fitted["covariance" if "covariance" in fitted else "covariances"]
        if self.covariance_type == "tied" and self.covariances_.ndim == 3:
            self.covariances_ = self.covariances_[0]
        self.n_iter_ = int(summary["rounds"])
        self.lower_bound_ = -float(summary["objective"]) if "objective" in summary else None
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable component of each row."""
        return self._columns(self._new_rows(X), None)["label"][0].astype(np.int64)

    def fit_predict(self, X: Any, y: Any = None, clients: Any = None) -> np.ndarray:
        """Fits rows and predicts their components."""
        return self.fit(X, clients=clients).predict(joined(X, None, clients)[0])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each component, by row."""
        columns = self._columns(self._new_rows(X), None)
        return np.column_stack([columns[f"p{k + 1}"][0] for k in range(len(self.weights_))])

    def score_samples(self, X: Any) -> np.ndarray:
        """The log-density of each row."""
        return self._columns(self._new_rows(X), None)["log_density"][0]

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density."""
        return float(self.score_samples(X).mean())

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion: lower is better."""
        X = self._new_rows(X)
        return -2 * float(self.score_samples(X).sum()) + self._parameters() * float(np.log(len(X)))

    def aic(self, X: Any) -> float:
        """The Akaike information criterion: lower is better."""
        return -2 * float(self.score_samples(X).sum()) + 2 * self._parameters()

    def _parameters(self) -> int:
        k, d = self.means_.shape
        of_covariances = {"full": k * d * (d + 1) // 2, "tied": d * (d + 1) // 2}
        return k * d + k - 1 + of_covariances.get(self.covariance_type, k * d)
