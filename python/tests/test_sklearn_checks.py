"""scikit-learn's own checks; none is left out."""

from __future__ import annotations

from typing import Any

import pytest
import whimbrel
from sklearn.utils.estimator_checks import parametrize_with_checks


@parametrize_with_checks(
    [
        whimbrel.GaussianMixture(allow_degenerate=True),
        whimbrel.LogisticRegression(),
        whimbrel.MixtureClassifier(),
        whimbrel.BayesianClassifier(),
        whimbrel.MixtureRegressor(),
        whimbrel.LowRankImputer(rank=0, penalty=0.1, epochs=20, model={"effects": "row+column"}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
