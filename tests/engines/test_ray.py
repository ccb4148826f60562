"""Scans on a Ray cluster: the same arrays, also when workers, nodes or the head die."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import armillary as arm
from armillary.atlas.atlas import Atlas
from armillary.streams.declaration import Pass
from same_bits import assert_identical
from workers import PATIENCE, SETTINGS, TOKENS, Listener, OrderedRay, Orders, saved_model, wait_for


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray must be installed, and its workers must be able to import what this process can."""
    if find_spec("ray") is None:
        pytest.skip("the package ray is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on disk."""
    return saved_model(tmp_path_factory.mktemp("ray") / "model")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Atlas:
    """Its scan by one process."""
    return arm.scan(folder, TOKENS, **SETTINGS)


@contextmanager
def two_workers(orders: Orders, address: str | None = None) -> Iterator[OrderedRay]:
    """Two Ray workers that follow these orders."""
    engine = OrderedRay(2, address=address)
    engine.orders = orders
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.slow
class TestRay:
    def test_two_workers_one_of_them_killed(
        self, folder: Path, whole: Atlas, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        listener = Listener()
        with two_workers(Orders(tmp_path, meet=2, deaths=((Pass.FIRST, 4),))) as engine:
            assert_identical(whole, arm.scan(folder, TOKENS, engine=engine, progress=listener, **SETTINGS))
            assert ["its process died" in note for note in listener.deaths] == [True]
            assert_identical(arm.weigh(folder), arm.weigh(folder, engine=engine))
        printed = capfd.readouterr()
        assert "ray" not in printed.out + printed.err.replace(
            str(folder), ""
        )  # Ray's own messages do not reach the user

    def test_two_nodes_on_one_machine(self, folder: Path, whole: Atlas, tmp_path: Path) -> None:
        """Each node has room for one worker, so both work."""
        listener = Listener()
        with ray_cluster(1, 1) as (address, _), two_workers(Orders(tmp_path, meet=2), address) as engine:
            atlas = arm.scan(folder, TOKENS, engine=engine, progress=listener, **SETTINGS)
        assert_identical(whole, atlas)
        assert len(listener.workers) == 2

    def test_when_a_node_dies_the_other_goes_on_with_the_same_bits(
        self, folder: Path, whole: Atlas, tmp_path: Path
    ) -> None:
        """It dies when both workers are in the middle of a task, and the other waits until Ray has noticed."""
        orders = Orders(tmp_path, hold=True)
        with ray_cluster(1, 1) as (address, tell), two_workers(orders, address) as engine:

            def break_one() -> None:
                tell("node")
                engine.know_of_deaths(1)
                orders.go()

            listener = Listener(2, break_one)
            atlas = arm.scan(folder, TOKENS, engine=engine, progress=listener, **SETTINGS)
        assert_identical(whole, atlas)
        assert [note.endswith("its task runs again") for note in listener.deaths] == [True]
        assert listener.lost == TOKENS.shape[1]  # the batch that it had done

    def test_when_no_node_is_left_it_ends_with_a_sentence_and_can_be_resumed(
        self, folder: Path, whole: Atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "orders").mkdir()
        orders = Orders(tmp_path / "orders", hold=True)
        with ray_cluster(0, 2) as (address, tell), two_workers(orders, address) as engine:

            def break_all() -> None:
                monkeypatch.setattr("armillary.engines.ray.START_WITHIN", 20.0)
                tell("node")
                tell("node")

            asked: dict[str, Any] = dict(engine=engine, progress=Listener(2, break_all))
            with pytest.raises(arm.ArmillaryError, match=r"no room for 2 workers .* continue with `resume=True`"):
                arm.scan(folder, TOKENS, out=tmp_path / "scan", **asked, **SETTINGS)
        assert_identical(whole, arm.scan(folder, TOKENS, out=tmp_path / "scan", resume=True, **SETTINGS))

    @pytest.mark.parametrize("what", ["gcs", "head"])
    def test_when_the_head_dies_it_ends_in_bounded_time(self, tmp_path: Path, what: str) -> None:
        """In a process of its own: left alone, Ray would end it after a minute with exit code 1 and no message of ours.

        "gcs" is what a driver on another machine sees of it. With "head" this machine's raylet goes too; if that
        happens while an object is read from its store, Ray ends the process at once, and nothing can be said.
        """
        (tmp_path / "tmp").mkdir()
        program = [sys.executable, "-c", "from armillary.cli import main; main()"]
        asked = ["scan", str(arm.bundled("llama")), "--corpus", "builtin:random", "--sequences", "8000"]
        with ray_cluster(1, 1) as (address, tell):
            where = ["--engine", "ray", "--workers", "2", "--address", address, "--out", str(tmp_path / "out")]
            with subprocess.Popen(
                [*program, *asked, *where],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
            ) as driver:
                wait_for(lambda: driver.poll() is not None or any(tmp_path.glob("out/**/*.sha256")), "a shard")
                assert driver.poll() is None, driver.communicate()
                tell(what)
                printed = driver.communicate(timeout=PATIENCE)[1]
        assert "Traceback" not in printed
        if what == "gcs" or driver.returncode != 1:
            assert driver.returncode == 2, printed
            assert "armillary: the Ray cluster has not answered for 30 seconds" in printed
            assert not list((tmp_path / "tmp").glob("armillary-*"))


CLUSTER = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster

def patiently(make):  # Ray gives a node thirty seconds to start, which a busy machine may not have
    for left in reversed(range(10)):
        try:
            return make()
        except Exception:
            if not left:
                raise

head = dict(num_cpus=int(sys.argv[1]), include_dashboard=False)
cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
nodes = [patiently(lambda: cluster.add_node(num_cpus=1)) for _ in range(int(sys.argv[2]))]
print(cluster.address, flush=True)
for line in sys.stdin:
    what = line.strip()
    if what == "gcs":
        cluster.head_node.kill_gcs_server(check_alive=False)
    else:
        cluster.remove_node(cluster.head_node if what == "head" else nodes.pop(), allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
"""


@contextmanager
def ray_cluster(head: int, nodes: int) -> Iterator[tuple[str, Callable[[str], None]]]:
    """A cluster whose head has room for `head` workers, and `nodes` nodes with room for one each; in its own process.

    Its address, and a function that kills the head's process ("gcs"), the head with its worker ("head") or a node.
    """
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(head), str(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        assert cluster.stdin is not None
        out, into = cluster.stdout, cluster.stdin

        def tell(what: str) -> None:
            into.write(f"{what}\n")
            into.flush()
            assert out.readline().strip() == "done"

        try:
            yield next(line.strip() for line in out if ":" in line), tell
        finally:
            cluster.communicate()
