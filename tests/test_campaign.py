"""Campaigns: workers are processes, one dies, and every sample is measured once, one at a time."""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from distributed.comm import CommClosedError

from hakmem_py import campaign, cli, provenance, runner, slot, store
from hakmem_py.campaign import CampaignError

PRELOAD = """
import os
from pathlib import Path
from hakmem_py import provenance, slot, store
name = os.environ.get("PRETENDED_HOST", provenance.host())
provenance.host = lambda: name
slot.SLOT = Path({folder!r}, name + ".lock")
store.SAMPLES = Path({folder!r}, name)
"""


class Cluster:
    """A scheduler and workers as processes; workers of one host, pretended or not, share its store."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        (folder / "preload.py").write_text(PRELOAD.format(folder=str(folder)))
        self.start(
            "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", folder / "scheduler.json"
        )
        while not (folder / "scheduler.json").exists():
            time.sleep(0.05)

    def start(self, *arguments, host=None):
        command = [sys.executable, "-m", "dask", *map(str, arguments)]
        env = os.environ | ({"PRETENDED_HOST": host} if host else {})
        process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.processes.append(process)
        return process

    def worker(self, *options, host=None):
        where = ["--scheduler-file", self.folder / "scheduler.json", "--preload", self.folder / "preload.py"]
        fixed = ["--no-nanny", "--nthreads", 1, "--no-dashboard"]
        return self.start("worker", *where, *fixed, *options, host=host)

    def samples(self, host):
        """What the workers of a host have measured of the tiny experiment."""
        return store.load(self.folder / host / "tiny")

    def kill(self, workers, samples, before=lambda: None):
        """Ends the worker of whichever host first has so many samples; returns the thread that does it.

        before: called when that is about to happen.
        """

        def wait():
            while True:
                for host, worker in workers.items():
                    if len(self.samples(host)) >= samples:
                        before()
                        return worker.kill()
                time.sleep(0.005)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def address(self):
        return json.loads((self.folder / "scheduler.json").read_text())["address"]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path):
    """A scheduler without workers."""
    started = Cluster(tmp_path)
    yield started
    started.end()


def overlaps(samples):
    """Pairs of samples that ran at the same time."""
    samples = samples.sort_values("started_at")
    end = samples["started_at"] + pd.to_timedelta(samples["wall_ns"], unit="ns")
    return int((samples["started_at"].to_numpy()[1:] < end.to_numpy()[:-1]).sum())


def test_a_worker_killed_half_way_costs_only_its_run(cluster, tiny, tmp_path):
    spec = tiny("quick_blocks = 2", "quick_blocks = 12", "quick_scale = 0.001", "quick_scale = 0.05")
    workers = [cluster.worker("--resources", "bench=1") for _ in range(3)]
    killer = cluster.kill({provenance.host(): workers[0]}, 10)
    samples = campaign.campaign(spec, cluster.address(), folder=tmp_path / "kept")
    killer.join()
    assert workers[0].wait(timeout=10) == -signal.SIGKILL
    assert len(samples) == 12 * 4
    assert set(samples["status"]) == {"ok"}
    on_host = cluster.samples(provenance.host())
    assert on_host["run_id"].is_unique
    assert set(on_host["run_id"]) == set(samples["run_id"])
    assert overlaps(on_host) == 0
    facts = provenance.read(tmp_path / "kept", samples["provenance"].unique())
    assert {fact["host"] for fact in facts} == {provenance.host()}


def test_a_host_that_dies_costs_the_others_its_block_in_flight(cluster, tiny, tmp_path):
    spec = tiny("quick_blocks = 2", "quick_blocks = 12", "quick_scale = 0.001", "quick_scale = 0.05")
    workers = {name: cluster.worker("--resources", "bench=1", host=name) for name in ("one", "two")}
    killer = cluster.kill(workers, 9)
    samples = campaign.campaign(spec, cluster.address(), folder=tmp_path / "kept")
    killer.join()
    assert len(samples) == 12 * 4 and samples["run_id"].is_unique
    assert samples.groupby("block")["host"].nunique().eq(1).all()
    measured = {name: cluster.samples(name) for name in workers}
    # On a busy machine there is a second block lost: one that had ended, and was not fetched yet.
    assert len(measured["one"]) + len(measured["two"]) < 12 * 4 + 3 * 4
    assert len(store.load(tmp_path / "kept")) == 12 * 4


def test_a_second_campaign_does_only_what_is_missing(cluster, tiny, tmp_path):
    cluster.worker("--resources", "bench=1")
    first = campaign.campaign(tiny(), cluster.address(), folder=tmp_path / "kept", blocks=2)
    second = campaign.campaign(tiny(), cluster.address(), folder=tmp_path / "kept", blocks=3)
    assert len(second) == 12
    assert set(first["started_at"]) < set(second["started_at"])
    assert runner.ensure(tiny(), folder=tmp_path / "kept", blocks=3)["run_id"].tolist() == list(
        second["run_id"]
    )


def test_a_cluster_without_a_bench_slot_is_refused(cluster, tiny):
    cluster.worker()
    with pytest.raises(CampaignError, match="resources bench=1"):
        campaign.campaign(tiny(), cluster.address())


@pytest.mark.parametrize("address", ["foo://", ":", "x", "tcp://[::1", ""])
def test_what_is_no_address_is_named(tiny, address):
    with pytest.raises(campaign.CampaignError, match=rf"no worker at {re.escape(address)} \(.*start one by"):
        campaign.campaign(tiny(), address)


def test_a_cluster_that_is_not_there_is_named(tiny, monkeypatch):
    monkeypatch.setattr(campaign, "JOIN_S", 1.0)
    with pytest.raises(CampaignError, match=r"tcp://127.0.0.1:9.*start one by: dask worker"):
        campaign.campaign(tiny(), "tcp://127.0.0.1:9")


@pytest.mark.parametrize("kind", [ModuleNotFoundError, CommClosedError])
def test_a_worker_that_cannot_measure_is_named_with_its_error(kind):
    def run(function, *_, workers=None, on_error):
        assert on_error == "return"
        return {"tcp://one:1": campaign._sources(), "tcp://two:2": kind("it broke")}

    with pytest.raises(CampaignError, match="worker tcp://two:2: it broke; mend that, or stop this worker"):
        campaign._contenders(SimpleNamespace(run=run), None)


def test_a_worker_that_comes_while_the_others_are_asked_is_not_asked(monkeypatch):
    """Nobody knows its sources yet, and by other ones it may answer what nobody here understands."""
    monkeypatch.setattr(campaign, "_hello", lambda experiment: ("one", {}))
    there = {"tcp://one:1": lambda function, *more: function(*more)}

    def run(function, *more, workers=None, on_error):
        answers = {address: there[address](function, *more) for address in workers or there}
        there["tcp://late:2"] = lambda *_: ("late", "it", "is other")
        return answers

    assert campaign._contenders(SimpleNamespace(run=run), None) == {"one": {}}


@pytest.mark.parametrize(("status", "said"), [("running", "gave it up .*torn"), ("connecting", "has gone")])
def test_the_scheduler_has_gone_only_where_the_client_says_so(monkeypatch, status, said):
    client = SimpleNamespace(status=status, wait_for_workers=lambda *_, **__: None)
    monkeypatch.setattr("dask.distributed.Client", lambda *_, **__: contextlib.nullcontext(client))
    monkeypatch.setattr(campaign, "_offers_slot", lambda _: True)
    with pytest.raises(CampaignError, match=said), campaign._cluster("tcp://here:1"):
        raise CommClosedError("torn")


LONG = ("quick_blocks = 2", "quick_blocks = 400", "quick_scale = 0.001", "quick_scale = 0.05")


def test_where_the_last_worker_died_that_is_said_and_another_one_awaited(
    cluster, tiny, tmp_path, monkeypatch, capfd
):
    worker = cluster.worker("--resources", "bench=1")
    monkeypatch.setattr(campaign, "LOOK_S", 0.2)
    killer = cluster.kill({"kept": worker}, 4, lambda: monkeypatch.setattr(campaign, "JOIN_S", 0.5))
    with pytest.raises(CampaignError, match=r"no worker .* within 0.5 s; what was measured is kept, and"):
        campaign.campaign(tiny(*LONG), cluster.address(), folder=tmp_path / "kept" / "tiny")
    killer.join()
    said = f"hakmem: no worker with a bench slot is left; start one by: dask worker {cluster.address()} "
    assert capfd.readouterr().err.count(said) == 1
    assert len(cluster.samples("kept")) >= 4


def test_a_scheduler_that_dies_is_one_line(cluster, tiny, tmp_path, caplog):
    logging.getLogger("distributed.client").addHandler(caplog.handler)  # it does not propagate
    worker = cluster.worker("--resources", "bench=1")
    killer = cluster.kill({"kept": cluster.processes[0]}, 4)
    with pytest.raises(CampaignError, match=r"the scheduler has gone: .* the same command goes on") as error:
        campaign.campaign(tiny(*LONG), cluster.address(), folder=tmp_path / "kept" / "tiny")
    killer.join()
    worker.kill()
    assert "\n" not in str(error.value) and len(cluster.samples("kept")) >= 4
    assert not caplog.records  # nor a traceback of dask's beside it


def test_a_worker_that_waits_for_its_machine_says_for_whom(cluster, tiny, tmp_path, monkeypatch, capfd):
    preload = tmp_path / "preload.py"
    preload.write_text(preload.read_text() + "slot.SAY_AFTER_S = 0.1\n")
    cluster.worker("--resources", "bench=1", host="one")
    monkeypatch.setattr(slot, "SLOT", tmp_path / "one.lock")  # that worker's
    with slot.bench_slot("somebody"):
        done = threading.Thread(
            target=campaign.campaign, args=(tiny(), cluster.address()), kwargs={"folder": tmp_path / "kept"}
        )
        done.start()
        said, until = "", time.monotonic() + 60
        while "hakmem: waiting for this machine's bench slot, which is taken by somebody" not in said:
            assert done.is_alive() and time.monotonic() < until, said
            time.sleep(0.1)
            said += capfd.readouterr().err
    done.join()
    assert len(store.load(tmp_path / "kept")) == 8


def test_runs_that_had_too_little_time_are_measured_anew_with_more(cluster, tiny, tmp_path):
    """Also where the worker's store and the campaign's own are two."""
    cluster.worker("--resources", "bench=1")
    late = tiny("timeout_s = 20", "timeout_s = 0.1", "quick_scale = 0.001", "quick_scale = 3")
    short = campaign.campaign(late, cluster.address(), folder=tmp_path / "kept", blocks=1, sizes=[16])
    assert "timeout" in set(short["status"])
    more = tiny("quick_scale = 0.001", "quick_scale = 3")
    ended = campaign.campaign(more, cluster.address(), folder=tmp_path / "kept", blocks=1, sizes=[16])
    assert list(ended["run_id"]) == list(short["run_id"]) and set(ended["status"]) == {"ok"}
    assert short["started_at"].max() < ended["started_at"].min()  # their rivals were measured again as well


def test_a_block_that_fails_names_its_machine(cluster, tiny, tmp_path):
    """Its samples have no room there."""
    (tmp_path / "elsewhere").write_text("a file in the place of the folder")
    cluster.worker("--resources", "bench=1", host="elsewhere")
    with pytest.raises(CampaignError, match=r"not measured \(block [12] on elsewhere: .*elsewhere"):
        campaign.campaign(tiny(), cluster.address(), folder=tmp_path / "kept")


def test_a_worker_that_gets_other_sources_meanwhile_measures_nothing(cluster, tiny, tmp_path, monkeypatch):
    """As does one with others that comes after the campaign has asked who is there."""
    preload, changed = tmp_path / "preload.py", tmp_path / "changed"
    preload.write_text(
        preload.read_text() + "from hakmem_py import build\n"
        "build.source_hash = lambda *of, found=build.source_hash: "
        f"found(*of) + 'x' * Path({str(changed)!r}).exists()\n"
    )
    cluster.worker("--resources", "bench=1", host="late")
    asked = campaign._contenders
    monkeypatch.setattr(campaign, "_contenders", lambda *of: (asked(*of), changed.touch())[0])
    with pytest.raises(CampaignError, match=r"^host late has other sources than this clone"):
        campaign.campaign(tiny(), cluster.address(), folder=tmp_path / "kept")
    assert not len(store.load(tmp_path / "kept"))


def test_a_worker_that_runs_older_python_is_named_before_it_is_asked_for_anything(cluster, tiny, tmp_path):
    """Its clone was brought up to date under it. What it is sent is then beyond it."""
    preload = tmp_path / "preload.py"
    preload.write_text(
        preload.read_text() + "from hakmem_py import campaign, spec\n"
        "campaign.CODE, spec.Experiment = 'older', None\n"
    )
    cluster.worker("--resources", "bench=1", host="old")
    with pytest.raises(CampaignError, match=r"^host old has other sources.* start its worker anew"):
        campaign.campaign(tiny(), cluster.address(), folder=tmp_path / "kept")


def test_a_killed_runner_leaves_the_slot_to_the_run_in_flight():
    """The bench that outlives its killed parent still holds the slot: the next campaign cannot overlap it."""
    code = (
        "import sys; from pathlib import Path; from hakmem_py import slot, worker;"
        "slot.SLOT = Path(sys.argv[1])\n"
        "with slot.bench_slot('one'): print('held', flush=True); worker.run(['sleep', '600'])"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, slot.SLOT], stdout=subprocess.PIPE)
    holder.stdout.readline()
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    while not (bench := children.read_text()):
        time.sleep(0.01)
    holder.kill()
    holder.wait()
    with pytest.raises(slot.SlotError), slot.bench_slot("two"):
        pass
    os.kill(int(bench), signal.SIGKILL)
    with slot.bench_slot("two", wait_s=20):
        pass


def test_a_stop_while_the_cluster_of_this_machine_starts_closes_it(tiny, tmp_path, monkeypatch):
    """Else what dask then says at exit is a traceback."""
    closed = []

    class Starting(contextlib.AbstractContextManager):
        def __init__(self, **_):
            signal.raise_signal(signal.SIGTERM)

        def __exit__(self, *_):
            closed.append(self)

    monkeypatch.setattr("dask.distributed.LocalCluster", Starting)
    with cli.stopped_as_by_the_user(), pytest.raises(KeyboardInterrupt):
        campaign.campaign(tiny(), folder=tmp_path / "kept")
    assert len(closed) == 1


def test_a_block_that_fails_on_the_worker_of_this_machine_is_told_once():
    """By the campaign, in one line: dask would add a traceback for each block and attempt."""
    code = (
        "from hakmem_py import campaign\n"
        "if __name__ == '__main__':\n"
        " with campaign._cluster(None) as client: print(client.submit(int, 'no number').exception())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "no number" in done.stdout and "no number" not in done.stderr
