"""What the command line has beside `run`, from Python."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import whimbrel


def model_bytes(run: whimbrel.Run) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


def test_threads_change_no_bit(mixture_job: dict) -> None:
    runs = [
        whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False, threads=threads)
        for threads in (None, 1, 3)
    ]
    assert len({model_bytes(run) for run in runs}) == 1
    for threads in (0, -1, 2000, 1.5):
        with pytest.raises(ValueError, match="threads"):
            whimbrel.run(mixture_job, whimbrel.TEMPORARY, threads=threads)  # type: ignore[arg-type]


def test_a_journal_is_replayed(mixture_job: dict, tmp_path: Path) -> None:
    lossy = {**mixture_job, "simulation": {"lost": 0.3}}
    run = whimbrel.run(lossy, tmp_path / "run", progress=False)
    calm = whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False)
    again = whimbrel.run(
        mixture_job, whimbrel.TEMPORARY, progress=False, replay=run.folder / "journal"
    )
    assert model_bytes(again) == model_bytes(run) != model_bytes(calm)


def test_what_a_run_reads_is_not_replaced(mixture_job: dict, tmp_path: Path) -> None:
    run = whimbrel.run(mixture_job, tmp_path / "run", progress=False)
    journal = run.folder / "journal"
    with pytest.raises(ValueError, match="replacing the run would remove"):
        whimbrel.run(mixture_job, run.folder, existing="replace", progress=False, replay=journal)
    assert journal.is_file()


def test_a_comparison_is_runs_by_name_and_one_page(mixture_job: dict, tmp_path: Path) -> None:
    pooled = {**mixture_job, "name": "pooled", "method": {"kind": "em", "rounds": 12}}
    del pooled["uplink"]
    jobs = [pooled, mixture_job]
    compared = whimbrel.compare(jobs, tmp_path / "both", progress=False, threads=1)
    assert list(compared) == ["pooled", "mixture"]
    alone = whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False)
    assert model_bytes(compared["mixture"]) == model_bytes(alone)
    assert compared.summaries["pooled"]["method"] == "em"
    page = (tmp_path / "both" / "report.html").read_text()
    assert str(compared.report()) == page == str(whimbrel.report(*compared.values()))
    again = pickle.loads(pickle.dumps(compared))
    assert model_bytes(again["pooled"]) == model_bytes(compared["pooled"])
    with pytest.raises(ValueError, match=r"not empty[\s\S]*existing=\"replace\""):
        whimbrel.compare(jobs, tmp_path / "both", progress=False)
    whimbrel.compare(jobs, tmp_path / "both", existing="replace", progress=False)


def test_the_folder_of_a_comparison_goes_with_its_last_run(mixture_job: dict) -> None:
    run = whimbrel.compare([mixture_job], whimbrel.TEMPORARY, progress=False)["mixture"]
    folder = run.folder
    assert folder.is_dir()
    del run
    assert not folder.exists() and not folder.parent.exists()


def test_wrong_comparisons_are_exceptions(mixture_job: dict) -> None:
    with pytest.raises(ValueError, match="two jobs have the name `mixture`"):
        whimbrel.compare([mixture_job, mixture_job], whimbrel.TEMPORARY)
    with pytest.raises(TypeError, match="whimbrel.run runs one"):
        whimbrel.compare(mixture_job, whimbrel.TEMPORARY)
    with pytest.raises(ValueError, match="at least one job"):
        whimbrel.compare([], whimbrel.TEMPORARY)
    with pytest.raises(ValueError, match="'refuse' or 'replace'"):
        whimbrel.compare([mixture_job], whimbrel.TEMPORARY, existing="resume")
    with pytest.raises(ValueError, match="at least one run"):
        whimbrel.report()


def test_a_search_is_recorded_and_goes_with_its_run(tmp_path: Path) -> None:
    job = {
        "data": {"source": "synthetic-mixture", "clients": 6, "dimension": 5},
        "model": {"kind": "logistic"},
        "method": {"kind": "fedavg", "rounds": 3, "search": {"step": [0.01, 0.1]}},
    }
    run = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    found = run.search
    assert found is not None and len(found["tried"]) == 2 and found["chosen"] in found["tried"]
    whole = run.folder.parent
    del run
    assert not whole.exists()


def test_seeds_are_runs(mixture_job: dict) -> None:
    run = whimbrel.run({**mixture_job, "seeds": 2}, whimbrel.TEMPORARY, progress=False)
    assert list(run.seeds) == [3, 4] and run.search is None
    # Seeds share the rows of the first.
    data = {**mixture_job["data"], "seed": 3}
    alone = whimbrel.run({**mixture_job, "seed": 4, "data": data}, whimbrel.TEMPORARY, progress=False)
    assert model_bytes(run.seeds[4]) == model_bytes(alone)
    assert alone.seeds == {}


def test_costs_are_foretold(mixture_job: dict) -> None:
    costs = whimbrel.estimate(mixture_job)
    assert (costs["clients"], costs["rows"], costs["rounds"]) == (14, 420, 12)
    assert costs["job"] == whimbrel.check(mixture_job)
    assert costs["memory_bytes"] > 8 * 2 * costs["rows"] and costs["seconds"] > 0


def test_a_file_becomes_a_job_that_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [f"{'ab'[i % 2]},{x:.3f},{y:.3f}" for i, (x, y) in enumerate(rng.normal(size=(80, 2)))]
    (tmp_path / "rows.csv").write_text("\n".join(["ward,age,dose", *rows]) + "\n")
    seen = whimbrel.inspect("rows.csv", client="ward")
    assert (seen["rows"], seen["clients"]) == (80, {"a": 40, "b": 40})
    (tmp_path / "job.toml").write_text(whimbrel.new("rows.csv"))
    held = whimbrel.inspect("job.toml")
    assert {name: client["rows"] for name, client in held["clients"].items()} == {"a": 40, "b": 40}
    assert whimbrel.inspect((tmp_path / "job.toml").read_text()) == held
    run = whimbrel.run("job.toml", whimbrel.TEMPORARY, progress=False)
    assert json.loads((run.folder / "summary.json").read_text())["rows"] == 80


def test_a_table_is_completed_in_its_own_form(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(12, 1)) @ rng.normal(size=(1, 5)) + 3
    lines = [f"{r},{c},{truth[r, c]:.4f}" for r in range(12) for c in range(5) if (r + c) % 4]
    (tmp_path / "cells.csv").write_text("\n".join(["row,column,value", *lines]) + "\n")
    job = {
        "data": {
            "source": "csv",
            "path": "cells.csv",
            "row": "row",
            "column": "column",
            "value": "value",
            "split": {"by": "iid", "clients": 3},
        },
        "model": {"kind": "low-rank", "family": "gaussian", "rank": 1, "lambda": 0.1},
        "method": {"kind": "fedmiss", "rounds": 5},
    }
    run = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    wide, long = run.impute(wide=True), run.impute()
    assert len(next(iter(wide.values()))) == 12 and len(long["estimate"]) == 60
