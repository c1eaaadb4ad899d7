"""Optima that whimbrel's solver must reproduce, by SciPy's L-BFGS.

Usage: python convex.py > convex.txt      (made with SciPy 1.17.1, NumPy 2.4.6, Python 3.11)
       python convex.py a9a.gz            the value and the gradient's norm of logistic regression
                                          with an intercept on that file

The data are exact in binary, so that the test can make them again: sums of uniform numbers of a
31-bit linear congruential generator. Clients have 40, 80, ... rows and equal weights. Each line is
a case: problem, columns, clients, ridge, intercept, then the norm of the gradient that L-BFGS
reached, the optimal value and the parameter.
"""

import gzip
import sys

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


def lbfgs(problem, clients, ridge):
    count = len(clients)

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

    w = np.zeros(clients[0][0].shape[1])
    options = {"maxcor": 100, "ftol": 0.0, "gtol": 1e-14, "maxiter": 10**5, "maxfun": 10**6}
    for _ in range(3):
        found = minimize(value_and_gradient, w, jac=True, method="L-BFGS-B", options=options)
        w = found.x
    return np.linalg.norm(value_and_gradient(w)[1]), found.fun, w


def libsvm(path):
    lines = [line.split() for line in gzip.open(path, "rt")]
    cells = [[cell.split(":") for cell in line[1:]] for line in lines]
    width = max(int(column) for row in cells for column, _ in row)
    x = np.zeros((len(lines), width + 1))
    x[:, width] = 1.0
    for i, row in enumerate(cells):
        for column, value in row:
            x[i, int(column) - 1] = float(value)
    return x, np.array([float(line[0]) for line in lines])


def case(problem, columns, count, ridge, intercept):
    clients = [client(number, columns, problem) for number in range(count)]
    if intercept:
        clients = [(np.column_stack([x, np.ones(len(x))]), y) for x, y in clients]

    norm, value, w = lbfgs(problem, clients, ridge)
    numbers = [norm, value, *w]
    print(problem, columns, count, ridge, int(intercept), *(repr(float(v)) for v in numbers))


if len(sys.argv) > 1:
    norm, value, _ = lbfgs("logistic", [libsvm(sys.argv[1])], 0.0)
    print(repr(float(value)), repr(float(norm)))
    sys.exit()
print(f"# SciPy {scipy.__version__}, NumPy {np.__version__}")
for problem in ["least-squares", "logistic"]:
    for columns, count in [(2, 1), (5, 4), (9, 3)]:
        for ridge in [0.0, 0.01]:
            case(problem, columns, count, ridge, False)
            case(problem, columns, count, ridge, True)
