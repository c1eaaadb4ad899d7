"""Coverage of intervals and standard errors of a low-rank fit, on tables with known truth.

    python3 benches/coverage.py WHIMBREL [REPEATS]

Tables of three families with main effects and a product of rank 1, half or an eighth of their cells
observed by five clients. Every cell that nobody observed is drawn anew and held against the completed
table: the share inside its 90 % interval, and the mean of ((value - estimate)/se)^2, of all cells and
without the largest hundredth.
"""

import pathlib
import sys
import tempfile

import numpy as np

from low_rank import AUTO, impute, run

COLUMNS, CLIENTS = 24, 5
TABLES = {"80 x 24, half": (80, 0.5), "300 x 24, an eighth": (300, 0.125)}
MODELS = {
    "rank 2, lambda 0.1": ("rank = 2\nlambda = 0.1", 0.0),
    "rank 0": ("rank = 0\nlambda = 0", 0.0),
    "auto": (AUTO, 0.0),
    "auto, holdout 0.1": (AUTO, 0.1),
}


def table(family, rows, share, seed):
    """The observed cells, and another draw of all."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(0, 0.8, (rows, 1)) + rng.normal(0, 0.4, COLUMNS)
    theta = effects + rng.normal(0, 0.6, (rows, 1)) * rng.normal(0, 0.6, COLUMNS)

    def draw():
        if family == "poisson":
            return rng.poisson(np.exp(1.5 + theta))
        if family == "gaussian":
            return 2 * theta + rng.normal(0, 1.5, theta.shape)
        return (rng.random(theta.shape) < 1 / (1 + np.exp(-theta))).astype(int)

    values, seen = draw(), rng.random(theta.shape) < share
    names = ("observer", "site", "month", "count")
    cells = zip(*np.nonzero(seen))
    return [dict(zip(names, (row % CLIENTS, f"s{row}", column, values[row, column]))) for row, column in cells], draw()


def main(whimbrel, repeats="10"):
    whimbrel = pathlib.Path(whimbrel).resolve()
    print("| family | table | model | coverage | mean z^2 | without the largest 1 % |\n|---|---|---|---|---|---|")
    for family in ("poisson", "gaussian", "bernoulli"):
        for name, (rows, share) in TABLES.items():
            for model, (keys, holdout) in MODELS.items():
                inside, z2 = [], []
                for seed in range(int(repeats)):
                    with tempfile.TemporaryDirectory() as folder:
                        folder = pathlib.Path(folder)
                        cells, new = table(family, rows, share, seed)
                        model_keys = f'effects = "row+column"\n{keys}'
                        run(whimbrel, folder, cells, seed + 1, holdout=holdout, family=family, model=model_keys)
                        for cell in impute(whimbrel, folder):
                            if cell["observed"] == "no":
                                value = new[int(cell["row"][1:]), int(cell["column"])]
                                inside.append(float(cell["lower"]) <= value <= float(cell["upper"]))
                                z2.append(((value - float(cell["estimate"])) / float(cell["se"])) ** 2)
                bulk = np.sort(z2)[: int(0.99 * len(z2))]
                figures = f"{100 * np.mean(inside):.0f} % | {np.mean(z2):.2f} | {np.mean(bulk):.2f}"
                print(f"| {family} | {name} | {model} | {figures} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
