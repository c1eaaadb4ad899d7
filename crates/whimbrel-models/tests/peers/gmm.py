"""Fits that whimbrel's mixtures must reproduce, by scikit-learn, from the same start.

Usage: python gmm.py > gmm.txt      (made with scikit-learn 1.9.1, NumPy 2.4.6, Python 3.11; last digits differ by machine)

The data are exact in binary, so that the test can make them again: sums of uniform numbers of a
31-bit linear congruential generator, plus a shift per cluster. Each line is a case: covariance,
columns, components, reg_covar, iterations, then mean log-likelihood, weights, means, covariances.
"""

import warnings

import numpy as np
import sklearn
from sklearn.mixture import GaussianMixture


def rows(count, columns, components):
    state, out = 12345, []
    for i in range(count):
        row = []
        for j in range(columns):
            total = 0.0
            for _ in range(12):
                state = (1103515245 * state + 12345) % 2**31
                total += state / 2**31
            shift = 2.5 * ((i % components) * (1 if j % 2 == 0 else -1))
            scale = 0.5 * (1 + (i % components))
            row.append(scale * (total - 6.0) + shift)
        out.append(row)
    return np.array(out)


def case(covariance, columns, components, reg_covar, iterations):
    x = rows(400, columns, components)
    means = x[[7 * k + k for k in range(components)]]
    precision = {
        "tied": np.eye(columns),
        "diag": np.ones((components, columns)),
        "spherical": np.ones(components),
        "full": np.stack([np.eye(columns)] * components),
    }[covariance]
    fit = GaussianMixture(
        components,
        covariance_type=covariance,
        tol=0,
        reg_covar=reg_covar,
        max_iter=iterations,
        init_params="random",
        weights_init=np.full(components, 1 / components),
        means_init=means,
        precisions_init=precision,
    ).fit(x)
    numbers = [fit.score(x), *fit.weights_, *fit.means_.ravel(), *fit.covariances_.ravel()]
    print(covariance, columns, components, reg_covar, iterations, *(repr(float(v)) for v in numbers))


warnings.filterwarnings("ignore")
print(f"# scikit-learn {sklearn.__version__}, NumPy {np.__version__}")
for kind in ["tied", "diag", "full", "spherical"]:
    for reg_covar in [0.0, 0.001]:
        case(kind, 3, 3, reg_covar, 1)
        case(kind, 3, 3, reg_covar, 60)
    case(kind, 1, 2, 0.0, 40)
    case(kind, 5, 1, 0.0, 2)
