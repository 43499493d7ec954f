"""Misuse never becomes a tool: 52 programs, one crime each, under the default and the hardened profile.

What becomes of a crime:
    detected     the program was ended with a message
    fault        the program was ended by the memory protection
    silent       nothing happened, the heap is sound
    overwritten  the allocator wrote into a live block
    corrupt      one byte has two owners, or a block lies at an address of the attacker's choice
    hung         the program did not end
"""

import functools
import re
import signal
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from preload import NATIVE, inlined, not_of_libc, program, run

from hakmem_py import ROOT

CRIMES = sorted(path.stem for path in (NATIVE / "crimes").glob("*.c"))
FATES = ("detected", "fault", "silent", "overwritten", "corrupt", "hung")
MESSAGE = re.compile(r"hakmem: .*\w.* 0x[0-9a-f]+\n")
# Nobody looks for these: writes into a neighbour that lives, or beside the first word of a free block. What
# was seen once may not become silent again.
UNSEEN = {
    "default": {name for name in CRIMES if name.endswith("_into_live_block")}
    | {
        "overflow_large",
        "overflow_medium",
        "use_after_free_first_word_mid",
        "use_after_free_large",
        "use_after_free_second_word",
    },
    "hardened": {"use_after_free_copied_link"},  # freed memory is filled: its copied word changes nothing
}
# Those that the hit of malloc or free itself must see.
HITS = (
    "double_free_small",
    "double_free_after_thousands",
    "invalid_free_interior_small",
    "invalid_free_misaligned",
    "use_after_free_first_word",
)


def commit(crime, profile, *flags):
    """(fate, what was said on stderr)."""
    try:
        done = run([program(f"crimes/{crime}.c", *flags)], timeout=60, HAKMEM_PROFILE=profile)
    except subprocess.TimeoutExpired:
        return "hung", ""
    if done.returncode == 0:
        return done.stdout.split()[0], done.stderr
    ended = signal.Signals(-done.returncode)
    return "fault" if ended in (signal.SIGSEGV, signal.SIGBUS) else "detected", done.stderr


@functools.cache
def fates(profile):
    """crime -> (fate, message), each in a process of its own, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CRIMES, pool.map(lambda crime: commit(crime, profile), CRIMES), strict=True))


def criminals(profile, fate):
    return [crime for crime, (came_to, _) in fates(profile).items() if came_to == fate]


def test_there_are_52_crimes_of_at_most_20_lines():
    assert len(CRIMES) == 52
    assert max(len((NATIVE / f"crimes/{name}.c").read_text().splitlines()) for name in CRIMES) <= 20


@pytest.mark.parametrize("profile", ["default", "hardened", "lean"])
@pytest.mark.parametrize("fate", ["corrupt", "overwritten", "hung"])
def test_no_crime_becomes_a_tool(profile, fate):
    assert criminals(profile, fate) == []


@pytest.mark.parametrize(("profile", "at_least"), [("default", 25), ("hardened", 30)])
def test_crimes_are_detected(profile, at_least):
    counts = Counter(fate for fate, _ in fates(profile).values())
    assert set(counts) <= set(FATES)
    assert counts["detected"] >= at_least, counts


@not_of_libc
def test_the_readme_says_how_many_are_detected():
    told = " ".join((ROOT / "README.md").read_text().split())
    default, hardened = (len(criminals(profile, "detected")) for profile in ("default", "hardened"))
    assert f"{default} are detected, and {hardened} by the profile `hardened`" in told


@not_of_libc
@pytest.mark.parametrize("profile", sorted(UNSEEN))
def test_no_crime_that_was_seen_becomes_silent(profile):
    assert set(criminals(profile, "silent")) <= UNSEEN[profile]


@not_of_libc
@pytest.mark.parametrize("profile", ["default", "hardened"])
def test_message_is_one_line_that_names_crime_and_address(profile):
    said = {crime: message for crime, (fate, message) in fates(profile).items() if fate == "detected"}
    assert {crime: message for crime, message in said.items() if not MESSAGE.fullmatch(message)} == {}


@not_of_libc
def test_messages_tell_the_inside_of_a_block_from_what_is_not_the_heaps():
    said = {crime: message for crime, (_, message) in fates("default").items()}
    for size in ("small", "medium", "mid", "large"):
        assert "free of no block's start at 0x" in said[f"invalid_free_interior_{size}"]
    for place in ("stack", "global", "wild_address", "own_mapping"):
        assert "free of an address that is not ours, at 0x" in said[f"invalid_free_{place}"]


@not_of_libc
@pytest.mark.parametrize("crime", HITS)
def test_code_inlined_into_programs_sees_what_the_library_sees(crime):
    variants = ((), inlined(), inlined(sized=True))
    fates = [commit(crime, "default", *flags) for flags in variants]
    seen = {(fate, re.sub(" 0x.*", "", message)) for fate, message in fates}
    assert len(seen) == 1 and fates[0][0] == "detected"
