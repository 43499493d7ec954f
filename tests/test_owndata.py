"""`hakmem compare FILE.csv`: the answer to good files, one clear line for bad ones."""

import json

import numpy as np
import pytest

from hakmem_py import cli, stats


@pytest.fixture
def ask(tmp_path, capsys):
    """ask(text, *options) -> (exit status, stdout, stderr) of comparing a file that holds `text`."""

    def compare(text, *options):
        path = tmp_path / "mine.csv"
        path.write_text(text)
        status = cli.main(["compare", str(path), *options])
        return status, *capsys.readouterr()

    return compare


def wide(effect=0.05, n=30):
    rng = np.random.default_rng(1)
    block = np.exp(rng.normal(0, 0.1, n))
    return [*zip(block * (1 + effect) * np.exp(rng.normal(0, 0.01, n)), block, strict=True)]


def wide_text(pairs):
    return "a,b\n" + "".join(f"{a!r},{b!r}\n" for a, b in np.asarray(pairs, float).tolist())


def long_text(pairs):
    rows = [
        f"{i},{name},{x}"
        for i, pair in enumerate(pairs)
        for name, x in zip(("old", "new"), pair, strict=True)
    ]
    return "block,variant,value\n" + "\n".join(rows)


def test_json_is_what_the_library_answers(ask):
    pairs = wide()
    status, out, _ = ask(wide_text(pairs), "--json")
    answer, estimate = json.loads(out), stats.ratio(*np.transpose(pairs)[::-1])
    assert status == 0 and answer["ratio_of"] == "b / a" and answer["ratio"] < 1
    assert (answer["ratio"], answer["low"], answer["high"]) == (estimate.value, estimate.low, estimate.high)
    assert (answer["n"], answer["verdict"]) == (30, "GO")


def test_both_forms_agree_and_baseline_turns_the_question(ask):
    pairs = wide()
    one = json.loads(ask(wide_text(pairs), "--json")[1])
    two = json.loads(ask(long_text(pairs), "--json")[1])
    turned = json.loads(ask(long_text(pairs), "--json", "--baseline", "new")[1])
    assert two["ratio"] == pytest.approx(one["ratio"]) and two["verdict"] == "GO"
    assert turned["ratio"] == pytest.approx(1 / one["ratio"]) and turned["verdict"] == "NO-GO"


def test_threshold_and_margin_change_the_verdict(ask):
    text = wide_text(wide())
    assert "GO: gain" in ask(text)[1]
    assert "wholly above 0.25 %" in ask(text, "--threshold", "0.25%")[1]
    assert "UNDECIDED: gain" in ask(text, "--threshold", "10%")[1]
    assert "NEUTRAL: gain" in ask(text, "--threshold", "0.1", "--margin", "10%")[1]


def test_text_names_everything_a_reader_needs(ask):
    out = ask(wide_text(wide()))[1]
    assert "b is faster" in out
    for word in ("ratio", "Wilcoxon", "TOST", "Cliff's delta", "CV", "autocorrelation", "verdict"):
        assert word in out


def test_what_is_not_seen_is_not_said_and_equality_is_within_the_margin(ask):
    assert "no difference seen" in ask(wide_text(wide(0.0)))[1]
    text = wide_text(wide(0.05))
    near, far = (json.loads(ask(text, "--json", "--margin", m)[1])["tost_p"] for m in ("1%", "10%"))
    assert far < 0.05 < near


def test_among_several_variants_a_difference_is_seen_where_its_adjusted_p_says_so(ask):
    costs = {name: 100 + np.arange(8) % 3 for name in "abcdef"} | {"g": 101 + np.arange(8) % 3 * 1.0}
    rows = [f"{i},{name},{x}" for name, values in costs.items() for i, x in enumerate(values)]
    out = ask("block,variant,value\n" + "\n".join(rows))[1]
    assert "p = 0.00781, adjusted 0.0469" in out and "a is faster" in out
    rows += [f"{i},h,{x}" for i, x in enumerate(costs["a"])]
    out = ask("block,variant,value\n" + "\n".join(rows))[1]
    assert "p = 0.00781, adjusted 0.0547" in out and "faster" not in out


def test_values_in_coarse_steps_are_not_called_equal(ask):
    rng = np.random.default_rng(1)
    steps = rng.choice([0.10, 0.11], (100, 2), p=[0.9, 0.1])
    assert "others differ by 10.00% or more, which is above the margin of 1.00%" in ask(wide_text(steps))[1]
    assert "NEUTRAL" in ask(wide_text(steps), "--margin", "20%")[1]
    assert "NEUTRAL" in ask(wide_text(np.ones((100, 2))))[1]


def test_each_variant_of_a_family_is_judged_by_its_own_costs(ask):
    rows = [f"{i},{name},{x + i % 3}" for i in range(20) for name, x in (("x", 50), ("y", 40), ("z", 50))]
    answers = [*map(json.loads, ask("block,variant,value\n" + "\n".join(rows), "--json")[1].splitlines())]
    assert [answer["verdict"] for answer in answers] == ["GO", "NEUTRAL"]
    assert answers[0]["adjusted_p"] < 0.001 and answers[1]["adjusted_p"] == 1


def test_several_variants_are_one_family(ask):
    rows = [f"{i},{name},{5 + i % 3 + k}" for i in range(8) for k, name in enumerate("xyz")]
    answers = [
        json.loads(line) for line in ask("block,variant,value\n" + "\n".join(rows), "--json")[1].splitlines()
    ]
    assert [answer["ratio_of"] for answer in answers] == ["y / x", "z / x"]
    assert all(answer["adjusted_p"] == pytest.approx(2 * answer["wilcoxon_p"]) for answer in answers)


GOOD = [(5, 4), (5, 4.1), (5, 4.2), (5, 4), (5, 4), (5, 4), (5, 4)]


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "no data"),
        ("a,b\n", "no data"),
        ("x,y\n1,2\n", "it has x, y"),
        ("a,b\n1,2,3\n", "line 2 has 3 fields"),
        ("a,b,a\n1,2,3\n", "the column a occurs twice"),
        ("a;b\n1,5;2\n1;2\n", "write commas"),
        ("a;b\n1;2\n1;2\n", "write commas"),
        ("a\tb\n1\t2\n", "separates by tabs: write commas"),
        (wide_text(GOOD).replace("4.1", "4_1"), "line 3: b is '4_1'"),
        (wide_text(GOOD).replace("4.1", "fast"), "line 3: b is 'fast'"),
        (wide_text(GOOD).replace("4.1", ""), "line 3: b is ''"),
        (wide_text(GOOD).replace("4.1", "nan"), "line 3: b is nan"),
        (wide_text(GOOD).replace("4.1", "0"), "line 3: b is 0"),
        (wide_text(GOOD).replace("4.1", "-1"), "line 3: b is -1"),
        (wide_text(GOOD).replace("4.1", "inf"), "line 3: b is inf"),
        (wide_text(GOOD[:5]), "5 pairs are too few"),
        (long_text(GOOD).replace("3,new,4\n", ""), "block 3 has no value of new"),
        (long_text(GOOD) + "\n3,new,4\n", "block 3 has a second value of new"),
        ("block,variant,value\n1,old,2\n2,old,2\n", "one variant 'old'"),
        (long_text(GOOD).replace("3,new", "3,"), "variant is empty"),
        (long_text(GOOD).replace("\n3,new", "\n,new"), "block is empty"),
        (wide_text([(a * 1e200, b) for a, b in GOOD]), "costs of one kind"),
    ],
)
def test_bad_files_get_one_clear_line(ask, text, complaint):
    status, out, err = ask(text)
    assert status == 2 and out == ""
    assert complaint in err and err.count("\n") == 1 and "mine.csv" in err


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_told_with_its_cure(tmp_path, capsys, encoding):
    path = tmp_path / "mine.csv"
    path.write_text(long_text(GOOD).replace("new", "größer"), encoding=encoding)
    assert cli.main(["compare", str(path)]) == 2
    assert "mine.csv: is no UTF-8 text: save it as UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [1e300, 1e-305])
def test_the_unit_of_costs_changes_no_answer(ask, scale):
    answers = [
        ask(wide_text(costs), "--json")[1] for costs in (GOOD, [(a * scale, b * scale) for a, b in GOOD])
    ]
    one, other = map(json.loads, answers)
    assert other["cv_candidate"] == pytest.approx(one["cv_candidate"]) and one["cv_candidate"] > 0


def test_a_wrong_baseline_file_or_share_is_named(ask, capsys):
    assert "the file has a, b" in ask(wide_text(GOOD), "--baseline", "c")[2]
    assert cli.main(["compare", "absent.csv"]) == 2
    assert "No such file" in capsys.readouterr().err
    for share in ("1.5", "abc", "1_0%"):
        with pytest.raises(SystemExit, match="2"):
            ask(wide_text(GOOD), "--threshold", share)
        assert f"argument --threshold: {share} is no share; write 1%" in capsys.readouterr().err
