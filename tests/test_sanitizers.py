"""The fuzz on builds that watch themselves: no report of ASan, UBSan or TSan.

HAKMEM_TEST_MINUTES=3 lets each run so long.
"""

import os
import subprocess

import pytest
from preload import FUZZ_SETTINGS, MINUTES, NATIVE

from hakmem_py.build import COMMON, VARIANTS
from hakmem_py.build import NATIVE as SOURCES

SECONDS = round(60 * MINUTES) or 4
SETTINGS = FUZZ_SETTINGS | {"knobs turned": {"FUZZ_TURNS": "1"}}
SIZE_BITS = {"asan": 23, "ubsan": 23, "tsan": 22}  # of the largest block


@pytest.fixture(scope="module", params=SIZE_BITS)
def fuzz(request, tmp_path_factory):
    """The fuzz and the library in one watched executable; its malloc stays the sanitizer's."""
    executable = tmp_path_factory.mktemp(request.param) / "fuzz"
    flags = [
        *COMMON,
        *VARIANTS[request.param],
        "-DHAK_DIRECT",
        f"-DFUZZ_SIZE_BITS={SIZE_BITS[request.param]}",
    ]
    sources = [NATIVE / "fuzz.c", SOURCES / "src" / "hakmem.c"]
    command = ["gcc", *flags, "-w", "-fno-builtin", f"-I{SOURCES / 'include'}", *sources, "-o", executable]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if "cannot find" in done.stderr:
        pytest.skip("the sanitizers' libraries are not installed: apt install gcc")
    assert (done.returncode, done.stderr) == (0, "")
    return executable


@pytest.mark.parametrize("setting", SETTINGS)
def test_fuzz_brings_no_report(fuzz, setting):
    done = subprocess.run(
        [fuzz, str(SECONDS), "4", "42"],
        env={**os.environ, **SETTINGS[setting]},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no violation" in done.stdout
