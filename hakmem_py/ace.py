"""ACE from Python: what it saw and did as tables, and the live allocator driven by a policy of your own.

ACE plays one bandit per *learner*: one learner for each size class with traffic (arms: blocks a magazine
holds), and four for the whole allocator. Each time a learner's *window* ends, its arm is rewarded and the
next arm is put into force: one row of `events`. Ten lines drive the allocator of this process:

    class Greedy:
        def __init__(self, arms):
            self.sum, self.pulls = [0] * arms, [0] * arms
        def select(self):
            return max(range(len(self.sum)), key=self.mean)
        def mean(self, arm):
            return self.sum[arm] / self.pulls[arm] if self.pulls[arm] else 2
        def update(self, arm, reward):
            self.sum[arm], self.pulls[arm] = self.sum[arm] + reward, self.pulls[arm] + 1

    table = hp.ace.drive(Greedy(6), learner=64, windows=200)
"""

import io
import sys
import time
import traceback
from numbers import Integral
from pathlib import Path

import pandas as pd

from .native import NativeError, load, policy_names

SLOW = ("superslab_bytes", "purge_delay_ms", "large_threshold", "idle_return")  # of learners 0 to 3 (loop.c)
REASONS = ("policy", "frozen", "outside", "restart")  # HAK_REASON_...
OUTSIDE = "outside"  # policy of a learner that is driven from outside
BATCH = 1024  # events fetched at a time
POLICY_VERBS = (("select", "update"), ("predict", "partial_fit"))
LEARNER = ("knob", "block_size", "arms", "arm", "policy", "windows", "reward", "noise")


# ---------------------------------------------------------------- tables


def events(since=0):
    """Decisions of this process with a number above `since`, one row each.

    attrs["lost"]: how many were overwritten before they could be read.
    Columns: number, time_ns (CLOCK_MONOTONIC), learner, knob, block_size (bytes, 0: the whole allocator),
    threads, phase, policy, reason, arm and its setting (in force in the window), next_arm, pulls, reward (at
    most 1), told (the reward that the policy learned from) and price (the part of it that memory cost; for
    the placebo, both are of one of its first windows), mean, bonus, index_0 ... of every arm, the window's
    counts (begin_ns, end_ns, cpu_ns, refills, spills, swaps, contended, faults, syscalls, purged_bytes) and
    levels (cached_bytes, live_bytes), rss_bytes, seed.
    """
    library = load()
    cursor, lost = library.ffi.new("uint64_t *", since), library.ffi.new("uint64_t *")
    buffer, rows = library.ffi.new("hak_event_t[]", BATCH), []
    kind = library.ffi.typeof("hak_event_t")
    while filled := library.lib.hak_event_read(cursor, buffer, BATCH, lost):
        rows += [_event(buffer[i], kind) for i in range(filled)]
    table = _named(pd.DataFrame(rows, columns=_columns()))
    table.attrs["lost"] = lost[0]
    return table


def history(paths):
    """The table of `events`, from files that HAKMEM_ACE_EVENTS wrote; column `process` numbers the files.

    paths: one path or several. attrs["lost"]: decisions that no file holds. Raises FileNotFoundError where
    there is no file, ValueError for a file that is no history.
    """
    found = [paths] if isinstance(paths, str | Path) else sorted(paths)
    if not found:
        raise FileNotFoundError(
            f"no history at {paths}: run with HAKMEM_ACE_ENABLED=1 HAKMEM_ACE_EVENTS=FILE-%p.csv"
        )
    parts = [_read_history(path).assign(process=process) for process, path in enumerate(found)]
    parts = [part for part in parts if len(part)] or parts[:1]
    lost = sum(int(part["lost"].max()) for part in parts if len(part))
    table = _named(pd.concat(parts, ignore_index=True).drop(columns="lost"))
    table.attrs["lost"] = lost
    return table


def _read_history(path):
    try:
        text = Path(path).read_text(encoding="utf-8")
        part = pd.read_csv(io.StringIO(text.rpartition("\n")[0]))  # a killed process may leave half a row
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a history of ACE: {error}") from None
    if missing := {*_columns(), "lost"} - {*part}:
        raise ValueError(f"{path} is no history of ACE: it has no column {', '.join(sorted(missing))}")
    number = pd.to_numeric(part["number"], errors="coerce")  # of a second head: nan
    again = number.diff().le(0) & number.ne(1)  # 1: this process, after an exec, or the next one
    if number.isna().any() or again.any():
        raise ValueError(f"{path} mixes processes: give each its own file by HAKMEM_ACE_EVENTS=FILE-%p.csv")
    return part


def learners():
    """One row per learner, by its number: knob, block_size (bytes; 0: the whole allocator), arms (how many),
    arm (in force), policy, windows, reward (of the last one), noise, settings (the knob's value per arm)."""
    library = load()
    row, rows = library.ffi.new("hak_learner_t *"), []
    for number in range(library.lib.hak_ace_learner_count()):
        library.lib.hak_ace_learner_read(number, row)
        values = {name: getattr(row, name) for name in LEARNER} | {"knob": library.text(row.knob)}
        rows.append(values | {"learner": number, "settings": list(row.settings[0 : row.arms])})
    table = pd.DataFrame(rows, columns=["learner", *LEARNER, "settings"]).set_index("learner")
    table["policy"] = table["policy"].map(_policy_names())
    return table


def costs():
    """Cost of each kind of event in ns (clear: per byte purged), measured when ACE starts; zeros before."""
    measured = load().lib.hak_ace_costs()
    names = ("refill", "spill", "swap", "contention", "fault", "syscall", "clear")
    return pd.Series({name: getattr(measured, name) for name in names}, name="ns")


def firings(table, slow=False):
    """How many steps of the fast (or slow) loop decided something, in the process with the most of them."""
    rows = table[table["block_size"].eq(0) == slow]
    processes = rows["process"] if "process" in rows else pd.Series(0, rows.index)
    return int(rows.groupby(processes)["time_ns"].nunique().max()) if len(rows) else 0


def _columns():
    """Columns of the table of events, in the order of hakmem.h."""
    ffi = load().ffi
    return [*_event(ffi.new("hak_event_t *"), ffi.typeof("hak_event_t"))]


def _event(row, kind):
    """{column: value} of a struct: one column per element of an array, and the columns of nested structs."""
    columns = {}
    for name, field in kind.fields:
        value = getattr(row, name)
        if field.type.kind == "array":
            columns |= {f"{name}_{i}": one for i, one in enumerate(value)}
        else:
            columns |= _event(value, field.type) if field.type.kind == "struct" else {name: value}
    return columns


def _named(table):
    """The table with names of policies, reasons and knobs, without the indices of arms that nobody has."""
    knob = table["learner"].map(dict(enumerate(SLOW))).where(table["block_size"].eq(0), "magazine_blocks")
    table.insert(3, "knob", knob)
    table["policy"] = table["policy"].map(_policy_names())
    table["reason"] = table["reason"].map(dict(enumerate(REASONS)))
    index = [name for name in table if name.startswith("index_")]
    return table.drop(columns=[name for name in index if len(table) and not table[name].any()])


def _policy_names():
    """{number of a policy, as learners hold it: its name}."""
    return {-1: OUTSIDE} | dict(enumerate(policy_names()))


# ---------------------------------------------------------------- at work


def start(**parameters):
    """Starts ACE here, with parameters of its policies (scale=, gamma=, ...). Raises NativeError."""
    lib = load().lib
    for name, value in parameters.items():
        if lib.hak_ace_parameter(name.encode(), float(value)) < 0:
            raise NativeError(
                f"no policy takes {name}={value}: "
                "`hakmem simulate --means 0,1 --policy NAME --param x=0` lists what NAME takes"
            )
    if lib.hak_ace_start() == -2:
        raise NativeError("this library is compiled without ACE: load another variant in a fresh process")


def stop():
    """Stops ACE: knobs get their earlier values back; what was learned is kept for the next start."""
    load().lib.hak_ace_stop()


def bursts(block_size=64, blocks=400):
    """A function that takes `blocks` blocks of `block_size` bytes and gives them back, oldest first."""
    lib = load().lib
    take, give = lib.hak_malloc, lib.hak_free

    def burst():
        for block in [take(block_size) for _ in range(blocks)]:
            give(block)

    return burst


# ---------------------------------------------------------------- bring your own policy


class Fitted:
    """Gives a policy with MABWiser's interface (predict, fit, partial_fit) the methods select and update.

    Arms that were never played come first, once each: such libraries need data before they can predict.
    """

    def __init__(self, policy):
        self.policy, self.arms, self.played = policy, list(policy.arms), set()

    def select(self):
        """The number of the arm to play now, from 0."""
        unplayed = set(range(len(self.arms))) - self.played
        return min(unplayed) if unplayed else self.arms.index(self.policy.predict())

    def update(self, arm, reward):
        """The arm was played and gave this reward."""
        learn = self.policy.partial_fit if self.played else self.policy.fit
        learn(decisions=[self.arms[arm]], rewards=[reward])
        self.played.add(arm)


def drive(policy, learner=64, windows=200, interval_s=0.01, work=None):
    """Lets `policy` choose the arms of one learner in this process. Returns its decisions, as `events` does.

    policy: any object with select(), which returns an arm counted from 0, and update(arm, reward); or a
    MABWiser policy as it is. learner: a block size in bytes (arms: blocks a magazine holds), or the name of
    a knob, see `learners`. work: called over and over in each window of interval_s seconds; default: bursts
    of blocks of that size.

    A policy that raises an exception, or names an arm that does not exist, is not asked again. Its error goes
    to stderr and to attrs["error"]; the windows go on with the arm in force and the reason "frozen", and ACE
    leaves the learner alone until `release`. Raises NativeError for an unknown learner, TypeError for an
    object that is no policy.
    """
    number = learner_number(learner)
    work = work or bursts(learner if isinstance(learner, Integral) else 64)
    player = _Player(policy, number)
    player.end_window()  # what came before belongs to no window of the policy
    since, parts = max(events()["number"], default=0), []
    for window in range(windows):
        player.window(work, interval_s)
        if window % BATCH == BATCH - 1 or window == windows - 1:  # before the ring overwrites them
            parts.append(events(since))
            since = max(parts[-1]["number"], default=since)
    if not player.error:
        release(learner)
    table = pd.concat(parts, ignore_index=True) if parts else events(2**62)
    table = table.query("learner == @number").reset_index(drop=True)
    table.loc[table["time_ns"] > player.chosen_ns, "reason"] = "frozen"
    table.attrs["error"] = player.error
    return table


def release(learner):
    """Gives a driven learner back to ACE's own policy; its arm stays in force until that policy decides."""
    load().lib.hak_ace_choose(learner_number(learner), -1)


def learner_number(learner):
    """The number of the learner of a block size or a knob; it is made if need be. Raises NativeError."""
    lib = load().lib
    number = lib.hak_ace_learner_of(learner if isinstance(learner, Integral) else 64)
    if not isinstance(learner, Integral):
        number = SLOW.index(learner) if learner in SLOW else -1
    if number < 0:
        raise NativeError(
            f"there is no learner for {learner!r}: give a block size up to 32768 bytes, or {', '.join(SLOW)}"
        )
    return number


class _Player:
    """A policy and the learner it drives. If the policy fails, the arm in force stays.

    chosen_ns: end of the last window whose arm the policy chose.
    """

    def __init__(self, policy, number):
        if not any(hasattr(policy, one) and hasattr(policy, two) for one, two in POLICY_VERBS):
            raise TypeError(
                f"{policy!r} is no policy: it needs select() and update(arm, reward), or MABWiser's methods"
            )
        self.policy = policy if hasattr(policy, "select") else Fitted(policy)
        self.number, self.library, self.error, self.chosen_ns = number, load(), None, 0
        row = learners().loc[number]
        self.arms = int(row["arms"])
        self.library.lib.hak_ace_choose(number, int(row["arm"]))  # from here on ACE leaves it alone

    def window(self, work, interval_s):
        """One window."""
        arm = self._ask(self._choose)
        until = time.perf_counter() + interval_s
        while time.perf_counter() < until:
            work()
        now, reward = self.end_window()
        if arm is not None:
            self.chosen_ns = now
            self._ask(self.policy.update, arm, reward)

    def end_window(self):
        """(time, reward) of the window that ends now."""
        ffi, lib, now = self.library.ffi, self.library.lib, time.monotonic_ns()
        window, reward = ffi.new("hak_window_t *"), ffi.new("double *")
        lib.hak_ace_observe(self.number, now, window, reward)
        return now, reward[0]

    def _choose(self):
        arm = int(self.policy.select())
        if not 0 <= arm < self.arms:
            raise ValueError(f"select() gave arm {arm}; this learner has arms 0 to {self.arms - 1}")
        self.library.lib.hak_ace_choose(self.number, arm)
        return arm

    def _ask(self, verb, *arguments):
        """What the policy answers; None where it fails, now or before."""
        if self.error:
            return None
        try:
            return verb(*arguments)
        except Exception as error:  # a user's policy may raise anything
            self.error = error
            traceback.print_exc()
            print("hakmem: the policy failed; learning is frozen at the arm in force", file=sys.stderr)
            return None
