"""Builds: native library, cffi module and bench, in one folder per hash of sources, flags and compiler, and
per Python, for which the module is made.

A variant is named NAME, NAME:SPEC for a profile-guided build trained by that experiment, NAME@K for the same
code in another layout (K steps of padding in front of it). The library and the module come from the same
sources with the same flags.
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import sysconfig
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from . import ROOT
from .commands import BuildError, call, compiler, side_by_side, workers, writing
from .spec import load_spec

NATIVE = ROOT / "native"
BUILDS = NATIVE / "build"

COMMON = (
    "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-pthread",
    "-fno-builtin-malloc",  # else gcc turns the malloc and memset inside calloc into a call of calloc
    "-Wall", "-Wextra", "-Wshadow", "-Werror=implicit-function-declaration",
    "-Werror=override-init",  # a policy above the default's row would be overwritten by it
)  # fmt: skip
SANITIZE = ("-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-DHAK_CHECKED=1", "-UNDEBUG")
VARIANTS = {
    "release": (),
    "pgo": (),  # its flags depend on the stage, see _use_profile
    "checked": ("-g", "-DHAK_CHECKED=1", "-UNDEBUG"),
    "asan": ("-fsanitize=address", *SANITIZE),
    "ubsan": ("-fsanitize=undefined", *SANITIZE),
    "tsan": ("-fsanitize=thread", *SANITIZE),
    "noace": ("-DHAK_ACE=0",),
    "slab16": ("-DHAK_SLAB_SHIFT=14",),
    "published8": ("-DHAK_TINY_PUBLISHED8=1",),
}
UNIMPORTABLE = ("asan", "tsan")  # their runtime must come first in a process: preloaded only, no module
BENCH = (
    "-std=gnu11", "-O2", "-fno-builtin", "-pthread", "-DHAK_BENCH_DIRECT", "-Wall", "-Wextra",
)  # fmt: skip
# symbolic: a second copy in the process calls its own functions; the first copy's do not know its blocks.
# initfirst: our fork hooks are registered before other libraries', and so take the locks last (fork.c).
HARDEN = (
    "-Wl,-z,relro,-z,now", "-Wl,-z,initfirst", "-Wl,-z,noexecstack", "-Wl,-z,nodelete",
    "-Wl,-Bsymbolic-functions",
)  # fmt: skip
LAYOUT_STEP = 80  # bytes: shifts cache lines and, over some steps, pages
PAD = """.section .text.unlikely, "ax", @progbits
.skip {bytes}, 0x90
.section .note.GNU-stack, "", @progbits
"""  # linkers put .text.unlikely first, so this moves all code behind it
IDENTITY = """#include "hakmem.h"
const char *hak_build_variant(void) {{ return "{variant}"; }}
const char *hak_build_hash(void) {{ return "{hash}"; }}
"""
TRAINING = "04_patterns"  # what a plain "pgo" is trained by
TRAINING_SCALE = 0.05  # share of a quick sample's length; a profile counts branches and needs no times
LONGEST_RUN_S = 86400  # of the bench; older copies of its files were left by a run that was killed
_PRINTING = threading.Lock()  # stdout is redirected for the whole process, however many threads build


@dataclass(frozen=True)
class Build:
    """One finished build. hash: 12 hex digits of its sources, flags and compiler."""

    variant: str
    hash: str
    folder: Path

    @property
    def library(self):
        return self.folder / "libhakmem.so"

    @property
    def bench(self):
        return self.folder / "bench"

    @property
    def module(self):
        return f"_hakmem_{_file_name(self.variant)}_{self.hash}"

    @property
    def module_file(self):
        """The module for this version of Python; variants that can only be preloaded have none."""
        return self.folder / (self.module + sysconfig.get_config_var("EXT_SUFFIX"))

    def facts(self):
        """What build.json holds: variant, hash, flags, compiler, library_sha256, text_bytes."""
        return json.loads((self.folder / "build.json").read_text(encoding="utf-8"))


def expect_preloadable():
    """Raises BuildError where a build cannot be made (gcc gives its assembler a file's name as it is) or be
    named by LD_PRELOAD (ld.so(8))."""
    if re.search(r'[\s:"]', str(BUILDS)):
        raise BuildError(
            f"no library in {str(BUILDS)!r} can be preloaded: LD_PRELOAD is split at spaces and colons, and "
            "gcc stumbles over double quotes; move the project to a folder without any in its path"
        )


def build(variant="release", native=NATIVE):
    """The Build of a variant, compiled if it is not there yet. native: the native/ folder, of any tree.

    Raises BuildError. Processes that build wait for each other; a killed build leaves nothing that counts.
    """
    return build_all([variant], native)[variant]


def build_all(variants, native=NATIVE):
    """{variant: Build}, as `build` makes them; those that are missing are compiled side by side."""
    expect_preloadable()
    builds = {}
    for variant in variants:
        if parse_variant(variant)[0] == "pgo" and "clang" in _compiler_says():
            raise BuildError(
                "pgo needs gcc, because its flags are gcc's: set CC=gcc, or build another variant"
            )
        identity = content_hash(variant, native)
        folder = BUILDS / f"{_file_name(variant)}-{identity}-{sysconfig.get_config_var('SOABI')}"
        builds[variant] = Build(variant, identity, folder)
    if not any(map(_missing, builds.values())):
        return builds
    with writing(BUILDS), _serial(), workers() as pool:
        missing = list(filter(_missing, builds.values()))
        kinds = {parse_variant(done.variant)[:2] for done in missing}
        plain = {VARIANTS[name] for name, _ in kinds if name != "pgo"}
        trainings = {training for name, training in kinds if name == "pgo"}
        seen = {_seen(VARIANTS[name]) for name, _ in kinds}
        shared = [(_bench_objects, definitions) for definitions in seen]
        shared += [(_objects, flags) for flags in plain]
        side_by_side(pool, lambda step: step[0](native, step[1]), shared)
        side_by_side(pool, lambda training: _train(training, native), trainings)
        side_by_side(pool, lambda training: _objects(native, _use_profile(training, native)), trainings)
        side_by_side(pool, lambda done: _make(done, native), missing)
    return builds


def _missing(done):
    """Whether a build is not there, its library was damaged, or its bench or module is lost."""
    wanted = [done.bench, done.module_file] if _importable(done.variant) else [done.bench]
    try:
        found = hashlib.sha256(done.library.read_bytes()).hexdigest()
        return found != done.facts()["library_sha256"] or not all(path.exists() for path in wanted)
    except (OSError, ValueError, LookupError, TypeError):  # no file; no JSON; not all of it
        return True


def _make(done, native):
    """Makes the folder of a Build from the objects that builds share, which are there already."""
    name, training, layout = parse_variant(done.variant)
    flags = VARIANTS[name] + (_use_profile(training, native) if name == "pgo" else ())
    with _stage(done.folder) as stage:
        _link(Build(done.variant, done.hash, stage), native, flags, _objects(native, flags), layout)


def parse_variant(variant):
    """("pgo", "07_pgo", 3) of "pgo:07_pgo@3". Raises BuildError with the allowed names."""
    match = re.fullmatch(r"(\w+)(?::(\w+))?(?:@(\d{1,3}))?", variant, re.ASCII)
    name = match and match[1]
    if name not in VARIANTS or (match[2] and name != "pgo"):
        raise BuildError(
            f"variant {variant!r} is unknown; allowed: {', '.join(VARIANTS)}, pgo:SPEC, NAME@K for layout K, "
            "at most 999"
        )
    return name, match[2] or TRAINING, int(match[3] or 0)


def _importable(variant):
    return parse_variant(variant)[0] not in UNIMPORTABLE


def _file_name(variant):
    """The variant as part of a path: LD_PRELOAD and make would stumble over its punctuation."""
    return re.sub(r"\W", "_", variant)


def content_hash(variant="release", native=NATIVE):
    """12 hex digits over sources, flags, compiler and, for a profile-guided build, its training."""
    name, training, _ = parse_variant(variant)
    digest = hashlib.sha256(
        repr((variant, COMMON, VARIANTS[name], BENCH, HARDEN, compiler_version())).encode()
    )
    digest.update(source_hash(native).encode())
    if name == "pgo":
        digest.update(repr(load_spec(training).cases).encode())
    return digest.hexdigest()[:12]


def source_hash(native=NATIVE):
    """Hash of every source of library and bench, without flags and compiler: the same on every machine."""
    digest = hashlib.sha256()
    for path in source_files(native):
        digest.update(f"{path.relative_to(native)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def source_files(native=NATIVE):
    """Every source of library and bench, sorted."""
    files = [path for part in ("include", "src", "bench") for path in (native / part).rglob("*.[chS]")]
    if not any(path.name == "preload.c" for path in files):
        raise BuildError(
            f"no sources in {native}: the native library is built from a clone of the repository"
        )
    return sorted(files)


def _compiler_says():
    return call([*compiler(), "--version"]).splitlines()[0]


@functools.cache
def compiler_version():
    """What the compiler says that it is, and the options that CC gives it. Its -O has no effect."""
    return " ".join([_compiler_says(), *compiler()[1:]])


def cdef(native=NATIVE):
    """The declarations for cffi: hakmem.h between its markers, as it is."""
    text = (native / "include" / "hakmem.h").read_text(encoding="utf-8")
    return text.partition("/* cdef begin */")[2].partition("/* cdef end */")[0]


# ---------------------------------------------------------------- steps


@contextmanager
def _serial():
    """Holds the lock that allows one build at a time in this clone, and removes what killed ones left."""
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in BUILDS.glob("tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        for left in BUILDS.glob("run-*"):
            with suppress(FileNotFoundError):  # its run has ended
                if time.time() - left.stat().st_mtime > LONGEST_RUN_S:
                    shutil.rmtree(left)
        yield


@contextmanager
def _stage(folder):
    """An empty folder, which replaces `folder` once everything in it was made without an error."""
    with tempfile.TemporaryDirectory(dir=BUILDS, prefix="tmp-", ignore_cleanup_errors=True) as work:
        stage = Path(work, "stage")
        stage.mkdir()
        yield stage
        shutil.rmtree(folder, ignore_errors=True)
        stage.rename(folder)


def _link(out, native, flags, objects, layout=0):
    """Links library, module and bench of `out` in its folder, and writes build.json there.

    objects: the core (for module and bench) and the core with the malloc family (for preloading). What
    belongs to this build alone is linked around them: the padding in front, the identity behind.
    """
    core, preload = objects
    identity = IDENTITY.format(variant=out.variant, hash=out.hash)
    (out.folder / "identity.c").write_text(identity, encoding="utf-8")
    (out.folder / "pad.S").write_text(PAD.format(bytes=layout * LAYOUT_STEP), encoding="utf-8")
    _cc(["-c", "-fPIC", f"-I{native / 'include'}", "identity.c", "pad.S"], out.folder)
    link = [flag for flag in flags if flag.startswith(("-fsanitize", "-fprofile-generate"))]
    _cc(
        ["pad.o", preload, "identity.o", "-shared", *HARDEN, *link, "-pthread", "-o", out.library], out.folder
    )
    if _importable(out.variant):
        _module(out, native, ["pad.o", core, "identity.o", *link])
    bench = [*_bench_objects(native, _seen(flags)), "pad.o", core, "identity.o", *link]
    _cc(["-pthread", *bench, "-lm", "-o", out.bench], out.folder)
    facts = {
        "variant": out.variant,
        "hash": out.hash,
        "flags": [*COMMON, *flags],
        "compiler": compiler_version(),
        "library_sha256": hashlib.sha256(out.library.read_bytes()).hexdigest(),
        "text_bytes": _text_bytes(out.library),
    }
    (out.folder / "build.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _objects(native, flags):
    """The library's two objects with these flags, which its layouts share. Only while the lock is held."""
    texts = [path for path in source_files(native) if path.parent.name != "bench"]
    return _shared("library", native, [*COMMON, *flags], _cores(native), texts)


def _cores(native):
    return [native / "src" / "hakmem.c", native / "src" / "preload.c"]


def _bench_objects(native, definitions):
    """The bench's objects, which variants with the same definitions share. Only while the lock is held."""
    texts = sorted([*(native / "bench").glob("*"), *(native / "include").glob("*")])
    sources = [path for path in texts if path.suffix == ".c"]
    return _shared("bench", native, [*BENCH, *definitions], sources, texts)


def _seen(flags):
    """Those flags of a library that the bench is compiled with too: the definitions (-D)."""
    return tuple(flag for flag in flags if flag.startswith("-D"))


def _shared(kind, native, command, sources, texts):
    """Objects of the sources in a folder named by the content of all texts, the command and the compiler."""
    digest = hashlib.sha256(repr((command, compiler_version())).encode())
    for path in texts:
        digest.update(path.read_bytes())
    folder = BUILDS / f"{kind}-{digest.hexdigest()[:12]}"
    if not folder.exists():
        with _stage(folder) as stage:
            _compile(command, native, sources, stage)
    return [folder / f"{path.stem}.o" for path in sources]


def _module(out, native, objects):
    """The cffi module: cffi writes its source, but would add the interpreter's flags, so we compile it."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(cdef(native))
    ffi.set_source(out.module, '#include "hakmem.h"')
    with _PRINTING, redirect_stdout(None):
        ffi.emit_c_code(str(out.folder / "module.c"))
    python = sysconfig.get_path("include")
    if not Path(python, "Python.h").exists():
        raise BuildError("Python.h is missing. Install it by: sudo apt install python3-dev")
    warn = ["-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types"]
    include = [f"-I{python}", f"-I{native / 'include'}"]
    _cc(
        ["-O2", "-fPIC", "-shared", *warn, *include, "module.c", *objects, "-pthread", "-o", out.module_file],
        out.folder,
    )


def _profile(training, native):
    """The folder of a training's profile, which all layouts share."""
    return BUILDS / f"profile-{content_hash(f'pgo:{training}', native)}"


def _train(training, native):
    """Makes the profile where it is missing: builds an instrumented bench and library, runs the training's
    cases on them."""
    if _profile(training, native).exists():
        return
    with tempfile.TemporaryDirectory(dir=BUILDS, prefix="tmp-", ignore_cleanup_errors=True) as folder:
        work, profile = Path(folder, "instrumented"), Path(folder, "profile")
        work.mkdir()
        flags = (f"-fprofile-generate={profile}", "-fprofile-update=atomic")
        _compile([*COMMON, *flags], native, _cores(native), work)
        instrumented = Build("pgo", "training", work)
        _link(instrumented, native, flags, ["hakmem.o", "preload.o"])
        for case in filter(lambda case: case.quick_scale, load_spec(training).cases):
            command = [instrumented.bench, *case.arguments(case.quick_scale * TRAINING_SCALE)]
            call([*command, "--backend", "direct"])
            call(command, env={**os.environ, "LD_PRELOAD": str(instrumented.library)})
        profile.rename(_profile(training, native))


def _use_profile(training, native):
    """The flags of a build that uses the training's profile.

    -Werror=missing-profile: a build whose profile is not found fails. Both stages have the same sources, so a
    coverage mismatch is no more than the compiler's doubt, and only a warning.
    """
    use = f"-fprofile-use={_profile(training, native)}"
    return (use, "-fprofile-partial-training", "-Werror=missing-profile", "-Wno-error=coverage-mismatch")


def _text_bytes(library):
    """Bytes of code: the .text column of size(1)."""
    return int(call(["size", library]).splitlines()[1].split()[0])


def _compile(command, native, sources, folder):
    """Compiles sources side by side, each into an object file of its own name.

    gcc finds a file's profile by the file's name below the folder it is compiled in. -fprofile-prefix-path
    names that folder, both where the profile is made and where it is used.
    """
    command = [*command, f"-I{native / 'include'}"]
    if any(word.startswith("-fprofile") for word in command):
        command.append(f"-fprofile-prefix-path={folder}")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda path: _cc([*command, "-c", path, "-o", f"{path.stem}.o"], folder), sources))


def _cc(arguments, folder):
    return call([*compiler(), *arguments], folder)


def add_build(sub):
    sub.add_argument(
        "variants", nargs="*", default=["release"], help=f"{', '.join(VARIANTS)}; default release"
    )
    sub.set_defaults(run=_run)


def _run(args):
    for variant in args.variants:
        done = build(variant)
        print(f"{variant:12} {done.hash}  {done.library}")
