"""Building the native level: once, for this user only, and with a reason where it cannot be."""

from __future__ import annotations

import stat
import sys
import threading
from pathlib import Path

import pytest

from engine.kernels.cpu.native import build as native_build
from engine.kernels.cpu.native.build import NativeUnavailableError, build, cache_folder
from engine.kernels.cpu.native.library import Library


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "baton" / "native"


def compiler(path: Path, body: str) -> str:
    """A program in the compiler's place; `sys.argv[-1]` is where it is to write."""
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(0o755)
    return str(path)


COMPILES = """
if sys.argv[1] == "--version":
    print("test 1.0")
else:
    with open(__file__ + ".log", "a") as log:
        log.write("compiled\\n")
    with open(sys.argv[-1], "w") as out:
        out.write("machine code")
"""


def test_it_is_compiled_once_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
):
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", COMPILES))
    found: list[Path] = []
    askers = [threading.Thread(target=lambda: found.append(build())) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert (tmp_path / "cxx.log").read_text() == "compiled\n"
    assert len({*found}) == 1
    assert found[0].read_text() == "machine code"
    assert sorted(path.name for path in cache.iterdir()) == [found[0].name, "lock"]


def test_other_sources_or_another_compiler_are_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", COMPILES))
    first = build()
    compiler(tmp_path / "cxx", COMPILES.replace("1.0", "1.1"))
    second = build()
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "baton.cpp").write_text("int other;")
    monkeypatch.setattr(native_build, "SOURCES", tmp_path / "sources")
    assert len({first, second, build()}) == 3


def test_the_folder_is_this_user_s_alone(cache: Path):
    assert cache_folder() == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_folder_that_others_write_to_is_refused(cache: Path):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(NativeUnavailableError, match="chmod 700"):
        cache_folder()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, cache: Path):
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(NativeUnavailableError, match=str(cache)):
        cache_folder()


def test_a_user_without_a_home_is_told_what_to_name(monkeypatch: pytest.MonkeyPatch):
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(NativeUnavailableError, match="XDG_CACHE_HOME"):
        cache_folder()


def test_a_machine_without_a_compiler_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailableError, match=r"apt-get install g\+\+"):
        build()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
):
    fails = COMPILES.replace(
        "    with open(__file__", "    sys.exit('no such flag')\n    with open(__file__"
    )
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", fails))
    with pytest.raises(NativeUnavailableError, match="no such flag"):
        build()
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_a_compiler_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", "sys.exit(3)"))
    with pytest.raises(NativeUnavailableError, match=str(tmp_path / "cxx")):
        build()


def test_what_is_no_library_is_named(tmp_path: Path):
    broken = tmp_path / "baton-0.so"
    broken.write_text("machine code")
    with pytest.raises(NativeUnavailableError, match="Delete"):
        Library(str(broken))
