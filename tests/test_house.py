"""The house rules, as assertions: which way modules look, what files may hold, what must agree with what."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import hakmem_py
from hakmem_py import ROOT

PACKAGE = ROOT / "hakmem_py"
NATIVE = ROOT / "native"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FLOORS_MAX = 6
PYTHON_LINES_MAX, FUNCTION_LINES_MAX, CELL_LINES_MAX = 420, 60, 15
C_LINES_MAX = 640
DOING = {"build", "native", "worker", "runner"}  # need a compiler or make processes
THINKING = ("stats", "figures", "report")  # must open without one
HEADINGS = ("Question", "Prediction", "Run", "Result", "What it does not show")
PUBLISHED = (
    "HAKMEM_ACE_ENABLED",
    "HAKMEM_ACE_LOG_LEVEL",
    "HAKMEM_ACE_FAST_INTERVAL_MS",
    "HAKMEM_FORCE_LIBC_ALLOC",
    "HAKMEM_SS_OS_STATS",
)
AHEAD = r"^static (?!.*\(\*)[^={};]*\b\w+\([^;{}()]*\)\s*[,;]"  # a function that is declared and not defined
CONDA_ONLY = {"python", "pip", "c-compiler", "make"}
FOLDERS = {"notebooks", "native", "hakmem_py", "data", "reports", "tests", ".ci"}
FILES = {"README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml", "environment.yml"}
LOCKS_AND_DOTS = {"requirements.lock", "uv.lock", ".clang-format", ".gitignore"}


def tracked():
    """The files of the repository, or of the unpacked archive where there is no git."""
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True)
    names = done.stdout.split("\0")[:-1]
    return [path for name in names if (path := ROOT / name).is_file()]


def named(table):
    """{name: rest} of requirements such as "numpy>=2.0"."""
    parts = (re.match(r"([A-Za-z0-9._-]+)(.*)", line) for line in table)
    return {part[1].lower(): part[2].partition(";")[0].strip() for part in parts}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_top_level_holds_what_such_a_repository_needs_and_no_more():
    found = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert found - FOLDERS - FILES - LOCKS_AND_DOTS == set()


# ---------------------------------------------------------------- which way modules look


@cache
def imports():
    """module -> the modules of the package that it imports, wherever in the file."""
    graph = {}
    for path in PACKAGE.glob("*.py"):
        nodes = [
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.level
        ]
        names = {name for n in nodes for name in ([n.module] if n.module else [a.name for a in n.names])}
        graph[path.stem] = {name for name in names if (PACKAGE / f"{name}.py").exists()}
    return graph


def floor(module, above=()):
    """1 for a module that imports none of ours, else one above the highest that it does. No circles."""
    assert module not in above, f"a circle of imports: {' -> '.join([*above, module])}"
    return 1 + max((floor(name, (*above, module)) for name in imports()[module]), default=0)


def reached(module):
    found = set(imports()[module])
    return found.union(*map(reached, found))


def test_imports_point_down_and_make_no_circle():
    assert max(map(floor, imports())) <= FLOORS_MAX


@pytest.mark.parametrize("module", THINKING)
def test_the_thinking_never_reaches_the_doing(module):
    assert not reached(module) & DOING


def test_only_the_entry_imports_the_command_line():
    assert [module for module, names in imports().items() if "cli" in names] == ["__main__"]


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, hakmem_py; print({'numpy', 'cffi', 'hakmem_py.build'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    )


def test_the_package_gives_what_it_lists():
    for name in hakmem_py.__all__:
        assert getattr(hakmem_py, name) is not None
    with pytest.raises(AttributeError, match="ensure"):
        hakmem_py.__getattr__("insure")


def test_c_files_use_only_what_stands_above_them():
    """The list in hakmem.c is the order; without forward declarations the compiler keeps it."""
    command = ["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Werror=implicit-function-declaration"]
    done = subprocess.run([*command, NATIVE / "src" / "preload.c"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = re.findall(r'#include "(\S+\.c)"', (NATIVE / "src" / "hakmem.c").read_text())
    files = {str(path.relative_to(NATIVE / "src")) for path in (NATIVE / "src").rglob("*.c")}
    assert set(listed) == files - {"hakmem.c", "preload.c"}
    for name in listed:
        text = (NATIVE / "src" / name).read_text()
        assert not re.search(AHEAD, text, re.M), f"{name} declares ahead"
        assert not re.search(r'^#include "', text, re.M), f"{name} includes a file of ours"


def test_every_lock_is_held_across_a_fork():
    """Or reset in the child: nobody there drops what another thread had taken."""
    sources = {path.name: path.read_text() for path in (NATIVE / "src").rglob("*.c")}
    lock = r"^static (?:_Alignas\(\w+\) )?struct lock (\w+);"
    locks = {name for text in sources.values() for name in re.findall(lock, text, re.MULTILINE)}
    held = set(re.findall(r"(?:verb|lock_reset)\(&(\w+)\)", "".join(sources.values())))
    assert len(locks) > 8 and locks - held == set()


# ---------------------------------------------------------------- what files hold


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert text.count("\n") <= PYTHON_LINES_MAX
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    assert [f.name for f in functions if f.end_lineno - f.lineno + 1 > FUNCTION_LINES_MAX] == []
    assert ast.get_docstring(ast.parse(text)), "a file says what it is for"


@pytest.mark.parametrize("path", sorted((NATIVE / "src").rglob("*.c")), ids=lambda path: path.stem)
def test_c_files_do_not_grow(path):
    assert path.read_text().count("\n") <= C_LINES_MAX


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_text_files_do_not_go_by_the_locale(path):
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    files = [n for n in calls if getattr(n.func, "attr", "") in ("read_text", "write_text")]
    assert [n.lineno for n in files if "encoding" not in {word.arg for word in n.keywords}] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_prose_with_short_cells_and_no_outputs(path):
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        assert len("".join(cell["source"]).splitlines()) <= CELL_LINES_MAX
    tags = [cell["metadata"].get("tags", []) for cell in notebook["cells"]]
    assert "parameters" in tags[1]
    prose = "\n".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )
    headings = re.findall(r"^#+ (.+)$", prose, re.M)
    assert [heading for heading in HEADINGS if heading not in headings] == []


def test_no_file_knows_the_machine_it_was_written_on():
    words = re.compile(r"/(?:work|root|home/\w+)/")
    readable = (
        path for path in tracked() if path.suffix not in {".png", ".parquet"} and path != Path(__file__)
    )
    assert [path.name for path in readable if words.search(path.read_text(errors="replace"))] == []


def test_ruff_has_nothing_to_say():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_ruff_has_nothing_to_say_where_traces_were_recorded(tmp_path):
    """`hakmem trace` makes a folder named as a module of the tests, which decides how imports are sorted."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("hakmem_py", "tests"):
        unread = shutil.ignore_patterns("native", "__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unread)
    (tmp_path / "traces").mkdir()
    done = subprocess.run([sys.executable, "-m", "ruff", "check", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_experiment_has_a_notebook_of_its_number():
    numbers = {path.name[:2] for path in NOTEBOOKS}
    specs = sorted((ROOT / "data" / "specs").glob("*.toml"))
    assert [spec.stem for spec in specs if spec.name[:2] not in numbers] == []


# ---------------------------------------------------------------- what must agree


def test_conda_names_and_ranges_are_the_projects():
    lines = (ROOT / "environment.yml").read_text().splitlines()
    listed = named(line[4:] for line in lines if re.match(r"  - [a-z]", line) and not line.endswith(":"))
    listed.pop("conda-forge")
    wanted = named(project()["project"]["dependencies"])
    assert {name: listed.get(name) for name in wanted} == wanted
    assert set(listed) - set(wanted) == CONDA_ONLY
    assert listed["python"] == project()["project"]["requires-python"]
    assert [line.strip() for line in lines if line.startswith("      ")] == ["- -e ."]


def test_the_lock_holds_only_the_public_index():
    text = (ROOT / "uv.lock").read_text()
    hosts = set(re.findall(r"https?://([^/\"]+)", text))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_both_locks_are_one():
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked = {(package["name"], package.get("version")) for package in packages}
    pinned = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)
    assert len(pinned) > 100
    assert set(pinned) <= locked
    direct = named(project()["project"]["dependencies"]) | named(project()["dependency-groups"]["dev"])
    assert set(direct) <= {name for name, _ in pinned}


def test_published_names_are_kept():
    assert set(PUBLISHED) <= set(hakmem_py.native.settings())


def test_the_declarations_exist_once():
    """What cffi reads is hakmem.h itself."""
    header = (NATIVE / "include" / "hakmem.h").read_text()
    assert header.count("/* cdef begin */") == header.count("/* cdef end */") == 1
    assert "cdef(" not in "".join(p.read_text() for p in PACKAGE.glob("*.py") if p.stem != "build")
