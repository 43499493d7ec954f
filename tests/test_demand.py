"""What a program asks of an allocator, as its trace tells it."""

import os
import signal
import sys
import time

import numpy as np
import pandas as pd
import processes
import pytest
from traces import GIVE, MOVE_FROM, MOVE_TO, TAKE, write_trace

from hakmem_py import ab, demand, figures


@pytest.fixture
def path(tmp_path):
    """Thread 1 takes 100 bytes, grows them to 300, takes 50 for good; thread 2 gives the grown block."""
    rows = [(TAKE, 1, 4096, 100), (MOVE_FROM, 1, 4096, 0), (MOVE_TO, 1, 8192, 300), (TAKE, 1, 4096, 50)]
    write_trace(tmp_path / "p.haktrace", [*rows, (GIVE, 2, 8192, 0), (GIVE, 2, 64, 0)])
    return tmp_path / "p.haktrace"


def test_every_block_is_followed_from_its_call_to_its_end(path):
    table = demand.blocks(path)
    assert table["size"].to_list() == [100, 300, 50]
    assert table["taken"].to_list() == [0, 2, 3] and table["given"].to_list() == [1, 4, -1]
    assert table["lifetime"].to_list() == [0, 50, np.inf]
    assert table["elsewhere"].to_list() == [False, True, False]
    told = {"program": "program", "threads": 2, "records": 6, "calls": 5, "lost": 0}  # a realloc is one call
    assert table.attrs == told


def test_sizes_lifetimes_and_live_bytes_are_those_of_the_blocks(path):
    table = demand.blocks(path)
    sizes = demand.sizes(table).set_index("at_most")
    assert sizes["blocks"].to_dict() == {64: 1, 128: 1, 256: 0, 512: 1}
    assert sizes["byte_share"].to_list() == pytest.approx([50 / 450, 100 / 450, 0, 300 / 450])
    live = demand.live(table)
    assert live["live_mb"].to_list() == pytest.approx([1e-4, 0, 3e-4, 3.5e-4, 5e-5, 5e-5])
    assert live["live_blocks"].max() == 2
    old = demand.lifetimes(table).groupby("of")["share"]
    assert old.first().to_dict() == pytest.approx({"blocks": 1 / 3, "bytes": 100 / 450})
    assert old.last().to_dict() == pytest.approx({"blocks": 2 / 3, "bytes": 400 / 450})  # one lives on


def test_a_damaged_trace_shows_nothing(path):
    data = bytearray(path.read_bytes())
    data[64 + 16 + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged or was never finished: record"):
        demand.blocks(path)
    path.write_bytes(data[: 64 + 40])
    with pytest.raises(ValueError, match="damaged"):
        demand.blocks(path)


def test_a_trace_without_a_call_shows_nothing(tmp_path):
    write_trace(tmp_path / "none.haktrace", [])
    with pytest.raises(ValueError, match="holds no call"):
        demand.blocks(tmp_path / "none.haktrace")


def test_a_command_line_is_read_as_a_shell_reads_it():
    env, words = demand.command("A=1 B='x y' prog -c 'a=1; b' C=2")
    assert env == {"A": "1", "B": "x y"} and words == ["prog", "-c", "a=1; b", "C=2"]
    quoted = """find -name '*' -exec cat {} ';' "a|b's" 'say "$x"' """ + r"\("
    assert demand.command(quoted)[1][2:] == ["*", "-exec", "cat", "{}", ";", "a|b's", 'say "$x"', "("]
    assert demand.command("prog '~' a~")[1] == ["prog", "~", "a~"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no program"),
        ("A=1", "names no program"),
        ("prog 'x", "No closing quotation"),
        ("LD_PRELOAD=x.so prog", "is what a side sets"),
        ("prog < in | tee", "< in .* is for a shell: put it into '...', or write sh -c"),
        ("A=~/x prog", "~ in"),
        ("prog ~", "~ in"),
        ("prog x[0-9]", r"\[ in"),
        ("prog a.txt>out", "> in"),
        ("prog 'a|b'; next", "; in"),
        ("prog *.txt", r"\* in"),
        ('prog "$HOME/a"', r"\$ in"),
        ("""prog "it's $HOME" 'a'""", r"\$ in"),
    ],
)
def test_what_is_no_command_line_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        demand.command(text)


def test_a_program_is_recorded_in_its_own_environment(capfd):
    code = "import os; print('loud'); blocks = [bytearray(7777) for _ in range(int(os.environ['BLOCKS']))]"
    with demand.recorded(f'BLOCKS=500 PYTHONMALLOC=malloc "{sys.executable}" -c "{code}"') as traces:
        tables = demand.looked(traces)
        sizes = tables[1].set_index("at_most")
    assert sizes.at[8192, "blocks"] >= 500 and not traces[0].path.exists()
    assert capfd.readouterr().out == ""  # a notebook is no place for what the program prints
    assert [len(table) > 0 for table in tables] == [True] * 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'"{sys.executable}" -c "raise SystemExit(3)"', "ended with status 3 in /"),
        (f'"{sys.executable}" -c "0 / 0"', "ended with status 1 in /.*: ZeroDivisionError"),
        ("no-such-program", "there is no program 'no-such-program':"),
        ("./no-such-program", "there is no program './no-such-program' in /.*: give a path"),
    ],
)
def test_a_program_that_cannot_be_recorded_is_named(text, says):
    with pytest.raises(ValueError, match=says), demand.recorded(text):
        pass


def test_a_recording_that_ends_early_says_that_it_shows_the_beginning():
    with demand.recorded(f'PYTHONMALLOC=malloc "{sys.executable}" -c pass', calls=1000) as traces:
        facts = demand.looked(traces)[0]
    told, said = facts.attrs, facts.set_index("fact").at["calls recorded", "value"]
    assert told["records"] == 1000 and told["all_calls"] == told["calls"] + told["lost"]
    assert said == f"{told['calls']:,} of {told['all_calls']:,}, its beginning"


def test_the_process_with_the_most_calls_is_shown_and_the_others_are_counted():
    child = f'PYTHONMALLOC=malloc "{sys.executable}" -c pass; :'
    with demand.recorded(f"sh -c '{child}'") as traces:
        facts = demand.looked(traces)[0]
    told, said = facts.attrs, facts.set_index("fact").at["program", "value"]
    assert told["processes"] == 2 and told["all_calls"] > told["calls"] > 0.9 * told["all_calls"]
    assert "python" in said and "of 2 processes it made 9" in said


def test_where_several_processes_fill_their_traces_that_with_the_most_calls_is_shown():
    few, many = (f'"{sys.executable}" -c "[bytes(700) for _ in range({n})]"' for n in (1, 9999))
    with demand.recorded(f"PYTHONMALLOC=malloc sh -c '{few}; {many}; {few}; {few}'", calls=1000) as traces:
        full = [one.lost for one in traces if one.records == 1000]
    assert len(full) >= 4 and full[0] == max(full) > 9999


def test_stopping_the_page_stops_the_program_that_is_recorded_and_its_children():
    seconds = f"61.4{os.getpid()}"
    line = f"sh -c 'trap \"\" INT; sleep {seconds}; true'"  # which hears no Ctrl-C itself
    code = f"from hakmem_py import demand\nwith demand.recorded({line!r}): pass"
    child = processes.start("-c", code, hears=signal.SIGINT)
    while not processes.running(f"sleep\0{seconds}\0"):
        assert child.poll() is None
        time.sleep(0.05)
    time.sleep(1)  # while the program is being started nobody could end it yet
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=30)[1]
    assert processes.come_to(f"sleep\0{seconds}\0", False)


# ---------------------------------------------------------------- what is said of it


def judged(rows):
    table = pd.DataFrame(rows, columns=["allocator", "ratio", "low", "high", "verdict"])
    return table.assign(status="ok", error="")


TIME = judged([("hakmem", 0.9, 0.88, 0.92, "GO"), ("jemalloc", 1.1, 0.9, 1.3, "UNDECIDED")])
MEMORY = judged([("hakmem", 1.2, 1.1, 1.3, "NO-GO"), ("jemalloc", np.nan, np.nan, np.nan, "NOT MEASURED")])


def test_the_answer_names_who_takes_least_time_and_least_memory():
    first, second = demand.answers(TIME, MEMORY, "system")
    assert first == {
        "text": "least CPU time: hakmem, 0.90 [0.88, 0.92] times that of system",
        "verdict": "GO",
    }
    assert second["text"].startswith("system takes the least peak memory; next: hakmem, 1.20")
    assert second["verdict"] == "NO-GO"
    assert len(demand.answers(TIME, MEMORY[1:], "system")) == 1  # no peak is known
    assert len(demand.answers(TIME, MEMORY.assign(low=0.0, high=np.inf), "system")) == 1  # too few are
    assert "(first of 3 processes only)" in demand.answers(TIME, MEMORY, "system", processes=3)[1]["text"]


def test_the_fastest_may_be_the_first_side():
    assert demand.fastest(TIME, "system") == "hakmem"
    assert demand.fastest(TIME.assign(ratio=[1.1, np.nan]), "system") == "system"


def test_blocks_and_bytes_look_alike_in_every_picture(path):
    table = demand.blocks(path)
    bars = figures.block_sizes(demand.sizes(table))
    curves = figures.curves(demand.lifetimes(table), "age", "share", "of", x_title="", y_title="", title="")
    paint = {bar.name: bar.marker.color for bar in bars.data}
    assert paint == {curve.name: curve.line.color for curve in curves.data} and len(set(paint.values())) == 2
    assert [span for *_, span in bars.data[0].customdata[:2]] == ["0 to 64 bytes", "65 to 128 bytes"]
    assert "highest of the blocks ends at 64 B, the highest of the bytes at 512 B" in bars.layout.meta["alt"]


def test_the_picture_says_whose_peak_is_not_known():
    figure = figures.trade(TIME, MEMORY, "system")
    look = {trace.name: trace for trace in figure.data}
    assert look["jemalloc"].marker.symbol.endswith("-open") and look["jemalloc"].y == (1.0,)
    assert look["hakmem"].y == (1.2,) and look["system"].x == (1,)
    assert "Too short for a peak: jemalloc" in figure.layout.meta["alt"]
    with pytest.raises(ValueError, match="no run of another side succeeded"):
        figures.trade(TIME.assign(ratio=np.nan), MEMORY, "system")


def test_the_picture_says_which_side_failed_now_and_then_and_why():
    failed = TIME.assign(status=["1 of 8 error", "ok"], error=["it ended with status 1", ""])
    said = figures.trade(failed, MEMORY, "system").layout.meta["alt"]
    assert said.endswith(" Measured in part or not at all: hakmem (it ended with status 1).")


def test_the_share_of_the_calls_is_theirs_of_the_programs_time():
    one = {"status": "ok", "allocator": "hakmem"}
    seen = pd.DataFrame()
    seen.attrs = {"all_calls": 1000}
    runs = pd.DataFrame([one | {"cpu_ns_per_op": 80_000.0}, one | {"cpu_ns_per_op": 80_000.0}])
    share = demand.spent(pd.DataFrame([one | {"cpu_ns_per_op": 20.0}]), runs, seen).iloc[0]
    assert (share["ns_per_call"], share["share"], share["program_ms"]) == (20, 0.25, 0.08)


def test_a_side_that_is_not_here_is_left_out_and_the_picture_says_so(monkeypatch, capsys):
    found = ab.peers.find
    absent = ab.peers.Peer("jemalloc", None, hint="not installed, get it")
    monkeypatch.setattr(ab.peers, "find", lambda name: absent if name == "jemalloc" else found(name))
    sides = ab.different(["system", "off", "jemalloc", "MAGAZINE_BLOCKS=1", "off"])
    runs = ab.compare(ab.program("sleep", "0.05"), sides, blocks=6)
    assert capsys.readouterr().err.startswith("side jemalloc is left out: not installed, get it\n")
    assert list(runs.attrs["left_out"]) == ["jemalloc", "MAGAZINE_BLOCKS=1"]
    time, memory = ab.judge(runs), ab.judge(runs, "peak_rss_bytes")
    picture = figures.trade(time, memory, "system", runs.attrs["left_out"])
    assert " Left out: jemalloc (not installed, get it); MAGAZINE_BLOCKS=1 (" in picture.layout.meta["alt"]
    with pytest.raises(ab.AbError, match="side jemalloc: not installed, get it"):
        ab.compare(ab.program("true"), ab.different(["system", "jemalloc"]), blocks=6)
    with pytest.raises(ab.AbError, match="two or more different sides"):
        ab.different(["system", "system"])


def test_huge_blocks_are_replayed_in_fewer_passes():
    facts = pd.DataFrame()
    facts.attrs = {"calls": 1000, "threads": 1}  # a thousand passes, were it not for the pages
    huge, small = (pd.DataFrame({"megabytes": [mb, 0.0]}) for mb in (300.0, 1.0))
    assert demand.passes(huge, facts) == ("--chunks", 1, "--iterations", 13)
    assert demand.passes(small, facts) == ()
    assert demand.passes(huge * 100, facts)[-1] == 1
    facts.attrs["threads"] = 2  # a hundred passes
    assert demand.passes(small * 20, facts) == () and demand.passes(huge, facts)[-1] == 13
