"""Campaigns: workers are processes, one dies, and every sample is measured once, one at a time."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from hakmem_py import campaign, provenance, runner, store
from hakmem_py.campaign import CampaignError

PRELOAD = """
from pathlib import Path
from hakmem_py import runner, store
runner.SLOT = Path({folder!r}, "bench.lock")
store.SAMPLES = Path({folder!r}, "host")
"""


class Cluster:
    """A scheduler and workers as processes; all workers are of this machine and share its store."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        (folder / "preload.py").write_text(PRELOAD.format(folder=str(folder)))
        self.start(
            "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", folder / "scheduler.json"
        )
        while not (folder / "scheduler.json").exists():
            time.sleep(0.05)

    def start(self, *arguments):
        command = [sys.executable, "-m", "dask", *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.processes.append(process)
        return process

    def worker(self, *options):
        where = ["--scheduler-file", self.folder / "scheduler.json", "--preload", self.folder / "preload.py"]
        return self.start("worker", *where, "--no-nanny", "--nthreads", 1, "--no-dashboard", *options)

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
    killer = subprocess.Popen(  # ends the first worker while samples are being made
        [sys.executable, "-c", "import sys, time, os, glob\n"
         "while len(glob.glob(sys.argv[1])) < 10: time.sleep(0.005)\n"
         "os.kill(int(sys.argv[2]), 9)", str(tmp_path / "host/tiny/*.parquet"), str(workers[0].pid)]
    )  # fmt: skip
    samples = campaign.campaign(spec, cluster.address(), folder=tmp_path / "kept")
    killer.wait()
    assert workers[0].wait(timeout=10) == -signal.SIGKILL
    assert len(samples) == 12 * 4
    assert set(samples["status"]) == {"ok"}
    on_host = store.load(tmp_path / "host" / "tiny")
    assert on_host["run_id"].is_unique
    assert set(on_host["run_id"]) == set(samples["run_id"])
    assert overlaps(on_host) == 0
    facts = provenance.read(tmp_path / "kept", samples["provenance"].unique())
    assert {fact["host"] for fact in facts} == {provenance.host()}


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


def test_a_cluster_that_is_not_there_is_named(tiny, monkeypatch):
    monkeypatch.setattr(campaign, "JOIN_S", 1.0)
    with pytest.raises(CampaignError, match=r"tcp://127.0.0.1:9.*start one by: dask worker"):
        campaign.campaign(tiny(), "tcp://127.0.0.1:9")


def test_a_sweep_uses_every_core_of_every_worker(cluster):
    for _ in range(2):
        cluster.worker()
    done = campaign.sweep(lambda point: (point**2, os.getpid()), range(40), cluster.address())
    assert [square for square, _ in done] == [point**2 for point in range(40)]


def test_a_killed_runner_leaves_the_slot_to_the_run_in_flight(tmp_path):
    """The bench that outlives its killed parent still holds the slot: the next campaign cannot overlap it."""
    code = (
        "import sys; from pathlib import Path; from hakmem_py import runner, worker;"
        "runner.SLOT = Path(sys.argv[1])\n"
        "with runner.bench_slot('one'): print('held', flush=True); worker.run(['sleep', '1'])"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, runner.SLOT], stdout=subprocess.PIPE)
    holder.stdout.readline()
    time.sleep(0.2)
    holder.kill()
    holder.wait()
    with pytest.raises(runner.SlotError), runner.bench_slot("two"):
        pass
    with runner.bench_slot("two", wait_s=20):
        pass
