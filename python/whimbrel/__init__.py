"""Federated learning with small, measured messages.

Run a job like the command line:

>>> import whimbrel
>>> job = {
...     "seed": 1,
...     "data": {"source": "mixture", "clients": 10, "rows": 50},
...     "model": {"kind": "gmm", "components": 2},
...     "method": {"kind": "fedem", "rounds": 20},
... }
>>> run = whimbrel.run(job, out=whimbrel.TEMPORARY, progress=False)
>>> run.summary["rounds"]
20

or fit an estimator with scikit-learn's conventions to arrays:

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> X = np.concatenate([rng.normal(-3, 1, (200, 2)), rng.normal(3, 1, (200, 2))])
>>> mixture = whimbrel.GaussianMixture(2).fit(X, clients=np.arange(400) % 8)
>>> mixture.means_.shape
(2, 2)
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ._commands import Comparison, check, compare, estimate, inspect, new, report
from ._learner import Batch, Learner, Trainee, Training
from ._progress import Progress
from ._run import TEMPORARY, History, Model, Report, Run, run
from ._whimbrel import DegenerateFit, NumericalError

if TYPE_CHECKING:
    from ._imputer import LowRankImputer
    from ._logistic import LogisticRegression
    from ._mixture import GaussianMixture
    from ._personal import BayesianClassifier, MixtureClassifier, MixtureRegressor

# Estimators need scikit-learn, whose import is slow.
_ESTIMATORS = {
    "BayesianClassifier": "_personal",
    "GaussianMixture": "_mixture",
    "LogisticRegression": "_logistic",
    "LowRankImputer": "_imputer",
    "MixtureClassifier": "_personal",
    "MixtureRegressor": "_personal",
}

__all__ = [
    "TEMPORARY",
    "Batch",
    "BayesianClassifier",
    "Comparison",
    "DegenerateFit",
    "GaussianMixture",
    "History",
    "Learner",
    "LogisticRegression",
    "LowRankImputer",
    "MixtureClassifier",
    "MixtureRegressor",
    "Model",
    "NumericalError",
    "Progress",
    "Report",
    "Run",
    "Trainee",
    "Training",
    "check",
    "compare",
    "estimate",
    "inspect",
    "new",
    "report",
    "run",
]


# Available as `whimbrel.ray` without a separate import, if the required packages are installed.
_SUBMODULES = ("flower", "ray", "torch", "tracking")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name == "__version__":
        return version("whimbrel")
    if name in _ESTIMATORS:
        return getattr(import_module(f".{_ESTIMATORS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
