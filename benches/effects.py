"""Main effects of what describes rows and columns, against the automatic low rank on the same cells.

    python3 benches/effects.py WHIMBREL DATA [SPLITS] [SET ...]

WHIMBREL is the program, DATA the folder with `birds/` and `imputation/`. Every table is dealt by rows to
ten clients, SPLITS times (2), each time with another hold-out of 10 %; every model is fitted to the same
cells, with ridges (and the rank, where it is automatic) chosen by cross-validation. One line of a
Markdown table per model: means over the held-out cells, pooled over the splits. Standard library only.
"""

import csv
import gzip
import json
import pathlib
import random
import subprocess
import sys
import tempfile

CLIENTS = 10
JOB = """name = "effects"
seed = {seed}
[data]
source = "csv"
path = "cells.csv"
client = "observer"
row = "{row}"
column = {column}
value = "count"
holdout = 0.1
[model]
kind = "low-rank"
family = "poisson"
{model}
[method]
kind = "fedmiss"
rounds = 150
step = "auto"
[uplink]
codec = "exact"
"""
AUTO = 'rank = "auto"'


def read(path):
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def known(value):
    return value not in ("NA", "")


def waterfowl(data):
    # A visit without a bird has no count.
    for r in read(data / "birds/waterfowl_flanders.csv.gz"):
        yield {"site": r["site"], "winter": r["winter"], "period": r["period"], "count": int(r["birds"]) if known(r["birds"]) else 0}


def great_tit(data):
    sites = {r["siteID"]: r for r in read(data / "birds/swiss_tits_sites.csv.gz")}
    for r in read(data / "birds/swiss_tits.csv.gz"):
        if known(r["count"]) and r["species"] == "Great tit":
            site = sites[r["site"]]
            yield {"site": r["site"], "year": r["year"], "rep": r["rep"], "elev": site["elev"], "forest": site["forest"], "count": int(r["count"])}


def breeding_birds(data):
    sites = {r["siteID"]: r for r in read(data / "birds/mhb2014_sites.csv.gz")}
    for r in read(data / "birds/mhb2014_counts.csv.gz"):
        if r["visit"] == "1":
            site = sites[r["site"]]
            for species in r:
                if species not in ("site", "visit") and known(r[species]):
                    yield {"site": r["site"], "species": species, "elev": site["elev"], "forest": site["forest"], "count": int(r[species])}


def aravo(data):
    sites = {r["site"]: r for r in read(data / "imputation/aravo_env.csv.gz")}
    for r in read(data / "imputation/aravo_counts.csv.gz"):
        for species in r:
            if species != "site":
                site = sites[r["site"]]
                yield {"site": r["site"], "species": species, "snow": site["Snow"], "form": site["Form"], "count": int(r[species])}


def skylark(data):
    for r in read(data / "birds/skylark.csv.gz"):
        if known(r["count"]):
            yield {"site": r["site"], "year": r["year"], "habitat": r["habitat"], "deposition": r["deposition"], "count": int(r["count"])}


def effects(*names, covariates=(), rank="0"):
    listed = lambda all: "[" + ", ".join(f'"{name}"' for name in all) + "]"
    return f"effects = {listed(names)}\ncovariates = {listed(covariates)}\nrank = {rank}"


RANK = '"auto"'
SETS = {
    "skylark": (
        skylark,
        "site",
        '"year"',
        {
            "site + year + habitat:year": effects("site", "year", "habitat:year"),
            "the same and low rank": effects("site", "year", "habitat:year", rank=RANK),
        },
    ),
    "great tit": (
        great_tit,
        "site",
        '["year", "rep"]',
        {
            "site + year + rep": effects("site", "year", "rep"),
            "site + year + rep + site:year + site:rep": effects("site", "year", "rep", "site:year", "site:rep"),
            "the same and low rank": effects("site", "year", "rep", "site:year", "site:rep", rank=RANK),
        },
    ),
    "Aravo plants": (
        aravo,
        "site",
        '"species"',
        {
            "site + species + species:snow + species:form": effects("site", "species", "species:snow", "species:form", covariates=["snow"]),
            "the same and low rank": effects("site", "species", "species:snow", "species:form", covariates=["snow"], rank=RANK),
        },
    ),
    "Swiss breeding birds": (
        breeding_birds,
        "site",
        '"species"',
        {
            "site + species + slopes of species": effects("site", "species", "species:elev", "species:forest", covariates=["elev", "forest"]),
            "the same and low rank": effects("site", "species", "species:elev", "species:forest", covariates=["elev", "forest"], rank=RANK),
        },
    ),
    "waterfowl": (
        waterfowl,
        "site",
        '["winter", "period"]',
        {
            "site + winter + period": effects("site", "winter", "period"),
            "site + winter + period + site:period + site:winter": effects("site", "winter", "period", "site:period", "site:winter"),
            "the same and low rank": effects("site", "winter", "period", "site:period", "site:winter", rank=RANK),
        },
    ),
}


def run(whimbrel, cells, job, seed, folder):
    """The summary of one split."""
    draw = random.Random(seed)
    sites = sorted({cell["site"] for cell in cells})
    draw.shuffle(sites)
    owner = {site: i % CLIENTS for i, site in enumerate(sites)}
    with open(folder / "cells.csv", "w", newline="") as file:
        table = csv.DictWriter(file, ["observer", *cells[0]])
        table.writeheader()
        table.writerows({"observer": owner[cell["site"]], **cell} for cell in cells)
    (folder / "job.toml").write_text(job)
    command = [whimbrel, "run", folder / "job.toml", "--out", folder / "run", "--force", "--threads", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((folder / "run/summary.json").read_text())


def main(whimbrel, data, splits="2", *names):
    whimbrel = pathlib.Path(whimbrel).resolve()
    print("| table | model | deviance | to automatic | rank | coverage |\n|---|---|---|---|---|---|")
    for name in names or SETS:
        source, row, column, models = SETS[name]
        cells = list(source(pathlib.Path(data)))
        usual = None
        for words, model in {"row + column and low rank": AUTO, **models}.items():
            with tempfile.TemporaryDirectory() as folder:
                runs = [
                    run(whimbrel, cells, JOB.format(seed=seed, row=row, column=column, model=model), seed, pathlib.Path(folder))
                    for seed in range(1, int(splits) + 1)
                ]
            total = sum(r["held_out"] for r in runs)
            deviance = sum(r["holdout_deviance"] * r["held_out"] for r in runs) / total
            coverage = sum(r["coverage"] * r["held_out"] for r in runs) / total
            usual = usual or deviance
            ranks = ", ".join(str(r["rank"]) for r in runs)
            print(f"| {name} | {words} | {deviance:.4f} | {deviance / usual:.3f} | {ranks} | {100 * coverage:.1f} % |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
