"""Rows of a program for a job: arrays, data frames, Arrow tables, or a dict of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np

from . import _whimbrel

CLIENT = "client"


def rows_of(
    data: Any, clients: Any, table: Mapping[str, Any], make: Any = _whimbrel.Rows
) -> tuple[Any, dict[str, Any]]:
    """The rows, as `make(values, names, None, texts, order)`, and the keys of `[data]` that they settle.

    `data` is a two-dimensional array, a pair of inputs and targets, a data set of PyTorch, a frame of pandas
    or polars, a table of pyarrow, or a dict of these by client, or a list with one for each client. `clients` names
    the client of each row, the column that does, or the items of a list. Columns of an array have the names of `columns` in `[data]`, else `x0`, `x1`, ...; a last
    column more is the `target`. Inputs of a pair or a data set may have any shape, which becomes `shape` in
    `[data]`; pixels of images as bytes are divided by 255.
    """
    data, clients = _by_client(data, clients)
    data, table, settled = _paired(data, table)
    columns, keys = _rows_of(data, clients, table)
    return _rows(columns, make), {**settled, **keys}


def rows_for(data: Any, run: Mapping[str, Any], columns: Any) -> Any:
    """Rows for a finished run, whose resolved `[data]` and feature columns are given: data as in `rows_of`, or
    inputs of any shape without targets."""
    if isinstance(_by_client(data, None)[0], Mapping):
        raise ValueError(f"`data` is a {type(data).__name__} of clients: the rows must be those of one array, frame or table")
    if getattr(data, "ndim", 0) > 2:
        inputs = _array(data)
        data = _scaled(inputs).reshape(len(inputs), -1)
    table = {key: run[key] for key in ("columns", "target", CLIENT) if isinstance(run.get(key), (str, list))}
    if "columns" not in table and columns is not None:
        table["columns"] = columns
    return rows_of(data, None, table)[0]


def _by_client(data: Any, clients: Any) -> tuple[Any, Any]:
    """A list of arrays, pairs, frames or tables as a dict of clients; everything else unchanged."""
    is_rows = lambda part: isinstance(part, tuple) or hasattr(part, "columns") or getattr(part, "ndim", 0) > 1
    if not isinstance(data, list) or not data or not all(map(is_rows, data)):
        return data, clients
    from ._base import client_names

    digits = len(str(len(data) - 1))
    names = clients if clients is not None else [f"{i:0{digits}}" for i in range(len(data))]
    parts = dict(zip(client_names(names, len(data), "items"), data, strict=True))
    if len(parts) < len(data):
        raise ValueError("two items of `data` belong to one client: names in `clients` must differ")
    return parts, None


def _paired(data: Any, table: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any], dict[str, Any]]:
    """Pairs of inputs and targets as arrays with a last column for the target, and the keys that they settle."""
    parts = list(data.values()) if isinstance(data, Mapping) else [data]
    pairs = [_pair(part) for part in parts]
    if not pairs or all(pair is None for pair in pairs):
        return data, table, {}
    shapes = {pair[0].shape[1:] for pair in pairs if pair is not None}
    if len(shapes) > 1 or any(pair is None for pair in pairs):
        raise ValueError("the clients of `data` differ in kind, or in the shape of an input")
    (shape,) = shapes
    target = str(table.get("target", "target"))
    settled: dict[str, Any] = {"target": target}
    if len(shape) > 1:
        settled["shape"] = [int(length) for length in shape]
    names = [f"x{j}" for j in range(int(np.prod(shape)))]
    given = table.get("columns", names)
    if len(given) != len(names):
        raise ValueError(f"an input of `data` has {len(names)} numbers, and the job names {len(given)} columns")
    tables = [_Pair(given, pair[0].reshape(len(pair[0]), -1), target, pair[1]) for pair in pairs if pair is not None]
    stacked = dict(zip(data, tables, strict=True)) if isinstance(data, Mapping) else tables[0]
    return stacked, {**table, **settled}, settled


class _Pair(dict[str, np.ndarray]):
    """The columns of inputs and targets."""

    def __init__(self, names: Sequence[str], inputs: np.ndarray, target: str, targets: np.ndarray) -> None:
        super().__init__((str(name), inputs[:, j]) for j, name in enumerate(names))
        self[target] = targets if targets.dtype == object else targets.astype(np.float64)


def _pair(data: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Inputs as `float64` and targets of a pair or a data set; None for anything else."""
    tensors = getattr(data, "tensors", None)  # torch.utils.data.TensorDataset
    if tensors is not None:
        data = tuple(tensors)
    elif not isinstance(data, tuple) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if hasattr(data, "columns") or hasattr(data, "column_names") or not hasattr(type(data), "__add__"):
            return None
        if isinstance(data, (list, np.ndarray)) or hasattr(data, "dtype"):
            return None
        items = [data[i] for i in range(len(data))]
        if not items or not all(isinstance(item, (tuple, list)) and len(item) == 2 for item in items):
            raise ValueError("a data set in `data` must have items, each an input with its target")
        data = np.stack([np.asarray(x) for x, _ in items]), np.asarray([np.asarray(y).item() for _, y in items])
    if not isinstance(data, tuple):
        return None
    if len(data) != 2:
        raise ValueError(f"`data` is a tuple of {len(data)}: it must be a pair of inputs and targets")
    inputs, targets = map(_array, data)
    if inputs.ndim < 2 or inputs.dtype.kind not in "fiub" or targets.shape != inputs.shape[:1]:
        raise ValueError(
            f"`data` is a pair of inputs of shape {inputs.shape} of {inputs.dtype} and targets of shape "
            f"{targets.shape}: expected numbers `(n, ...)` and `(n,)`"
        )
    return _scaled(inputs), _cells(targets, "target")


def _array(data: Any) -> np.ndarray:
    """An array, which keeps its mask."""
    return data if isinstance(data, np.ma.MaskedArray) else np.asarray(data)


def _numbers(values: Any) -> np.ndarray:
    """Numbers as `float64`; masked cells are gaps."""
    return np.ma.filled(_array(values).astype(np.float64), np.nan)


def _scaled(inputs: np.ndarray) -> np.ndarray:
    """Inputs as `float64`; pixels of images as bytes are divided by 255."""
    scale = 255 if inputs.dtype == np.uint8 and inputs.ndim > 2 else 1
    return _numbers(inputs) / scale


def _rows_of(data: Any, clients: Any, table: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The columns of all clients, and the key of the one that names them."""
    names: list[str] | None = None
    if isinstance(data, Mapping) and not isinstance(data, _Pair):
        if clients is not None:
            raise ValueError("`data` is a dict of clients: `clients` would name them twice")
        if not data:
            raise ValueError("`data` has no clients")
        parts = [_columns(part, table, None) for part in data.values()]
        names = [str(name) for name, part in zip(data, parts, strict=True) for _ in range(_length(part))]
        columns = _stacked(list(data), parts)
    else:
        columns = _columns(data, table, clients if isinstance(clients, str) else table.get(CLIENT))
        if isinstance(clients, str):
            if clients not in columns:
                raise ValueError(f"`clients` is {clients!r}, which is not a column of `data`: {_some(columns)}")
            return columns, {CLIENT: clients}
        if clients is not None:
            from ._base import client_names

            names = client_names(clients, _length(columns))
    if names is None:
        return columns, {}
    name = str(table.get(CLIENT, CLIENT))
    if name in columns:
        raise ValueError(f"`data` has a column {name!r}, and its clients are named beside it: omit one of them")
    return {**columns, name: np.asarray(names, dtype=object)}, {CLIENT: name}


def _columns(data: Any, table: Mapping[str, Any], client: Any) -> dict[str, np.ndarray]:
    """Columns by name: float64 for numbers, objects for text. The client's keeps all digits of its names."""
    if isinstance(data, _Pair):
        return dict(data)
    if hasattr(data, "column_names") and hasattr(data, "column"):  # pyarrow
        return _readable({name: data.column(name) for name in data.column_names}, table, client)
    if hasattr(data, "columns"):  # pandas and polars
        named = [str(name) for name in data.columns]
        twice = [name for i, name in enumerate(named) if name in named[:i]]
        if twice:
            raise ValueError(f"`data` has two columns {twice[0]!r}")
        return _readable({str(name): data[name] for name in data.columns}, table, client)
    values = _array(data)
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise ValueError(
            f"`data` must be a two-dimensional array of numbers, a frame, or a dict or list of clients, got "
            f"shape {values.shape} of {values.dtype}"
        )
    given = table.get("columns")
    names = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if names is None:
        names = [f"x{j}" for j in range(values.shape[1] - ("target" in table))]
    if len(names) == values.shape[1] - 1 and "target" in table:
        names.append(str(table["target"]))
    if len(names) != values.shape[1]:
        raise ValueError(f"`data` has {values.shape[1]} columns, and the job names {len(names)}: {_some(names)}")
    return {str(name): _numbers(values[:, j]) for j, name in enumerate(names)}


def _readable(columns: dict[str, Any], table: Mapping[str, Any], client: Any) -> dict[str, np.ndarray]:
    """The cells of columns; those of other types are left out if the job does not name them."""
    listed = table.get("columns")
    used = {client, table.get("target"), *listed} if isinstance(listed, (list, tuple)) else columns
    found = {}
    for name, column in columns.items():
        try:
            found[name] = _cells(column, name, name == client)
        except ValueError:
            if name in used:
                raise
    return found


def _cells(column: Any, name: str, as_text: bool = False) -> np.ndarray:
    """One column: numbers with NaN for gaps, or text with empty cells for gaps. Categories are text."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if not as_text and isinstance(dtype, np.dtype) and dtype.kind in "fiub":
        return _finite(_numbers(column), name)
    as_text |= str(dtype).startswith(("category", "dictionary"))
    if isinstance(column, np.ndarray):
        column = column.tolist()
    else:
        column = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
    values = np.fromiter(column, dtype=object, count=len(column))
    gaps = np.array([_is_gap(x) for x in values], dtype=bool)
    known = values[~gaps]
    if not as_text and all(isinstance(x, (bool, np.bool_, int, float, np.integer, np.floating, Decimal)) for x in known):
        numbers = np.full(len(values), np.nan)
        numbers[~gaps] = [float(x) for x in known]
        return _finite(numbers, name)
    return np.array(["" if gap else _spelled(x, name) for x, gap in zip(values, gaps, strict=True)], dtype=object)


def _spelled(x: Any, name: str) -> str:
    """A cell as text, as it is in a Parquet file.

    >>> from datetime import timedelta, timezone
    >>> at = datetime(2024, 5, 17, 10, 0, 0, 500000)
    >>> [_spelled(x, "") for x in (2.0, 9007199254740993, True, at, at.replace(tzinfo=timezone(timedelta(hours=1))))]
    ['2', '9007199254740993', '1', '2024-05-17T10:00:00.5', '2024-05-17T09:00:00.5Z']
    """
    match x:
        case str():
            return x
        case bool() | np.bool_() | int() | np.integer():
            return str(int(x))
        case float() | np.floating():
            return np.format_float_positional(x, trim="-")
        case Decimal():
            return f"{x:f}"
        case datetime():
            local = x if x.tzinfo is None else x.astimezone(UTC).replace(tzinfo=None)
            return _trimmed(local.isoformat()) + ("" if x.tzinfo is None else "Z")
        case date() | time():
            return _trimmed(x.isoformat())
    raise ValueError(f"column {name!r} of `data` holds {type(x).__name__}: cells are numbers, text or dates")


def _trimmed(text: str) -> str:
    return text.rstrip("0") if "." in text else text


def _finite(numbers: np.ndarray, name: str) -> np.ndarray:
    if np.isinf(numbers).any():
        raise ValueError(f"column {name!r} of `data` has an infinite number")
    return numbers


def _is_gap(x: Any) -> bool:
    """None, NaN, NaT and pandas' NA."""
    if x is None:
        return True
    same = x == x
    return not isinstance(same, np.ndarray) and (not isinstance(same, (bool, np.bool_)) or not same)


def _stacked(clients: list[Any], parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of all clients, with equal columns."""
    first = list(parts[0])
    for client, part in zip(clients[1:], parts[1:], strict=True):
        if list(part) != first:
            raise ValueError(
                f"the columns of client {client!r} are {list(part)}, those of client {clients[0]!r} are {first}"
            )
    stacked = {}
    for name in first:
        each = [part[name] for part in parts]
        if len({values.dtype for values in each}) > 1:
            # A column of gaps alone reads as numbers.
            each = [values if values.dtype == object else _as_text(values, name) for values in each]
        stacked[name] = np.concatenate(each)
    return stacked


def _as_text(values: np.ndarray, name: str) -> np.ndarray:
    if not np.isnan(values).all():
        raise ValueError(f"column {name!r} is text for one client and numbers for another")
    return np.full(len(values), "", dtype=object)


def _rows(columns: dict[str, np.ndarray], make: Any) -> Any:
    if not columns or _length(columns) == 0:
        raise ValueError("`data` has no rows or no columns")
    numeric = [name for name, values in columns.items() if values.dtype != object]
    texts = [(name, values.tolist()) for name, values in columns.items() if values.dtype == object]
    values = np.empty((_length(columns), len(numeric)))
    for j, name in enumerate(numeric):
        values[:, j] = columns[name]
    return make(values, numeric, None, texts, list(columns))


def _length(columns: dict[str, np.ndarray]) -> int:
    return len(next(iter(columns.values()), ()))


def _some(names: Any) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "")
