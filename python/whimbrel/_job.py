"""Jobs: a path, TOML text, or a dict of tables."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from . import _whimbrel

JobLike = str | PathLike[str] | Mapping[str, Any]


class JobText(TypedDict):
    """A job for the compiled code."""

    text: str
    name: str
    folder: Path
    rows: _whimbrel.Rows | None


def job_text(job: JobLike, data: Any = None, clients: Any = None, make: Any = _whimbrel.Rows) -> JobText:
    """A job's text, its name in messages, the folder of its relative paths, and its rows in memory.

    A `str` is a path, unless it has a line break or an equals sign: then it is TOML. In a dict,
    `path` of `data` can be `Rows`. `data` replaces the rows that `[data]` names; `make` makes rows of them.

    >>> job_text({"seed": 1, "method": {"kind": "em"}})["text"]
    'seed = 1\\nmethod = { kind = "em" }\\n'
    """
    if data is not None:
        return _with_rows(job, data, clients, make)
    if clients is not None:
        raise ValueError("`clients` names the clients of the rows in `data`, which is absent")
    if isinstance(job, Mapping):
        table = job.get("data")
        if isinstance(table, Mapping) and isinstance(rows := table.get("path"), _whimbrel.Rows):
            return _unnamed(to_toml({**job, "data": {**table, "path": "memory"}}), rows)
        return _unnamed(to_toml(job))
    if isinstance(job, str) and any("\ud800" <= c <= "\udfff" for c in job):
        raise ValueError("the job has half of a surrogate pair, which is not valid UTF-8")
    if isinstance(job, str) and ("\n" in job or "=" in job):
        return _unnamed(job)
    if not isinstance(job, (str, PathLike)):
        raise TypeError(f"a job is a path, TOML text or a dict, not {type(job).__name__}")
    path = Path(fspath(job))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: the job file does not exist") from None
    return {"text": text, "name": str(path), "folder": path.absolute().parent, "rows": None}


def tables_of(job: JobLike) -> tuple[dict[str, Any], Path]:
    """The tables of a job, and the folder of its relative paths."""
    if isinstance(job, Mapping):
        return dict(job), Path.cwd()
    text = job_text(job)
    try:
        return tomllib.loads(text["text"]), text["folder"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{text['name']}: {error}") from None


def with_keys(job: JobLike, keys: Mapping[str, Any]) -> JobText:
    """A job with some keys replaced; `method.rounds` is the key `rounds` of `[method]`.

    >>> with_keys({"seed": 1, "method": {"kind": "em"}}, {"method.rounds": 3})["text"]
    'seed = 1\\nmethod = { kind = "em", rounds = 3 }\\n'
    """
    if not keys:
        return job_text(job)
    tables, folder = tables_of(job)
    for key, value in keys.items():
        *path, last = key.split(".")
        at = tables
        for part in path:
            inner = at.get(part, {})
            if not isinstance(inner, Mapping):
                raise ValueError(f"{key}: `{part}` of the job is {inner!r}, not a table")
            at[part] = dict(inner)
            at = at[part]
        at[last] = value
    return {**_unnamed(to_toml(tables)), "folder": folder}


def _with_rows(job: JobLike, data: Any, clients: Any, make: Any) -> JobText:
    """A job over the rows of a program; its other keys of `[data]` stay."""
    from ._data import rows_of

    tables, folder = tables_of(job)
    table = tables.get("data", {})
    source = table.get("source", "csv") if isinstance(table, Mapping) else None
    if source != "csv":
        raise ValueError(f'`data` is for a job whose [data] has source = "csv"; this one has {source!r}')
    rows, keys = rows_of(data, clients, table, make)
    table = {"source": "csv", **table, **keys, "path": "memory"}
    return {**_unnamed(to_toml({**tables, "data": table}), rows), "folder": folder}


def _unnamed(text: str, rows: _whimbrel.Rows | None = None) -> JobText:
    return {"text": text, "name": "the job", "folder": Path.cwd(), "rows": rows}


def check_takes_learner(text: str) -> None:
    """Refuses a learner for a job that does not use it. Other errors are left to the job's reader."""
    try:
        kind = tomllib.loads(text)["model"]["kind"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        return
    if kind != "own":
        raise ValueError(f'`learner` is for a job whose [model] has kind = "own"; this one has kind = "{kind}"')


NETWORKS = ("mlp", "cnn", "lenet", "mobilenet-v2", "resnet-18", "lstm")


def check_takes_device(text: str) -> None:
    """Refuses a device for a job without a built-in network. Other errors are left to the job's reader."""
    try:
        kind = tomllib.loads(text)["model"]["kind"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        return
    if kind not in NETWORKS:
        hint = "; give the device to the learner" if kind == "own" else ""
        raise ValueError(f'`device` is for a job whose model is {", ".join(NETWORKS)}; this one has kind = "{kind}"{hint}')


def to_toml(job: Mapping[str, Any]) -> str:
    """A dict as TOML, one line per key, without None."""
    lines = (f"{_key(k)} = {_value(v, str(k))}\n" for k, v in job.items() if v is not None)
    return "".join(lines)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"keys of a job are strings, not {type(key).__name__}: {key!r}")
    return key if key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key) else _text(key)


def _text(value: str) -> str:
    def escaped(c: str) -> str:
        if c in '"\\':
            return "\\" + c
        return c if c.isprintable() else f"\\U{ord(c):08x}"

    return '"' + "".join(map(escaped, value)) + '"'


def _value(value: Any, key: str) -> str:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case float():
            return {True: "nan", False: "inf" if value > 0 else "-inf"}[math.isnan(value)]
        case str():
            return _text(value)
        case PathLike():
            return _text(fspath(value))
        case Mapping():
            inner = (f"{_key(k)} = {_value(v, k)}" for k, v in value.items() if v is not None)
            return "{ " + ", ".join(inner) + " }" if value else "{}"
        case list() | tuple():
            return "[" + ", ".join(_value(v, key) for v in value) + "]"
    raise TypeError(f"`{key}` cannot be a {type(value).__name__}")
