"""Builds: kept by content, told apart, and honest about what went wrong."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor

import processes
import pytest
from preload import NATIVE, judge, promises

from hakmem_py import build, commands, trace
from hakmem_py.build import BuildError

REPORT = """
import sys
from hakmem_py import native
library = native.load(sys.argv[1])
print(library.text(library.lib.hak_build_variant()), library.text(library.lib.hak_build_hash()))
"""


def python(*arguments, **more):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=True, **more
    ).stdout


def test_a_build_is_kept(monkeypatch):
    done = build.build()
    monkeypatch.setattr(build, "_compile", None)
    assert build.build() == done
    assert done.hash in done.folder.name


@pytest.mark.parametrize("name", ["build.json", "libhakmem.so", "bench", "_hakmem_*.so"])
def test_a_build_of_which_something_was_lost_is_made_again(name, monkeypatch, tmp_path):
    whole = build.build()
    monkeypatch.setattr(build, "BUILDS", tmp_path)
    lost = shutil.copytree(whole.folder, tmp_path / whole.folder.name)
    made = []
    monkeypatch.setattr(build, "_shared", lambda *_: [])
    monkeypatch.setattr(build, "_make", lambda done, native: made.append(done.folder))
    build.build()
    assert made == []
    (path,) = lost.glob(name)
    if name in ("build.json", "libhakmem.so"):
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    build.build()
    assert made == [lost]


@pytest.mark.parametrize(
    "variant", ["release", "checked", "noace", "slab16", "published8", "release@3", "ubsan"]
)
def test_a_module_reports_the_variant_it_is(variant):
    done = build.build(variant)
    assert python("-c", REPORT, variant).split() == [done.variant, done.hash]
    facts = done.facts()
    assert facts["variant"] == variant
    assert facts["text_bytes"] > 10_000


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGHUP])
def test_a_build_that_is_stopped_ends_its_compilers_at_once(tmp_path, which):
    compiler, seconds = tmp_path / "cc", f"62.{which:d}{os.getpid()}"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo cc 1\ntouch {tmp_path}/begun; sleep {seconds}; true\n'
    )
    compiler.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from hakmem_py import build, cli;"
        "build.BUILDS = Path(sys.argv[1], 'builds'); sys.exit(cli.main(['build']))"
    )
    child = processes.start("-c", code, tmp_path, hears=which, env=os.environ | {"CC": str(compiler)})
    while not (tmp_path / "begun").exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(which)  # to it alone
    assert child.communicate(timeout=30)[1] == "hakmem: stopped\n" and child.returncode == 130
    assert processes.come_to(seconds, False)
    assert list((tmp_path / "builds").glob("tmp-*")) == []


def test_a_build_that_failed_does_not_end_later_commands():
    with pytest.raises(ZeroDivisionError), commands.workers():
        raise ZeroDivisionError
    assert commands.call(["sh", "-c", "sleep 0.3; echo on"]) == "on\n"


def test_a_build_without_ace_says_so():
    env = {"LD_PRELOAD": str(build.build("noace").library), "HAKMEM_PROFILE": "learning"}
    assert "no ACE" in subprocess.run(["true"], env=env, capture_output=True, text=True).stderr
    code = "from hakmem_py import native; native.load('noace'); native.set_knob('ace_enabled', 1)"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ace_enabled" in refused.stderr


@pytest.mark.parametrize("variant", build.VARIANTS)
def test_every_variant_builds(variant):
    done = build.build(variant)
    assert done.library.exists()
    assert done.bench.exists()


@pytest.mark.parametrize(
    ("variant", "status", "words"), [("release", 0, ""), ("slab16", 127, "undefined symbol: hak_front6_16")]
)
def test_a_program_starts_with_no_library_whose_fast_path_is_another(variant, status, words, tmp_path):
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text('#include "hakmem.h"\nint main(void) { hak_free_inline(hak_malloc_inline(40)); }\n')
    folder = build.build().library.parent
    include = build.ROOT / "native/include"
    subprocess.run(["gcc", f"-I{include}", source, "-o", program, f"-L{folder}", "-lhakmem"], check=True)
    folder = str(build.build(variant).library.parent)
    said = subprocess.run([program], env={"LD_LIBRARY_PATH": folder}, capture_output=True, text=True)
    assert said.returncode == status
    assert words in said.stderr


@pytest.mark.parametrize("promise", promises("bounds.c"))
def test_the_other_unit_tells_blocks_from_all_else_too(promise, tmp_path):
    folder, executable = build.build("slab16").library.parent, tmp_path / "bounds"
    flags = ["-std=gnu11", "-w", "-DHAK_SLAB_SHIFT=14", f"-L{folder}", "-lhakmem"]
    subprocess.run(["gcc", NATIVE / "bounds.c", "-o", executable, *flags], check=True)
    env = {"LD_LIBRARY_PATH": str(folder)}
    judge(subprocess.run([executable, promise], env=env, capture_output=True, text=True))


def test_the_readme_names_every_variant():
    text = (build.ROOT / "README.md").read_text()
    assert [name for name in build.VARIANTS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("variant", build.UNIMPORTABLE)
def test_a_watched_build_is_preloaded_behind_its_runtime(variant):
    """As README.md says."""
    name = f"lib{variant}.so"
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True)
    runtime = asked.stdout.strip()
    if runtime == name:
        pytest.skip("the sanitizers' libraries are not installed: apt install gcc")
    done = build.build(variant)
    said = subprocess.run(
        [build.build().bench, "--workload", "lifo", "--iterations", "10"],
        env={"LD_PRELOAD": f"{runtime} {done.library}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
    assert json.loads(said.stdout)["malloc_from"] == runtime


def test_a_profile_is_used():
    """Only a compiler that has seen a profile knows which code is hot."""

    def sections(variant):
        flags = build.build(variant).facts()["flags"][len(build.COMMON) :]
        _, preload = build._objects(build.NATIVE, flags)
        return subprocess.run(["readelf", "-SW", preload], capture_output=True, text=True).stdout

    assert ".text.hot" in sections("pgo")
    assert ".text.hot" not in sections("release")


def test_another_layout_moves_the_code():
    """The same instructions at other addresses."""
    release, moved = (build.build(variant).folder / "libhakmem.so" for variant in ("release", "release@3"))
    where = [
        subprocess.run(["nm", "-D", path], capture_output=True, text=True).stdout for path in (release, moved)
    ]
    address = [
        int(next(line for line in text.splitlines() if line.endswith(" malloc")).split()[0], 16)
        for text in where
    ]
    assert address[0] != address[1]


def test_the_compilers_own_words_are_shown(tree, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "BUILDS", tmp_path / "build")
    with (tree / "src" / "alloc.c").open("a") as file:
        file.write("\nint broken(void) { return undeclared_name; }\n")
    with pytest.raises(BuildError, match=r"alloc\.c:\d+.*undeclared_name"):
        build.build("release", tree)
    left = {path.name.partition("-")[0] for path in (tmp_path / "build").iterdir()}
    assert left <= {".lock", "bench"}  # nothing half made; the bench's own objects are whole


@pytest.mark.parametrize("name", ["my lab", "a:b", 'a"b'])
def test_a_folder_that_ld_preload_would_split_is_named(name, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "BUILDS", tmp_path / name / "build")
    with pytest.raises(BuildError, match=rf"{name}/build' can be preloaded.*move the project"):
        build.build()
    with pytest.raises(BuildError, match="move the project"):
        trace.recorder()


@pytest.mark.parametrize("make", [build.build, trace.recorder])
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(make, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(build, "BUILDS", tmp_path / "file" / "build")
    monkeypatch.setattr(trace, "BUILDS", build.BUILDS)
    with pytest.raises(BuildError, match=rf"^cannot write to {build.BUILDS}: Not a .*; make room or make"):
        make()


def test_a_changed_source_is_another_build(tree):
    before = build.content_hash("release", tree)
    assert before == build.content_hash("release")
    (tree / "src" / "types.h").open("a").write("\n")
    assert build.content_hash("release", tree) != before


def test_two_pythons_in_one_clone_do_not_replace_each_others_builds(monkeypatch, tmp_path):
    made, asked = [], sysconfig.get_config_var

    def link(out, *_):
        made.append(out)
        for path in (out.library, out.bench, out.module_file):
            path.touch()
        facts = {"library_sha256": hashlib.sha256(b"").hexdigest()}
        (out.folder / "build.json").write_text(json.dumps(facts))

    monkeypatch.setattr(build, "BUILDS", tmp_path)
    monkeypatch.setattr(build, "_shared", lambda *_: [])
    monkeypatch.setattr(build, "_link", link)
    for python in ("one", "two", "one", "two"):
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name, python=python: asked(name) + python)
        build.build()
    assert len(made) == 2


def test_builders_wait_for_each_other(tmp_path):
    """Four processes ask for the same two builds at once; each gets a whole one."""
    code = (
        "import sys; from pathlib import Path; from hakmem_py import build;"
        "build.BUILDS = Path(sys.argv[1]); print(build.build(sys.argv[2]).folder)"
    )
    with ThreadPoolExecutor() as pool:
        asked = ["noace", "slab16"] * 2
        folders = list(pool.map(lambda variant: python("-c", code, tmp_path, variant).strip(), asked))
    assert len(set(folders)) == 2
    built = {path.name.split("-")[0] for path in tmp_path.glob("*-*")}
    assert built == {"bench", "library", "noace", "slab16"}
    for folder in folders:
        assert json.loads((tmp_path / folder / "build.json").read_text())["hash"]


def test_a_build_sweeps_up_after_killed_ones_and_spares_the_running(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "BUILDS", tmp_path)
    for name in ("tmp-killed", "run-killed", "run-running"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "run-killed", (0, 0))
    with build._serial():
        assert {path.name for path in tmp_path.iterdir()} == {".lock", "run-running"}


def test_an_unknown_variant_names_those_there_are():
    for variant in ("releese", "release:04_patterns", "pgo@x", "release@1000", ""):
        with pytest.raises(BuildError, match=r"unknown.*release.*pgo"):
            build.build(variant)


@pytest.fixture
def clang(monkeypatch):
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed: apt install clang")
    monkeypatch.setenv("CC", "clang")
    build.compiler_version.cache_clear()
    yield
    build.compiler_version.cache_clear()


def test_clang_builds_library_module_and_bench(clang):
    done = build.build()
    assert "clang" in done.facts()["compiler"]
    assert python("-c", REPORT, "release").split() == ["release", done.hash]
    subprocess.run([done.bench, "--list"], stdout=subprocess.DEVNULL, check=True)
    run = [done.bench, "--workload", "pool_cycle", "--backend", "direct", "--scale", "0.01"]
    subprocess.run(run, stdout=subprocess.DEVNULL, check=True, timeout=60)


def test_clang_is_refused_a_profile_in_one_line(clang):
    with pytest.raises(BuildError, match=r"^pgo needs gcc.*CC=gcc.*$"):
        build.build("pgo")


def test_another_option_of_the_compiler_is_another_build(monkeypatch):
    plain, identities = build.content_hash(), set()
    for command in ("gcc -fno-plt", "gcc -march=native"):
        monkeypatch.setenv("CC", command)
        build.compiler_version.cache_clear()
        identities.add(build.content_hash())
    build.compiler_version.cache_clear()
    assert len(identities | {plain}) == 3


@pytest.mark.parametrize("command", ["no-such-compiler", "/etc/passwd -m64"])
def test_a_compiler_that_cannot_be_had_is_named_with_what_asks_for_it(command, monkeypatch):
    monkeypatch.setenv("CC", command)
    build.compiler_version.cache_clear()
    with pytest.raises(BuildError, match=rf"^{command.split()[0]} is missing, .*: CC asks for it"):
        build.build()
    build.compiler_version.cache_clear()


def test_a_choice_of_compiler_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setenv("CC", 'gcc "-O2')
    with pytest.raises(BuildError, match=r'^CC=gcc "-O2: No closing quotation$'):
        commands.compiler()


def test_without_gcc_its_package_is_named(monkeypatch):
    monkeypatch.setenv("CC", " ")
    monkeypatch.setenv("PATH", "")
    build.compiler_version.cache_clear()
    with pytest.raises(BuildError, match=r"^gcc is missing, .*: sudo apt install gcc"):
        build.build()
    build.compiler_version.cache_clear()
