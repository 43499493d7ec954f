"""The rules of the house as assertions: who may look at whom, what is written once, what git holds."""

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hakmem_py"
THINKING = ("stats", "estimates", "ranks", "figures", "style", "report", "pages", "batch", "thumbnail")
DOING = {"build", "native", "worker", "runner"}
PUBLISHED_NAMES = (
    "HAKMEM_ACE_ENABLED",
    "HAKMEM_ACE_LOG_LEVEL",
    "HAKMEM_ACE_FAST_INTERVAL_MS",
    "HAKMEM_FORCE_LIBC_ALLOC",
    "HAKMEM_SS_OS_STATS",
)


def tracked(*patterns):
    """Files that git holds; outside a clone those that lie there."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines()]


def imports(module):
    """Modules of the package that a module imports when it is loaded, not later inside a function."""
    found = set()
    for node in ast.parse((PACKAGE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("module", THINKING)
def test_a_reader_without_a_compiler_can_redraw_every_figure(module):
    reached, front = set(), {module}
    while front:
        front = {
            name for one in front for name in imports(one) if (PACKAGE / f"{name}.py").exists()
        } - reached
        reached |= front
    assert reached & DOING == set()


def test_environment_and_package_name_the_same_packages_and_ranges():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = re.findall(r"^  - ([\w-]+)(\S*)$", (ROOT / "environment.yml").read_text(), re.MULTILINE)
    conda = {name + limits for name, limits in lines if name not in ("python", "pip", "c-compiler", "make")}
    assert conda - {"conda-forge"} == {re.sub(r"\s", "", line) for line in wanted["dependencies"]}
    assert f"python{wanted['requires-python']}" in [name + limits for name, limits in lines]
    assert "- -e ." in (ROOT / "environment.yml").read_text()


def test_the_lock_knows_only_the_public_index():
    sources = set(re.findall(r'registry = "([^"]+)"', (ROOT / "uv.lock").read_text()))
    assert sources == {"https://pypi.org/simple"}


def test_the_allocator_has_no_call_upwards():
    command = (
        "gcc -std=gnu11 -fsyntax-only -pthread -Werror=implicit-function-declaration native/src/preload.c"
    )
    assert subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True).returncode == 0


def test_published_names_are_still_understood():
    knobs = (ROOT / "native/src/knobs.c").read_text()
    for name in PUBLISHED_NAMES:
        assert f"X({name.removeprefix('HAKMEM_').lower()}," in knobs


def test_notebooks_in_git_have_no_outputs():
    for path in tracked("notebooks/*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")] == [], (
            path
        )


def test_cells_are_short_and_define_little():
    for path in tracked("notebooks/*.ipynb"):
        code = [
            "".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"
        ]
        assert max(len(cell.splitlines()) for cell in code) <= 15, path
        assert sum(len(re.findall(r"^(?:def|class) ", cell, re.MULTILINE)) for cell in code) <= 3, path


def test_no_machine_path_is_written_down():
    pattern = re.compile(r"/(?:home/\w+|root|work|farm)/")
    texts = [p for p in tracked() if p.suffix in {".py", ".c", ".h", ".md", ".toml", ".ipynb", ".yml", ".js"}]
    assert [str(p) for p in texts if p != Path(__file__) and pattern.search(p.read_text())] == []


def test_every_subcommand_has_a_home():
    from hakmem_py import cli

    for name in cli.COMMANDS:
        cli.parser([name])
