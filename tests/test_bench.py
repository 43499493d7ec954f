"""The bench: workloads do what they report and refuse what they cannot; traces come back call for call."""

import ctypes
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import preload
import processes
import pytest
from preload import needs_valgrind
from traces import MOVE_FROM, MOVE_TO, TAKE, write_trace

from hakmem_py import build, cli, demand, instructions, trace

NATIVE = Path(__file__).parents[1] / "native"
WORKLOADS = re.findall(r"^    X\((\w+),", (NATIVE / "bench/workloads.c").read_text(), re.M)
FEW = ["--iterations", "2", "--chunks", "2"]
SHORT = {  # options that keep a run short and still reach every line of the workload
    "frag": FEW,
    "frag_grow": FEW,
    "rebuild": FEW,
    "drift": [*FEW, "--slots", "20000"],
    "realloc": FEW,
    "realloc1": FEW,
    "large_ws": ["--iterations", "2000"],
    "larson": ["--iterations", "400000", "--threads", "2"],
    "larson_remote": ["--iterations", "200000", "--threads", "2"],
    "phases": ["--iterations", "4", "--chunks", "2", "--phase-ops", "20000"],
    "phases4": ["--iterations", "2", "--chunks", "2", "--phase-ops", "20000"],
    "idle_peak": ["--iterations", "2", "--chunks", "2", "--peak-mb", "8", "--idle-ms", "20"],
}
CALLS = ("lifo", "fifo", "random", "interleaved", "longlived", "frag", "frag_grow")
LARGE = ("json", "mir", "vm", "json_var", "mir_var", "vm_var", "mixed", "calloc")
PAIRS = ("random_mixed", "rebuild", "drift", *LARGE, "larson", "prodcons", "bursts")
ITERATIONS = {"larson": (400_000, 800_000), "realloc": (2, 6)}
ITERATIONS |= dict.fromkeys(("frag", "frag_grow", "rebuild", "drift"), (1, 2))

SHIM = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
void *__libc_malloc(size_t); void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t); void __libc_free(void *);
#ifdef COUNT
static _Atomic long taken, given, resized;
void *malloc(size_t n) { taken++; return __libc_malloc(n); }
void *calloc(size_t n, size_t s) { taken++; return __libc_calloc(n, s); }
void *realloc(void *p, size_t n) { resized++; return __libc_realloc(p, n); }
void free(void *p) { given += p != 0; __libc_free(p); }
__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "%ld %ld %ld", taken, given, resized);
}
#endif
#ifdef DIRTY
void *calloc(size_t n, size_t s) { return memset(__libc_malloc(n * s), 1, n * s); }
void *realloc(void *p, size_t n) { return p ? memset(__libc_realloc(p, n), 7, 1) : __libc_malloc(n); }
#endif
#ifdef FAST
int clock_gettime(clockid_t c, struct timespec *t)
{
    static long ns;
    (void)c;
    *t = (struct timespec){.tv_nsec = ns++};
    return 0;
}
#endif
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "bench"
    flags = ["-std=gnu11", "-O2", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-pthread"]
    files = [f"-I{NATIVE / 'include'}", *map(str, NATIVE.glob("bench/*.c")), "-o", out, "-ldl", "-lm"]
    subprocess.run(["gcc", *flags, *files], check=True)
    return out


@pytest.fixture(scope="module")
def shim(bench):
    """shim("COUNT") is a library to preload whose allocator or clock has that property."""

    def build(kind):
        library = bench.with_name(f"{kind.lower()}.so")
        source = bench.with_name("shim.c")
        source.write_text(SHIM)
        command = ["gcc", "-O1", "-fno-builtin", "-fPIC", "-shared", f"-D{kind}", source, "-o", library]
        subprocess.run(command, check=True)
        return {"LD_PRELOAD": str(library)}

    return build


def call(bench, *arguments, env=None):
    command = [bench, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def result(bench, workload, *arguments, env=None):
    options = SHORT.get(workload, ["--iterations", "400"])
    run = call(bench, "--workload", workload, *options, *arguments, env=env)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_reports_what_it_did(bench, workload):
    row = result(bench, workload)
    assert row["workload"] == workload and row["backend"] == "malloc" and "libc" in row["malloc_from"]
    assert row["ops"] > 0 and row["warmup_ops"] > 0
    assert len(row["chunk_ns"]) == len(row["chunk_cpu_ns"]) and min(row["chunk_ns"] + row["chunk_cpu_ns"]) > 0
    assert row["peak_rss_bytes"] >= row["live_peak_bytes"]
    assert 0 < row["rss_start_bytes"] <= row["peak_rss_bytes"]


@pytest.mark.parametrize("workload", [w for w in WORKLOADS if w not in ("prodcons", "phases", "phases4")])
def test_two_allocators_see_the_same_sequence_and_keep_the_same_bytes(bench, workload):
    system, floor = result(bench, workload), result(bench, workload, "--backend", "floor")
    assert (system["checksum"], system["ops"]) == (floor["checksum"], floor["ops"])
    assert floor["malloc_from"] == str(bench)


@pytest.mark.parametrize("workload", [*CALLS, *PAIRS, "realloc"])
def test_each_reported_operation_is_a_call_that_was_made(bench, shim, workload):
    few, many = ITERATIONS.get(workload, (400, 1200))

    def counts(n):
        fixed = ["--workload", workload, "--chunks", 1, "--warmup", min(few, 200), "--iterations", n]
        run = call(bench, *fixed, env=shim("COUNT"))
        taken, given, resized = map(int, run.stderr.split())
        return json.loads(run.stdout)["ops"], taken, given, resized

    ops, taken, given, resized = (b - a for a, b in zip(counts(few), counts(many), strict=True))
    if workload in CALLS:
        assert taken + given == ops
    elif workload == "realloc":
        assert resized == ops * 20  # 16 bytes to 8 MB
    else:
        assert (taken, given) == (ops, ops)


def test_many_threads_share_the_iterations(bench):
    one, four = (result(bench, "random_mixed", "--threads", n, "--iterations", 100_000) for n in (1, 4))
    assert one["ops"] == four["ops"] == 100_000
    assert four["live_peak_bytes"] > 3 * one["live_peak_bytes"]


def test_phases_are_marked_in_order_and_sum_to_the_whole(bench):
    row = result(bench, "phases4")
    marks = row["phases"]
    assert [m["name"] for m in marks] == ["bursts", "prodcons", "churn", "large"] * 2
    assert sum(m["ops"] for m in marks) == row["ops"]
    ends = [m["start_ns"] + m["elapsed_ns"] for m in marks]
    assert all(end <= after["start_ns"] for end, after in zip(ends, marks[1:], strict=False))


def test_phases_can_last_a_given_time(bench):
    marks = result(bench, "phases", "--phase-ms", 10)["phases"]
    assert all(m["elapsed_ns"] >= 10_000_000 for m in marks)


def test_idle_peak_watches_memory_after_the_last_free(bench):
    row = result(bench, "idle_peak", "--size", 12288)
    assert row["rss_at_peak_bytes"] > row["live_peak_bytes"] > 7 << 20
    assert len(row["idle_ms"]) == len(row["idle_rss_bytes"]) >= 3
    assert row["idle_ms"] == sorted(row["idle_ms"])


def test_the_list_names_every_workload_with_its_defaults(bench):
    rows = json.loads(call(bench, "--list").stdout)
    assert set(WORKLOADS) <= {row["name"] for row in rows}
    assert all(row["stresses"] and row["unit"] in ("call", "pair", "grow") for row in rows)
    assert "floor" not in next(row for row in rows if row["name"] == "prodcons")["backends"]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--workload nothing",
        "--workload lifo --size 0",
        "--workload lifo --size 1e3",
        "--workload lifo --scale -1",
        "--workload lifo --backend rocket",
        "--workload lifo --backend direct",
        "--workload lifo --threads 2 --cpu 0",
        "--workload lifo --size",
        "--workload lifo --speed 3",
        "--workload lifo --replay a.haktrace",
        "--workload random_mixed --size 15",
        "--workload mixed --size 16",
        "--workload prodcons --threads 3",
        "--workload prodcons --backend floor",
        "--workload pool_allocate --threads 2",
        "--workload lifo --slots 67108864 --threads 64",
        "--workload frag --slowdown 1",
        "--workload lifo --toggle magazine_blocks=16,512 --chunks 3",
        "--workload lifo --toggle magazine_blocks=16,512 --chunks 4",  # nobody has knobs here
    ],
)
def test_a_bad_argument_is_refused_with_one_line(bench, arguments):
    run = call(bench, *arguments.split())
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith("bench: ") and run.stderr.count("\n") == 1


@pytest.mark.parametrize("turns", ["purge_delay_ms=500,1s", "purge_delay_ms=500,100,50"])
def test_turns_that_are_not_two_numbers_are_refused(turns):
    run = preload.run([build.build().bench, "--workload", "lifo", "--chunks", 2, "--toggle", turns])
    assert run.returncode == 2 and "two whole numbers" in run.stderr


def test_a_vector_on_the_floor_is_given_back_at_the_length_it_reached(bench):
    row = result(bench, "realloc", "--backend", "floor", "--size", 100, "--iterations", 100_000)
    assert row["live_peak_bytes"] == 2 * 64
    assert row["rss_end_bytes"] - row["rss_start_bytes"] < 4 << 20


def test_a_result_too_fast_to_be_true_is_an_error(bench, shim):
    run = call(bench, "--workload", "lifo", env=shim("FAST"))
    assert run.returncode == 3 and "compiler has removed the work" in run.stderr and run.stdout == ""


@pytest.mark.parametrize("workload", ["calloc", "realloc"])
def test_an_allocator_that_breaks_its_promise_is_an_error(bench, shim, workload):
    run = call(bench, "--workload", workload, "--iterations", 5, env=shim("DIRTY"))
    assert run.returncode == 4 and run.stderr.count("\n") == 1


@needs_valgrind
@pytest.mark.parametrize("workload", ["lifo", "random_mixed"])
def test_the_floor_takes_fewer_instructions_than_the_system(bench, workload):
    system = instructions.per_op(bench, workload)
    floor = instructions.per_op(bench, workload, options=["--backend", "floor"])
    assert 5 < floor < 0.6 * system


@needs_valgrind
def test_an_injected_slow_down_is_exact_in_instructions(bench):
    plain = instructions.per_op(bench, "lifo")
    for percent in (1, 10):
        slow = instructions.per_op(bench, "lifo", options=["--slowdown", str(percent)])
        assert slow / plain == pytest.approx(1 + percent / 100, abs=1e-4)


@needs_valgrind
def test_counting_explains_what_it_cannot_count(bench):
    with pytest.raises(instructions.InstructionsError, match="no such workload"):
        instructions.per_op(bench, "nothing")
    with pytest.raises(instructions.InstructionsError, match="above n1"):
        instructions.per_op(bench, "lifo", n1=5, n2=5)


def record(bench, folder, workload, iterations, warmup):
    counts = ["--iterations", iterations, "--warmup", warmup, "--chunks", 1]
    status, traces = trace.record(list(map(str, [bench, "--workload", workload, *counts])), folder)
    assert status == 0 and len(traces) == 1
    return traces[0].path


def replay(bench, path, *arguments, env=None):
    run = call(bench, "--replay", path, *arguments, env=env)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


def test_a_trace_holds_every_call(bench, tmp_path):
    path = record(bench, tmp_path, "random_mixed", 5000, 1000)
    row, _ = replay(bench, path)
    assert row["trace_events"] == 2 * (400 + 1000 + 5000)  # slots filled, warmed up, timed; each block freed
    assert (row["trace_lost"], row["trace_foreign_frees"], row["trace_unreadable"]) == (0, 0, 0)


def test_a_replay_makes_the_calls_of_the_trace_thread_by_thread(bench, shim, tmp_path):
    path = record(bench, tmp_path, "prodcons", 20_000, 1000)

    def counts(passes):
        row, printed = replay(
            bench, path, "--chunks", 1, "--warmup", 0, "--iterations", passes, env=shim("COUNT")
        )
        assert row["threads"] == 3
        return row["ops"], *map(int, printed.split())

    ops, taken, given, resized = (b - a for a, b in zip(counts(1), counts(3), strict=True))
    assert (taken, given, resized) == (ops / 2, ops / 2, 0) and ops >= 2 * 2 * 21_000


def test_a_forked_child_writes_a_trace_of_its_own(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONMALLOC", "malloc")
    program = "import os, threading; t = threading.Thread(target=list); t.start(); t.join(); os.fork()"
    status, traces = trace.record([sys.executable, "-c", program], tmp_path)
    parent, child, *_ = [t for t in traces if t.program.startswith("python")]
    assert status == 0 and parent.path != child.path
    for path in (parent.path, child.path):
        assert replay(bench, path)[0]["trace_unreadable"] == 0
    assert replay(bench, child.path)[0]["trace_foreign_frees"] > 0  # of what the parent took


def test_what_a_library_gives_back_that_prefers_its_own_symbols_is_recorded(tmp_path):
    plugin = preload.program("plugin.cc", "-shared", "-fPIC")
    status, traces = trace.record([preload.program("host.c"), plugin], tmp_path)
    blocks = demand.blocks(traces[0].path)
    copy = blocks[blocks["size"] == len("taken by libc, freed here") + 1]
    assert status == 0 and len(copy) > 0 and (copy["given"] >= 0).all()


def test_a_killed_program_leaves_a_whole_trace(bench, tmp_path):
    status, traces = trace.record([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path)
    assert status == 137
    assert replay(bench, traces[0].path)[0]["trace_events"] > 100


def test_a_program_that_is_killed_as_its_recording_begins_leaves_a_trace_or_nothing(tmp_path):
    for i in range(60):
        folder = tmp_path / str(i)
        folder.mkdir()
        env = {"LD_PRELOAD": str(trace.recorder()), "HAKMEM_TRACE_DIR": str(folder)}
        child = subprocess.Popen(["sleep", "60"], env=os.environ | env)
        while not any(folder.iterdir()):
            assert child.poll() is None, "nothing was recorded"
        child.kill()
        child.wait()
        [file] = folder.iterdir()
        assert file.stat().st_size == 0 or trace.read_header(file).program == "sleep"


def test_a_shell_with_a_getenv_of_its_own_is_recorded(tmp_path):
    status, traces = trace.record(["bash", "-c", "for i in 1 2 3; do (echo $i); done"], tmp_path)
    assert status == 0 and len(traces) == 4


def test_a_program_that_is_linked_to_another_allocator_is_recorded(bench, tmp_path):
    """redis-server asks jemalloc for the room of a block, which only the allocator that made it can tell."""
    library, program = tmp_path / "libother.so", tmp_path / "asks"
    other = "#include <stdlib.h>\nsize_t malloc_usable_size(void *block) { abort(); }"
    asks = (
        "#include <malloc.h>\n#include <stdlib.h>\nint main(void) { void *large = malloc(1 << 20);"
        "return malloc_usable_size(large) < 1 << 20 || malloc_usable_size(malloc(1000)) != 1000"
        " || malloc_usable_size(NULL); }"
    )
    for code, *how in ((other, "-fPIC", "-shared", "-o", library), (asks, "-o", program, library)):
        subprocess.run(["gcc", "-xc", "-", "-xnone", *how], input=code, text=True, check=True)
    status, traces = trace.record([str(program)], tmp_path / "traces")
    assert status == 0 and traces[0].records == 2


def recording(folder, hears, *program, **how):
    """`hakmem trace -- PROGRAM`, once the program has said that it is up."""
    words = ["-m", "hakmem_py", "trace", "--out", folder, "--", *program]
    child = processes.start(*words, hears=hears, **how)
    assert child.stdout.readline() == "up\n"
    return child


def test_a_server_that_is_interrupted_leaves_a_trace_that_is_told(tmp_path):
    serve = (
        "import time\ntry: print('up', flush=True), time.sleep(60)\nexcept KeyboardInterrupt: print('down')"
    )
    child = recording(tmp_path, signal.SIGINT, sys.executable, "-c", serve, start_new_session=True)
    os.killpg(child.pid, signal.SIGINT)
    said = child.communicate(timeout=60)[0]
    assert said.startswith("down\n") and "replay: " in said and child.returncode == 0


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGHUP])
def test_ending_a_recording_from_outside_ends_its_program(tmp_path, which):
    program = "sleep 2; echo up; exec sleep 60"  # it is up when it is surely being waited for
    child = recording(tmp_path, which, "sh", "-c", program)
    child.send_signal(which)  # to it alone
    said, err = child.communicate(timeout=30)
    assert "replay: " in said and f"ended with status {128 + which}" in err
    assert child.returncode == 128 + which


def test_a_program_that_goes_on_after_a_recording_was_stopped_is_named_and_killed_by_the_next_stop(tmp_path):
    child = recording(tmp_path, signal.SIGINT, "sh", "-c", "sleep 1; echo up; exec sleep 60")
    child.send_signal(signal.SIGINT)  # to it alone, of which the program does not hear
    assert "waiting for sh to end; stop once more to kill it" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    said, err = child.communicate(timeout=30)
    assert said == "" and err == "hakmem: stopped\n" and child.returncode == 130


def test_stopping_a_recording_as_its_program_starts_ends_the_program(tmp_path, stopped_start):
    assert stopped_start(lambda: trace.record(["sleep", "60"], tmp_path)) == -signal.SIGTERM


def test_a_folder_that_cannot_be_written_is_told_before_the_program_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with pytest.raises(ValueError, match="cannot be written: choose another folder"):
        trace.record([sys.executable, "-c", "open('ran', 'w')"], tmp_path)


def heed_modes():
    """In the child: takes from root what lets it pass over the modes of files (capabilities(7))."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP; other users may not, and need not


@pytest.mark.parametrize(("mode", "name"), [(0o600, "."), (0o600, "traces"), (0o300, ".")])
def test_a_folder_that_cannot_be_searched_or_listed_is_told_too(mode, name, tmp_path):
    closed, folder = tmp_path / "closed", tmp_path / "closed" / name
    closed.mkdir(mode)
    command = [sys.executable, "-m", "hakmem_py", "trace", "--out", folder, "--", "true"]
    said = subprocess.run(command, preexec_fn=heed_modes, capture_output=True, text=True)
    told = f"hakmem trace: {folder} cannot be written: choose another folder with --out\n"
    assert said.stderr == told and said.returncode == 1


def test_a_folder_that_cannot_be_made_is_told_like_one_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written: choose another folder with --out"):
        trace.record(["true"], tmp_path / "file" / "traces")


def test_a_process_without_address_space_for_its_trace_costs_no_other_its_own(tmp_path, capfd):
    status, traces = trace.record(["bash", "-c", "ulimit -v 500000; cat /dev/null; true"], tmp_path)
    assert status == 0 and [one.program for one in traces] == ["bash"]
    assert list(tmp_path.iterdir()) == [traces[0].path]
    assert "this process is not recorded (fewer --records" in capfd.readouterr().err


def test_a_process_that_may_not_write_its_trace_says_why(tmp_path):
    env = os.environ | {
        "LC_ALL": "C",
        "LD_PRELOAD": str(trace.recorder()),
        "HAKMEM_TRACE_DIR": str(tmp_path / "no"),
    }
    done = subprocess.run(["cat", "/dev/null"], env=env, capture_output=True, text=True)
    says = f"cannot write a trace to {tmp_path}/no: No such file or directory; this process is not recorded\n"
    assert done.stderr == "libhaktrace: " + says


def test_a_full_trace_counts_its_losses_and_says_them(bench, tmp_path, capfd):
    _, traces = trace.record([sys.executable, "-c", "pass"], tmp_path, records=500)
    assert traces[0].records == 500 and traces[0].lost > 0
    assert replay(bench, traces[0].path)[0]["trace_lost"] == traces[0].lost
    trace.chosen(traces[0].path)
    assert f"lacks {traces[0].lost} of {500 + traces[0].lost} calls" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda data: data[:-100_000], "the file ends before it"),
        (lambda data: data[:10_003] + bytes([data[10_003] ^ 1]) + data[10_004:], "is damaged"),
        (lambda data: data[:6400] + bytes(16) + data[6416:], "was never finished"),
    ],
)
def test_a_damaged_trace_is_refused_unless_asked_for(bench, tmp_path, harm, says):
    path = record(bench, tmp_path, "random_mixed", 50_000, 1)
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(harm(data + bytes(-len(data) % 16)))  # the last record may end in zeros too
    run = call(bench, "--replay", path)
    assert run.returncode == 2 and says in run.stderr and run.stderr.count("\n") == 1
    row, _ = replay(bench, path, "--partial")
    assert row["trace_unreadable"] > 0 and row["trace_events"] > 5000


@pytest.mark.parametrize("shape", ["--size", "--threads", "--slots"])
def test_a_replay_takes_its_shape_from_the_trace_alone(bench, tmp_path, shape):
    path = record(bench, tmp_path, "random_mixed", 50_000, 1)
    run = call(bench, "--replay", path, shape, 8)
    assert run.returncode == 2 and shape in run.stderr and run.stderr.count("\n") == 1


def test_a_thread_that_takes_only_what_is_taken_disturbs_no_other_ones_calls(bench, tmp_path):
    path = tmp_path / "twice.haktrace"
    write_trace(path, [(TAKE, thread, 4096, 100) for thread in (1, 2, 3, 1)])
    assert "already taken" in call(bench, "--replay", path).stderr
    row, _ = replay(bench, path, "--partial", "--iterations", 20)  # else 100000 operations, 8 at a time
    assert (row["trace_events"], row["trace_unreadable"]) == (8, 3)


def test_a_block_whose_move_was_cut_off_is_freed(bench, tmp_path):
    path = tmp_path / "cut.haktrace"
    begun = [(kind, 1, address, 100) for kind in (TAKE, MOVE_FROM) for address in (4096, 8192)]
    write_trace(path, [*begun, (MOVE_TO, 1, 12288, 200)])
    assert replay(bench, path)[0]["trace_events"] == 5  # two taken, one of them moved, both freed


def test_what_is_no_trace_is_refused(bench, tmp_path):
    for path in (bench, tmp_path / "missing", tmp_path):
        run = call(bench, "--replay", path)
        assert run.returncode == 2 and run.stderr.count("\n") == 1
    with pytest.raises(ValueError, match="is not a trace"):
        trace.read_header(bench)


def test_the_command_line_records_and_says_how_to_replay(bench, tmp_path, capfd):
    assert cli.main(["trace", "--out", str(tmp_path), "--", sys.executable, "-c", "raise SystemExit(3)"]) == 3
    said = capfd.readouterr()
    own, path = re.search(r"replay: (\S+) --replay (\S+)", said.out).groups()
    assert Path(own).is_absolute() and replay(bench, path)[0]["trace_events"] > 100
    assert said.err.endswith("ended with status 3\n")


def test_what_replays_a_trace_can_be_run_as_it_stands(tmp_path, capfd):
    assert cli.main(["trace", "--out", str(tmp_path / "a folder"), "--", sys.executable, "-c", "0"]) == 0
    words = shlex.split(re.search("replay: (.*)", capfd.readouterr().out)[1])
    assert subprocess.run(words, capture_output=True).returncode == 0


def test_a_full_disk_is_what_a_trace_lost_its_records_to(tmp_path, capfd):
    """A limit on the size of files stands for the disk."""
    program = ["bash", "-c", "trap '' XFSZ; ulimit -f 16; exec ls"]
    assert cli.main(["trace", "--out", str(tmp_path), "--", *program]) == 0
    assert re.search(r"ls, 0 records, \d+ lost: no space is left", capfd.readouterr().out)


def test_who_is_killed_before_its_trace_begins_is_not_said_to_lack_room(tmp_path):
    def full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    assert trace.record(["sh", "-c", "kill -9 $$"], tmp_path, preexec_fn=full) == (128 + signal.SIGKILL, [])
    with pytest.raises(ValueError, match="no space is left on its disk"):
        trace.record(["ls"], tmp_path, preexec_fn=full)


def test_two_traces_at_a_time_do_not_mix(tmp_path, capfd):
    again = [sys.executable, "-m", "hakmem_py", "trace", "--out", str(tmp_path), "--", "true"]
    assert cli.main(["trace", "--out", str(tmp_path), "--", *again]) == 1
    assert f"another trace is recorded in {tmp_path}: choose another folder" in capfd.readouterr().err


def test_a_program_that_failed_is_to_blame_for_its_empty_trace(tmp_path, capfd):
    assert cli.main(["trace", "--out", str(tmp_path), "--", "false"]) == 1
    assert capfd.readouterr().err == "hakmem trace: false ended with status 1; nothing was recorded\n"


@pytest.mark.parametrize("command", ["trace", "ab"])
def test_a_program_that_is_not_there_is_named_with_a_way_on(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, "--", "/bin/nope"]) == 1
    says = "there is no program '/bin/nope': give a path, or a name that the shell finds"
    assert capsys.readouterr().err == f"hakmem {command}: {says}\n"
    assert not any(tmp_path.iterdir())
