"""A regression pooled over the imputations of a completed table, by Rubin's rules.

    whimbrel impute RUN --draws 20 --out drawn.csv
    python3 examples/pool_draws.py drawn.csv

In each imputation the totals of the table's columns are regressed on their number (1, 2, ...): the slope of
the logarithm is the trend per column. The pooled estimate is the mean of the slopes; its variance is the
mean of their own variances (what a complete table would leave open) plus (1 + 1/m) times the variance
between them (what the missing cells leave open). The degrees of freedom are Rubin's (1987). Standard
library only.
"""

import collections
import csv
import math
import statistics
import sys


def totals(path):
    """The total of each column, in each imputation."""
    with open(path, newline="") as file:
        lines = csv.DictReader(file)
        draws = [name for name in lines.fieldnames if name.startswith("draw_")]
        sums = {draw: collections.defaultdict(float) for draw in draws}
        for line in lines:
            for draw in draws:
                sums[draw][line["column"]] += float(line[draw])
    return [list(of.values()) for of in sums.values()]


def slope(values):
    """Slope of the logarithms on 1, 2, ..., and its variance."""
    x, y = range(1, len(values) + 1), [math.log(max(value, 0.5)) for value in values]
    fit = statistics.linear_regression(x, y)
    residual = sum((b - fit.slope * a - fit.intercept) ** 2 for a, b in zip(x, y)) / (len(y) - 2)
    return fit.slope, residual / ((len(y) - 1) * statistics.variance(x))


def pooled(estimates):
    """Rubin's rules: estimate, standard error, degrees of freedom."""
    m = len(estimates)
    within = statistics.mean(variance for _, variance in estimates)
    between = statistics.variance(slope for slope, _ in estimates)
    total = within + (1 + 1 / m) * between
    freedom = (m - 1) * (1 + within / ((1 + 1 / m) * between)) ** 2 if between > 0 else math.inf
    return statistics.mean(slope for slope, _ in estimates), math.sqrt(total), freedom


def main(path):
    draws = totals(path)
    if len(draws) < 2:
        sys.exit(f"{path} has no imputations: write it with `whimbrel impute RUN --draws 20`")
    estimate, error, freedom = pooled([slope(values) for values in draws])
    print(f"trend per column {estimate:.4f}, standard error {error:.4f} ({len(draws)} imputations, {freedom:.0f} degrees of freedom)")


if __name__ == "__main__":
    main(*sys.argv[1:])
