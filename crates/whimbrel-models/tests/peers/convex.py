"""Optima that whimbrel's solver must reproduce, by SciPy's L-BFGS.

Usage: python convex.py > convex.txt      (made with SciPy 1.17.1, NumPy 2.4.6, Python 3.11)

The data are exact in binary, so that the test can make them again: sums of uniform numbers of a
31-bit linear congruential generator. Clients have 40, 80, ... rows and equal weights. Each line is
a case: problem, columns, clients, ridge, intercept, then the norm of the gradient that L-BFGS
reached, the optimal value and the parameter.
"""

import numpy as np
import scipy
from scipy.optimize import minimize


def draws(seed):
    state = seed
    while True:
        total = 0.0
        for _ in range(12):
            state = (1103515245 * state + 12345) % 2**31
            total += state / 2**31
        yield total - 6.0


def client(number, columns, problem):
    numbers = draws(1000 + number)
    rows, targets = [], []
    for _ in range(40 * (number + 1)):
        x = [next(numbers) for _ in range(columns)]
        value = (x[0] - 0.5 * x[1]) + (0.25 * number + next(numbers))
        rows.append(x)
        targets.append(value if problem == "least-squares" else (1.0 if value > 0 else -1.0))
    return np.array(rows), np.array(targets)


def case(problem, columns, count, ridge, intercept):
    clients = [client(number, columns, problem) for number in range(count)]
    if intercept:
        clients = [(np.column_stack([x, np.ones(len(x))]), y) for x, y in clients]

    def value_and_gradient(w):
        value, gradient = 0.5 * ridge * w @ w, ridge * w
        for x, y in clients:
            z = x @ w
            if problem == "least-squares":
                losses, slopes = 0.5 * (z - y) ** 2, z - y
            else:
                losses, slopes = np.logaddexp(0.0, -y * z), -y / (1.0 + np.exp(y * z))
            value = value + losses.mean() / count
            gradient = gradient + x.T @ slopes / len(y) / count
        return value, gradient

    found = minimize(
        value_and_gradient,
        np.zeros(columns + intercept),
        jac=True,
        method="L-BFGS-B",
        options={"maxcor": 50, "ftol": 0.0, "gtol": 1e-14, "maxiter": 10000, "maxfun": 100000},
    )
    numbers = [np.linalg.norm(value_and_gradient(found.x)[1]), found.fun, *found.x]
    print(problem, columns, count, ridge, int(intercept), *(repr(float(v)) for v in numbers))


print(f"# SciPy {scipy.__version__}, NumPy {np.__version__}")
for problem in ["least-squares", "logistic"]:
    for columns, count in [(2, 1), (5, 4), (9, 3)]:
        for ridge in [0.0, 0.01]:
            case(problem, columns, count, ridge, False)
            case(problem, columns, count, ridge, True)
