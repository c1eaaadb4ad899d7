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


def test_the_guide_runs(wards: object, tmp_path: Path) -> None:
    import re

    from flwr.simulation import run_simulation

    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "flower.md"
    (block,) = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    expected(wards, tmp_path)
    header, *lines = (tmp_path / "wards.csv").read_text().splitlines()
    for ward in wards.WARDS:
        own = [line for line in lines if line.startswith(ward)]
        (tmp_path / f"{ward}.csv").write_text("\n".join([header, *own]) + "\n")
    # Nodes have another working directory.
    block = block.replace('f"{ward}.csv"', f'"{tmp_path}/" + f"{{ward}}.csv"').replace('"wards-', f'"{tmp_path}/wards-')
    names: dict = {}
    exec(compile(block, "flower.md", "exec"), names)  # noqa: S102
    run_simulation(names["server"], names["client"], num_supernodes=2)
    found = (tmp_path / "wards-run" / "model" / "model.safetensors").read_bytes()
    here = whimbrel.run(names["job"], tmp_path / "guide", progress=False)
    assert found == (here.folder / "model" / "model.safetensors").read_bytes()


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


class Network:
    """A grid whose nodes are called in this process. The node of `ward` fails at batch `first`, with or without
    having `computed`, and comes back during batch `last` under another number, with nothing but its folder."""

    def __init__(self, client: object, wards: list[str], ward: str, first: int, last: int, computed: bool) -> None:
        self.client, self.wards, self.ward, self.computed = client, wards, ward, computed
        self.first, self.last, self.batch = first, last, 0
        self.nodes = {i + 10: self.context(i + 10, name) for i, name in enumerate(wards)}

    def context(self, node: int, name: str) -> object:
        from flwr.app import Context, RecordDict

        config = {"partition-id": self.wards.index(name)}
        return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})

    def get_node_ids(self) -> list[int]:
        if self.batch >= self.last and len(self.nodes) < len(self.wards):
            self.nodes[100] = self.context(100, self.ward)
        return list(self.nodes)

    def send_and_receive(self, messages: list, timeout: float | None = None) -> list:
        return [self.reply(message) for message in messages]

    def reply(self, message: object) -> object:
        from flwr.app import Error, Message
        from whimbrel import flower

        node = message.metadata.dst_node_id
        if "offer" in message.content:
            self.batch = message.content["offer"]["number"]
        if node != 10 + self.wards.index(self.ward) or self.batch < self.first:
            return self.client(message, self.nodes[node])
        if self.computed:
            self.client(message, self.nodes[node])
        del self.nodes[node]
        flower._machines.clear()
        return Message(Error(code=5, reason="Node Unavailable"), reply_to=message)


def over(network: Network, server: object) -> None:
    """Runs the app of a server over this network: Flower's own is only there to start it."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    app = ServerApp()

    @app.main()
    def main(grid, context):
        server(network, context)

    run_simulation(app, network.client, num_supernodes=1)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(("last", "missed"), [(7, []), (9, [3, 4])])
def test_a_node_that_comes_back_goes_on_as_its_client(
    wards: object, tmp_path: Path, last: int, missed: list[int], computed: bool
) -> None:
    """Batch 7 is round 3: after two enrolments, an evaluation, the first rounds and an opening."""
    from wards.client import app as client
    from wards.server import app as server

    with pytest.warns(UserWarning, match="client 'east' does not answer: Node Unavailable"):
        over(Network(client, wards.WARDS, "east", 7, last, computed), server)
    found = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    wards.JOB["simulation"] = {"drops": [{"round": number, "clients": ["east"]} for number in missed]}
    assert found == expected(wards, tmp_path)


def test_a_job_that_no_client_can_answer_ends_with_the_reason(wards: object) -> None:
    from whimbrel import flower

    client = flower.client_app(lambda context: (wards.WARDS[int(context.node_config["partition-id"])], "none.csv"))

    class Failing(Network):
        def reply(self, message: object) -> object:
            from flwr.app import Error, Message

            try:
                return super().reply(message)
            except FileNotFoundError as error:
                return Message(Error(code=2, reason=str(error)), reply_to=message)

    with pytest.warns(UserWarning), pytest.raises(Exception) as raised:
        over(Failing(client, wards.WARDS, "east", 99, 99, False), flower.server_app(wards.JOB, whimbrel.TEMPORARY))
    assert "none.csv" in causes(raised.value)


def causes(error: BaseException) -> str:
    found = [error]
    while found[-1].__cause__ or found[-1].__context__:
        found.append(found[-1].__cause__ or found[-1].__context__)
    return " ".join(map(str, found))


def test_a_client_masks_words_for_its_accepted_roster_alone(tmp_path: Path) -> None:
    from flwr.app import Context, RecordDict
    from whimbrel import flower

    names = ["east", "north", "west"]
    rng = np.random.default_rng(0)
    rows = {name: (X := rng.normal(size=(40, 2)), X @ [1.0, -2.0]) for name in names}
    lines = [f"{n},{u!r},{v!r},{y!r}" for n in names for (u, v), y in zip(rows[n][0].tolist(), rows[n][1].tolist(), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["ward,u,v,y", *lines]) + "\n")
    job = {
        "seed": 5,
        "data": {"source": "csv", "path": "rows.csv", "client": "ward", "columns": ["u", "v"], "target": "y"},
        "model": {"kind": "linear"},
        "method": {"kind": "qsgd", "rounds": 3, "step": 0.1},
        "uplink": {"codec": {"kind": "grid", "bits": 16}},
        "privacy": {"masks": True},
        "federation": {"clients": names},
    }
    data = lambda context: (name := names[int(context.node_config["partition-id"])], rows[name])

    def run(states: Path, roster: str, out: object) -> None:
        network = Network(flower.client_app(data, states, roster=roster), names, "east", 99, 99, False)
        context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={})
        flower.server_app(job, out)(network, context)

    first, second = tmp_path / "first", tmp_path / "second"
    roster = tmp_path / "roster.txt"
    roster.write_text("\n".join(flower.identity(first / name) for name in names))
    run(first, f"@{roster}", tmp_path / "there")
    here = whimbrel.run(job, tmp_path / "here", progress=False)
    there = whimbrel.Run(tmp_path / "there")
    assert there.model.keys() == here.model.keys()
    for name, tensor in here.model.items():
        np.testing.assert_array_equal(there.model[name], tensor)
    # The clients of the second run have other identities.
    with pytest.raises(Exception) as raised:
        run(second, f"@{roster}", whimbrel.TEMPORARY)
    assert "accepted" in causes(raised.value)
    with pytest.raises(ValueError, match="state_dir"):
        flower.client_app(data, roster=f"@{roster}")


def test_a_run_on_flower_is_not_resumed(wards: object) -> None:
    from whimbrel import flower

    with pytest.raises(ValueError, match="cannot be resumed"):
        flower.server_app(wards.JOB, existing="resume")


def test_a_client_that_was_away_learns_what_became_of_its_last_upload(tmp_path: Path) -> None:
    """Scaffold's clients have control variates of their own, which move with each accepted upload."""
    from whimbrel import flower

    names = ["east", "west"]
    rng = np.random.default_rng(0)
    X = {name: rng.normal(size=(40, 2)) for name in names}
    y = {"east": X["east"] @ [1.0, -2.0], "west": X["west"] @ [1.0, 2.0]}
    lines = [f"{n},{u!r},{v!r},{t!r}" for n in names for (u, v), t in zip(X[n].tolist(), y[n].tolist(), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["ward,u,v,y", *lines]) + "\n")
    job = {
        "seed": 5,
        "data": {"source": "csv", "path": "rows.csv", "client": "ward", "columns": ["u", "v"], "target": "y"},
        "model": {"kind": "linear"},
        "method": {"kind": "scaffold", "rounds": 6, "step": 0.1},
        "federation": {"clients": names},
    }
    data = lambda context: (name := names[int(context.node_config["partition-id"])], (X[name], y[name]))
    network = Network(flower.client_app(data, tmp_path / "states"), names, "east", 4, 6, computed=False)
    with pytest.warns(UserWarning, match="does not answer"):
        over(network, flower.server_app(job, tmp_path / "there"))
    # After the enrolment, batches 4 and 5 are rounds 3 and 4.
    job["simulation"] = {"drops": [{"round": 3, "clients": ["east"]}, {"round": 4, "clients": ["east"]}]}
    here = whimbrel.run(job, tmp_path / "here", progress=False)
    there = whimbrel.Run(tmp_path / "there")
    np.testing.assert_array_equal(there.model["parameters"], here.model["parameters"])


def test_run_config_replaces_keys_of_the_job_and_mods_see_the_messages(
    wards: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's app is called with a context of `flwr run . --run-config ...`, over nodes in this process."""
    from flwr.app import Context, RecordDict
    from whimbrel import flower

    seen = []

    def watching(message: object, context: object, call: object) -> object:
        seen.append(message.metadata.message_type)
        return call(message, context)

    data = lambda context: (ward := wards.WARDS[int(context.node_config["partition-id"])], wards.rows(ward))
    network = Network(flower.client_app(data, mods=[watching]), wards.WARDS, "east", 99, 99, False)
    config = {"job.method.rounds": 4, "out": str(tmp_path / "asked"), "another-key": 1}
    context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    flower.server_app(wards.JOB, tmp_path / "unused")(network, context)
    done = whimbrel.Run(tmp_path / "asked")
    assert done.summary["rounds"] == 4 and "rounds = 4" in done.job
    assert str(tmp_path / "asked") in capsys.readouterr().out
    assert "train.whimbrel" in seen and not (tmp_path / "unused").exists()
