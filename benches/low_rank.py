"""Shared parts of the benches of tables with missing cells: counts from files, jobs, runs. Standard library only."""

import csv
import gzip
import json
import random
import subprocess

CLIENTS = 10
AUTO = 'rank = "auto"\nlambda = "auto"'
JOB = """name = "bench"
seed = {seed}
[data]
source = "csv"
path = "cells.csv"
client = "observer"
row = "site"
column = {column}
value = "count"
holdout = {holdout}
{data}
[model]
kind = "low-rank"
family = "{family}"
{model}
[method]
kind = "fedmiss"
rounds = 150
step = "auto"
[uplink]
codec = "exact"
"""


def read(path):
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def known(value):
    return value not in ("NA", "")


def owners(rows, draw):
    """Deals whole rows to the clients at random."""
    rows = sorted({str(row) for row in rows})
    draw.shuffle(rows)
    return {row: i % CLIENTS for i, row in enumerate(rows)}


def run(whimbrel, folder, cells, seed, column='"month"', holdout=0.1, data="", family="poisson", model=AUTO):
    """The summary of a fit to cells, which are dictionaries of the file's columns."""
    with open(folder / "cells.csv", "w", newline="") as file:
        table = csv.DictWriter(file, list(cells[0]))
        table.writeheader()
        table.writerows(cells)
    job = JOB.format(seed=seed, column=column, holdout=holdout, data=data, family=family, model=model)
    (folder / "job.toml").write_text(job)
    command = [whimbrel, "run", folder / "job.toml", "--out", folder / "run", "--force", "--threads", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((folder / "run/summary.json").read_text())


def cells_of(values, seen, owner):
    """The observed cells of a generated table with these clients' rows."""
    places = [(i, j) for i, row in enumerate(seen) for j, known in enumerate(row) if known]
    return [{"observer": f"o{owner[i]}", "site": f"s{i}", "month": f"{j:02}", "count": values[i, j]} for i, j in places]


def impute(whimbrel, folder, *options):
    """The lines of the completed table."""
    command = [whimbrel, "impute", folder / "run", "--out", folder / "completed.csv", *options]
    subprocess.run(command, check=True, capture_output=True)
    with open(folder / "completed.csv") as file:
        return list(csv.DictReader(file))


def pooled(runs, of):
    """The mean over the held-out cells of all runs."""
    return sum(of(run) * run["held_out"] for run in runs) / sum(run["held_out"] for run in runs)
