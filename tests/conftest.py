"""What several tests share."""

import contextlib
import shutil
import signal
import subprocess

import pytest

from hakmem_py import build, cli, slot

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "chrome", "/usr/lib/chromium/chromium")
ALONE = (  # in a browser without network
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
SPEC = """
[experiment]
name = "tiny"
title = "A tiny experiment"
baseline = "system"
blocks = 3
quick_blocks = 2
timeout_s = 20

[[allocator]]
label = "system"
use = "system"

[[allocator]]
label = "floor"
use = "floor"

[[case]]
workload = "lifo"
size = [16, 64]
threads = 1
scale = 0.001
quick_scale = 0.001
"""


@pytest.fixture(autouse=True)
def own_slot(tmp_path, monkeypatch):
    """Tests measure nothing that counts: they take a bench slot of their own, not the machine's."""
    monkeypatch.setattr(slot, "SLOT", tmp_path / "bench.lock")


@pytest.fixture
def tiny(tmp_path):
    """tiny(old, new, ...) writes the tiny experiment with these replacements and returns its path."""

    def write(*replacements):
        text = SPEC
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "tiny.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def tree(tmp_path):
    """A copy of native/ to change."""
    return shutil.copytree(build.NATIVE, tmp_path / "native", ignore=shutil.ignore_patterns("build"))


@pytest.fixture(scope="module")
def browser():
    """The machine's chromium, which cannot reach any network."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        pytest.skip("chromium is not installed: sudo apt install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=ALONE)
        yield chromium
        chromium.close()


@pytest.fixture
def stopped_start(monkeypatch):
    """stopped_start(does): status of the `sleep` that does() starts, stopped by the user in that moment.

    None if it was left running, or as a zombie."""
    start, started = subprocess.Popen, []

    def stopped(command, *more, **how):
        started.append(start(command, *more, **how))
        if command[0] == "sleep":
            signal.raise_signal(signal.SIGTERM)
        return started[-1]

    def run(does):
        monkeypatch.setattr(subprocess, "Popen", stopped)
        with cli.stopped_as_by_the_user(), contextlib.suppress(KeyboardInterrupt):
            does()
        started[-1].kill()  # does nothing if it has been waited for
        return started[-1].returncode

    return run
