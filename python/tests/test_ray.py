"""Whimbrel on Ray: the bits of `whimbrel.run`, whatever the shards, and after an actor died."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import whimbrel

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def model_bytes(run: whimbrel.Run) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def expected(mixture_job: dict) -> bytes:
    return model_bytes(whimbrel.run(mixture_job, whimbrel.TEMPORARY, progress=False))


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_bits_do_not_depend_on_the_shards(mixture_job: dict, expected: bytes, shards: int) -> None:
    run = whimbrel.ray.run(mixture_job, shards, whimbrel.TEMPORARY, progress=False)
    assert model_bytes(run) == expected


def test_a_killed_actor_comes_back_where_it_was(
    mixture_job: dict, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whimbrel import ray as on_ray

    asked = 0

    def ask(driver: on_ray._Driver, batches: list) -> list:
        nonlocal asked
        asked += 1
        # Before a snapshot, just after one, and later.
        if asked in (3, 6, 9):
            ray.kill(driver.actors[asked % 2])
        return plain(driver, batches)

    plain = on_ray._Driver.ask
    monkeypatch.setattr(on_ray._Driver, "ask", ask)
    monkeypatch.setattr(on_ray, "SNAPSHOT_EVERY", 5)
    with pytest.warns(UserWarning, match="the actor of shard . died and is restarted"):
        run = on_ray.run(mixture_job, 2, whimbrel.TEMPORARY, progress=False)
    assert asked > 9
    assert model_bytes(run) == expected


def test_a_run_that_waits_for_resources_says_so(
    mixture_job: dict, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whimbrel import ray as on_ray

    @ray.remote(num_cpus=7)
    class Other:
        """Holds all but one of the cluster's cores."""

    other = Other.remote()
    ray.get(other.__ray_ready__.remote())
    said = []

    def warning(driver: on_ray._Driver, text: str) -> None:
        said.append(text)
        ray.kill(other)

    monkeypatch.setattr(on_ray._Driver, "warning", warning)
    monkeypatch.setattr(on_ray, "START_S", 0.0)
    run = on_ray.run(mixture_job, 2, whimbrel.TEMPORARY, progress=False, actor_options={"num_cpus": 4})
    assert model_bytes(run) == expected
    assert said == ["2 of 2 actors have not started in 0 seconds: " + said[0].split(": ")[1]] and "ray status" in said[0]


def test_what_clients_have_of_their_own_comes_along() -> None:
    job = {
        "seed": 1,
        "data": {"source": "synthetic-mixture", "clients": 6, "components": 2, "dimension": 4},
        "model": {"kind": "logistic"},
        "method": {"kind": "fedmix", "components": 2, "rounds": 3, "batch": 16, "step": 0.5},
    }
    here = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    there = whimbrel.ray.run(job, 3, whimbrel.TEMPORARY, progress=False)
    assert model_bytes(there) == model_bytes(here)
    for client in here.clients:
        mine, other = here.client_model(client), there.client_model(client)
        assert {k: v.tobytes() for k, v in mine.items()} == {k: v.tobytes() for k, v in other.items()}


def test_an_actor_that_dies_after_the_last_round_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from whimbrel import ray as on_ray

    def keep_own(driver: on_ray._Driver, run: whimbrel.Run) -> None:
        ray.kill(driver.actors[1])
        plain(driver, run)

    plain = on_ray._Driver.keep_own
    monkeypatch.setattr(on_ray._Driver, "keep_own", keep_own)
    job = {
        "seed": 1,
        "data": {"source": "synthetic-mixture", "clients": 4, "components": 2, "dimension": 4},
        "model": {"kind": "logistic"},
        "method": {"kind": "fedmix", "components": 2, "rounds": 3, "batch": 16, "step": 0.5},
    }
    here = whimbrel.run(job, whimbrel.TEMPORARY, progress=False)
    there = on_ray.run(job, 2, whimbrel.TEMPORARY, progress=False)
    for client in here.clients:
        mine, other = here.client_model(client), there.client_model(client)
        assert {k: v.tobytes() for k, v in mine.items()} == {k: v.tobytes() for k, v in other.items()}


@pytest.mark.filterwarnings("ignore:.*clipped")
def test_a_degenerate_fit_raises_or_warns_as_the_job_says(tmp_path: Path) -> None:
    # Two points, so that no covariance is positive definite.
    rows = "".join(f"{'ab'[i % 2]},{i // 30},{i // 30}\n" for i in range(60))
    (tmp_path / "points.csv").write_text("client,x,y\n" + rows)
    job = {
        "data": {"source": "csv", "path": "points.csv", "client": "client", "columns": ["x", "y"]},
        "model": {"kind": "gmm", "components": 2, "covariance": "full"},
        "method": {"kind": "fedem", "rounds": 5},
    }
    with pytest.raises(whimbrel.DegenerateFit):
        whimbrel.ray.run(job, 2, whimbrel.TEMPORARY, progress=False)
    job["method"]["allow_degenerate"] = True
    with pytest.warns(UserWarning, match="degenerate"):
        whimbrel.ray.run(job, 2, whimbrel.TEMPORARY, progress=False)


def test_what_cannot_be_is_said(mixture_job: dict) -> None:
    with pytest.raises(ValueError, match="shards"):
        whimbrel.ray.run(mixture_job, 0)
    with pytest.raises(ValueError, match="15 shards of 14 clients"):
        whimbrel.ray.run(mixture_job, 15, whimbrel.TEMPORARY, progress=False)
    with pytest.raises(ValueError, match="cannot be resumed"):
        whimbrel.ray.run(mixture_job, 2, "here", existing="resume", progress=False)
    mixture_job["simulation"] = {"lost": 0.1}
    with pytest.raises(ValueError, match="only in simulations"):
        whimbrel.ray.run(mixture_job, 2, whimbrel.TEMPORARY, progress=False)


class Line:
    """Linear regression without an intercept."""

    def start(self, shape, classes, seed):
        return np.zeros(shape, np.float32)

    def predict(self, params, inputs):
        return inputs @ params

    def loss_and_grad(self, params, batch, weights):
        errors = batch.inputs @ params - batch.targets
        return errors**2 / 2, batch.inputs.T @ errors / np.float32(len(errors))


def test_an_own_learner_trains_in_the_actors() -> None:
    # Actors cannot import this file: the class goes with its objects.
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    job = {
        "seed": 1,
        "data": {"source": "toy", "clients": 6, "rows": 30, "dims": 4},
        "model": {"kind": "own", "classifies": False},
        "method": {"kind": "fedavg", "rounds": 4, "step": 0.05, "batch": 10},
    }
    here = whimbrel.run(job, whimbrel.TEMPORARY, learner=Line(), progress=False)
    there = whimbrel.ray.run(job, 2, whimbrel.TEMPORARY, learner=Line(), progress=False)
    np.testing.assert_array_equal(there.model["parameters"], here.model["parameters"])


def test_rows_in_memory_go_to_the_actors() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2)) + 4 * rng.integers(2, size=(90, 1))
    clients = np.array(["north", "south", "west"])[np.arange(90) % 3]
    job = {"seed": 1, "model": {"kind": "gmm", "components": 2}, "method": {"kind": "fedem", "rounds": 5}}
    here = whimbrel.run(job, whimbrel.TEMPORARY, data=X, clients=clients, progress=False)
    there = whimbrel.ray.run(job, 2, whimbrel.TEMPORARY, data=X, clients=clients, progress=False)
    assert model_bytes(here) == model_bytes(there)


@pytest.mark.parametrize(
    "options", [{"num_cpus": 5}, {"num_gpus": 1}, {"resources": {"vault": 1}}, {"num_cpus": 1, "memory": 1e18}]
)
def test_actors_that_the_cluster_cannot_hold_are_refused(mixture_job: dict, options: dict) -> None:
    with pytest.raises(ValueError, match="2 actors with .* do not fit on the cluster"):
        whimbrel.ray.run(mixture_job, 2, whimbrel.TEMPORARY, progress=False, actor_options=options)


def test_an_actor_needs_all_of_its_resources_on_one_node() -> None:
    check = whimbrel.ray.check_resources
    nodes = [{"CPU": 8.0, "memory": 4e9}, {"CPU": 8.0, "memory": 4e9, "GPU": 1.0, "data": 1.0}, {"memory": 9e9}]
    for shards, options in [
        (2, {"num_cpus": 8}),
        (16, {"num_cpus": 1}),
        (1, {"num_cpus": 0.3, "num_gpus": 1}),
        (3, {"num_gpus": 0.1, "resources": {"data": 0.3}}),
        (4, {"num_cpus": 1, "memory": 2e9}),
        (9, {}),
    ]:
        check(shards, options, nodes)
        with pytest.raises(ValueError, match="do not fit"):
            check(1, {**options, "num_cpus": 9}, nodes)  # 16 in all.
    for shards, options, held in [
        (3, {"num_cpus": 8}, 2),
        (2, {"num_gpus": 1}, 1),
        (5, {"num_cpus": 1, "memory": 2e9}, 4),
        (1, {"memory": 10e9}, 0),  # 17e9 in all.
        (1, {"num_gpus": 1, "memory": 5e9}, 0),
    ]:
        with pytest.raises(ValueError, match=f"whose 3 nodes hold {held}"):
            check(shards, options, nodes)
