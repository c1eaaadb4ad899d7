"""A mixture over a mixed table with missing cells, compared with an independent EM and with other imputations.

    python3 benches/mixed_table.py WHIMBREL [SEEDS]

needs NumPy and scikit-learn. A fifth of the cells of each table is removed at random. `em` fits the rest;
the log-likelihood of its fit is computed here from the observed cells, and an EM of this script (sums over
observed cells for columns that are independent, conditional moments for full covariances) goes on from
there: what it gains in 100 steps is what the fit was short of. `predict` fills the removed cells: the root
mean squared error of numbers and counts, in standard deviations of their columns, and the share of levels
that are right, beside column means (and the commonest level) and scikit-learn's IterativeImputer (levels as
indicators).
"""

import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np

JOB = """name = "mixed"
seed = 1
[data]
source = "csv"
path = "table.csv"
[model]
kind = "mixture"
components = {components}
starts = 10
numeric = "{numeric}"
{more}
[schema]
{types}
[method]
kind = "em"
rounds = 5000
stop = {{ field_norm2 = 1e-24, patience = 1 }}
evaluate = {{ every = 100 }}
"""


def survey(rng):
    """Three groups: correlated numbers, counts, yes or no, a category."""
    n = 2000
    k = rng.choice(3, n, p=[0.4, 0.35, 0.25])
    h = rng.normal(size=n)
    levels = np.array([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
    columns = {
        "age": np.array([45.0, 62.0, 78.0])[k] + 6 * h,
        "pressure": np.array([125.0, 150.0, 135.0])[k] + 6 * h + 8 * rng.normal(size=n),
        "weight": 80 - 5 * k + 10 * rng.normal(size=n),
        "falls": rng.poisson(np.array([0.3, 1.5, 5.0])[k]),
        "visits": rng.poisson(np.array([1.0, 6.0, 3.0])[k]),
        "smoker": (rng.uniform(size=n) < np.array([0.5, 0.2, 0.05])[k]).astype(int),
        "housing": (rng.uniform(size=n)[:, None] > levels.cumsum(1)[k]).sum(1),
    }
    kinds = ["number"] * 3 + ["count"] * 2 + ["yes-no", "category"]
    return columns, kinds, 3


def of_sklearn(load, label, kind):
    from sklearn import datasets

    def table(_):
        data = getattr(datasets, load)(scaled=False) if load == "load_diabetes" else getattr(datasets, load)()
        columns = {f"c{j}": data.data[:, j] for j in range(data.data.shape[1])}
        kinds = ["number"] * len(columns)
        if label == "sex":
            columns["c1"] = (columns["c1"] == 2).astype(int)
            kinds[1] = kind
        else:
            columns[label] = data.target
            kinds.append(kind)
        return columns, kinds, 3

    return table


TABLES = {
    "survey, 2000 x 7": survey,
    "wine with its cultivar, 178 x 14": of_sklearn("load_wine", "cultivar", "category"),
    "diabetes with sex, 442 x 10": of_sklearn("load_diabetes", "sex", "yes-no"),
}


def log_density(x, kinds, model):
    """Log-densities of components for each row, and the completed numbers with their covariances."""
    numbers = [j for j, kind in enumerate(kinds) if kind == "number"]
    counts = [j for j, kind in enumerate(kinds) if kind == "count"]
    from math import lgamma

    n, k = len(x), len(model["weights"])
    score = np.tile(np.log(model["weights"]), (n, 1))
    for at, j in enumerate(counts):
        seen = ~np.isnan(x[:, j])
        cells = x[seen, j]
        rate = np.maximum(model["rates"][:, at], 1e-300)
        score[seen] += cells[:, None] * np.log(rate) - rate - np.array([lgamma(c + 1) for c in cells])[:, None]
    start = 0
    for j, kind in enumerate(kinds):
        if kind in ("number", "count"):
            continue
        width = model["widths"][j]
        p = np.maximum(model["levels"][:, start:start + width], 1e-300)
        seen = ~np.isnan(x[:, j])
        score[seen] += np.log(p)[:, x[seen, j].astype(int)].T
        start += width
    y = x[:, numbers]
    filled = np.repeat(y[:, None, :], k, 1)
    left = {}
    patterns, which = np.unique(~np.isnan(y), axis=0, return_inverse=True)
    for at, seen in enumerate(patterns):
        rows = np.flatnonzero(which.ravel() == at)
        o, m = np.flatnonzero(seen), np.flatnonzero(~seen)
        for c in range(k):
            mean, sigma = model["means"][c], model["sigma"][c]
            shift = y[np.ix_(rows, o)] - mean[o]
            if len(o):
                inverse = np.linalg.inv(sigma[np.ix_(o, o)])
                square = np.einsum("ri,ij,rj->r", shift, inverse, shift)
                score[rows, c] -= 0.5 * (len(o) * np.log(2 * np.pi) + np.linalg.slogdet(sigma[np.ix_(o, o)])[1] + square)
                beta = sigma[np.ix_(m, o)] @ inverse
            else:
                beta = np.zeros((len(m), 0))
            filled[np.ix_(rows, [c], m)] = (mean[m] + shift @ beta.T)[:, None, :]
            rest = np.zeros_like(sigma)
            rest[np.ix_(m, m)] = sigma[np.ix_(m, m)] - beta @ sigma[np.ix_(o, m)]
            left[at, c] = rest
    return score, filled, left, which.ravel()


def likelihood(score):
    top = score.max(1, keepdims=True)
    return (top[:, 0] + np.log(np.exp(score - top).sum(1))).mean()


def em_step(x, kinds, model, full):
    score, filled, left, which = log_density(x, kinds, model)
    top = score.max(1, keepdims=True)
    r = np.exp(score - top)
    r /= r.sum(1, keepdims=True)
    new = dict(model, weights=r.mean(0), means=model["means"].copy(), sigma=model["sigma"].copy(),
               rates=model["rates"].copy(), levels=model["levels"].copy())
    numbers = [j for j, kind in enumerate(kinds) if kind == "number"]
    counts = [j for j, kind in enumerate(kinds) if kind == "count"]
    for c in range(r.shape[1]):
        w = r[:, c]
        if full:
            mean = w @ filled[:, c] / w.sum()
            centred = filled[:, c] - mean
            new["means"][c] = mean
            new["sigma"][c] = (np.einsum("r,ri,rj->ij", w, centred, centred)
                               + sum(w[which == at].sum() * rest for (at, k), rest in left.items() if k == c)) / w.sum()
        else:
            for at, j in enumerate(numbers):
                seen = ~np.isnan(x[:, j])
                mean = w[seen] @ x[seen, j] / w[seen].sum()
                new["means"][c, at] = mean
                new["sigma"][c, at, at] = w[seen] @ (x[seen, j] - mean) ** 2 / w[seen].sum()
        for at, j in enumerate(counts):
            seen = ~np.isnan(x[:, j])
            new["rates"][c, at] = w[seen] @ x[seen, j] / w[seen].sum()
        start = 0
        for j, kind in enumerate(kinds):
            if kind in ("number", "count"):
                continue
            seen, width = ~np.isnan(x[:, j]), model["widths"][j]
            for level in range(width):
                new["levels"][c, start + level] = w[seen] @ (x[seen, j] == level) / w[seen].sum()
            start += width
    return likelihood(score), new


def read_model(folder, kinds, widths):
    model = json.loads((folder / "model/model.json").read_text())
    k = len(model["weights"])
    d = kinds.count("number")
    covariances = np.array(model.get("covariances", np.zeros((k, d))))
    sigma = covariances if covariances.ndim == 3 else np.array([np.diag(v) for v in covariances])
    return {
        "weights": np.array(model["weights"]), "means": np.array(model.get("means", np.zeros((k, 0)))),
        "sigma": sigma, "rates": np.array(model.get("rates", np.zeros((k, 0)))),
        "levels": np.array(model.get("levels", np.zeros((k, 0)))), "widths": widths,
    }


def errors(guess, x, gone, kinds):
    """Root mean squared error of numbers and counts in deviations, and the accuracy of levels."""
    squares, right = [], []
    for j, kind in enumerate(kinds):
        rows = gone[:, j]
        if kind in ("number", "count"):
            squares.extend(((guess[rows, j] - x[rows, j]) / x[:, j].std()) ** 2)
        else:
            right.extend(guess[rows, j] == x[rows, j])
    return np.sqrt(np.mean(squares)), np.mean(right)


def column_means(y, kinds):
    out = y.copy()
    for j, kind in enumerate(kinds):
        cells = y[~np.isnan(y[:, j]), j]
        value = cells.mean() if kind in ("number", "count") else np.bincount(cells.astype(int)).argmax()
        out[np.isnan(y[:, j]), j] = value
    return out


def iterative(y, kinds, widths):
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    parts, places = [], []
    for j, kind in enumerate(kinds):
        if kind in ("number", "count"):
            parts.append(y[:, [j]])
        else:
            # All but the first: together they would determine each other.
            one = np.full((len(y), widths[j] - 1), np.nan)
            seen = ~np.isnan(y[:, j])
            one[seen] = np.eye(widths[j])[y[seen, j].astype(int), 1:]
            parts.append(one)
        places.append(parts[-1].shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        filled = IterativeImputer(max_iter=30, random_state=0).fit_transform(np.hstack(parts))
    out, start = y.copy(), 0
    for j, kind in enumerate(kinds):
        block = filled[:, start:start + places[j]]
        start += places[j]
        gap = np.isnan(y[:, j])
        first = 1 - block[gap].sum(1, keepdims=True)
        out[gap, j] = block[gap, 0] if kind in ("number", "count") else np.hstack([first, block[gap]]).argmax(1)
    return out


def run(whimbrel, make, numeric, seed):
    rng = np.random.default_rng(seed)
    columns, kinds, components = make(rng)
    names = list(columns)
    x = np.column_stack([columns[name] for name in names]).astype(float)
    widths = [int(x[:, j].max()) + 1 if kind in ("yes-no", "category") else 0 for j, kind in enumerate(kinds)]
    gone = rng.uniform(size=x.shape) < 0.2
    y = np.where(gone, np.nan, x)
    types = "\n".join(f'{n} = {{ type = "{k}" }}' for n, k in zip(names, kinds) if k != "number")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with open(folder / "table.csv", "w", newline="") as file:
            out = csv.writer(file)
            out.writerow(names)
            for row in y:
                out.writerow(["" if np.isnan(v) else (repr(float(v)) if k == "number" else str(int(v)))
                              for v, k in zip(row, kinds)])
        more = "reg_covar = 1e-6" if numeric == "full" else ""
        (folder / "job.toml").write_text(JOB.format(components=components, numeric=numeric, types=types, more=more))
        subprocess.run([whimbrel, "run", "job.toml", "--out", "run"], cwd=folder, check=True, capture_output=True)
        model = read_model(folder / "run", kinds, widths)
        summary = json.loads((folder / "run/summary.json").read_text())
        subprocess.run([whimbrel, "predict", "run", "--data", "table.csv", "--out", "filled.csv"], cwd=folder, check=True,
                       capture_output=True)
        filled = list(csv.DictReader(open(folder / "filled.csv")))
    own = -json_objective(summary)
    here = likelihood(log_density(y, kinds, model)[0])
    later, going = here, model
    for _ in range(100):
        later, going = em_step(y, kinds, going, numeric == "full")
    guess = y.copy()
    inside = []
    for j, name in enumerate(names):
        if name not in filled[0]:
            continue
        guess[:, j] = [float(row[name]) for row in filled]
        if kinds[j] in ("number", "count"):
            low = np.array([float(row[name + "_low"]) for row in filled])
            high = np.array([float(row[name + "_high"]) for row in filled])
            rows = gone[:, j]
            inside.extend((x[rows, j] >= low[rows] - 1e-9) & (x[rows, j] <= high[rows] + 1e-9))
    others = [column_means(y, kinds), iterative(y, kinds, widths)]
    return own - here, later - here, [errors(g, x, gone, kinds) for g in [guess, *others]], np.mean(inside)


def json_objective(summary):
    """The final objective of a summary."""
    found = []

    def walk(value, name=""):
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, key)
        elif name == "objective" and isinstance(value, (int, float)):
            found.append(value)

    walk(summary)
    return found[0]


def main():
    whimbrel = str(pathlib.Path(sys.argv[1]).resolve())
    seeds = range(int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    print("| table | numeric | log-likelihood, whimbrel - here | gain of 100 EM steps here | RMSE: mixture / means / iterative "
          "| levels right | inside 90 % |")
    print("|---|---|---|---|---|---|---|")
    for name, make in TABLES.items():
        for numeric in ["diagonal", "full"]:
            all_ = [run(whimbrel, make, numeric, seed) for seed in seeds]
            gap = max(abs(a[0]) for a in all_)
            gain = max(a[1] for a in all_)
            e = np.mean([[list(pair) for pair in a[2]] for a in all_], axis=0)
            inside = np.mean([a[3] for a in all_])
            print(f"| {name} | {numeric} | {gap:.1e} | {gain:.1e} | {e[0][0]:.3f} / {e[1][0]:.3f} / {e[2][0]:.3f} | "
                  f"{e[0][1]:.3f} / {e[1][1]:.3f} / {e[2][1]:.3f} | {inside:.3f} |", flush=True)


if __name__ == "__main__":
    main()
