"""Reference tables of `describe.json` by pandas, numpy and lifelines.

python3 describe.py, with lifelines 0.30.3, numpy 2.4.6 and pandas 2.3.3; reads `glm.csv`, writes
`describe.csv` (with missing cells, an empty and a constant column) and `describe.json`. Times are rounded
up to the edges of the grid, and the curve is compared there.
"""

import json

import lifelines
import numpy as np
import pandas as pd
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test

QUANTILES = [0.05, 0.25, 0.5, 0.75, 0.95]
EDGES = [5 * i for i in range(1, 21)]

d = pd.read_csv("glm.csv")
d.loc[d.index % 9 == 4, "bmi"] = np.nan
d.loc[d.index % 11 == 7, "arm"] = np.nan
d["empty"] = np.nan
d["one"] = 2.5
d = d[["site", "age", "bmi", "arm", "cost", "kind", "empty", "one", "time", "dead"]]
d.to_csv("describe.csv", index=False)


def number(x):
    x = x.dropna()
    if x.empty:
        return {"count": 0, "mean": None, "sd": None, "quantiles": [None] * 5}
    quantiles = [float(np.quantile(x, q, method="inverted_cdf")) for q in QUANTILES]
    sd = None if len(x) == 1 else float(x.std())
    return {"count": int(x.count()), "mean": float(x.mean()), "sd": sd, "quantiles": quantiles}


def column(name):
    sites = {site: rows[name] for site, rows in d.groupby("site")}
    if not pd.api.types.is_numeric_dtype(d[name]):
        levels = sorted(d[name].dropna().unique())
        of = lambda x: {"count": int(x.count()), "categories": [int((x == level).sum()) for level in levels]}
    else:
        of = number
    return {"column": name, "pooled": of(d[name]), "clients": {site: of(x) for site, x in sites.items()}}


def curve(rows):
    ends = np.array(EDGES + [np.inf])
    binned = ends[np.searchsorted(EDGES, rows.time)]
    last = EDGES[-1] + 5
    binned = np.where(np.isinf(binned), last, binned)
    # Times after the grid are at risk on all of it.
    dead = np.where(rows.time > EDGES[-1], 0, rows.dead)
    fit = KaplanMeierFitter(alpha=0.05).fit(binned, dead)
    survival = fit.survival_function_at_times(EDGES).tolist()
    band = fit.confidence_interval_survival_function_
    at = lambda column: [float(band[column].asof(t)) for t in EDGES]
    low, high = at(band.columns[0]), at(band.columns[1])
    median = float(fit.median_survival_time_)
    return {
        "rows": len(rows),
        "survival": survival,
        "low": low,
        "high": high,
        "median": None if np.isinf(median) else median,
    }, binned, dead


complete = d.dropna(subset=["arm"])
pooled, _, _ = curve(d)
by_arm = {arm: curve(rows)[0] for arm, rows in complete.groupby("arm")}
_, binned, dead = curve(complete)
test = multivariate_logrank_test(binned, complete.arm, dead)
exact = KaplanMeierFitter().fit(d.time, d.dead).survival_function_at_times(EDGES).tolist()
out = {
    "versions": {"lifelines": lifelines.__version__, "pandas": pd.__version__, "numpy": np.__version__},
    "columns": [column(name) for name in d.columns if name != "site"],
    "edges": EDGES,
    "pooled": pooled,
    "exact": exact,
    "by_arm": by_arm,
    "log_rank": {"statistic": float(test.test_statistic), "p": float(test.p_value)},
}
with open("describe.json", "w") as file:
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in out.items())
    file.write(f"{{\n{lines}\n}}\n")
