"""Callbacks that log a run's figures to experiment trackers: TensorBoard, MLflow, Weights & Biases.

Each is a `callback` of `whimbrel.run` and of the estimators. Its package is imported when it is made. `whimbrel
export` and `Run.export` write a finished run for TensorBoard and MLflow without their packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike, fspath
from typing import Any

from ._progress import Progress

__all__ = ["MLflow", "TensorBoard", "WandB"]


def _figures(progress: Progress) -> Iterator[tuple[str, float]]:
    """The numbers of an evaluation; a list has one per entry. Stages before the fit are prefixed by their name."""
    prefix = "" if progress.stage == "fit" else f"{progress.stage}/"
    for name, value in progress.metrics.items():
        if isinstance(value, bool) or name == "round":
            continue
        if isinstance(value, (int, float)):
            yield prefix + name, float(value)
        elif isinstance(value, list):
            yield from ((f"{prefix}{name}_{i}", float(x)) for i, x in enumerate(value, 1) if isinstance(x, (int, float)))


class TensorBoard:
    """Scalars of each evaluation in a folder, by `torch.utils.tensorboard` or `tensorboardX`.

    Close it, or use it in a `with` statement, so that the last figures are written.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        try:
            from torch.utils import tensorboard as writers
        except ImportError:
            import tensorboardX as writers  # type: ignore[no-redef]
        self._writer: Any = writers.SummaryWriter(fspath(folder))

    def __call__(self, progress: Progress) -> None:
        for name, value in _figures(progress):
            self._writer.add_scalar(name, value, progress.round)

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MLflow:
    """Metrics of each evaluation in MLflow's active run; without one, a run is started, which `close` ends."""

    def __init__(self, **start_run: Any) -> None:
        import mlflow

        self._mlflow: Any = mlflow
        self._started = bool(start_run) or mlflow.active_run() is None
        if self._started:
            mlflow.start_run(**start_run)

    def __call__(self, progress: Progress) -> None:
        figures = dict(_figures(progress))
        if figures:
            self._mlflow.log_metrics(figures, step=progress.round)

    def close(self) -> None:
        if self._started:
            self._mlflow.end_run()

    def __enter__(self) -> MLflow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WandB:
    """Metrics of each evaluation in a run of Weights & Biases: `wandb.init(**init)`, or the current run."""

    def __init__(self, **init: Any) -> None:
        import wandb

        self._started = bool(init) or wandb.run is None
        self.run: Any = wandb.init(**init) if self._started else wandb.run

    def __call__(self, progress: Progress) -> None:
        figures = dict(_figures(progress))
        if figures:
            self.run.log({**figures, "round": progress.round})

    def close(self) -> None:
        if self._started:
            self.run.finish()

    def __enter__(self) -> WandB:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
