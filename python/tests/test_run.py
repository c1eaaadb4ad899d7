"""`whimbrel.run`: jobs, run folders, errors, Ctrl-C."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import whimbrel


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


def test_scikit_learn_is_imported_when_an_estimator_is_used() -> None:
    script = "import sys, whimbrel; print('sklearn' in sys.modules, whimbrel.GaussianMixture, 'sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split()[0] == "False" and done.stdout.split()[-1] == "True", done.stderr


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
