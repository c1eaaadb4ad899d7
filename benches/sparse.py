"""Draws, intervals and totals of generated tables in which most rows have few cells.

    python3 benches/sparse.py WHIMBREL [SEEDS] [FIRST]

300 sites x 60 months; theta is the sum of a site's and a month's effect and of two factors. Two sites in three have 1 to
15 cells, the others half of them; eight clients, one cell in ten held out, rank and ridge by cross-validation. Counts are
Poisson's or negative binomial (alpha 0.5), numbers have noise of standard deviation 2. By how many cells a row has: the
share of hidden values in their 90 % intervals, the tails of the randomised PIT of 100 draws (0.05 each where draws are as
wide as they should be), and the sums of hidden values and of draws over those of the estimates. For the totals of months:
the share in the 5 to 95 % range of draws and in the 90 % bands of `summary.json`. Needs NumPy.
"""

import collections
import pathlib
import sys
import tempfile

import numpy as np

from low_rank import cells_of, impute, run
from thinned import GROUPS

SITES, MONTHS, DRAWS, CLIENTS = 300, 60, 100, 8


def table(law, draw):
    """Values of all cells, and the mask of observed ones."""
    factors = draw.normal(0, 1, (SITES, 2)) @ draw.normal(0, 0.4, (2, MONTHS))
    theta = 1.5 + draw.normal(0, 1, SITES)[:, None] + draw.normal(0, 0.6, MONTHS) + factors
    if law == "Gaussian":
        values = np.round(3 * theta + draw.normal(0, 2, theta.shape), 4)
    else:
        means = np.exp(theta)
        values = draw.poisson(means * draw.gamma(2, 0.5, means.shape) if law == "negative binomial" else means)
    seen = draw.random(theta.shape) < 0.5
    for row in np.nonzero(draw.random(SITES) < 2 / 3)[0]:
        seen[row] = False
        seen[row, draw.choice(MONTHS, int(2 ** draw.uniform(0, 4)), replace=False)] = True
    return values, seen


def judged(whimbrel, folder, law, seed):
    """The hidden cells (cells of the row, inside, PIT, value, estimate, mean draw), and whether totals are in both ranges."""
    draw = np.random.default_rng(seed)
    values, seen = table(law, draw)
    owner = draw.integers(0, CLIENTS, SITES)
    cells = cells_of(values, seen, owner)
    family = "gaussian" if law == "Gaussian" else "poisson"
    bands = {total["column"]: total for total in run(whimbrel, folder, cells, seed, family=family)["totals"]}
    sums, hidden = collections.defaultdict(lambda: np.zeros(DRAWS)), []
    for line in impute(whimbrel, folder, "--draws", str(DRAWS), "--force"):
        drawn = np.array([float(line[f"draw_{k + 1}"]) for k in range(DRAWS)])
        sums[line["column"]] += drawn
        row = int(line["row"][1:])
        value = values[row, int(line["column"])]
        if line["observed"] == "no":
            below, equal = np.sum(drawn < value), np.sum(drawn == value)
            pit = (below + draw.random() * (equal + 1)) / (DRAWS + 1)
            inside = float(line["lower"]) <= value <= float(line["upper"])
            hidden.append((seen[row].sum(), inside, pit, value, float(line["estimate"]), drawn.mean()))
    truth = [(values[:, int(month)].sum(), *np.quantile(drawn, [0.05, 0.95]), bands[month]) for month, drawn in sums.items()]
    draws = [low <= total <= high for total, low, high, _ in truth]
    return hidden, draws, [band["lower"] <= total <= band["upper"] for total, _, _, band in truth]


def main(whimbrel, seeds="5", first="1"):
    print("| law | cells of the row | hidden cells | coverage | PIT below 0.05 | above 0.95 | hidden / estimates | draws / estimates |")
    print("|---|---|---|---|---|---|---|---|")
    totals = []
    for law in ("Poisson", "negative binomial", "Gaussian"):
        with tempfile.TemporaryDirectory() as folder:
            found = [judged(whimbrel, pathlib.Path(folder), law, seed) for seed in range(int(first), int(first) + int(seeds))]
        hidden = np.array([cell for cells, _, _ in found for cell in cells])
        totals.append((law, np.mean([draws for _, draws, _ in found]), np.mean([bands for _, _, bands in found])))
        for low, high in GROUPS:
            of = hidden[(hidden[:, 0] >= low) & (hidden[:, 0] <= high)]
            label = f"{low}" if low == high else f"{low} to {high}" if high < 10**9 else f"{low} and more"
            share, pit, (value, estimate, drawn) = of[:, 1].mean(), of[:, 2], of[:, 3:].sum(axis=0)
            tails = f"{np.mean(pit < 0.05):.3f} | {np.mean(pit > 0.95):.3f}"
            print(f"| {law} | {label} | {len(of)} | {share:.3f} | {tails} | {value / estimate:.2f} | {drawn / estimate:.2f} |", flush=True)
    print("\n| law | totals in the range of draws | in the bands |\n|---|---|---|")
    for law, draws, bands in totals:
        print(f"| {law} | {draws:.3f} | {bands:.3f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
