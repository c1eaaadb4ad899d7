"""`whimbrel new` followed by `whimbrel run` on invented files that look like real ones.

Usage: python benches/drafts.py --binary target/release/whimbrel [--only NAME] [--keep FOLDER]

Each file gets a draft, which is run without an edit. Columns are numbers with units, 0 and 1, counts, dates,
identifiers, text, gaps, decimal commas, thousands, constants; clients are unequal, one has three rows. A line
per file: the draft's model and columns, the verdict, and, for mixtures, the distance from exact EM from the
same start. A failure is a degenerate or failed fit, or one that ends as `converged` more than 0.05 nats per
row above exact EM.
"""

import argparse
import csv
import json
import math
import random
import re
import subprocess
import tempfile
from datetime import date, timedelta
from pathlib import Path


def clients(draw, names, rows, few=None):
    """A client per row, of unequal sizes; `few` holds three rows."""
    shares = [draw.uniform(0.5, 3) for _ in names]
    held = [draw.choices(names, shares)[0] for _ in range(rows)]
    if few:
        held[:3] = [few] * 3
    return held


def day(draw, year=2021):
    return (date(year, 1, 1) + timedelta(days=draw.randrange(900))).isoformat()


def poisson(draw, mean):
    limit, k, p = math.exp(-min(mean, 500)), 0, 1.0
    while True:
        p *= draw.random()
        if p <= limit:
            return k
        k += 1


def gap(draw, share, value, mark=""):
    return mark if draw.random() < share else value


def hospital(draw):
    yield "hospital,patient_id,age,sex,bmi,diabetes,systolic,admitted".split(",")
    for i, site in enumerate(clients(draw, "Aarau Basel Chur Davos".split(), 600, "Einsiedeln")):
        old = draw.random() < 0.4
        age = round(draw.gauss(71 if old else 44, 11))
        yield [site, 100000 + i, age, draw.choice("mf"), f"{draw.gauss(28 if old else 24, 4):.1f}"] + [
            int(draw.random() < (0.35 if old else 0.05)),
            round(draw.gauss(145 if old else 124, 14)),
            day(draw),
        ]


def survey(draw):
    yield "respondent,region,q1,q2,q3,q4,q5,household_income,children".split(",")
    for i, region in enumerate(clients(draw, "north south east west".split(), 500)):
        mood = draw.gauss(0, 1)
        answers = [gap(draw, 0.06, min(5, max(1, round(3 + mood + draw.gauss(0, 0.9))))) for _ in range(5)]
        income = gap(draw, 0.1, f"{round(draw.lognormvariate(10.6, 0.5)):,}")
        yield [i + 1, region, *answers, income, poisson(draw, 1.1)]


def sensor(draw):
    yield "device,timestamp,temperature,humidity,battery,status".split(",")
    for i, device in enumerate(clients(draw, [f"dev-{k}" for k in range(8)], 900)):
        hot = draw.random() < 0.3
        stamp = f"2023-05-{1 + i % 28:02}T{i % 24:02}:00:00"
        yield [device, stamp, f"{draw.gauss(31 if hot else 19, 2):.2f}"] + [
            f"{draw.gauss(35 if hot else 62, 6):.1f}",
            100,
            "ok",
        ]


def sales(draw):
    yield "store,date,sku,units,price,discount".split(",")
    for store in clients(draw, ["Main St", "Harbour", "Mall"], 400):
        price = draw.lognormvariate(3, 0.6)
        yield [store, day(draw), f"SKU{draw.randrange(60):03}", poisson(draw, 4)] + [
            f"${price:.2f}",
            f"{draw.choice([0, 0, 5, 10, 20])}%",
        ]


def water(draw):
    yield "Messstelle;Datum;pH;Temperatur;Leitwert".split(";")
    for place in clients(draw, "Rhein Aare Limmat Reuss".split(), 350, "Sihl"):
        warm = draw.random() < 0.5
        numbers = [draw.gauss(8.1 if warm else 7.3, 0.2), draw.gauss(19 if warm else 8, 2), draw.gauss(410, 60)]
        yield [place, day(draw)] + [f"{x:.2f}".replace(".", ",") for x in numbers]


def birds(draw):
    yield "observer,site,year,month,count".split(",")
    site_effect = {f"S{k:02}": draw.gauss(1.2, 0.9) for k in range(30)}
    for site, level in site_effect.items():
        who = draw.choice("anna ben carla dora".split())
        for year in range(2010, 2018):
            for month in (10, 11, 12, 1, 2, 3):
                if draw.random() < 0.6:
                    winter = 0.5 if month in (12, 1) else 0
                    yield [who, site, year, month, poisson(draw, math.exp(level + winter - 0.06 * (year - 2010)))]


def wide_counts(draw):
    months = "jan feb mar apr may jun jul aug sep oct nov dec".split()
    yield ["plot", *months]
    for k in range(60):
        level = draw.gauss(1, 0.8)
        each = [poisson(draw, math.exp(level + math.sin(m / 2))) for m in range(12)]
        yield [f"plot {k + 1}", *[gap(draw, 0.25, x) for x in each]]


def trial(draw):
    yield "center,arm,age,weight_kg,responded,visits".split(",")
    for center in clients(draw, [f"C{k}" for k in range(6)], 480, "C9"):
        arm = draw.choice(["placebo", "drug"])
        responded = int(draw.random() < (0.6 if arm == "drug" else 0.3))
        yield [center, arm, round(draw.gauss(58, 12)), f"{draw.gauss(78, 14):.1f}", responded, poisson(draw, 3)]


def symptoms(draw):
    yield ["clinic"] + [f"s{k}" for k in range(1, 16)]
    for clinic in clients(draw, "a b c d e".split(), 400, "f"):
        sick = draw.random() < 0.35
        yield [clinic] + [int(draw.random() < (0.7 if sick and k % 2 else 0.12)) for k in range(15)]


def housing(draw):
    yield "neighbourhood,price,rooms,year_built,sqm,has_garden,zip".split(",")
    for place in clients(draw, [f"N{k}" for k in range(9)], 700):
        sqm = draw.lognormvariate(4.5, 0.35)
        garden = int(draw.random() < 0.4)
        price = round(sqm * draw.gauss(4200 if garden else 3500, 500), -2)
        yield [place, int(price), max(1, round(sqm / 28)), draw.randrange(1900, 2022), round(sqm), garden] + [
            8000 + draw.randrange(60)
        ]


def school(draw):
    yield "school,student_id,grade,math,reading,absent_days".split(",")
    for i, place in enumerate(clients(draw, "Oak Elm Ash Fir Yew".split(), 550, "Ivy")):
        gift = draw.gauss(0, 1)
        yield [place, i, draw.randrange(5, 10), round(62 + 11 * gift + draw.gauss(0, 6))] + [
            round(65 + 9 * gift + draw.gauss(0, 7)),
            poisson(draw, 2.5),
        ]


def meters(draw):
    yield "meter,household,kwh_day,kwh_night,solar,tariff".split(",")
    for i in range(420):
        solar = draw.random() < 0.3
        yield [f"M{i % 12}", i, gap(draw, 0.07, f"{draw.gauss(6 if solar else 11, 2):.2f}", "n/a")] + [
            gap(draw, 0.05, f"{draw.gauss(4, 1):.2f}", "."),
            "yes" if solar else "no",
            draw.choice(["A", "B", "C"]),
        ]


def genes(draw):
    yield ["lab"] + [f"g{k}" for k in range(40)]
    for i in range(36):
        yield [f"lab{i % 4}"] + [f"{draw.gauss(2 if i % 2 and k < 8 else 0, 1):.3f}" for k in range(40)]


def bank(draw):
    yield "branch,iban,balance,overdraft,postcode,age,opened".split(",")
    for branch in clients(draw, "Uster Wil Zug Thun".split(), 450):
        low = draw.random() < 0.2
        yield [branch, f"CH{draw.randrange(10**9):09}", f"{draw.gauss(-400 if low else 5200, 900):.2f}"] + [
            int(low),
            3000 + draw.randrange(900),
            round(draw.gauss(47, 15)),
            day(draw, 2005),
        ]


def rides(draw):
    yield "user,start,distance_km,distance_miles,duration_min,electric".split(",")
    for rider in clients(draw, [f"u{k}" for k in range(10)], 500):
        km = draw.lognormvariate(1.5, 0.5)
        electric = int(draw.random() < 0.4)
        start = f"{day(draw)} {draw.randrange(24):02}:15"
        yield [rider, start, f"{km:.3f}", f"{km / 1.609344:.3f}", round(km * (3.2 if electric else 4.1) + 2)] + [electric]


def soil(draw):
    yield "plot,depth_cm,ph,nitrogen,phosphorus,lead".split(",")
    for plot in clients(draw, [f"P{k}" for k in range(7)], 380, "P9"):
        lead = 0 if draw.random() < 0.8 else round(draw.expovariate(0.2), 1)
        yield [plot, draw.choice([10, 30, 60]), f"{draw.gauss(6.4, 0.5):.1f}", f"{draw.gauss(0.21, 0.06):.2f}"] + [
            f"{draw.gauss(32, 9):.0f}",
            lead,
        ]


def small(draw):
    yield "class,points,homework".split(",")
    for i in range(24):
        yield [f"{'ab'[i % 2]}", draw.randrange(20, 60), draw.randrange(0, 12)]


def air(draw):
    yield "station,date,pollutant,value".split(",")
    for station in range(12):
        for d in range(40):
            for gas, mean in (("NO2", 28), ("O3", 60), ("PM10", 18)):
                if draw.random() < 0.8:
                    stamp = (date(2022, 3, 1) + timedelta(days=d)).isoformat()
                    yield [f"ST{station}", stamp, gas, f"{max(0.1, draw.gauss(mean + station, mean / 5)):.1f}"]


def survival(draw):
    yield "clinic,time_days,died,age,treatment,stage".split(",")
    for clinic in clients(draw, "k l m n".split(), 420, "o"):
        treated = draw.random() < 0.5
        time = draw.expovariate(1 / (900 if treated else 500))
        yield [clinic, round(min(time, 1500)) + 1, int(time < 1500), round(draw.gauss(63, 10))] + [
            "A" if treated else "B",
            draw.choice(["I", "II", "III"]),
        ]


def turnover(draw):
    yield "shop,month,turnover,customers,open_sundays".split(",")
    for k in range(10):
        for month in range(1, 25):
            customers = poisson(draw, 300 + 20 * k)
            yield [f"shop {k}", f"{2021 + (month - 1) // 12}-{1 + (month - 1) % 12:02}"] + [
                f"{customers * draw.gauss(24, 2):,.2f}",
                customers,
                int(k % 3 == 0),
            ]


def unlike(draw):
    yield "station,rain_mm,pressure_pa,wind_ms,elevation_m".split(",")
    for k in range(80):
        wet = draw.gauss(0, 1)
        numbers = [60 + 20 * wet, 101300 - 400 * wet, 4 + wet, 500 + 200 * draw.gauss(0, 1)]
        yield [f"w{k}"] + [gap(draw, 0.2, f"{x + draw.gauss(0, abs(x) / 100):.2f}") for x in numbers]


FILES = [hospital, survey, sensor, sales, water, birds, wide_counts, trial, symptoms, housing, school, meters]
FILES += [genes, bank, rides, soil, small, air, survival, turnover, unlike]


def written(folder, make):
    path = folder / f"{make.__name__}.csv"
    rows = list(make(random.Random(make.__name__)))
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=";" if make is water else ",").writerows(rows)
    return path


def run(binary, job, out):
    done = subprocess.run([binary, "run", job, "--out", out, "--force", "--json"], capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    return (json.loads(lines[-1]) if lines else {}), done


def one(asked, folder, make):
    """The line of a file, and whether it is a failure."""
    path, job = written(folder, make), folder / f"{make.__name__}.toml"
    drafted = subprocess.run([asked.binary, "new", path, "--out", job, "--force"], capture_output=True, text=True)
    if drafted.returncode:
        return f"{make.__name__}: new refuses: {drafted.stderr.strip()}", False
    text = job.read_text()
    kind = re.search(r'\[model\].*?kind = "([^"]+)"', text, re.S).group(1)
    found, done = run(asked.binary, job, folder / make.__name__)
    ending = found.get("ending", "error")
    line = f"{make.__name__}: {kind}, {ending}, rounds {found.get('rounds')}"
    failed = ending not in ("converged", "stopped")
    if failed or ending == "stopped":
        line += f" ({done.stderr.strip()[-400:]})"
    if kind in ("gmm", "mixture") and not failed:
        exact = folder / f"{make.__name__}-exact.toml"
        exact.write_text(re.sub(r"\[uplink\].*", "", text, flags=re.S))
        reference, _ = run(asked.binary, exact, folder / f"{make.__name__}-exact")
        distance = found["objective"] - reference["objective"]
        line += f", {distance:.4f} nats above exact EM ({reference['ending']})"
        failed |= distance > 0.05 and ending == "converged"
    columns = [line for line in text.splitlines() if re.match(r"(columns|row|column|value|effects|target|client) =|.* = \{ type = ", line)]
    left = [line for line in text.splitlines() if "left out" in line]
    return "\n    ".join([line, *columns, *left]), failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", help="a folder for files, drafts and runs")
    asked = parser.parse_args()
    asked.binary = Path(asked.binary).resolve()
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.keep or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for make in FILES:
            if asked.only not in make.__name__:
                continue
            line, failed = one(asked, folder, make)
            failures += [make.__name__] * failed
            print(("FAILED " if failed else "") + line, flush=True)
    print(f"failures: {failures}")


if __name__ == "__main__":
    main()
