"""Gaussian mixtures."""

from __future__ import annotations

import json
import tempfile
from dataclasses import field
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ._base import Estimator, checked_count, checked_number, joined, parameters, table
from ._sklearn import DensityMixin

_COVARIANCES = {"full": "full", "tied": "tied", "diag": "diagonal", "diagonal": "diagonal", "spherical": "spherical"}


@parameters
class GaussianMixture(DensityMixin, Estimator):
    """A Gaussian mixture, fitted by federated EM to rows that clients hold.

    `n_components`, `covariance_type` ("full", "tied", "diag" or "spherical"), `reg_covar`, `n_init` and `max_iter`
    are scikit-learn's (`init_params="kmeans"` is federated), but a fit with `max_iter` does so many rounds; without, it ends once it has converged.
    `means_init`, with `weights_init` and `precisions_init` if given, is the start; with `warm_start` a second
    fit starts at the first one's result. `method` is a word or a table of `[method]`: by default pooled EM where the rows have no clients, and `fedem` where they
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
    weights_init: Any = None
    means_init: Any = None
    precisions_init: Any = None
    warm_start: bool = False
    method: Any = "auto"
    allow_degenerate: bool = False

    def fit(self, X: Any, y: Any = None, clients: Any = None) -> Self:
        """Fits rows that belong to `clients`, or a list of the clients' arrays."""
        X, _, clients = joined(X, None, clients)
        X = self._array(X, reset=True)
        if self.covariance_type not in _COVARIANCES:
            raise ValueError(
                f"`covariance_type` is {self.covariance_type!r}: it must be 'full', 'tied', 'diag' or 'spherical'"
            )
        if self.covariance_type == "spherical" and self._scales_columns():
            raise ValueError(
                "`standardize` would give the columns different variances in the units of the data: "
                "take 'diag', or scale the columns before the fit"
            )
        if self.max_iter is not None:
            checked_count("max_iter", self.max_iter)
        if not isinstance(self.n_components, (list, tuple)):
            checked_count("n_components", self.n_components)
        checked_count("n_init", self.n_init)
        if len(X) < 2:
            raise ValueError(f"a mixture needs at least two rows, got n_samples = {len(X)}")
        model = {
            "kind": "gmm",
            "components": self.n_components,
            "covariance": _COVARIANCES[self.covariance_type],
            "reg_covar": checked_number("reg_covar", self.reg_covar),
            "init": {"kmeans": "federated-kmeans"}.get(self.init_params, self.init_params),
            **({"starts": self.n_init} if self.n_init != 1 else {}),
        }
        start = self._start(X)
        with tempfile.TemporaryDirectory(prefix="whimbrel-") as folder:
            if start is not None:
                place = Path(folder, "init.json")
                place.write_text(json.dumps(start))
                model["init"] = place
            return self._fitted(X, clients, {**model, **table(self.model, "init")})

    def _fitted(self, X: np.ndarray, clients: Any, model: dict[str, Any]) -> Self:
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
        if self.covariance_type == "spherical":
            self.covariances_ = self.covariances_[:, 0]  # The model has the variance once per column.
        self.n_iter_ = int(summary["rounds"])
        self.lower_bound_ = -float(summary["objective"]) if "objective" in summary else None
        return self

    def _start(self, X: np.ndarray) -> dict[str, Any] | None:
        """The initial parameters in the form of an `init` file; `None` without any."""
        given = (self.weights_init, self.means_init, self.precisions_init)
        if self.warm_start and hasattr(self, "means_") and self.means_.shape == (self.n_components, X.shape[1]):
            given = (self.weights_, self.means_, self.precisions_)
        weights, means, precisions = (None if part is None else np.asarray(part, float) for part in given)
        if means is None:
            if weights is not None or precisions is not None:
                raise ValueError("`weights_init` and `precisions_init` need `means_init`")
            return None
        k, d = self.n_components, X.shape[1]
        if means.shape != (k, d):
            raise ValueError(f"`means_init` has shape {means.shape}, not {(k, d)}")
        if weights is not None and weights.shape != (k,):
            raise ValueError(f"`weights_init` has shape {weights.shape}, not {(k,)}")
        weights = np.full(k, 1 / k) if weights is None else weights / weights.sum()
        start = {"weights": weights.tolist(), "means": means.tolist()}
        tied, spherical = self.covariance_type == "tied", self.covariance_type == "spherical"
        key = "covariance" if tied else "covariances"
        if precisions is None:
            spread = X.var(axis=0) if self._has_variances() else np.atleast_2d(np.cov(X.T, bias=True))
            spread = np.full(d, spread.mean()) if spherical else spread
            return {**start, key: (spread if tied else np.stack([spread] * k)).tolist()}
        expected = {"full": (k, d, d), "tied": (d, d), "spherical": (k,)}.get(self.covariance_type, (k, d))
        if precisions.shape != expected:
            raise ValueError(f"`precisions_init` has shape {precisions.shape}, not {expected}")
        spread = self._inverses(precisions)
        return {**start, key: (np.repeat(spread[:, None], d, axis=1) if spherical else spread).tolist()}

    def _has_variances(self) -> bool:
        """Whether covariances are variances, of columns or of components."""
        return self.covariance_type in ("diag", "diagonal", "spherical")

    def _inverses(self, matrices: np.ndarray) -> np.ndarray:
        return 1 / matrices if self._has_variances() else np.linalg.inv(matrices)

    def _scales_columns(self) -> bool:
        data = table(self.data, "split")
        prepared = {**data, **table(data.get("prepare"), "standardize")}
        return self.standardize or any(prepared.get(key) for key in ("standardize", "limits"))

    @property
    def precisions_(self) -> np.ndarray:
        """The inverses of `covariances_`."""
        check_is_fitted(self)
        return self._inverses(self.covariances_)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draws rows from the fitted mixture; returns them with their components, in order of components."""
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"`n_samples` must be at least 1, got {n_samples}")
        random = np.random.default_rng(self._seed()["seed"])
        k, d = self.means_.shape
        labels = np.sort(random.choice(k, n_samples, p=self.weights_ / self.weights_.sum()))
        spread = self.covariances_
        if self.covariance_type == "tied":
            spread = np.stack([spread] * k)
        elif self._has_variances():
            spread = np.stack([np.eye(d) * variances for variances in spread])
        roots = np.linalg.cholesky(spread)
        rows = self.means_[labels] + np.einsum("nij,nj->ni", roots[labels], random.normal(size=(n_samples, d)))
        return rows, labels

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
        of_covariances = {"full": k * d * (d + 1) // 2, "tied": d * (d + 1) // 2, "spherical": k}
        return k * d + k - 1 + of_covariances.get(self.covariance_type, k * d)
