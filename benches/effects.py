"""Main effects of row and column attributes, against the automatic low rank on the same cells.

    python3 benches/effects.py WHIMBREL DATA [SPLITS] [SET ...]

WHIMBREL is the program, DATA the folder with `birds/` and `imputation/`. Every table is dealt by rows to
ten clients, SPLITS times (2), each time with another hold-out of 10 %; every model is fitted to the same
cells, with ridges (and the rank, where it is automatic) chosen by cross-validation. One line of a
Markdown table per model: means over the held-out cells, pooled over the splits. Standard library only.
"""

import pathlib
import random
import sys
import tempfile

from low_rank import AUTO, known, owners, pooled, read, run


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
        '"year"',
        {
            "site + year + habitat:year": effects("site", "year", "habitat:year"),
            "the same and low rank": effects("site", "year", "habitat:year", rank=RANK),
        },
    ),
    "great tit": (
        great_tit,
        '["year", "rep"]',
        {
            "site + year + rep": effects("site", "year", "rep"),
            "site + year + rep + site:year + site:rep": effects("site", "year", "rep", "site:year", "site:rep"),
            "the same and low rank": effects("site", "year", "rep", "site:year", "site:rep", rank=RANK),
        },
    ),
    "Aravo plants": (
        aravo,
        '"species"',
        {
            "site + species + species:snow + species:form": effects("site", "species", "species:snow", "species:form", covariates=["snow"]),
            "the same and low rank": effects("site", "species", "species:snow", "species:form", covariates=["snow"], rank=RANK),
        },
    ),
    "Swiss breeding birds": (
        breeding_birds,
        '"species"',
        {
            "site + species + slopes of species": effects("site", "species", "species:elev", "species:forest", covariates=["elev", "forest"]),
            "the same and low rank": effects("site", "species", "species:elev", "species:forest", covariates=["elev", "forest"], rank=RANK),
        },
    ),
    "waterfowl": (
        waterfowl,
        '["winter", "period"]',
        {
            "site + winter + period": effects("site", "winter", "period"),
            "site + winter + period + site:period + site:winter": effects("site", "winter", "period", "site:period", "site:winter"),
            "the same and low rank": effects("site", "winter", "period", "site:period", "site:winter", rank=RANK),
        },
    ),
}


def split(whimbrel, cells, column, model, seed, folder):
    """The summary of one split."""
    owner = owners((cell["site"] for cell in cells), random.Random(seed))
    dealt = [{"observer": owner[cell["site"]], **cell} for cell in cells]
    return run(whimbrel, folder, dealt, seed, column=column, model=model)


def main(whimbrel, data, splits="2", *names):
    whimbrel = pathlib.Path(whimbrel).resolve()
    print("| table | model | deviance | to automatic | rank | coverage |\n|---|---|---|---|---|---|")
    for name in names or SETS:
        source, column, models = SETS[name]
        cells = list(source(pathlib.Path(data)))
        usual = None
        for words, model in {"row + column and low rank": AUTO, **models}.items():
            with tempfile.TemporaryDirectory() as folder:
                seeds = range(1, int(splits) + 1)
                runs = [split(whimbrel, cells, column, model, seed, pathlib.Path(folder)) for seed in seeds]
            deviance = pooled(runs, lambda r: r["holdout_deviance"])
            coverage = pooled(runs, lambda r: r["coverage"])
            usual = usual or deviance
            ranks = ", ".join(str(r["rank"]) for r in runs)
            print(f"| {name} | {words} | {deviance:.4f} | {deviance / usual:.3f} | {ranks} | {100 * coverage:.1f} % |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
