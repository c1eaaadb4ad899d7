"""Messages of a run: a progress bar, warnings, the log."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from sklearn.exceptions import ConvergenceWarning

_log = logging.getLogger("whimbrel")


class Listener:
    """Shows the events of a run: notes in the logger `whimbrel`, warnings in `warnings`, rounds in tqdm."""

    def __init__(self, progress: bool) -> None:
        self._tqdm = _tqdm() if progress else None
        self._bar: Any = None

    def __call__(self, kind: str, value: Any) -> Any:
        return getattr(self, kind)(value)

    def note(self, text: str) -> None:
        _log.info("%s", text)

    def warning(self, text: str) -> None:
        warnings.warn(text, UserWarning, stacklevel=_caller())

    def stopped(self, text: str) -> None:
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
