"""Totals from multiple imputations of generated counts whose law is known.

    python3 benches/draws.py WHIMBREL [SEEDS]

150 sites x 40 months, log-means that are the sum of a site's and a month's effect, three cells in ten observed by
eight clients; counts are Poisson's or negative binomial (shape 2). For the totals of months over all sites: the share
inside the 5 to 95 % range of 100 draws, inside the 90 % bands of `summary.json`, and the standard deviation of the
contrast of the later against the earlier half of the months over what Rubin's rules say of it, which is 1 where draws
are as uncertain as they should be. Needs NumPy.
"""

import collections
import pathlib
import sys
import tempfile

import numpy as np

from low_rank import cells_of, impute, run

SITES, MONTHS, DRAWS, CLIENTS = 150, 40, 100, 8
MODEL = 'rank = 0\nlambda = "auto"\neffects = "row+column"'


def table(law, draw):
    """Counts of all cells, and the mask of observed ones."""
    means = np.exp(1.5 + draw.normal(0, 1, SITES)[:, None] + draw.normal(0, 0.5, MONTHS))
    rates = means * draw.gamma(2, 0.5, means.shape) if law == "negative binomial" else means
    return draw.poisson(rates), draw.random(means.shape) < 0.3


def judged(whimbrel, folder, law, seed):
    """Whether each month's total is in both ranges, and the standardised error of the contrast."""
    draw = np.random.default_rng(seed)
    counts, seen = table(law, draw)
    owner = draw.integers(0, CLIENTS, SITES)
    cells = cells_of(counts, seen, owner)
    bands = {total["column"]: total for total in run(whimbrel, folder, cells, seed, model=MODEL)["totals"]}
    sums = collections.defaultdict(lambda: np.zeros(DRAWS))
    for line in impute(whimbrel, folder, "--draws", str(DRAWS), "--force"):
        sums[line["column"]] += [float(line[f"draw_{k + 1}"]) for k in range(DRAWS)]
    months = sorted(sums)
    truth, drawn = counts.sum(axis=0), np.array([sums[month] for month in months])
    low, high = np.quantile(drawn, [0.05, 0.95], axis=1)
    lower, upper = ([bands[month][end] for month in months] for end in ("lower", "upper"))
    later = np.where(np.arange(MONTHS) < MONTHS // 2, -1, 1)
    contrast = later @ drawn
    error = (contrast.mean() - later @ truth) / np.sqrt((1 + 1 / DRAWS) * contrast.var(ddof=1))
    return (low <= truth) & (truth <= high), (lower <= truth) & (truth <= upper), error


def main(whimbrel, seeds="20"):
    print("| law | in the range of draws | in the bands | error of the contrast |\n|---|---|---|---|")
    for law in ("Poisson", "negative binomial"):
        with tempfile.TemporaryDirectory() as folder:
            found = [judged(whimbrel, pathlib.Path(folder), law, seed) for seed in range(1, int(seeds) + 1)]
        draws, bands, errors = zip(*found)
        print(f"| {law} | {np.mean(draws):.3f} | {np.mean(bands):.3f} | {np.std(errors):.2f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
