"""`whimbrel.run`: jobs, run folders, errors, Ctrl-C."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import whimbrel


ROOT = Path(__file__).resolve().parents[2]


def model_bytes(run: whimbrel.Run) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


def test_a_dict_a_file_and_text_are_the_same_job(mixture_job: dict, tmp_path: Path) -> None:
    from whimbrel._job import to_toml

    text = to_toml(mixture_job)
    (tmp_path / "job.toml").write_text(text)
    runs = [
        whimbrel.run(job, tmp_path / f"out{i}", progress=False)
        for i, job in enumerate([mixture_job, text, "job.toml", tmp_path / "job.toml"])
    ]
    assert len({model_bytes(run) for run in runs}) == 1
    assert runs[0].summary["rounds"] == 12
    assert runs[0].job == whimbrel.check(mixture_job)


def test_a_run_shows_its_model_metrics_and_report(mixture_job: dict) -> None:
    run = whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False)
    assert run.model["means"].shape == (2, 2)
    assert run.model.info["kind"] == "gmm"
    assert len(run.metrics["round"]) == len(run.metrics["objective"])
    assert len(run.clients) == 14
    pandas = pytest.importorskip("pandas")
    assert isinstance(run.metrics.to_pandas(), pandas.DataFrame)
    page = run.report()
    assert "<svg" in str(page) and "srcdoc" in page._repr_html_()
    folder = run.folder
    del run
    assert not folder.exists()


def test_the_summary_of_a_regression_is_a_frame(mixture_job: dict, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=200), np.arange(200) % 4
    y = 2 * x + rng.normal(size=200)
    lines = [f"c{c},{a:.6f},{b:.6f}" for c, a, b in zip(client, x, y, strict=True)]
    (tmp_path / "d.csv").write_text("client,x,y\n" + "\n".join(lines) + "\n")
    data = {"source": "csv", "path": str(tmp_path / "d.csv"), "client": "client", "target": "y"}
    job = {"data": data, "model": {"kind": "glm"}, "method": {"kind": "newton"}}
    run = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    frame = run.summary()
    assert list(frame.index) == ["Intercept", "x"]
    assert frame.loc["x", "low"] < 2 < frame.loc["x", "high"]
    assert run.summary["rows_used"] == 200
    with pytest.raises(ValueError, match="not a regression"):
        whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False).summary()


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
    whole.assign(smoker=whole["smoker"].astype(int)).to_csv(tmp_path / "wards.csv", index=False)
    data = {"source": "csv", "path": str(tmp_path / "wards.csv"), "client": "client", "target": "falls"}
    expected = whimbrel.run({**REGRESSION, "data": data}, whimbrel.TEMPORARY, progress=False)
    forms = [(wards, None), (whole, "client"), (whole.drop(columns="client"), whole["client"])]
    for package, form in [("polars", "from_pandas"), ("pyarrow", "Table")]:
        try:
            module = __import__(package)
        except ImportError:
            continue
        made = getattr(module, form)
        made = made.from_pandas if form == "Table" else made
        forms += [(made(whole), "client"), ({name: made(frame) for name, frame in wards.items()}, None)]
    for data, clients in forms:
        run = whimbrel.run(REGRESSION, whimbrel.TEMPORARY, data=data, clients=clients, progress=False)
        assert model_bytes(run) == model_bytes(expected), type(data)
    assert list(expected.summary().index) == ["Intercept", "age", "smoker", "arm[T.b]"]
    job = tmp_path / "job.toml"
    job.write_text('[data]\ntarget = "falls"\n[model]\nkind = "glm"\nfamily = "poisson"\n[method]\nkind = "newton"\n')
    again = whimbrel.run(job, whimbrel.TEMPORARY, data=wards, progress=False)
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
(values, names, _, texts), _ = rows_of(data, None, {}, lambda *parts: parts)
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
        (north, "arm", drawn, 'source = "csv"'),
        (None, "arm", REGRESSION, "absent"),
    ]:
        with pytest.raises(ValueError, match=words):
            whimbrel.run(job, whimbrel.TEMPORARY, data=data, clients=clients, progress=False)


def test_a_callback_sees_every_round_and_can_end_the_run(mixture_job: dict) -> None:
    seen: list[whimbrel.Progress] = []
    plain = whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False)
    watched = whimbrel.run(mixture_job, whimbrel.TEMPORARY, callback=seen.append, progress=False)
    assert model_bytes(watched) == model_bytes(plain)
    fit = [progress for progress in seen if progress.stage == "fit"]
    assert [p.round for p in fit if not p.metrics] == list(range(1, 13))
    evaluated = [p.metrics["objective"] for p in fit if p.metrics]
    np.testing.assert_array_equal(evaluated, plain.metrics["objective"])
    with pytest.warns(UserWarning, match="stopped after 5 rounds: by the callback"):
        ended = whimbrel.run(
            mixture_job,
            whimbrel.TEMPORARY,
            callback=lambda p: p.stage == "fit" and p.round == 5,
            progress=False,
        )
    assert (ended.summary["rounds"], ended.summary["ending"]) == (5, "stopped")
    assert ended.model["means"].shape == (2, 2)
    assert "<iframe" in ended._repr_html_()

    def broken(progress: whimbrel.Progress) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        whimbrel.run(mixture_job, whimbrel.TEMPORARY, callback=broken, progress=False)


def test_a_run_without_a_folder_goes_where_the_command_line_puts_it(mixture_job: dict) -> None:
    run = whimbrel.run(mixture_job, progress=False)
    assert run.folder.parent == Path("runs")
    with pytest.raises(ValueError, match="not empty"):
        whimbrel.run(mixture_job, run.folder, progress=False)
    again = whimbrel.run(mixture_job, run.folder, existing="replace", progress=False)
    assert model_bytes(again) == model_bytes(run)


def test_a_pickled_run_is_whole_in_another_process(mixture_job: dict, tmp_path: Path) -> None:
    run = whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False)
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(run))
    program = (
        "import pickle, sys; run = pickle.load(open('run.pickle', 'rb'));"
        "sys.stdout.write(repr(run.model['means'].tolist()) + str(len(str(run.report()))))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = repr(run.model["means"].tolist()) + str(len(str(run.report())))
    assert (found.stdout, found.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"model": {"kind": "gmm", "components": 0}}, ValueError, "components"),
        ({"model": {"kind": "gmx"}}, ValueError, "gmm"),
        ({"model": {"kind": "gmm", "components": object()}}, TypeError, "components"),
        ({"data": {"source": "csv", "path": "none.csv", "client": "c"}}, FileNotFoundError, "none.csv"),
    ],
)
def test_wrong_jobs_are_exceptions(mixture_job: dict, change: dict, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        whimbrel.run({**mixture_job, **change}, whimbrel.TEMPORARY, progress=False)


def test_a_job_that_is_no_job_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.toml"):
        whimbrel.run("nowhere.toml")
    with pytest.raises(TypeError, match="int"):
        whimbrel.run(3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        whimbrel.Run("nowhere")
    with pytest.raises(TypeError, match="`out` must be a folder's path.*int"):
        whimbrel.run("seed = 1\n", 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="surrogate"):
        whimbrel.run('name = "\udc80"\n', whimbrel.TEMPORARY)


def test_figures_of_several_seeds_are_in_folders_of_their_own(mixture_job: dict) -> None:
    run = whimbrel.run({**mixture_job, "seeds": 2}, whimbrel.TEMPORARY, progress=False)
    for figures in ("metrics", "clients"):
        with pytest.raises(FileNotFoundError, match="over 2 seeds.*seed-3, seed-4"):
            getattr(run, figures)
    first = whimbrel.Run(run.folder / "seed-3")
    assert len(first.metrics["round"]) > 0 and len(first.clients) == 14


def test_a_degenerate_fit_raises_or_warns_as_the_job_says() -> None:
    X = np.repeat([[0.0, 0.0], [1.0, 1.0]], 30, axis=0)
    with pytest.raises(whimbrel.DegenerateFit) as raised:
        whimbrel.GaussianMixture(2, reg_covar=0.0).fit(X)
    assert raised.value.run.summary["ending"].startswith("degenerate")
    with pytest.warns(UserWarning, match="degenerate"):
        whimbrel.GaussianMixture(2, reg_covar=0.0, allow_degenerate=True).fit(X)


def test_a_constant_column_is_fitted_under_reg_covar() -> None:
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(size=80), np.full(80, 7.5)])
    for kind in ("full", "tied", "diag"):
        mixture = whimbrel.GaussianMixture(2, covariance_type=kind, random_state=1).fit(X)
        np.testing.assert_allclose(mixture.means_[:, 1], 7.5)
    with pytest.raises(ValueError, match="constant: the likelihood is unbounded"):
        whimbrel.GaussianMixture(2, reg_covar=0.0).fit(X)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_run_that_can_be_resumed(mixture_job: dict, tmp_path: Path) -> None:
    # Long enough to be interrupted on any machine, and resumed only to see that it can be.
    mixture_job["method"]["rounds"] = 4_000_000_000
    begun = tmp_path / "out" / "metrics.jsonl"

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    # A shell's background processes ignore the signal, and Python leaves that as it is.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    waiting = threading.Thread(target=interrupt)
    waiting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            whimbrel.run(mixture_job, tmp_path / "out", progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    waiting.join()
    assert (tmp_path / "out" / "checkpoint").is_dir()
    assert not (tmp_path / "out" / "summary.json").exists()


# The learner never returns from its first gradient; the handler says that a signal has come.
STUCK = """
import os, signal, threading, numpy as np, whimbrel

class Stuck:
    def start(self, shape, classes, seed):
        return np.zeros(shape, np.float32)

    def predict(self, params, inputs):
        return np.full((len(inputs), 2), 0.5, np.float32)

    def losses(self, params, batch):
        return np.zeros(len(batch.targets), np.float32)

    def loss_and_grad(self, params, batch, weights):
        os.write(1, b"at work\\n")
        threading.Event().wait()

done = False

def handler(number, frame):
    os.write(1, b"signal\\n")
    if not done:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, handler)
job = {
    "data": {"source": "csv", "path": "rows.csv", "target": "y", "client": "c"},
    "model": {"kind": "own"},
    "method": {"kind": "fedavg", "rounds": 1},
}
try:
    try:
        whimbrel.run(job, whimbrel.TEMPORARY, learner=Stuck(), progress=False, threads=1)
    except KeyboardInterrupt:
        done = True
except KeyboardInterrupt:
    done = True
os.write(1, b"returned\\n")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_twice_returns_at_once(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("c,x,y\n" + "a,1,yes\nb,2,no\n" * 20)
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "at work\n"
        # A signal that comes while the handler of the one before is at work is one with it.
        said = "signal\n"
        sent = 0
        while said == "signal\n":
            program.send_signal(signal.SIGINT)
            sent += 1
            said = program.stdout.readline()
        # How the program ends is not asked: the last signal may find it at its end.
        program.kill()
        assert said == "returned\n" and sent >= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused(mixture_job: dict) -> None:
    program = f"""
import os, sys, whimbrel
job = {mixture_job!r}
whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
child = os.fork()
if child == 0:
    try:
        whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert found.stderr == ""
    said, code = found.stdout.splitlines()
    assert code == "7" and "forked" in said and "spawn" in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_temporary_runs_to_its_parent(mixture_job: dict) -> None:
    text = f"""
import os, sys, whimbrel
run = whimbrel.run({mixture_job!r}, whimbrel.TEMPORARY, progress=False)
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert run.folder.is_dir()
print(run.folder)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists(), "the parent removes it"


def test_a_learner_that_no_job_asks_for_is_refused(mixture_job: dict) -> None:
    with pytest.raises(ValueError, match='kind = "own"; this one has kind = "gmm"'):
        whimbrel.run(mixture_job, whimbrel.TEMPORARY, learner=object(), progress=False)  # type: ignore[arg-type]


def test_the_package_has_a_version() -> None:
    assert whimbrel.__version__.count(".") == 2
