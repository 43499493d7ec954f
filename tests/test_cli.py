"""The command line and the make targets, as a user meets them."""

import io
import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from hakmem_py import ROOT, cli, spec


def hakmem(*arguments, cwd=ROOT, **env):
    command = [sys.executable, "-m", "hakmem_py", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True)


def test_help_lists_every_subcommand():
    done = hakmem("--help")
    assert done.returncode == 0
    for name in cli.COMMANDS:
        assert f"\n  {name}" in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_subcommand_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert "usage: hakmem" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["peers"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_has_seen_enough_is_no_error(words, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    command, env = [sys.executable, "-m", "hakmem_py", *words], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""


def redirected(to, *words, **env):
    """`python -m hakmem_py ...` with this redirection of a shell."""
    command = ["sh", "-c", f'exec "$@" {to}', "sh", sys.executable, "-m", "hakmem_py", *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True)


def test_without_a_stdout_it_does_its_work():
    done = redirected(">&-", "--help")
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["peers"]])
def test_a_full_stdout_is_named(words, unbuffered):
    done = redirected(">/dev/full", *words, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr == "hakmem: cannot write to stdout: No space left on device\n"


def test_a_letter_that_the_terminal_does_not_have_costs_no_table(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(cli, "_main", lambda _: print("2 × 3"))
    cli.main([])
    assert stdout.buffer.getvalue() == b"2 \\xd7 3\n"


@pytest.mark.parametrize("words", [["run", "04_patterns"], ["report"], ["readme"], ["calibrate"]])
def test_outside_a_clone_that_is_what_is_said(words, tmp_path):
    """As an installed package: nothing of the repository beside it."""
    (tmp_path / "hakmem_py").symlink_to(ROOT / "hakmem_py")
    copied = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import hakmem_py, pathlib\n"
    code = f"hakmem_py.ROOT = pathlib.Path({str(tmp_path)!r})\nfrom hakmem_py import cli; cli.main({words})"
    done = subprocess.run([sys.executable, "-c", copied + code], capture_output=True, text=True)
    said = f"hakmem {words[0]}: no sources in {tmp_path / 'native'}: the native library is built from a clone"
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1


def test_an_unknown_subcommand_is_refused():
    done = hakmem("bild")
    assert done.returncode == 2
    assert "build" in done.stderr


def test_outside_the_environment_the_way_in_is_one_line(tmp_path):
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError(name='pandas')")
    done = hakmem("run", "04_patterns", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "hakmem: pandas is not installed here: run make env, then . .venv/bin/activate\n"


def test_stopping_it_while_it_starts_is_one_line(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", stopped)
    assert cli.main(["ab", "--help"]) == 130
    assert capsys.readouterr().err == "hakmem: stopped\n"


@pytest.mark.parametrize(
    "words",
    [["run", "04_patterns"], ["campaign", "04_patterns"], ["ab", "--workload", "lifo"],
     ["toggle", "magazine_blocks=16,32", "--workload", "lifo"]],
)  # fmt: skip
def test_too_few_blocks_for_an_interval_start_nothing(words, capsys):
    assert cli.main([*words, "--blocks", "5"]) == 1
    said = f"hakmem {words[0]}: --blocks 5: at least 6 are needed for a 95 % interval\n"
    assert capsys.readouterr().err == said


def test_peers_are_listed():
    done = hakmem("peers")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["mimalloc", "jemalloc", "tcmalloc"]


def test_a_build_is_named_with_its_hash():
    done = hakmem("build", "release")
    assert done.returncode == 0
    library = Path(done.stdout.split()[-1])
    assert library.name == "libhakmem.so" and library.is_absolute() and library.exists()
    assert json.loads((library.parent / "build.json").read_text())["hash"] in done.stdout


@pytest.mark.parametrize("target", ["report", "bench"])
def test_make_gets_the_other_allocators_before_it_measures(target):
    plan = subprocess.run(["make", "-nB", target], cwd=ROOT, capture_output=True, text=True).stdout
    assert 0 < plan.index("hakmem_py peers --get") < plan.index("hakmem_py r")


def test_make_bench_runs_every_workload_and_every_published_size():
    plan = subprocess.run(["make", "-nB", "bench"], cwd=ROOT, capture_output=True, text=True).stdout
    names = re.search(r"hakmem_py run (.*)", plan)[1].split()
    cases = [case for name in names for case in spec.load_spec(name).cases if case.quick_scale]
    table = re.findall(r"^    X\((\w+),", (ROOT / "native/bench/workloads.c").read_text(), re.M)
    assert set(table) - {case.workload for case in cases} == {"idle_peak"}  # memory, not time
    points = {(case.workload, case.size) for case in cases}
    assert points >= set(product(["lifo", "fifo", "random", "interleaved", "longlived"], [16, 32, 64, 128]))


def test_make_lab_hands_on_options_which_root_needs():
    plan = subprocess.run(["make", "-n", "lab", "LAB=--allow-root"], cwd=ROOT, capture_output=True, text=True)
    assert re.search(r"jupyter lab .*--allow-root", plan.stdout)


def test_make_says_what_it_can_do():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True)
    for target in ("env", "report", "test", "lab", "bench", "bench-check", "clean"):
        assert f"make {target} " in done.stdout


@pytest.mark.parametrize(
    ("lacking", "package"), [("gcc", "gcc libc6-dev"), ("venv", "python3-venv"), ("python", "python3")]
)
def test_what_a_fresh_machine_lacks_is_named_with_its_package(tmp_path, lacking, package):
    """`make env` on a machine where only the named thing is not there; nothing is installed."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("make", "bash", "sh", "mkdir", "touch", "gcc", "echo"):
        if tool != lacking:
            (tools / tool).symlink_to(
                subprocess.run(["which", tool], capture_output=True, text=True).stdout.strip()
            )
    if lacking != "python":
        python = tools / "python3"
        python.write_text(f'#!/bin/sh\ncase "$*" in *venv*) exit 1;; *) exec {sys.executable} "$@";; esac\n')
        python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "uv.lock", "requirements.lock"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    env = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run(["make", "env"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"sudo apt install {package}\n" in done.stderr


def test_make_clears_no_environment_that_a_link_leads_to(tmp_path):
    shared, clone = tmp_path / "shared", tmp_path / "clone"
    shared.mkdir(), clone.mkdir()
    (shared / "pyvenv.cfg").touch()
    for name in ("Makefile", "pyproject.toml", "uv.lock", "requirements.lock"):
        (clone / name).write_bytes((ROOT / name).read_bytes())
    (clone / ".venv").symlink_to(shared)
    done = subprocess.run(["make", "env"], cwd=clone, capture_output=True, text=True)
    assert done.returncode != 0 and ".venv is a link" in done.stderr
    assert (shared / "pyvenv.cfg").exists()


@pytest.mark.parametrize(("made_in", "again"), [("", False), ("/a/clone/elsewhere", True)])
def test_a_clone_that_was_moved_gets_an_environment_of_its_own(tmp_path, made_in, again):
    for name in ("Makefile", "pyproject.toml", "uv.lock", "requirements.lock"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / ".stamps").mkdir()
    (tmp_path / ".stamps" / "env").write_text(f"{made_in or tmp_path}\n")
    done = subprocess.run(["make", "-n", "env"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (".venv" in done.stdout) == again
