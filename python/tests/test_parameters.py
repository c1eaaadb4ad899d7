"""Parameters of estimators that follow scikit-learn: `tol`, `standardize`, sparse rows, routing, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import whimbrel
from scipy import sparse


def rows(n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) * [1.0, 50.0, 0.01] + [0.0, 1000.0, 5.0]
    y = ((X - X.mean(axis=0)) / X.std(axis=0) @ [1.0, -2.0, 0.5] + rng.normal(size=n) > 0).astype(int)
    return X, y, np.arange(n) % 4


def test_tol_ends_a_fit_early() -> None:
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.normal(-1, 1, (300, 2)), rng.normal(1, 1, (300, 2))])
    asked = {"random_state": 0, "method": {"evaluate": {"every": 1}}}
    with pytest.warns(UserWarning):
        loose = whimbrel.GaussianMixture(2, max_iter=200, tol=1e-3, **asked).fit(X)
        tight = whimbrel.GaussianMixture(2, max_iter=200, tol=1e-6, **asked).fit(X)
    assert loose.n_iter_ < tight.n_iter_ < 200
    # The last evaluation lowered the objective by less than the fraction, the one before by more.
    falls = -np.diff(loose.history_["objective"]) / np.abs(loose.history_["objective"][:-1])
    assert falls[-1] < 1e-3
    with pytest.raises(ValueError, match="`tol` is for methods of many rounds"):
        whimbrel.LogisticRegression(tol=1e-3).fit(*rows()[:2])


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (whimbrel.GaussianMixture(2, max_iter=0), "`max_iter` must be an integer of at least 1"),
        (whimbrel.GaussianMixture(0), "`n_components` must be an integer of at least 1"),
        (whimbrel.GaussianMixture(2, n_init=0), "`n_init`"),
        (whimbrel.GaussianMixture(2, reg_covar=-1.0), "`reg_covar`"),
        (whimbrel.GaussianMixture(2, covariance_type="round"), "must be 'full', 'tied', 'diag' or 'spherical'"),
        (whimbrel.GaussianMixture(2, covariance_type="spherical", standardize=True), "`standardize` would give"),
        (whimbrel.GaussianMixture(2, tol=2.0), "`tol` must be a non-negative number below 1"),
        (whimbrel.LogisticRegression(ridge=-1.0), "`ridge` must be a non-negative number"),
        (whimbrel.LogisticRegression(max_iter=2.5), "`max_iter`"),
        (whimbrel.LogisticRegression(penalty="l1"), "`penalty` is 'l1': it must be 'l2'"),
        (whimbrel.MixtureClassifier(2, max_iter=0), "`max_iter`"),
    ],
)
def test_errors_name_parameters_of_the_estimator(estimator: Any, words: str) -> None:
    X, y, clients = rows(60)
    with pytest.raises(ValueError, match=words):
        estimator.fit(X, y, clients=clients)


def test_warnings_name_parameters_of_the_estimator() -> None:
    X, y, clients = rows()
    for estimator in (
        whimbrel.GaussianMixture(2, max_iter=2, random_state=0, method="fedem"),
        whimbrel.LogisticRegression(method="sgd", max_iter=2),
    ):
        with pytest.warns(UserWarning) as warned:
            estimator.fit(X, y, clients=clients)
        said = " ".join(str(one.message) for one in warned)
        assert "raise `max_iter`" in said and "[" not in said, said


def test_words_of_scikit_learn_are_taken() -> None:
    X, y, clients = rows()
    kmeans, ours = (
        whimbrel.GaussianMixture(2, init_params=word, random_state=0).fit(X, clients=clients).means_
        for word in ("kmeans", "federated-kmeans")
    )
    np.testing.assert_array_equal(kmeans, ours)
    free, bare = (
        whimbrel.LogisticRegression(**keys).fit(X / X.std(axis=0), y, clients=clients).coef_
        for keys in ({"penalty": None}, {"ridge": 0.0})
    )
    np.testing.assert_array_equal(free, bare)


@pytest.mark.parametrize("intercept", [True, False])
def test_standardised_rows_fit_as_rows_scaled_before(intercept: bool) -> None:
    X, y, clients = rows()
    scaled = (X - X.mean(axis=0) * intercept) / X.std(axis=0)
    ours = whimbrel.LogisticRegression(standardize=True, ridge=0.01, fit_intercept=intercept).fit(X, y, clients=clients)
    theirs = whimbrel.LogisticRegression(ridge=0.01, fit_intercept=intercept).fit(scaled, y, clients=clients)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(scaled), atol=1e-8)
    np.testing.assert_allclose(ours.coef_ * X.std(axis=0), theirs.coef_, rtol=1e-6)


def test_a_mixture_of_standardised_rows_is_in_the_units_of_the_data() -> None:
    X, _, clients = rows()
    model = whimbrel.GaussianMixture(1, standardize=True, random_state=0).fit(X, clients=clients)
    np.testing.assert_allclose(model.means_[0], X.mean(axis=0), rtol=1e-6)
    assert "standardize = true" in model.run_.job


def test_an_imputer_standardises_columns_by_default() -> None:
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(80, 1))
    truth = factor @ np.array([[1.0, -1.0, 0.5, 2.0]]) * [1, 100, 0.01, 1] + [0, 5000, 1, -3]
    X = np.where(rng.random(truth.shape) < 0.2, np.nan, truth * (1 + 1e-4 * rng.normal(size=truth.shape)))
    error = lambda filled: np.abs(((filled - truth) / truth.std(axis=0))[np.isnan(X)]).mean()
    imputer = whimbrel.LowRankImputer(rank=1, random_state=0).fit(X, clients=np.arange(80) % 4)
    assert error(imputer.transform(X)) < 0.2
    found = imputer.intervals()
    inside = (found["lower"] <= found["estimate"]) & (found["estimate"] <= found["upper"])
    assert inside.all() and np.nanmax(np.abs(found["estimate"] - X) / truth.std(axis=0)) < 1
    np.testing.assert_allclose(imputer.transform(X[:7].copy())[~np.isnan(X[:7])], X[:7][~np.isnan(X[:7])])
    with pytest.raises(ValueError, match="`standardize` is for the family 'gaussian'"):
        whimbrel.LowRankImputer("poisson", standardize=True).fit(np.abs(X))


def test_sparse_rows_give_the_fit_of_dense_ones() -> None:
    X, y, clients = rows()
    X = np.where(X > np.median(X, axis=0), X / X.std(axis=0), 0.0)
    dense = whimbrel.LogisticRegression().fit(X, y, clients=clients)
    thin = whimbrel.LogisticRegression().fit(sparse.csr_matrix(X), y, clients=clients)
    np.testing.assert_array_equal(dense.coef_, thin.coef_)
    np.testing.assert_allclose(dense.predict_proba(X), thin.predict_proba(sparse.csc_matrix(X)), rtol=1e-12)
    with pytest.raises((TypeError, ValueError), match="[Ss]parse"):
        whimbrel.GaussianMixture(2).fit(sparse.csr_matrix(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_personal_estimators_are_cross_validated_with_their_clients() -> None:
    import sklearn
    from sklearn.model_selection import KFold, cross_val_score

    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 2))
    clients = np.arange(240) % 4
    y = ((X[:, 0] > 0) ^ (clients % 2 == 1)).astype(int)
    with sklearn.config_context(enable_metadata_routing=True):
        model = whimbrel.MixtureClassifier(2, step=1.0, random_state=0)
        model = model.set_fit_request(clients=True).set_score_request(clients=True)
        folds = KFold(3, shuffle=True, random_state=0)
        scores = cross_val_score(model, X, y, cv=folds, params={"clients": clients})
    # Without its client a row's label is a coin flip.
    assert scores.min() > 0.85
