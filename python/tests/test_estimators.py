"""Estimators: against scikit-learn, with clients, pickled, with wrong input."""

from __future__ import annotations

import pickle
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import whimbrel
from sklearn import linear_model, mixture
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import compute_sample_weight

ALL = [
    whimbrel.GaussianMixture(2, random_state=0),
    whimbrel.LogisticRegression(),
    whimbrel.MixtureClassifier(2, max_iter=10),
    whimbrel.MixtureRegressor(2, max_iter=10),
    whimbrel.BayesianClassifier(max_iter=2),
    whimbrel.LowRankImputer(rank=1),
]


def by_first_mean(model: object) -> np.ndarray:
    return np.lexsort(model.means_.T[::-1])  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("federated", [False, True])
def test_a_mixture_is_that_of_scikit_learn(blobs: tuple, kind: str, federated: bool) -> None:
    X, _, clients = blobs
    theirs = mixture.GaussianMixture(3, covariance_type=kind, tol=1e-9, max_iter=1000).fit(X)
    ours = whimbrel.GaussianMixture(3, covariance_type=kind, random_state=0)
    ours.fit(X, clients=clients if federated else None)
    # Both stop near the same maximum of the likelihood: ours at an update below 1e-5 of its largest.
    assert ours.score(X) == pytest.approx(theirs.score(X), abs=1e-4)
    mine, other = by_first_mean(ours), by_first_mean(theirs)
    np.testing.assert_allclose(ours.means_[mine], theirs.means_[other], atol=2e-2)
    np.testing.assert_allclose(ours.weights_[mine], theirs.weights_[other], atol=1e-2)
    np.testing.assert_allclose(ours.predict_proba(X)[:, mine], theirs.predict_proba(X)[:, other], atol=2e-2)
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), atol=5e-2)
    assert ours.bic(X) == pytest.approx(theirs.bic(X), rel=1e-3)
    assert ours.covariances_.shape == theirs.covariances_.shape
    if kind != "tied":
        np.testing.assert_allclose(ours.covariances_[mine], theirs.covariances_[other], atol=5e-2)
    assert (ours.predict(X) == ours.predict_proba(X).argmax(1)).all()


def test_logistic_regression_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 3))
    y = np.where(X @ [1.0, -2.0, 0.5] + rng.normal(size=400) > 0, "b", "a")
    ridge = 0.01
    theirs = linear_model.LogisticRegression(C=1 / (ridge * len(X)), fit_intercept=False, tol=1e-10)
    theirs.fit(X, y)
    for method, within in [({"kind": "sgd", "rounds": 3000}, 1e-4), ("newton", 1e-6)]:
        ours = whimbrel.LogisticRegression(ridge=ridge, method=method, fit_intercept=False)
        ours.fit(X, y, clients=np.arange(400) % 4)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=within)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=within)
        np.testing.assert_allclose(ours.decision_function(X), X @ ours.coef_[0], atol=1e-12)
    assert list(ours.classes_) == ["a", "b"]
    assert (ours.predict(X) == theirs.predict(X)).mean() > 0.99


def test_several_classes_and_weights_are_those_of_scikit_learn(blobs: tuple) -> None:
    X, labels, clients = blobs
    X = X + np.random.default_rng(0).normal(scale=3.0, size=X.shape)
    # Without a penalty the parametrisation does not matter.
    theirs = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(X, labels)
    ours = whimbrel.LogisticRegression(ridge=0.0).fit(X, labels, clients=clients)
    assert ours.converged_
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(np.exp(ours.predict_log_proba(X)).sum(1), 1.0)
    assert ours.coef_.shape == theirs.coef_.shape and len(ours.summary()) == 6
    y, weights = labels % 2, np.arange(len(X)) % 3
    ridge = 0.01
    for by_class in (None, "balanced", {0: 1.0, 1: 5.0}):
        scale = weights * compute_sample_weight(by_class, y)
        theirs = linear_model.LogisticRegression(C=1 / (ridge * scale.sum()), tol=1e-10)
        theirs.fit(X, y, sample_weight=scale)
        ours = whimbrel.LogisticRegression(ridge=ridge, class_weight=by_class)
        ours.fit(X, y, clients=clients, sample_weight=weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_a_mixture_starts_where_it_is_told_and_gives_samples(blobs: tuple, kind: str) -> None:
    X, _, clients = blobs
    fitted = whimbrel.GaussianMixture(3, covariance_type=kind, random_state=0).fit(X, clients=clients)
    theirs = mixture.GaussianMixture(3, covariance_type=kind, tol=1e-9, means_init=fitted.means_).fit(X)
    np.testing.assert_allclose(fitted.precisions_, theirs.precisions_, rtol=0.05, atol=0.05)
    order = [2, 0, 1]
    told = whimbrel.GaussianMixture(
        3,
        covariance_type=kind,
        weights_init=fitted.weights_[order],
        means_init=fitted.means_[order],
        precisions_init=fitted.precisions_ if kind == "tied" else fitted.precisions_[order],
    ).fit(X, clients=clients)
    np.testing.assert_allclose(told.means_, fitted.means_[order], atol=1e-3)
    assert told.n_iter_ <= fitted.n_iter_
    again = clone(fitted).set_params(warm_start=True).fit(X, clients=clients).fit(X, clients=clients)
    assert again.n_iter_ <= fitted.n_iter_
    only_means = whimbrel.GaussianMixture(3, covariance_type=kind, means_init=fitted.means_).fit(X, clients=clients)
    np.testing.assert_allclose(only_means.means_, fitted.means_, atol=1e-2)
    rows, labels = fitted.sample(4000)
    assert rows.shape == (4000, X.shape[1]) and (np.diff(labels) >= 0).all()
    # Five standard errors of a mean and of a share.
    np.testing.assert_allclose(rows.mean(0), fitted.weights_ @ fitted.means_, atol=5 * rows.std() / 4000**0.5)
    np.testing.assert_allclose(np.bincount(labels) / 4000, fitted.weights_, atol=5 * 0.5 / 4000**0.5)
    refitted = mixture.GaussianMixture(3, covariance_type=kind, means_init=fitted.means_).fit(rows)
    np.testing.assert_allclose(fitted.covariances_, refitted.covariances_, atol=0.3)
    for wrong, words in [({"means_init": np.eye(2)}, "means_init"), ({"weights_init": [1.0]}, "need `means_init`")]:
        with pytest.raises(ValueError, match=words):
            whimbrel.GaussianMixture(3, **wrong).fit(X)


def test_seeds_are_those_of_scikit_learn(blobs: tuple) -> None:
    X, _, clients = blobs

    def seed(random_state: object) -> str:
        model = whimbrel.GaussianMixture(1, random_state=random_state).fit(X, clients=clients)
        return next(line for line in model.run_.job.splitlines() if line.startswith("seed"))

    assert seed(None) != seed(None)
    assert seed(7) == "seed = 7"
    assert seed(np.random.default_rng(3)) == seed(np.random.default_rng(3)) != seed(np.random.default_rng(4))


def test_an_estimator_outlives_its_folder(blobs: tuple) -> None:
    X, _, clients = blobs
    model = whimbrel.GaussianMixture(3, random_state=0, n_jobs=2).fit(X, clients=clients)
    expected = model.predict_proba(X)
    shutil.rmtree(model.run_.folder)
    np.testing.assert_array_equal(model.predict_proba(X), expected)
    with pytest.raises(ValueError, match="n_jobs"):
        whimbrel.GaussianMixture(3, n_jobs=0).fit(X)


def test_a_column_names_the_clients(blobs: tuple) -> None:
    X, _, clients = blobs
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(ward=clients)
    named = whimbrel.GaussianMixture(3, random_state=0).fit(frame, clients="ward")
    assert list(named.feature_names_in_) == ["a", "b"]
    listed = whimbrel.GaussianMixture(3, random_state=0).fit(X, clients=clients)
    np.testing.assert_array_equal(named.means_, listed.means_)
    for wrong in (frame, X):
        with pytest.raises(ValueError, match="not a column of X"):
            whimbrel.GaussianMixture(3).fit(wrong, clients="wing")


def test_a_list_of_arrays_is_the_same_federation_as_ids(blobs: tuple) -> None:
    X, _, _ = blobs
    parts = np.array_split(X, 4)
    ids = np.repeat([0, 1, 2, 3], [len(part) for part in parts])
    listed = whimbrel.GaussianMixture(3, random_state=0).fit(parts)
    named = whimbrel.GaussianMixture(3, random_state=0).fit(X, clients=ids)
    np.testing.assert_array_equal(listed.means_, named.means_)


def test_forms_of_arrays_do_not_matter(blobs: tuple) -> None:
    X, _, clients = blobs
    X = X.astype(np.float32)
    fits = [
        whimbrel.GaussianMixture(3, random_state=0).fit(form, clients=ids).means_
        for form, ids in [
            (X, clients),
            (X.astype(np.float64), clients.astype(str)),
            (np.asfortranarray(X), clients.tolist()),
            (np.repeat(X, 2, axis=0)[::2], clients),
        ]
    ]
    for fit in fits[1:]:
        np.testing.assert_array_equal(fit, fits[0])


def test_keys_of_a_job_are_parameters(blobs: tuple) -> None:
    X, _, _ = blobs
    model = whimbrel.GaussianMixture(
        3,
        method={"kind": "fedem", "rounds": 5, "participation": 0.5},
        uplink={"codec": {"kind": "dithering", "levels": 2}, "alpha": 0.5},
        data={"split": {"by": "iid", "clients": 7}},
        model={"weight_floor": 1e-6},
        random_state=4,
    ).fit(X)
    assert model.n_iter_ == 5 and len(model.run_.clients) == 7
    for line in ("alpha = 0.5", "participation = 0.5", "weight_floor = 1e-6", "levels = 2"):
        assert line in model.run_.job


def test_personal_models_serve_their_clients_and_new_ones() -> None:
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(800, 2)), np.arange(800) % 8
    y = ((X[:, 0] > 0) ^ (clients % 2 == 1)).astype(int)
    model = whimbrel.MixtureClassifier(2, step=1.0, random_state=0).fit(X, y, clients=clients)
    assert model.score(X, y, clients=clients) > 0.95
    np.testing.assert_allclose(model.predict_proba(X, clients=clients).sum(1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="client"):
        model.predict(X)
    with pytest.raises(ValueError, match="was not in the fit"):
        model.predict(X, clients=np.full(800, 99))
    new = model.adapt(X[:40], (X[:40, 0] <= 0).astype(int))
    assert new.score(X, (X[:, 0] <= 0).astype(int)) > 0.95
    again = pickle.loads(pickle.dumps(new))
    expected = new.predict(X)
    np.testing.assert_array_equal(again.predict(X), expected)
    for folder in (new.adapted_.folder, new.run_.folder):
        shutil.rmtree(folder)
    np.testing.assert_array_equal(new.predict(X), expected)
    (new.adapted_.folder / "model.safetensors").unlink()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(new)).predict(X), expected)


def test_a_posterior_says_how_sure_it_is() -> None:
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(300, 2)), np.arange(300) % 3
    y = (X[:, 0] > 0).astype(int)
    model = whimbrel.BayesianClassifier(max_iter=30, random_state=0).fit(X, y, clients=clients)
    assert model.score(X, y, clients=clients) > 0.9
    unsure = model.predict_uncertainty(X, clients=clients)
    assert (unsure["mutual_information"] <= unsure["entropy"] + 1e-6).all()
    near = np.abs(X[:, 0]) < 0.1
    assert unsure["entropy"][near].mean() > unsure["entropy"][~near].mean()
    assert model.adapt(X[:20], y[:20]).score(X, y) > 0.9


def test_a_table_keeps_what_was_observed_and_fills_the_rest() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(60, 1)) @ rng.normal(size=(1, 8))
    gaps = rng.random(truth.shape) < 0.25
    X = np.where(gaps, np.nan, truth)
    imputer = whimbrel.LowRankImputer(rank=1).fit(X, clients=np.arange(60) % 3)
    filled = imputer.transform(X)
    np.testing.assert_array_equal(filled[~gaps], X[~gaps])
    assert np.abs(filled - truth)[gaps].mean() < 0.3 * np.abs(truth)[gaps].mean()
    intervals = imputer.intervals()
    assert (intervals["lower"] <= intervals["upper"]).all()
    new = rng.normal(size=(5, 1)) @ np.linalg.svd(truth)[2][:1]
    hidden = np.where(np.arange(8) == 2, np.nan, new)
    assert np.isfinite(imputer.transform(hidden)).all()


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
def test_estimators_are_cloned_and_pickled(estimator: object, blobs: tuple) -> None:
    X, labels, clients = blobs
    y = labels % 2
    model = clone(estimator)
    assert model.get_params().keys() == estimator.get_params().keys()
    model.fit(X, y, clients=clients)
    assert set(model.history_) >= {"round"}
    again = pickle.loads(pickle.dumps(model))
    use = "transform" if hasattr(model, "transform") else "predict"
    extra = {"clients": clients} if hasattr(model, "adapt") else {}
    np.testing.assert_array_equal(getattr(again, use)(X, **extra), getattr(model, use)(X, **extra))


@pytest.mark.parametrize(
    ("X", "clients", "kind", "words"),
    [
        (np.ones(5), None, ValueError, "2D"),
        (np.full((5, 2), np.nan), None, ValueError, "NaN"),
        (np.array([["a", "b"], ["c", "d"]], dtype=object), None, ValueError, "string"),
        (np.eye(4), [1, 2, 3], ValueError, "each of the 4 rows"),
        (np.eye(4), [1, 2, None, 3], ValueError, "without a client"),
        (np.eye(4), [1.0, np.nan, 2.0, 3.0], ValueError, "without a client"),
        (np.eye(4), pd.Series(["a", None, "b", "c"]), ValueError, "without a client"),
        (np.eye(4), pd.Series(["a", np.nan, "b", "c"], dtype=object), ValueError, "without a client"),
        (np.eye(4), pd.Series([1, None, 2, 3], dtype="Int64"), ValueError, "without a client"),
        (np.eye(4), pd.to_datetime(pd.Series(["2020-01-01", None] * 2)), ValueError, "without a client"),
        ([np.eye(3), np.eye(2)], None, ValueError, "columns"),
        ([np.eye(3), np.eye(3)], ["a", "a"], ValueError, "client 'a'"),
        ([np.eye(3), np.eye(3)], ["a"], ValueError, "each of the 2 arrays"),
        (np.eye(4) * 1j, None, ValueError, "omplex"),
    ],
)
def test_wrong_arrays_are_exceptions(X: object, clients: object, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        whimbrel.GaussianMixture().fit(X, clients=clients)


def test_wrong_parameters_are_exceptions(blobs: tuple) -> None:
    X, labels, _ = blobs
    for estimator, words in [
        (whimbrel.GaussianMixture(0), "components"),
        (whimbrel.GaussianMixture(covariance_type="round"), "covariance_type"),
        (whimbrel.GaussianMixture(random_state=-1), "random_state"),
        (whimbrel.GaussianMixture(method="fedsomething"), "fedsomething"),
        (whimbrel.GaussianMixture(uplink={"codek": 1}), "codek"),
        (whimbrel.LogisticRegression(ridge=-1.0), "ridge"),
    ]:
        with pytest.raises(ValueError, match=words):
            estimator.fit(X, labels % 2)
    with pytest.raises(ValueError, match="'sgd' fits two classes, and the data have 3"):
        whimbrel.LogisticRegression(method="sgd").fit(X, labels)
    with pytest.raises(ValueError, match="'sgd' takes no weights"):
        whimbrel.LogisticRegression(method="sgd", class_weight="balanced").fit(X, labels % 2)
    with pytest.raises(ValueError, match="class 'x', which the data lack"):
        whimbrel.LogisticRegression(class_weight={"x": 2.0}).fit(X, labels % 2)
    with pytest.raises(TypeError, match="dict"):
        whimbrel.GaussianMixture(uplink=3).fit(X)


@pytest.fixture
def halves() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of four clients, whose class is the sign of the first column."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    return X, (X[:, 0] > 0).astype(int), np.arange(400) % 4


def test_who_holds_the_rows_is_said_once(halves: tuple) -> None:
    X, _, clients = halves
    for estimator in [
        whimbrel.GaussianMixture(data={"split": {"by": "iid", "clients": 2}}),
        whimbrel.GaussianMixture(method="em"),
    ]:
        with pytest.raises(ValueError, match="`clients` assigns rows to clients"):
            estimator.fit(X, clients=clients)


def test_columns_need_no_scaling(halves: tuple) -> None:
    X, y, clients = halves
    X = X * [1.0, 100.0, 0.01] + [0.0, 1000.0, 5.0]
    for model in (whimbrel.MixtureClassifier(2), whimbrel.BayesianClassifier()):
        assert model.fit(X, y, clients=clients).score(X, y, clients=clients) > 0.95
    target = 2 * X[:, 0] + 0.01 * X[:, 1]
    assert whimbrel.MixtureRegressor(2).fit(X, target, clients=clients).score(X, target, clients=clients) > 0.95
    raw = whimbrel.MixtureRegressor(2, standardize=False)
    assert "standardize = false" in raw.fit(X[:, :1], target, clients=clients).run_.job


def test_models_predict_what_their_estimator_does(halves: tuple) -> None:
    X, y, clients = halves
    for kind in ("mlp", {"kind": "softmax"}):
        with pytest.raises(ValueError, match="classes.*'linear' and 'linear-representation'"):
            whimbrel.MixtureRegressor(model=kind).fit(X, X[:, 0], clients=clients)
    with pytest.raises(ValueError, match="'linear', which predicts numbers"):
        whimbrel.MixtureClassifier(model="linear").fit(X, y, clients=clients)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedopt"])
def test_clients_with_nothing_of_their_own_share_a_model(halves: tuple, method: str) -> None:
    X, y, clients = halves
    model = whimbrel.MixtureClassifier(method=method, max_iter=3).fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict(X, clients=clients), model.predict(X))
    with pytest.raises(ValueError, match="client 'x' was not in the fit"):
        model.predict(X, clients=np.full(400, "x"))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X, clients=clients), model.predict(X))


def test_who_has_a_model_to_predict_by_is_said_in_words_of_python(halves: tuple) -> None:
    X, y, clients = halves
    mixed = whimbrel.MixtureClassifier(2, max_iter=3).fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="name the rows' clients in `clients`"):
        mixed.predict(X)
    tuned = whimbrel.MixtureClassifier(method="fedavg+", max_iter=3).fit(X, y, clients=clients)
    with pytest.raises(ValueError, match=r"adapt\(X, y\) fits one"):
        tuned.predict(X, clients=clients)
    with pytest.raises(ValueError, match="name the rows' clients in `clients`"):
        whimbrel.BayesianClassifier(max_iter=3).fit(X, y, clients=clients).predict(X)
    assert tuned.adapt(X[:40], y[:40]).predict(X).shape == y.shape


def test_a_mixture_says_whether_it_converged(blobs: tuple) -> None:
    X, _, clients = blobs
    overlapping = np.random.default_rng(0).normal(size=(400, 3))
    for max_iter, said in [(1, "1 round,"), (3, "3 rounds,")]:
        with pytest.warns(ConvergenceWarning, match=f"stopped after {said}"):
            model = whimbrel.GaussianMixture(2, max_iter=max_iter, random_state=0).fit(overlapping)
        assert not model.converged_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert whimbrel.GaussianMixture(3).fit(X, clients=clients).converged_
        assert whimbrel.GaussianMixture(3, max_iter=100).fit(X, clients=clients).converged_


def test_a_table_of_a_method_has_the_estimators_own_kind(halves: tuple) -> None:
    X, y, clients = halves
    for estimator, line in [
        (whimbrel.BayesianClassifier(max_iter=2, method={"steps": 20}), 'kind = "fedsoul"'),
        (whimbrel.LogisticRegression(method={"errors": "robust"}), 'kind = "newton"'),
        (whimbrel.LowRankImputer(rank=1, penalty=1.0, method={"rounds": 2}), 'kind = "fedmiss"'),
        (whimbrel.MixtureClassifier(2, max_iter=2, method={"participation": 0.5}), 'kind = "fedmix"'),
    ]:
        assert line in estimator.fit(X, y, clients=clients).run_.job


def test_scores_are_those_of_scikit_learn(halves: tuple) -> None:
    X, y, clients = halves
    model = whimbrel.MixtureClassifier(2, max_iter=10).fit(X, y, clients=clients)
    right = float((model.predict(X, clients=clients) == y).mean())
    assert model.score(X, y, clients=clients) == right
    assert model.score(X, y[:, None], clients=clients) == right
    for wrong in (None, [1], y[:-1]):
        with pytest.raises((ValueError, TypeError)):
            model.score(X, wrong, clients=clients)


def test_uncertainties_need_a_posterior(halves: tuple) -> None:
    X, y, clients = halves
    method = {"kind": "fedmix", "components": 2, "step": 0.1}
    model = whimbrel.BayesianClassifier(max_iter=2, method=method).fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="'fedmix' has no posterior"):
        model.predict_uncertainty(X, clients=clients)


def test_warnings_point_at_the_caller(halves: tuple) -> None:
    X, _, _ = halves
    with pytest.warns(UserWarning) as seen:
        whimbrel.GaussianMixture(2, max_iter=1, random_state=0).fit(X)
    assert {warning.filename for warning in seen} == {__file__}


def test_weights_of_evaluations_are_an_array(blobs: tuple) -> None:
    X, _, clients = blobs
    history = whimbrel.GaussianMixture(3).fit(X, clients=clients).history_
    assert history["weights"].shape == (len(history["round"]), 3)
    np.testing.assert_allclose(history["weights"][-1].sum(), 1)
    assert len(history.to_pandas()) == len(history["round"])


def test_a_completed_frame_keeps_its_columns() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 1)) @ rng.normal(size=(1, 3))
    X[::7, 1] = np.nan
    frame = pd.DataFrame(X, columns=["age", "dose", "score"], index=np.arange(40) * 2)
    imputer = whimbrel.LowRankImputer(rank=1, penalty=0.1).set_output(transform="pandas")
    filled = imputer.fit_transform(frame)
    assert list(filled.columns) == ["age", "dose", "score"] and list(filled.index) == list(frame.index)
    assert list(imputer.get_feature_names_out()) == ["age", "dose", "score"]
    assert filled.notna().all(axis=None)


def test_several_starts_differ_and_the_first_is_that_of_one() -> None:
    # Raw wine has two optima, of which k-means of one draw finds either.
    from sklearn.datasets import load_wine

    X = load_wine().data
    best = []
    for seed in range(3):
        one, five = (
            whimbrel.GaussianMixture(3, covariance_type="tied", n_init=n, random_state=seed).fit(X).score(X)
            for n in (1, 5)
        )
        assert five > one - 1e-6
        best.append(five)
    assert max(best) - min(best) < 1e-6


def test_frames_of_clients_have_the_same_columns() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2)) + [0.0, 100.0]
    frame = pd.DataFrame(rows, columns=["a", "b"])
    fitted = whimbrel.GaussianMixture(1).fit([frame[:100], frame[100:]])
    assert list(fitted.feature_names_in_) == ["a", "b"]
    for other in (frame[100:][["b", "a"]], frame[100:].rename(columns={"a": "c"})):
        with pytest.raises(ValueError, match="differ in their columns"):
            whimbrel.GaussianMixture(1).fit([frame[:100], other])
