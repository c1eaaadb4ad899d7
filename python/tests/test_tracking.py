"""Loggers against the readers of their own packages, and exports without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import whimbrel
from whimbrel import tracking

JOB = {
    "name": "wards",
    "seed": 1,
    "data": {"source": "mixture", "clients": 4, "rows": 20},
    "model": {"kind": "gmm", "components": 2},
    "method": {"kind": "fedem", "rounds": 6, "evaluate": {"every": 2}},
}


def run(**keys: Any) -> whimbrel.Run:
    return whimbrel.run(JOB, whimbrel.TEMPORARY, progress=False, **keys)


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    """A scalar as TensorBoard reads it, with its checksums."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def wanted(done: whimbrel.Run, name: str) -> list[tuple[int, Any]]:
    return [(int(r), pytest.approx(x, rel=1e-6)) for r, x in zip(done.metrics["round"], done.metrics[name])]


def test_the_trackers_come_with_the_package() -> None:
    script = "import whimbrel; print(whimbrel.tracking.WandB.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "WandB\n", done.stderr


def test_an_export_is_read_by_tensorboard(tmp_path: Path) -> None:
    done = run()
    for _ in range(2):
        done.export(tensorboard=tmp_path / "board")
    assert len(list((tmp_path / "board").iterdir())) == 1
    assert scalars(tmp_path / "board", "objective") == wanted(done, "objective")
    assert scalars(tmp_path / "board", "weights_2") == [
        (int(r), pytest.approx(w[1], rel=1e-6)) for r, w in zip(done.metrics["round"], done.metrics["weights"])
    ]
    with pytest.raises(ValueError, match="tensorboard=|mlflow="):
        done.export()


def test_an_export_is_read_by_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    done = run()
    done.export(mlflow=tmp_path / "runs")
    client = mlflow.MlflowClient((tmp_path / "runs").as_uri())
    (found,) = client.search_runs(["0"])
    history = sorted(client.get_metric_history(found.info.run_id, "objective"), key=lambda metric: metric.step)
    assert [(metric.step, metric.value) for metric in history] == wanted(done, "objective")
    assert found.data.params["seed"] == "1" and found.info.status == "FINISHED"
    assert {file.path for file in client.list_artifacts(found.info.run_id)} >= {"job.toml", "summary.json"}


def test_tensorboard_logs_evaluations(tmp_path: Path) -> None:
    pytest.importorskip("torch.utils.tensorboard")
    with tracking.TensorBoard(tmp_path / "board") as board:
        done = run(callback=board)
    assert scalars(tmp_path / "board", "objective") == wanted(done, "objective")


def test_mlflow_logs_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with tracking.MLflow(run_name="logged") as logger:
        done = run(callback=logger)
    (found,) = mlflow.search_runs(output_format="list")
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "objective")
    assert [(metric.step, metric.value) for metric in history] == wanted(done, "objective")
    assert mlflow.active_run() is None


def test_wandb_logs_evaluations_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with tracking.WandB(mode="offline", dir=str(tmp_path), project="whimbrel") as logger:
        done = run(callback=logger)
        assert logger.run.summary["round"] == done.metrics["round"][-1]
        assert logger.run.summary["objective"] == pytest.approx(done.metrics["objective"][-1])
    assert wandb.run is None
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_an_interrupted_run_is_carried_by_its_exception() -> None:
    def interrupt(progress: whimbrel.Progress) -> None:
        if progress.stage == "fit" and progress.round == 2:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        whimbrel.run({**JOB, "method": {"kind": "fedem", "rounds": 100000}}, "out", callback=interrupt, progress=False)
    done = caught.value.run
    assert done.folder == Path("out") and "unfinished" not in done.job
    assert done._repr_html_().startswith("<")
