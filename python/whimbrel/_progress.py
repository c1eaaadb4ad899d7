"""Messages of a run: a progress bar, warnings, the log."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_log = logging.getLogger("whimbrel")


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round or an evaluation.

    `stage` is `fit`, or a stage before it such as `k-means`; `round` counts the stage's rounds; `rounds` is
    their planned number, if known. `metrics` has the figures of an evaluation, and is empty after a round.
    """

    stage: str
    round: int
    rounds: int | None
    metrics: dict[str, Any] = field(default_factory=dict)


Callback = Callable[[Progress], Any]


class Listener:
    """Shows the events of a run: notes in the logger `whimbrel`, warnings in `warnings`, rounds in tqdm; and
    passes rounds to a callback."""

    def __init__(self, progress: bool, callback: Callback | None = None) -> None:
        self._tqdm = _tqdm() if progress else None
        self._bar: Any = None
        self._callback = callback

    @property
    def calls(self) -> bool:
        """Whether rounds have a callback."""
        return self._callback is not None

    def __call__(self, kind: str, value: Any) -> Any:
        return getattr(self, kind)(value)

    def note(self, text: str) -> None:
        _log.info("%s", text)

    def warning(self, text: str) -> None:
        warnings.warn(text, UserWarning, stacklevel=_caller())

    def stopped(self, text: str) -> None:
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(text, ConvergenceWarning, stacklevel=_caller())

    def stage(self, value: tuple[str, int, int, int | None]) -> None:
        name, index, of, rounds = value
        self.close()
        if self._tqdm is not None:
            label = name if of == 1 else f"{name} ({index} of {of})"
            self._bar = self._tqdm(total=rounds, desc=label, unit="round", leave=index == of)

    def round(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def call(self, value: tuple[str, int, int | None, str | None]) -> bool:
        """Whether the callback ends the run."""
        stage, round, rounds, figures = value
        metrics = json.loads(figures) if figures else {}
        return self._callback is not None and bool(self._callback(Progress(stage, round, rounds, metrics)))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _caller() -> int:
    """The stack level of the code that called this package."""
    here, frame, level = Path(__file__).parent, sys._getframe(1), 1
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == here:
        frame, level = frame.f_back, level + 1
    return level


def _tqdm() -> Any:
    """tqdm for a terminal or a notebook, if installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm
