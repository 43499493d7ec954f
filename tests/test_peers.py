"""Peers: found, named with version, and where they are missing, how to get them."""

from pathlib import Path

import pytest

from hakmem_py import cli, peers

OURS = Path("/proc/self/exe").read_bytes()[:20]  # the beginning of a file for this machine, and no library


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine without peers."""
    monkeypatch.setattr(peers, "SYSTEM", ())
    monkeypatch.setattr(peers, "UNPACKED", tmp_path)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    peers.find.cache_clear()
    yield tmp_path
    peers.find.cache_clear()


@pytest.mark.parametrize("name", peers.KNOWN)
def test_a_missing_peer_says_how_to_get_it(nowhere, name):
    peer = peers.find(name)
    assert peer.path is None
    assert peer.hint.startswith("not installed, get it by: ")
    for way in ("python -m hakmem_py peers --get", "apt install lib", "conda install -c conda-forge"):
        assert way in peer.hint


@pytest.mark.parametrize("name", peers.KNOWN)
def test_a_peer_that_is_there_has_version_and_hash(name):
    peer = peers.find(name)
    if peer.path is None:
        pytest.skip(peer.hint)
    assert peer.version[0].isdigit()
    assert len(peer.sha256) == 64


def test_the_conda_environment_comes_first(nowhere, monkeypatch):
    (nowhere / "env" / "lib").mkdir(parents=True)
    (nowhere / "env" / "lib" / "libmimalloc.so.3").write_bytes(OURS)
    monkeypatch.setenv("CONDA_PREFIX", str(nowhere / "env"))
    monkeypatch.setattr(peers, "_version", lambda known, preload: ("3.0.1", ""))
    peer = peers.find("mimalloc")
    assert peer.path.name == "libmimalloc.so.3"
    assert peer.version == "3.0.1"


@pytest.mark.parametrize("folder", ["whole", "a b"])
def test_a_library_that_cannot_be_preloaded_is_missing_and_named(nowhere, monkeypatch, folder):
    (nowhere / folder).mkdir()
    path = nowhere / folder / "libjemalloc.so.2"
    path.write_bytes(OURS)
    monkeypatch.setattr(peers, "SYSTEM", [str(path.parent)])
    peer = peers.find("jemalloc")
    assert peer.path is None and "get it by: python -m hakmem_py peers --get" in peer.hint
    assert peer.hint.startswith(f"not usable ({path}: ERROR: ld.so: object '{str(path).split()[0]}' from")


def test_links_to_nothing_and_libraries_for_other_machines_are_passed_over(nowhere, monkeypatch):
    folders = [nowhere / name for name in ("a", "b", "c")]
    monkeypatch.setattr(peers, "SYSTEM", [str(folder) for folder in folders])
    for folder in folders:
        folder.mkdir()
    (folders[0] / "libtcmalloc_minimal.so.4").symlink_to("gone")
    (folders[1] / "libtcmalloc_minimal.so.4").write_bytes(OURS[:4] + b"\x01" + OURS[5:])  # 32 bits
    (folders[2] / "libtcmalloc_minimal.so.4").write_bytes(OURS)
    monkeypatch.setattr(peers, "_version", lambda known, preload: ("2.10", ""))
    assert peers.find("tcmalloc").path.parent == folders[2]


def test_getting_peers_without_apt_names_another_way(nowhere, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(nowhere))
    assert cli.main(["peers", "--get"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("hakmem peers: mimalloc: apt-get is not on this machine: conda install")
    assert "mimalloc" in said.out


@pytest.fixture
def stubs(nowhere, monkeypatch):
    """stubs(apt, dpkg): what the two programs do, as lines of sh; all else is the machine's own."""
    (nowhere / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{nowhere}/bin:/usr/bin:/bin")

    def write(apt, dpkg):
        for name, does in {"apt-get": apt, "dpkg": dpkg}.items():
            (nowhere / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
            (nowhere / "bin" / name).chmod(0o755)

    return write


UNPACK = 'mkdir -p "$3/usr/lib/here"; head -c 20 /bin/sh > "$3/usr/lib/here/libmimalloc.so.2"'


def test_a_peer_that_was_unpacked_in_part_is_not_taken_for_one(nowhere, stubs, monkeypatch):
    """Neither after a full disk nor after a kill; the next call gets it whole."""
    stubs("touch some.deb", f"{UNPACK}; [ -e {nowhere}/room ] || {{ echo No space >&2; exit 2; }}")
    monkeypatch.setattr(peers, "_version", lambda known, preload: ("2.0.9", ""))
    with pytest.raises(RuntimeError, match=r"^dpkg -x some.deb: No space$"):
        peers.fetch("mimalloc")
    peers.find.cache_clear()
    assert peers.find("mimalloc").path is None
    assert not list(nowhere.glob("unpacking-*"))
    (nowhere / "room").touch()
    peers.fetch("mimalloc")
    assert peers.find("mimalloc").path == nowhere / "mimalloc/usr/lib/here/libmimalloc.so.2"


def test_a_package_that_cannot_be_had_does_not_keep_the_others_away(nowhere, stubs, monkeypatch, capsys):
    gone = (
        'case "$*" in *update) echo W: no network >&2;; *mimalloc*) echo E: no such package >&2; exit 100;; '
    )
    stubs(f"{gone}*) touch some.deb;; esac", UNPACK.replace("mimalloc", "jemalloc"))
    monkeypatch.setattr(peers, "_version", lambda known, preload: ("5.3.0", ""))
    assert cli.main(["peers", "--get"]) == 0
    said = capsys.readouterr()
    why = "apt-get download libmimalloc2.0: E: no such package; W: no network"
    assert said.err == f"hakmem peers: mimalloc: {why}\n"
    assert "jemalloc   5.3.0" in said.out


def test_a_folder_for_peers_that_cannot_be_made_is_named(nowhere, monkeypatch, capsys):
    (nowhere / "file").touch()
    monkeypatch.setattr(peers, "UNPACKED", nowhere / "file" / "peers")
    assert cli.main(["peers", "--get"]) == 0
    assert (
        f"hakmem peers: jemalloc: cannot write to {nowhere}/file/peers: Not a directory\n"
        in capsys.readouterr().err
    )
