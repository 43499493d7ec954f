"""Running notebooks: papermill in a process of its own for each, failures told apart, finished work kept.

An executed notebook gets its final name only when it has succeeded; a record (JSON) beside it says how its
last run ended. Notebooks that measure run alone, one after another, so that no batch disturbs its own
figures.
"""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from statistics import median

from . import ROOT, notebook, store
from .calibration import calibration_note
from .progress import clock
from .slot import say

START_S = 6  # guess for a notebook that never ran here: the start of a kernel
HEARTBEAT_S = 10
GRACE_S = 10  # for papermill to end once it was told to
# In the background of a shell children ignore Ctrl-C, on which alone papermill ends its kernel. It also comes
# once the report, which holds the other end of stdin, was killed: nobody would read what is written.
PAPERMILL = """\
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
end = lambda: os.read(0, 1) or os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=end, daemon=True).start()
from papermill.cli import papermill; papermill()"""
STARTS = 3  # attempts, where others took a kernel's ports first
LONG_LOG = 1 << 16  # bytes; a notebook with a longer log has started
# What decides, with the notebook's text, parameters and data, whether an executed notebook still holds.
CODE = [
    "*.lock",
    "hakmem_py/**/*.py",
    "hakmem_py/**/*.js",
    "native/include/*",
    "native/src/**/*.[ch]",
    "native/bench/*.[ch]",
    "data/published/*",
]


def _given(run):
    """Hash object, to be continued, of the inputs that a run does not change."""
    digest = hashlib.sha256(json.dumps(run.parameters, sort_keys=True).encode())
    specs = [ROOT / "data" / "specs" / f"{experiment}.toml" for experiment in run.experiments]
    code = sorted({path for pattern in CODE for path in ROOT.glob(pattern)})
    for path in [run.notebook, *code, *specs]:
        digest.update(path.read_bytes())
    return digest


def content_key(run, given=None):
    """Hash of everything that decides what an executed notebook says. given: `_given` from before the run."""
    digest, data = (given or _given(run)).copy(), ROOT / "data"
    for path in sorted(data.glob(f"reference/{run.notebook.stem}*/*")):
        digest.update(path.read_bytes())
    for experiment in run.experiments:
        for path in sorted(data.glob(f"*/{experiment}/*")):
            digest.update(f"{path.name} {path.stat().st_size}".encode())  # files are only ever added
    return digest.hexdigest()[:16]


def _papermill(run, output, timeout):
    values = base64.b64encode(json.dumps(run.parameters).encode()).decode()  # JSON is YAML: types survive
    return [
        sys.executable, "-c", PAPERMILL, str(run.notebook), str(output), "-b", values, "-k", "python3",
        "--language", "python", "--cwd", str(run.notebook.parent), "--execution-timeout", str(timeout),
        "--log-output", "--no-progress-bar",
    ]  # fmt: skip


def _last_line(log):
    """The newest progress that a running notebook printed."""
    tail = log.read_bytes()[-2000:].decode(errors="replace") if log.exists() else ""
    lines = [line.rpartition("\r")[2].strip()[:100] for line in tail.rstrip("\r\n").splitlines()]
    return next((line.rstrip("-") for line in reversed(lines) if line), "starting")


def _name_cell(cell):
    """A cell as its reader knows it: its number, where it has one, and its first line."""
    first = next((line for line in notebook.source(cell).splitlines() if line.strip()), "")[:60]
    number = cell.get("execution_count")
    return f"In [{number}] `{first}`" if number else f"`{first}`"


def _reason(said):
    """The line of an error that tells why: its first, and of a compiler's text that follows, its error."""
    first, *others = [line.strip() for line in said.splitlines() if line.strip()]
    if not first.endswith(":") or not others:
        return first
    return f"{first} {next((line for line in others if 'error' in line), others[0])}"


def _fault(output, log, code):
    """(status, cell, error) of a run that failed, from the notebook and the log that papermill left."""
    text = log.read_text(encoding="utf-8", errors="replace")
    try:
        cells = notebook.read(output)["cells"]
    except ValueError:  # nothing was executed, or papermill ended while writing
        cells = []
    started = [cell for cell in cells if cell["metadata"].get("papermill", {}).get("start_time")]
    where = _name_cell(started[-1]) if started else ""
    if "CellTimeoutError" in text:
        return "timed out", where, "the cell ran longer than --timeout allows"
    if "DeadKernelError" in text:
        return "kernel died", where, "a crash or too little memory ended the kernel in the middle of the cell"
    for cell in started[-1:]:
        for said in (o for o in cell.get("outputs", []) if o["output_type"] == "error"):
            return "failed", where, _reason(f"{said['ename']}: {said['evalue']}")
    last = next((line for line in reversed(text.splitlines()) if line.strip()), f"exit status {code}")
    return "failed", where, f"papermill: {last.strip()}"


def _end(child):
    """Ends papermill as Ctrl-C does, with GRACE_S seconds to end its kernel and clean up."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _lost_port(log):
    """Whether the kernel never started because a port, free when it was chosen, was taken meanwhile."""
    said = log.read_bytes() if log.stat().st_size < LONG_LOG else b""
    return b"Address already in use" in said and b"Executing Cell" not in said


def _run(words, env, log, stop):
    """Runs papermill until it ends, `stop` fills or its kernel cannot start. Returns its exit status."""
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            env=env,
            start_new_session=True,
            close_fds=False,  # it inherits the lock of the report's folder
        ) as child,
    ):
        while child.poll() is None:
            time.sleep(0.1)
            if stop or _lost_port(log):
                _end(child)
    return child.returncode


def execute(run, folder, timeout, stop):
    """Run one notebook; write its record and, if it succeeded, its executed notebook. Returns the record."""
    output, log = folder / f".{run.name}.part", folder / f"{run.name}.log"
    output.unlink(missing_ok=True)
    started, given = time.time(), _given(run)  # a file edited during the run makes the page outdated
    words = _papermill(run, output, timeout or run.cell_timeout_s())
    # The kernel imports this package, whichever clone the environment was made for.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"HAKMEM_COMMAND": run.command(), "PYTHONPATH": path}
    for _ in range(STARTS):
        code = _run(words, env, log, stop)
        if stop or not _lost_port(log):
            break
    record = {
        "name": run.name,
        "part": run.part,
        "parameters": run.parameters,
        "command": run.command(),
        "status": "ok",
        "started_at": datetime.fromtimestamp(started, UTC).isoformat(),
        "seconds": round(time.time() - started, 1),
    }
    if run.measures:
        record["calibration"] = calibration_note()
    if code:
        status, cell, error = _fault(output, log, code)
        record |= {"status": status, "cell": cell, "error": error}
        _keep_failed(run, folder, output)
    else:
        record["key"] = content_key(run, given)  # samples are hashed after the run, which may add some
        _publish(run, folder, output, record)
    store.save_json(folder, _record_path(run, folder).name, record)
    return record


def _attempt(run, folder, timeout, stop):
    """As `execute`, but a file that cannot be read or written is recorded as a failure of this page only."""
    started = time.time()
    try:
        return execute(run, folder, timeout, stop)
    except OSError as error:  # StoreError is one
        seconds = round(time.time() - started, 1)
        return {"name": run.name, "status": "failed", "error": str(error), "seconds": seconds}


def _keep_failed(run, folder, output):
    if output.exists():
        output.replace(folder / f"{run.name}.failed.ipynb")


def _publish(run, folder, output, record):
    """Write the record into the executed notebook and give it its final name, in this order."""
    content = notebook.read(output)
    content["metadata"].setdefault("hakmem", {})["record"] = record
    store.save_json(folder, f"{run.name}.ipynb", content)
    output.unlink()
    (folder / f"{run.name}.failed.ipynb").unlink(missing_ok=True)


# ---------------------------------------------------------------- the batch


def _record_path(run, folder):
    return folder / f"{run.name}.json"


def _earlier(run, folder):
    """The record of this name's last run, or {}."""
    path = _record_path(run, folder)
    return store.read_json(path) if path.exists() else {}


def _is_current(run, folder):
    """Whether the executed notebook says what a new run would say."""
    path, executed = _record_path(run, folder), folder / f"{run.name}.ipynb"
    record = _earlier(run, folder)
    if not executed.exists() or notebook.incomplete(record, path) or notebook.damage(executed):
        return False
    return record["status"] == "ok" and record.get("key") == content_key(run)


def _expected(runs, folder):
    """{name: seconds} from earlier runs; a notebook that never ran gets the median of the others."""
    known = {run.name: _earlier(run, folder).get("seconds") for run in runs}
    usual = median([seconds for seconds in known.values() if seconds] or [START_S])
    return {name: seconds or usual for name, seconds in known.items()}


def _side_by_side(runs, folder, jobs, timeout):
    """Run them, `jobs` at a time, with progress on stderr; yields each record. Ctrl-C stops the children."""
    stop = []  # shared with the threads: not empty means stop
    with ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(_attempt, run, folder, timeout, stop): run for run in runs}
        try:
            while pending:
                done, _ = wait(pending, HEARTBEAT_S, FIRST_COMPLETED)
                for future in done:
                    del pending[future]
                    yield future.result()
                for name in [run.name for future, run in pending.items() if not done and future.running()]:
                    say(f"        {name}: {_last_line(folder / f'{name}.log')}")
        except KeyboardInterrupt:
            stop.append(True)
            pool.shutdown(cancel_futures=True)
            raise


def run_all(runs, folder, jobs, timeout, resume=False):
    """Run everything: notebooks that measure first, one at a time (those that calibrate before the others),
    then the rest, `jobs` at a time. Returns this batch's records.

    timeout: seconds for one cell; None: as long as the run itself says. resume: keep what is still current.
    """
    current = [run for run in runs if resume and _is_current(run, folder)]
    for run in current:
        say(f"{run.name}: nothing changed, kept")
    due = [run for run in runs if run not in current]
    left, records = _expected(due, folder), []
    for measures, width in ((True, 1), (False, jobs)):
        group = [run for run in due if run.measures == measures]
        group.sort(key=lambda run: not run.calibrates)
        for record in _side_by_side(group, folder, width, timeout):
            records.append(record)
            del left[record["name"]]
            rest = f", about {clock(sum(left.values()) / width)} left" if left else ""
            took = f"{record['status']} in {clock(record['seconds'])}"
            say(f"[{len(records)}/{len(due)}] {record['name']}: {took}{rest}")
    return records
