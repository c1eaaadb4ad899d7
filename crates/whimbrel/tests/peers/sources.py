"""Writes one table as CSV, as a folder of Parquet files, and as an SQLite database.

Made with pyarrow 26.0.1 and Python's sqlite3: `python3 sources.py`. The tests read all three and expect the
same model.
"""

import pathlib
import shutil
import sqlite3

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

here = pathlib.Path(__file__).parent / "sources"
shutil.rmtree(here, ignore_errors=True)
here.mkdir()

rows = []
for w, ward in enumerate(["west", "east", "north"]):
    for i in range(40 + 20 * w):
        wave = lambda step: ((i * step + 13 * w) % 97) / 97 - 0.5
        a, b = 3 * wave(31), wave(57)
        rows.append((a, b, a - b + 2 * wave(11) > 0, f"note {i}", ward))
names = ["a", "b", "y", "note", "ward"]

with open(here / "rows.csv", "w") as out:
    out.write(",".join(names) + "\n")
    for a, b, y, note, ward in rows:
        out.write(f"{a!r},{b!r},{int(y)},{note},{ward}\n")

table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})
pyarrow.dataset.write_dataset(
    table,
    here / "rows",
    format="parquet",
    partitioning=pyarrow.dataset.partitioning(pa.schema([("ward", pa.string())]), flavor="hive"),
    basename_template="part-{i}.parquet",
)

database = sqlite3.connect(here / "rows.db")
database.execute("CREATE TABLE patients (a REAL, b REAL, y BOOLEAN, note TEXT, ward TEXT)")
database.executemany("INSERT INTO patients VALUES (?, ?, ?, ?, ?)", rows)
database.commit()
