"""The same experiments on many machines: a dask cluster measures, this process keeps the samples.

A task is one block on one machine. It measures only what that machine's own store does not hold yet, so a
task that is repeated after its worker died goes on where it stopped. It also waits for the machine's bench
slot, so two workers on one machine take turns. Pairs never cross machines: the statistics treat the host as
a block.
"""

import contextlib
import functools
import hashlib
import logging
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

from . import build, peers, provenance, runner, store
from .progress import Progress
from .slot import SlotError, bench_slot
from .spec import load_spec, narrow, schedule
from .stops import held_back

SLOT_WAIT_S = 24 * 3600.0  # a worker may wait for others on its machine
JOIN_S = 60.0  # to wait for the first worker, or for another one when the last has gone
LOOK_S = 2.0  # between two checks that a worker is left
POLL_S = 0.05
FETCH_S = 10.0  # to fetch the result of a finished block, which may have died with its worker
RETRIES = 3  # of a block whose worker failed
START = "dask worker SCHEDULER --nworkers 1 --nthreads 1 --resources bench=1"
CODE = hashlib.sha256(  # of the Python that this process runs, whatever becomes of its files
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()
KEPT = "what was measured is kept, and the same command goes on from there"


class CampaignError(RuntimeError):
    """The cluster cannot do it; one line that says why and what to do."""


def campaign(name, scheduler=None, quick=True, *, folder=None, **choice):
    """Like runner.ensure, but measured by all machines of a dask cluster; samples already in `folder` count.

    scheduler: its address, "tcp://HOST:8786"; None starts a worker on this machine alone. Each machine has a
    clone of the repository at the same commit, and one worker process, started by: dask worker SCHEDULER
    --nworkers 1 --nthreads 1 --resources bench=1. choice: as for ensure. Raises CampaignError where blocks
    stay unmeasured; those that were measured are kept, and the same call measures the rest.
    """
    experiment = narrow(load_spec(name), quick=quick, **choice)
    folder = Path(folder or store.SAMPLES / experiment.name)
    with _cluster(scheduler) as client:
        hosts = _contenders(client, experiment)
        missing, run_ids = _missing(experiment, quick, hosts, folder)
        failures, known = [], _known(folder)
        for block, result in _measured(client, experiment, quick, missing):
            if isinstance(result, CampaignError):  # that machine would fail every other block, too
                raise result
            if isinstance(result, Exception):
                where = "".join(f" on {host}" for host in getattr(result, "__notes__", ()))
                failures.append(f"block {block + 1}{where}: {result}")
            else:
                run_ids |= _keep(folder, known, *result)
    with contextlib.suppress(SlotError), bench_slot(experiment.name):
        store.compact(folder)
    if failures:
        raise CampaignError(
            f"{len(failures)} blocks not measured ({failures[0]}); run the same command again"
        )
    return runner.samples_of(experiment, folder, run_ids)


# ---------------------------------------------------------------- on a worker


def measure_block(experiment, quick, block, sources):
    """One block on this machine: (rows of its samples, facts by provenance ID). Runs in a dask worker.

    sources: those of the campaign. This worker may have come after it began.
    """
    _expect_same(*_sources(), sources)
    folder = store.SAMPLES / experiment.name
    try:
        with bench_slot(experiment.name, SLOT_WAIT_S, _tell):
            run_ids = runner.measure(experiment, quick, _found(experiment), folder, [block]).run_ids
    except Exception as error:
        error.add_note(provenance.host())  # where somebody has to look
        raise
    rows = store.rows(folder, run_ids)
    facts = {row["provenance"]: folder / f"provenance-{row['provenance']}.json" for row in rows}
    return rows, {identity: store.demand_json(path) for identity, path in facts.items()}


def _expect_same(host, sources, wanted):
    if sources != wanted:
        cure = "bring both to one commit, and start its worker anew"
        raise CampaignError(f"host {host} has other sources than this clone: {cure}; {KEPT}")


def _tell(text):
    """A line on the stderr of this worker and of the campaign's own process."""
    from dask.distributed import print as print_there_too

    print_there_too(text, file=sys.stderr)


_found = functools.cache(runner.find_contenders)  # once a campaign, not for every block


def _sources():
    """(host, its native sources and the Python that this process runs, as hashes)."""
    return provenance.host(), (build.source_hash(), CODE)


def _hello(experiment):
    """(host, contenders) of the machine this runs on; builds what it needs.

    A worker outlives campaigns, so it first forgets what it knew of peers: they may have changed.
    """
    _found.cache_clear()
    peers.find.cache_clear()
    return provenance.host(), _found(experiment)


# ---------------------------------------------------------------- here


@contextlib.contextmanager
def _cluster(scheduler):
    """A dask client of the cluster at that address, or of a new one on this machine."""
    from dask.distributed import Client, LocalCluster
    from distributed.comm import CommClosedError, get_address_host

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # a traceback where the scheduler goes
    with contextlib.ExitStack() as stack:
        try:
            if scheduler is None:
                one = {"n_workers": 1, "threads_per_worker": 1, "resources": {"bench": 1}}
                quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}  # errors are told below
                with held_back():  # dask cannot close a cluster that is just starting
                    scheduler = stack.enter_context(LocalCluster(**quiet, **one))
            else:
                get_address_host(scheduler)  # a client that is given no address may wait for ever
            client = stack.enter_context(Client(scheduler, timeout=JOIN_S))
            client.wait_for_workers(1, timeout=JOIN_S)
            if isinstance(scheduler, LocalCluster):
                client.unsubscribe_topic("print")  # its worker writes to this process's own stderr
        except (OSError, RuntimeError, TypeError, ValueError) as error:  # what dask makes of no address
            where = f"at {scheduler}" if scheduler is not None else "could be started on this machine"
            raise CampaignError(f"no worker {where} ({error}); start one by: {START}") from None
        try:
            if not _offers_slot(client):  # tasks would wait for ever
                raise CampaignError(f"no worker offers the bench slot; start one on each machine by: {START}")
            yield client
        except (CancelledError, CommClosedError) as error:
            if client.status == "running":
                raise CampaignError(f"the cluster gave it up ({error!r}); {KEPT}") from None
            raise CampaignError(f"the scheduler has gone: start it and its workers again; {KEPT}") from None


def _offers_slot(client):
    """Whether a worker offers the bench slot. The scheduler is asked directly, because the client's own
    thread may replace what `scheduler_info` returns by a list without workers. True where the scheduler has
    gone: its tasks will tell."""
    if client.status != "running":
        return True
    try:
        workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"].values()
    except OSError:
        return True
    return any(worker["resources"].get("bench") for worker in workers)


def _contenders(client, experiment):
    """host -> what the experiment compares there. Raises CampaignError where a machine cannot measure it, or
    has other sources: asked first, because other Python code may not even understand the experiment."""
    _, here = _sources()
    there = _answers(client, None, _sources)
    for host, sources in there.values():
        _expect_same(host, sources, here)
    return dict(_answers(client, list(there), _hello, experiment).values())  # not of one that came meanwhile


def _answers(client, workers, function, *arguments):
    """address -> what a function gives on that worker; workers: None for all."""
    answers = client.run(function, *arguments, workers=workers, on_error="return")
    for address, error in answers.items():
        if isinstance(error, Exception):
            cure = "mend that, or stop this worker, and run the same command again"
            raise CampaignError(f"worker {address}: {error}; {cure}")
    return answers


def _missing(experiment, quick, hosts, folder):
    """(blocks that no machine has measured completely, run_ids of the other blocks)."""
    missing, run_ids = [], set()
    there = runner.counting(folder, experiment.timeout_s)
    known = set(there["run_id"])
    names = {*hosts, *there["host"].astype(str)}
    for block in range(experiment.block_count(quick)):
        runs = schedule(experiment, block, quick)
        wanted = [set(runner.identify(runs, found, name)) for found in hosts.values() for name in names]
        done = next((keys for keys in wanted if keys <= known), None)
        if done is None:
            missing.append(block)
        run_ids |= done or set()
    return missing, run_ids


def _measured(client, experiment, quick, blocks):
    """(block, result of measure_block or the exception that ended it) as they come; progress on stderr.

    A task is released once its result is here; else the cluster would repeat it when its worker dies.
    """
    how = {"resources": {"bench": 1}, "retries": RETRIES, "pure": False}
    _, sources = _sources()
    tasks = {
        client.submit(measure_block, experiment, quick, block, sources, **how): block for block in blocks
    }
    progress = Progress(experiment.name, len(tasks), "blocks")
    try:
        for task, result in _ended(client, list(tasks), progress):
            block = tasks.pop(task)
            task.release()
            progress.step(block)
            yield block, result
    finally:
        progress.end()


def _ended(client, tasks, progress):
    """(task, its result) as they end. Where no worker is left, says so and waits JOIN_S for another one."""
    from dask.distributed import as_completed

    coming, left, looked, alone = as_completed(tasks), len(tasks), time.monotonic(), None
    while left:
        for task in coming.next_batch(block=False):
            result = _result(task)
            if result is None:
                coming.add(task)
                continue
            left -= 1
            yield task, result
        time.sleep(POLL_S)
        now = time.monotonic()
        if now - looked < LOOK_S:
            continue
        looked = now
        if _offers_slot(client):
            alone = None
        elif alone is None:
            alone = now
            start = START.replace("SCHEDULER", client.scheduler.address)
            progress.end()
            print(f"hakmem: no worker with a bench slot is left; start one by: {start}", file=sys.stderr)
        elif now - alone > JOIN_S:
            raise CampaignError(f"no worker with a bench slot came within {JOIN_S:g} s; {KEPT}")


def _result(task):
    """What a finished task gave, or the exception that ended it; None where that is lost: dask repeats it."""
    try:
        return task.exception(FETCH_S) or task.result(FETCH_S)
    except TimeoutError:
        return None


def _known(folder):
    """What tells samples apart, for those of a folder; a run that was measured anew has several."""
    there = store.load(folder, ["run_id", "started_at"])
    return set(zip(there["run_id"], there["started_at"], strict=True))


def _keep(folder, known, rows, facts):
    """Adds the rows that are not there yet, with the facts of their measurement; returns all run_ids."""
    for identity, fact in facts.items():
        store.save_json(folder, f"provenance-{identity}.json", fact)
    if any(row["host"] == provenance.host() for row in rows):  # a worker here may write the same folder
        known |= _known(folder)
    new = {key: row for row in rows if (key := (row["run_id"], row["started_at"])) not in known}
    if new:
        store.append(folder, list(new.values()))
    known |= new.keys()
    return {row["run_id"] for row in rows}


def add_campaign(sub):
    sub.add_argument("experiment", help="name of a spec in data/specs, or the path of one")
    sub.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="default: one worker on this machine")
    runner.add_choice(sub)
    sub.set_defaults(run=_run)


def _run(args):
    samples = campaign(args.experiment, args.scheduler, not args.full, **runner.choice(args))
    print(samples.groupby("host").size().rename("runs").to_string(), file=sys.stderr)
    return runner.show(samples)
