"""Cost of `min_group = 5`: rows and cells withheld, and the fit with and without the rule, for ten clients.

    python benches/smallest_groups.py --binary target/release/whimbrel --data DATA

Standard library only. Regressions by `newton`: mushrooms (bruises on four factors) and the complete rows of the American Community
Survey of 2016 (logarithm of the electricity bill on household size, bedrooms, rooms and three factors), with all rows and with 200
rows a client. Gradients: a9a by `fedgd`, whose sparse columns few rows of a client have. Prints rows of a Markdown table: shares
withheld, and for regressions the largest change of a coefficient in standard errors and the largest ratio of standard errors.
"""
import argparse
import csv
import gzip
import io
import json
import math
import pathlib
import random
import subprocess
import tempfile

GLM = """[data]
source = "csv"
path = "rows.csv"
client = "client"
target = "{target}"
[schema]
{schema}
[model]
kind = "glm"
family = "{family}"
[method]
kind = "newton"
{rest}
"""
LOGISTIC = """[data]
source = "libsvm"
path = "a9a"
columns = 123
[data.split]
by = "iid"
clients = 10
[data.held_out]
test = 0.2
[model]
kind = "logistic"
l2 = 1e-4
[method]
kind = "sgd"
rounds = 300
{rest}
"""


def rows_of(path):
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.reader(file))
    return rows[0], rows[1:]


def mushrooms(data):
    names, rows = rows_of(data / "classics/mushrooms.csv.gz")
    at = [names.index(name) for name in ("bruises", "cap-shape", "cap-surface", "cap-color", "population")]
    return [names[j].replace("-", "_") for j in at], [[row[j] for j in at] for row in rows]


def survey(data):
    names, rows = rows_of(data / "imputation/acs2016.csv.gz")
    columns = ("ELEP", "NP", "BDSP", "RMSP", "BATH", "REFR", "FES")
    at = [names.index(name) for name in columns]
    rows = [[row[j] for j in at] for row in rows]
    rows = [row for row in rows if all(cell not in ("", "NA") for cell in row)]
    rows = [[f"{math.log(max(float(row[0]), 1)):.6f}"] + row[1:4] + ["l" + cell for cell in row[4:]] for row in rows]
    return list(columns), rows


def run(binary, folder, job):
    (folder / "job.toml").write_text('name = "groups"\nseed = 1\n' + job)
    ran = subprocess.run(
        [binary, "run", "job.toml", "--out", "out", "--json", "--force"], cwd=folder, capture_output=True, text=True
    )
    try:
        return json.loads(ran.stdout)
    except json.JSONDecodeError:
        raise SystemExit(ran.stderr)


def regression(binary, name, names, rows, family, errors):
    target, rest = names[0], f'errors = "{errors}"\n'
    text = [j for j in range(1, len(names)) if not rows[0][j].replace(".", "").isdigit()]
    schema = "".join(f'{names[j]} = {{ type = "category" }}\n' for j in text)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(["client"] + names)
        writer.writerows([f"c{i % 10}"] + row for i, row in enumerate(rows))
        (folder / "rows.csv").write_text(out.getvalue())
        job = GLM.format(target=target, schema=schema, family=family, rest=rest)
        plain, grouped = [run(binary, folder, job + more) for more in ("", "[privacy]\nmin_group = 5\n")]
    known = {row["term"]: row for row in plain["coefficients"]}
    shared = [(known[row["term"]], row) for row in grouped["coefficients"]]
    change = max(abs(a["estimate"] - b["estimate"]) / a["se"] for a, b in shared)
    ratios = [b["se"] / a["se"] for a, b in shared]
    withheld = grouped.get("withheld_rows", 0)
    print(
        f"| {name}, {errors} errors | {len(rows) // 10} | {100 * withheld / len(rows):.1f} % of rows | "
        f"{change:.2f} | {min(ratios):.3f} to {max(ratios):.3f} | {plain['rounds']}, {grouped['rounds']} |",
        flush=True,
    )


def gradients(binary, data):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "a9a").write_bytes(gzip.open(data / "a9a/a9a.gz").read())
        for more in ("", "[privacy]\nmin_group = 5\n"):
            print(json.dumps(run(binary, folder, LOGISTIC.format(rest=more)), indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    args = parser.parse_args()
    binary, data = args.binary.resolve(), args.data.resolve()
    for name, family, read in (("mushrooms", "binomial", mushrooms), ("survey", "gaussian", survey)):
        names, rows = read(data)
        random.Random(1).shuffle(rows)
        if name == "mushrooms":
            rows = [[str(int(row[0] == "t"))] + row[1:] for row in rows]
        for some in (rows, rows[:2000]):
            for errors in ("model", "robust"):
                regression(binary, name, names, some, family, errors)
    gradients(binary, data)
