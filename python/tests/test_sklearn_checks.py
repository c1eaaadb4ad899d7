"""scikit-learn's own checks of the estimators with their defaults; none is left out."""

from __future__ import annotations

from typing import Any

import pytest
import whimbrel
from sklearn.utils.estimator_checks import parametrize_with_checks


@parametrize_with_checks(
    [
        whimbrel.GaussianMixture(),
        whimbrel.LogisticRegression(),
        whimbrel.MixtureClassifier(),
        whimbrel.BayesianClassifier(),
        whimbrel.MixtureRegressor(),
        whimbrel.LowRankImputer(),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
