"""Whimbrel on Flower: the example app in simulation gives the bits of `whimbrel.run`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import whimbrel

pytest.importorskip("flwr")
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "flower"


@pytest.fixture
def wards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    monkeypatch.setenv("WARDS_OUT", str(tmp_path / "run"))
    monkeypatch.setenv("WARDS_STATES", str(tmp_path / "states"))
    import wards.job

    yield wards.job
    for name in [name for name in sys.modules if name.split(".")[0] == "wards"]:
        del sys.modules[name]


def expected(job: object, tmp_path: Path) -> bytes:
    lines = [
        f"{ward},{x!r},{y!r}" for ward in job.WARDS for x, y in job.rows(ward).tolist()
    ]
    (tmp_path / "wards.csv").write_text("\n".join(["ward,age,score", *lines]) + "\n")
    run = whimbrel.run(job.JOB, tmp_path / "here", progress=False)
    return (run.folder / "model" / "model.safetensors").read_bytes()


def test_the_example_in_simulation_has_the_bits_of_a_run(wards: object, tmp_path: Path) -> None:
    from flwr.simulation import run_simulation
    from wards.client import app as client
    from wards.server import app as server

    run_simulation(server, client, num_supernodes=2)
    found = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert found == expected(wards, tmp_path)
    assert len(list((tmp_path / "states").glob("*.state"))) == 2


def test_a_client_without_its_process_goes_on_from_its_folder(wards: object, tmp_path: Path) -> None:
    """Every message meets a node whose memory is gone: `Context.state` and the process's machines."""
    from flwr.app import RecordDict
    from flwr.clientapp import ClientApp
    from flwr.simulation import run_simulation
    from wards.client import app as client
    from wards.server import app as server
    from whimbrel import flower

    forgetful = ClientApp()

    @forgetful.query("whimbrel")
    def query(message, context):
        return client(message, context)

    @forgetful.train("whimbrel")
    def train(message, context):
        flower._machines.clear()
        context.state = RecordDict()
        return client(message, context)

    run_simulation(server, forgetful, num_supernodes=2)
    found = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert found == expected(wards, tmp_path)


class Line:
    """Linear regression without an intercept."""

    def start(self, shape, classes, seed):
        return np.zeros(shape, np.float32)

    def predict(self, params, inputs):
        return inputs @ params

    def loss_and_grad(self, params, batch, weights):
        errors = batch.inputs @ params - batch.targets
        return errors**2 / 2, batch.inputs.T @ errors / np.float32(len(errors))


def test_an_own_learner_trains_on_the_nodes(tmp_path: Path) -> None:
    from flwr.simulation import run_simulation
    from whimbrel import flower

    names = ["east", "west"]
    rng = np.random.default_rng(0)
    X = {name: rng.normal(size=(40, 2)) for name in names}
    job = {
        "seed": 5,
        "data": {"source": "csv", "path": "rows.csv", "client": "ward", "columns": ["u", "v"], "target": "y"},
        "model": {"kind": "own", "classifies": False},
        "method": {"kind": "fedavg", "rounds": 5, "step": 0.1},
        "federation": {"clients": names},
    }
    learner, targets = Line(), lambda name: X[name] @ [1.0, -2.0]
    server = flower.server_app(job, tmp_path / "there", learner=learner)
    data = lambda context: (name := names[int(context.node_config["partition-id"])], (X[name], targets(name)))
    run_simulation(server, flower.client_app(data, learner=learner), num_supernodes=2)
    lines = [f"{name},{u!r},{v!r},{y!r}" for name in names for (u, v), y in zip(X[name].tolist(), targets(name).tolist(), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["ward,u,v,y", *lines]) + "\n")
    here = whimbrel.run(job, tmp_path / "here", learner=learner, progress=False)
    there = whimbrel.Run(tmp_path / "there")
    np.testing.assert_array_equal(there.model["parameters"], here.model["parameters"])
