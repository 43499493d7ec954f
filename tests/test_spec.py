"""Specs: read strictly, narrowed by name, ordered by the seed alone."""

from collections import Counter
from pathlib import Path

import pytest

from hakmem_py import spec
from hakmem_py.spec import SpecError, load_spec, narrow, schedule

REFUSED = {  # replacement in the tiny spec -> words that the one line must hold
    ('title = "A', 'colour = "red"\ntitle = "A'): ["colour", "allowed", "quick_blocks"],
    ("blocks = 3", "blocks = 0"): ["blocks = 0", "from 1"],
    ("blocks = 3", "blocks = 3\nlooks = [5, 10]"): ["looks = [5, 10]", "from 6"],
    ("blocks = 3", "blocks = 3\nlocal = true"): ["local = True must be a whole number from 0 to 1"],
    ("blocks = 3", "blocks = 3\nlooks = [40, 10]"): ["looks = [40, 10]", "increasing, from 6 on"],
    ("blocks = 3", "blocks = true"): ["blocks = True", "whole number"],
    ("blocks = 3", "blocks = 2.5"): ["blocks = 2.5", "whole number"],
    ("timeout_s = 20", "timeout_s = -1"): ["timeout_s", "0.1"],
    ('baseline = "system"', 'baseline = "sistem"'): ["baseline", "sistem", "label"],
    ('use = "floor"', 'use = "flour"'): ["flour", "mimalloc"],
    ('use = "floor"', 'use = "floor"\nvariant = "pgo"'): ["variant", "direct"],
    ('label = "floor"', 'label = "system"'): ["'system' occurs twice"],
    ("size = [16, 64]", "size = [16, 16]"): ["lifo-16", "twice"],
    ("size = [16, 64]", "size = [16, 0]"): ["size = 0", "[[case]] 1"],
    ("size = [16, 64]", "size = []"): ["size = []", "[[case]] 1"],
    ("size = [16, 64]", 'size = "16"'): ["size = '16'", "whole number"],
    ('workload = "lifo"', ""): ["workload", "missing"],
    ('workload = "lifo"', 'workload = "a.haktrace"'): ["a trace has sizes", "leave them out"],
    ("[[case]]", "[[cases]]"): ["cases", "unknown"],
    ('name = "tiny"', 'name = "other"'): ["other", "tiny"],
    ("[experiment]", "[experiment"): ["cannot be read"],
    ("[experiment]", "a = " + "[" * 100_000): ["cannot be read"],
    ('label = "floor"', 'label = "a\\nb"'): ["[[allocator]] 2", "label", "one line"],
    ('label = "floor"', 'label = " "'): ["[[allocator]] 2", "label", "not empty"],
    ('use = "floor"', 'use = "floor"\nenv = { LD_PRELOAD = "a.so" }'): ["env", "LD_", "use"],
    ('use = "floor"', 'use = "floor"\nenv = { "" = 1 }'): ["[[allocator]] 2", "env", "not empty"],
    ('use = "floor"', 'use = "floor"\nenv = { "A=B" = 1 }'): ["[[allocator]] 2", "env", "without = or"],
    ('use = "floor"', 'use = "floor"\nenv = { "A\\u0000" = 1 }'): ["[[allocator]] 2", "env", "no NUL"],
    ('use = "floor"', 'use = "floor"\nenv = { A = "a\\u0000b" }'): ["[[allocator]] 2", "env", "no NUL"],
    ('workload = "lifo"', 'workload = "lifo"\noptions = { chunks = "\\u0000" }'): ["options", "no NUL"],
    ('workload = "lifo"', 'workload = "lifo"\noptions = { backend = "floor" }'): ["options", "backend"],
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change[1].strip()[:60] or "nothing")
def test_what_cannot_be_meant_is_refused_in_one_line(tiny, change):
    with pytest.raises(SpecError) as error:
        load_spec(tiny(*change))
    assert "\n" not in str(error.value)
    assert "tiny.toml" in str(error.value)
    for word in REFUSED[change]:
        assert word in str(error.value)


def test_a_missing_spec_names_those_there_are():
    with pytest.raises(SpecError, match="04_patterns"):
        load_spec("04_pattern")


@pytest.mark.parametrize("path", sorted(spec.SPECS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_spec_of_the_repository_reads(path):
    assert load_spec(path.stem).cases


def test_lists_are_multiplied_out(tiny):
    names = [case.name for case in load_spec(tiny('"lifo"', '["lifo", "fifo"]')).cases]
    assert names == ["lifo-16", "lifo-64", "fifo-16", "fifo-64"]


def test_a_list_of_options_is_multiplied_out_too(tiny):
    several = 'workload = "lifo"\nlabel = ["a", "b"]\noptions = [{ chunks = 2 }]'
    assert {case.options for case in load_spec(tiny('workload = "lifo"', several)).cases} == {
        (("chunks", "2"),)
    }


def test_a_block_runs_everything_once_and_keeps_a_case_together(tiny):
    experiment = load_spec(tiny())
    runs = schedule(experiment, 0, quick=True)
    assert Counter((run.case.name, run.allocator.label) for run in runs).most_common(1)[0][1] == 1
    assert len(runs) == 4
    assert [run.position for run in runs] == [0, 1, 2, 3]
    assert runs[0].case == runs[1].case
    assert runs[0].seed == runs[1].seed != runs[2].seed


def test_a_case_without_a_quick_scale_is_for_the_full_mode(tiny):
    experiment = load_spec(tiny("quick_scale = 0.001", "quick_scale = 0"))
    assert len(schedule(experiment, 0, quick=False)) == 4
    assert schedule(experiment, 0, quick=True) == []


def test_the_order_is_random_and_repeats(tiny):
    experiment = load_spec(tiny("blocks = 3", "blocks = 400"))
    blocks = [schedule(experiment, block, quick=False) for block in range(400)]
    assert blocks == [schedule(experiment, block, quick=False) for block in range(400)]
    first = Counter((block[0].case.name, block[0].allocator.label) for block in blocks)
    assert len(first) == 4
    assert all(60 < count < 140 for count in first.values())
    other = load_spec(tiny("blocks = 3", "blocks = 400\nseed = 43"))
    by_case = [
        [
            [run.allocator.label for run in schedule(one, block, False) if run.case.size == 16]
            for block in range(40)
        ]
        for one in (experiment, other)
    ]
    assert by_case[0] != by_case[1]


def test_narrowing_keeps_the_baseline_and_the_order_within_a_case(tiny):
    experiment = load_spec(tiny())
    some = narrow(experiment, blocks=1, sizes=[64], allocators=["floor"])
    assert [case.size for case in some.cases] == [64]
    assert [side.label for side in some.allocators] == ["system", "floor"]
    whole = [r.allocator.label for r in schedule(experiment, 0, True) if r.case.size == 64]
    assert [r.allocator.label for r in schedule(some, 0, True)] == whole
    alone = load_spec("06_stack")  # compares cases
    assert narrow(alone, allocators=["pool"]) == alone


@pytest.mark.parametrize(
    "choice",
    [
        {"sizes": [17]},
        {"allocators": ["glibc"]},
        {"allocators": ["system"]},
        {"workloads": []},
        {"blocks": 0},
        {"blocks": "3"},
    ],
)
def test_narrowing_to_what_is_not_there_is_refused(tiny, choice):
    with pytest.raises(SpecError):
        narrow(load_spec(tiny()), **choice)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"allocator": {"label": "a"}}, r"\[\[allocator\]\]"),
        ({"case": {"workload": "lifo"}}, r"\[\[case\]\]"),
        ({"experiment": [{"name": "a"}]}, r"\[experiment\], once"),
        ({"experiment": "a"}, r"\[experiment\], once"),
    ],
)
def test_brackets_that_are_wrong_are_named(tables, said):
    with pytest.raises(SpecError, match=said):
        spec.read_spec(tables)


def test_the_quick_mode_keeps_the_baseline_and_is_refused_where_nothing_is_left(tiny):
    absent = 'use = "system"\nquick = 0'
    quick = narrow(load_spec(tiny('use = "system"', absent)), quick=True)
    assert [side.label for side in quick.allocators] == ["system", "floor"]
    full = load_spec(tiny("quick_scale = 0.001", "quick_scale = 0"))
    assert narrow(full).cases
    with pytest.raises(SpecError, match="no case of tiny is left"):
        narrow(full, quick=True)


def test_a_side_of_the_full_mode_is_in_the_quick_one_where_it_is_asked_for():
    experiment = load_spec("07_pgo")
    assert "pgo, layout 4" not in [one.label for one in narrow(experiment, quick=True).allocators]
    assert "pgo, layout 4" in [one.label for one in narrow(experiment).allocators]
    named = narrow(experiment, allocators=["pgo, layout 4"], quick=True)
    assert [one.label for one in named.allocators] == ["plain", "pgo, layout 4"]


def test_a_file_as_an_editor_of_windows_saves_it_is_read(tiny):
    path = tiny()
    read = load_spec(path)
    Path(path).write_bytes(b"\xef\xbb\xbf" + Path(path).read_bytes().replace(b"\n", b"\r\n"))
    assert load_spec(path) == read
