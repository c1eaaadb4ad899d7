"""Rows of `whimbrel.run`: arrays, frames, tables, Parquet files and databases."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import whimbrel
from whimbrel._data import rows_of

ROOT = Path(__file__).resolve().parents[2]


def model_bytes(run: whimbrel.Run) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def wards() -> dict:
    """A frame of each of three clients: numbers with gaps, yes or no, text, dates."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)

    def ward(rows: int) -> object:
        age = rng.normal(50, 10, rows)
        return pandas.DataFrame(
            {
                "age": np.where(rng.random(rows) < 0.1, np.nan, age),
                "smoker": rng.random(rows) < 0.4,
                "arm": rng.choice(["a", "b"], rows),
                "falls": rng.poisson(np.exp(0.02 * age)),
            }
        )

    return {name: ward(rows) for name, rows in [("north", 80), ("east", 60), ("south", 90)]}


REGRESSION = {
    "data": {"target": "falls"},
    "model": {"kind": "glm", "family": "poisson"},
    "method": {"kind": "newton"},
}


def test_data_of_a_program_are_those_of_a_file(wards: dict, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    whole = pandas.concat([frame.assign(client=name) for name, frame in wards.items()], ignore_index=True)
    # pandas writes booleans as False and True.
    whole.to_csv(tmp_path / "wards.csv", index=False)
    data = {"source": "csv", "path": str(tmp_path / "wards.csv"), "client": "client", "target": "falls"}
    job = {**REGRESSION, "schema": {"smoker": {"type": "yes-no"}}}
    expected = whimbrel.run({**job, "data": data}, whimbrel.TEMPORARY, progress=False)
    names = list(wards)
    forms = [(wards, None), (list(wards.values()), names), (whole, "client"), (whole.drop(columns="client"), whole["client"])]
    for package, form in [("polars", "from_pandas"), ("pyarrow", "Table")]:
        try:
            module = __import__(package)
        except ImportError:
            continue
        made = getattr(module, form)
        made = made.from_pandas if form == "Table" else made
        forms += [(made(whole), "client"), ({name: made(frame) for name, frame in wards.items()}, None)]
    for data, clients in forms:
        run = whimbrel.run(job, whimbrel.TEMPORARY, data=data, clients=clients, progress=False)
        assert model_bytes(run) == model_bytes(expected), type(data)
    assert list(expected.summary().index) == ["Intercept", "age", "smoker[T.True]", "arm[T.b]"]
    file = tmp_path / "job.toml"
    file.write_text(
        '[data]\ntarget = "falls"\n[model]\nkind = "glm"\nfamily = "poisson"\n[method]\nkind = "newton"\n'
        '[schema]\nsmoker = { type = "yes-no" }\n'
    )
    again = whimbrel.run(file, whimbrel.TEMPORARY, data=wards, progress=False)
    assert model_bytes(again) == model_bytes(expected)


WARDS = {
    "seed": 5,
    "data": {"columns": ["a", "b"], "client": "ward", "target": "y"},
    "model": {"kind": "logistic"},
    "method": {"kind": "sgd", "rounds": 10, "batch": 10},
}
# The same rows as CSV, Parquet and SQLite.
SOURCES = ROOT / "crates" / "whimbrel" / "tests" / "peers" / "sources"


def test_parquet_and_databases_are_data_of_a_job(tmp_path: Path) -> None:
    query = tmp_path / "rows.sql"
    query.write_text("SELECT a, b, y, ward FROM patients ORDER BY rowid")
    csv, parquet, sql = (
        {"source": "csv", "path": SOURCES / "rows.csv"},
        {"source": "parquet", "path": SOURCES / "rows"},
        {"source": "sql", "url": f"sqlite:{SOURCES / 'rows.db'}", "query": query},
    )
    bytes_of = lambda source: model_bytes(
        whimbrel.run({**WARDS, "data": {**WARDS["data"], **source}}, whimbrel.TEMPORARY, progress=False)
    )
    assert bytes_of(parquet) == bytes_of(csv) == bytes_of(sql)


def test_files_that_are_not_read_do_not_keep_a_run_from_resuming(tmp_path: Path) -> None:
    shutil.copytree(SOURCES / "rows", tmp_path / "rows")
    job = {**WARDS, "data": {**WARDS["data"], "source": "parquet", "path": tmp_path / "rows"}}
    done = whimbrel.run(job, "out", progress=False)
    # As after the process was killed before the end.
    (done.folder / "summary.json").unlink()
    (tmp_path / "rows" / "_SUCCESS").touch()
    again = whimbrel.run(job, "out", existing="resume", progress=False)
    assert model_bytes(again) == model_bytes(done)
    (done.folder / "summary.json").unlink()
    (tmp_path / "rows" / "ward=west" / "part-0.parquet").unlink()
    with pytest.raises(ValueError, match="cannot be resumed"):
        whimbrel.run(job, "out", existing="resume", progress=False)


def test_a_table_of_pyarrow_is_that_of_its_file() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    source = {**WARDS["data"], "source": "parquet", "path": SOURCES / "rows"}
    expected = whimbrel.run({**WARDS, "data": source}, whimbrel.TEMPORARY, progress=False)
    table = parquet.read_table(SOURCES / "rows").select(["a", "b", "y", "ward"])
    run = whimbrel.run(WARDS, whimbrel.TEMPORARY, data=table, progress=False)
    assert model_bytes(run) == model_bytes(expected)
    predicted = expected.predict(str(SOURCES / "rows"))
    for name, values in run.predict(table).items():
        np.testing.assert_array_equal(values, predicted[name])


def test_a_table_in_memory_has_the_types_of_its_parquet_file(tmp_path: Path) -> None:
    from decimal import Decimal

    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    from pyarrow import parquet

    at = np.arange(90)
    days = pandas.to_datetime(["2024-05-17T10:00:00", "2024-01-01", "2024-05-17T10:00:00.25"], format="ISO8601")
    frame = pandas.DataFrame(
        {
            "grade": pandas.Categorical(at % 3 + 1),
            "when": days[at // 5 % 3],
            "zoned": days.tz_localize("Europe/Paris")[at // 7 % 3],
            "flag": at % 2 == 0,
            "price": [Decimal(f"{i}.50") for i in at % 5],
            "site": 2**53 + at % 2,
            "y": np.sin(at),
        }
    )
    table = arrow.Table.from_pandas(frame)
    parquet.write_table(table, tmp_path / "rows.parquet")
    schema = {name: {"type": "category"} for name in ("when", "zoned")}
    job = {"data": {"target": "y", "client": "site"}, "schema": schema, "model": {"kind": "glm"}, "method": {"kind": "newton"}}
    source = {**job["data"], "source": "parquet", "path": tmp_path / "rows.parquet"}
    expected = whimbrel.run({**job, "data": source}, whimbrel.TEMPORARY, progress=False)
    assert list(expected.clients) == [str(2**53), str(2**53 + 1)]
    for data in (frame, table):
        run = whimbrel.run(job, whimbrel.TEMPORARY, data=data, clients="site", progress=False)
        assert list(run.summary().index) == list(expected.summary().index)
        assert list(run.clients) == list(expected.clients)
        assert model_bytes(run) == model_bytes(expected)


def test_files_are_refused_for_their_own_reasons(tmp_path: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table = parquet.read_table(SOURCES / "rows").select(["a", "b", "y", "ward"])
    parquet.write_table(table, tmp_path / "brotli", compression="brotli")
    with arrow.ipc.new_stream(tmp_path / "stream", table.schema) as stream:
        stream.write_table(table)
    source = {**WARDS["data"], "source": "parquet"}
    run = whimbrel.run({**WARDS, "data": {**source, "path": SOURCES / "rows"}}, whimbrel.TEMPORARY, progress=False)
    shutil.copy(SOURCES / "rows.db", tmp_path / "sqlite")
    for name, words in [
        ("brotli", 'column "a" is compressed with Brotli'),
        ("stream", "a stream of Arrow, not a file"),
        ("sqlite", "export the rows of a query as CSV"),
    ]:
        with pytest.raises(ValueError, match=words):
            run.predict(tmp_path / name)


def test_masked_cells_are_gaps() -> None:
    masked = np.ma.masked_array([[1.0, 2.0], [999.0, 4.0]], [[False, False], [True, False]])
    whole = np.ma.masked_array([[1, 2], [999, 4]], masked.mask)
    labels = np.ma.masked_array(["a", "b"], [False, True])
    taken = lambda data: rows_of(data, None, {}, lambda *parts: parts)[0]
    for data in (masked, whole, (masked, [0, 1]), (whole, [0, 1])):
        np.testing.assert_array_equal(taken(data)[0][:, :2], [[1, 2], [np.nan, 4]])
    assert taken((masked, labels))[3] == [("target", ["a", ""])]


WITHOUT_PANDAS = """
import datetime, decimal, json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import whimbrel
from whimbrel._data import rows_of

def table(columns):
    if sys.argv[1] == "polars":
        import polars
        return polars.DataFrame({**columns, "level": polars.Series(columns["level"], dtype=polars.Categorical)})
    import pyarrow
    return pyarrow.table({**columns, "level": pyarrow.array(columns["level"]).dictionary_encode()})

data = table({
    "number": [1.5, None, 3.0],
    "whole": [1, None, 3],
    "flag": [True, False, None],
    "decimal": [decimal.Decimal("1.25"), None, decimal.Decimal("2")],
    "text": ["a", None, "b"],
    "day": [datetime.date(2024, 5, 17), None, datetime.date(2024, 5, 18)],
    "level": ["x", "y", None],
})
(values, names, _, texts, _), _ = rows_of(data, None, {}, lambda *parts: parts)
columns = {name: [None if x != x else x for x in values[:, j].tolist()] for j, name in enumerate(names)}
rows = table({"age": [float(i % 7) for i in range(60)], "level": ["north", "south", "west"] * 20})
job = {"model": {"kind": "gmm", "components": 1}, "method": {"kind": "fedem", "rounds": 2}}
run = whimbrel.run(job, whimbrel.TEMPORARY, data=rows, clients="level", progress=False)
predicted = len(run.predict(rows.select(["age"]))["label"])
print(json.dumps({**columns, **dict(texts), "predicted": predicted}))
"""


@pytest.mark.parametrize("package", ["polars", "pyarrow"])
def test_frames_do_not_need_pandas(package: str) -> None:
    pytest.importorskip(package)
    done = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS, package], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "number": [1.5, None, 3],
        "whole": [1, None, 3],
        "flag": [1, 0, None],
        "decimal": [1.25, None, 2],
        "text": ["a", "", "b"],
        "day": ["2024-05-17", "", "2024-05-18"],
        "level": ["x", "y", ""],
        "predicted": 60,
    }


def test_arrays_are_data_of_a_job() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 2))
    rows, ids = np.column_stack([X, X @ [1.0, -2.0] + 0.1 * rng.normal(size=120)]), np.arange(120) % 3
    job = {"data": {"target": "y"}, "model": {"kind": "glm"}, "method": {"kind": "newton"}}
    frame = whimbrel.run(job, whimbrel.TEMPORARY, data=rows, clients=ids, progress=False).summary()
    np.testing.assert_allclose(frame.loc[["x0", "x1"], "estimate"], [1.0, -2.0], atol=0.05)
    each = whimbrel.run(job, whimbrel.TEMPORARY, data=[rows[ids == i] for i in range(3)], progress=False)
    np.testing.assert_allclose(each.summary()["estimate"], frame["estimate"], rtol=1e-12)
    named = {**job, "data": {"columns": ["age", "dose"], "target": "y"}}
    frame = whimbrel.run(named, whimbrel.TEMPORARY, data=rows, clients=ids, progress=False).summary()
    assert list(frame.index) == ["Intercept", "age", "dose"]


def test_a_run_predicts_and_adapts_to_rows_in_memory() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(2)
    X = rng.normal(size=(120, 2))
    frame = pandas.DataFrame(X, columns=["age", "dose"])
    frame["outcome"] = np.where(X[:, 0] > 0, "yes", "no")
    frame["ward"] = np.array(["north", "south", "west"])[np.arange(120) % 3]
    frame.to_csv("rows.csv", index=False)
    job = {
        "seed": 1,
        "data": {"source": "csv", "path": "rows.csv", "client": "ward", "target": "outcome"},
        "model": {"kind": "softmax"},
        "method": {"kind": "fedavg+", "rounds": 3, "step": 0.1, "batch": 20},
    }
    run = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    expected = {**run.adapt("rows.csv", "file"), "out": "frame"}
    assert run.adapt(frame, "frame") == {**run.adapt((X, frame["outcome"]), "pair"), "out": "frame"} == expected
    of_file = run.predict("rows.csv", client="file")
    assert set(of_file["label"]) == {"yes", "no"}
    for rows in (frame, frame[["dose", "age"]], X, (X, frame["outcome"])):
        found = run.predict(rows, client="frame")
        assert list(found) == list(of_file)
        for name, values in of_file.items():
            np.testing.assert_array_equal(found[name], values)
    for rows, kind, words in [
        ({"north": frame}, ValueError, "is a dict"),
        (X[:, :1], ValueError, "1 columns, and the job names 2"),
        (frame[["age"]], ValueError, "dose"),
        (X[0], ValueError, "two-dimensional"),
    ]:
        with pytest.raises(kind, match=words):
            run.predict(rows, client="file")


def test_inputs_of_any_shape_are_predicted() -> None:
    rng = np.random.default_rng(3)
    images = rng.integers(256, size=(60, 1, 3, 3), dtype=np.uint8)
    job = {"seed": 1, "model": {"kind": "mlp", "hidden": [4]}, "method": {"kind": "fedavg", "rounds": 2, "step": 0.1}}
    pair = images, (images.mean(axis=(1, 2, 3)) > 127).astype(int)
    run = whimbrel.run(job, whimbrel.TEMPORARY, data=pair, clients=np.arange(60) % 3, progress=False)
    expected = run.predict(pair)
    assert len(expected["label"]) == 60
    for rows in (images, images / 255, images.reshape(60, 9) / 255):
        for name, values in run.predict(rows).items():
            np.testing.assert_array_equal(values, expected[name])


def test_a_table_in_memory_is_imputed() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    table = rng.normal(size=(24, 1)) @ np.array([[1.0, -1.0, 0.5]])
    frame = pandas.DataFrame(np.where(rng.random(table.shape) < 0.2, np.nan, table), columns=["a", "b", "c"])
    frame["row"] = [f"r{i:02}" for i in range(24)]
    frame["ward"] = np.array(["north", "south"])[np.arange(24) % 2]
    frame.to_csv("table.csv", index=False)
    job = {
        "seed": 1,
        "data": {"source": "csv", "path": "table.csv", "client": "ward", "row": "row", "columns": ["a", "b", "c"]},
        "model": {"kind": "low-rank", "family": "gaussian", "rank": 1},
        "method": {"kind": "fedmiss", "rounds": 5},
    }
    run = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    expected, found = run.impute("table.csv"), run.impute(frame)
    assert list(found) == list(expected) and len(found["estimate"]) == 72
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_wrong_data_are_exceptions(wards: dict) -> None:
    north = wards["north"]
    drawn = {"data": {"source": "mixture", "clients": 2, "rows": 9}}
    for data, clients, job, words in [
        ({}, None, REGRESSION, "no clients"),
        (wards, "age", REGRESSION, "twice"),
        (north, "wing", REGRESSION, "not a column"),
        (north, [1, 2], REGRESSION, "each of the 80 rows"),
        (np.ones(3), None, REGRESSION, "two-dimensional"),
        (np.array([["a"]]), None, REGRESSION, "two-dimensional"),
        (np.ones((3, 0)), None, REGRESSION, "no rows or no columns"),
        ({"a": north, "b": north[["age"]]}, None, REGRESSION, "columns of client 'b'"),
        ({"a": north, "b": north.assign(arm=1.0)}, None, REGRESSION, "text for one client"),
        (north.assign(age=np.inf), "arm", REGRESSION, "infinite"),
        (north.assign(age=[[1.0]] * 80), "arm", REGRESSION, "'age' of `data` holds list"),
        (north.assign(age=[np.ones(2)] * 80), "arm", REGRESSION, "'age' of `data` holds ndarray"),
        (north.assign(age=[b"1"] * 80), "arm", REGRESSION, "'age' of `data` holds bytes"),
        (north.assign(age=np.timedelta64(1, "D")), "arm", REGRESSION, "'age' of `data` holds Timedelta"),
        ([north, north[["age"]]], None, REGRESSION, "columns of client '1'"),
        ([north, north], ["a", "a"], REGRESSION, "belong to one client"),
        (north, "arm", drawn, 'source = "csv"'),
        (None, "arm", REGRESSION, "absent"),
    ]:
        with pytest.raises(ValueError, match=words):
            whimbrel.run(job, whimbrel.TEMPORARY, data=data, clients=clients, progress=False)
