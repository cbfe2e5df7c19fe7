"""Compiled libraries on disk: what is loaded is what was written, and whatever else lies there is compiled again."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rewa import native

SYMBOLS = ("answer",)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache of the test's own."""
    monkeypatch.setenv("REWA_CACHE", str(tmp_path / "cache"))
    native._cache.cache_clear()
    yield tmp_path / "cache"
    native._cache.cache_clear()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "kernel.cpp"
    path.write_text('extern "C" int answer() { return ANSWER; }\n')
    return path


def answer(source, value=42):
    return native.load(source, (f"-DANSWER={value}",), SYMBOLS).answer()


def replace(library: Path, content: bytes) -> None:
    """As another file under the same name: this process has the old one in its memory."""
    library.unlink()
    library.write_bytes(content)
    library.chmod(0o500)


def test_a_library_is_compiled_once_for_each_setting(cache, source):
    assert [answer(source), answer(source, 7), answer(source)] == [42, 7, 42]
    assert len(list(cache.iterdir())) == 2  # and no scratch is left behind
    written = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    answer(source)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == written
    source.write_text('extern "C" int answer() { return ANSWER + 1; }\n')
    assert answer(source) == 43


def other_library(folder: Path) -> bytes:
    """A valid library without the symbol."""
    source = folder / "other.cpp"
    source.write_text('extern "C" int other() { return 1; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", folder / "other.so"], check=True)
    return (folder / "other.so").read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "empty", "altered", "another library"])
def test_a_damaged_library_is_compiled_again(cache, source, tmp_path, damage):
    answer(source)
    (library,) = cache.iterdir()
    good = library.read_bytes()
    bad = {
        "truncated": good[: len(good) // 2],
        "empty": b"",
        "altered": good[:-1] + bytes([good[-1] ^ 1]),
        "another library": other_library(tmp_path),
    }
    replace(library, bad[damage])
    # Another process, as it would be: here the library is loaded already.
    code = (
        "import sys; from pathlib import Path; from rewa import native\n"
        "print(native.load(Path(sys.argv[1]), ('-DANSWER=42',), ('answer',)).answer())"
    )
    result = subprocess.run([sys.executable, "-c", code, source], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "42\n", "")
    assert [path.read_bytes() for path in cache.iterdir()] == [good]


def test_a_library_without_the_symbol_is_compiled_again(cache, source, tmp_path):
    answer(source)
    (library,) = cache.iterdir()
    bad = other_library(tmp_path)
    library.unlink()
    forged = library.with_name(f"{library.stem.rpartition('-')[0]}-{native._digest(bad)}.so")
    forged.write_bytes(bad)
    forged.chmod(0o500)
    assert answer(source) == 42
    assert list(cache.iterdir()) == [library]


def test_a_library_on_disk_needs_no_compiler(cache, source, monkeypatch):
    answer(source)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert answer(source) == 42
    with pytest.raises(FileNotFoundError, match=r"no C\+\+ compiler was found"):
        answer(source, 7)


def test_a_library_that_others_can_write_to_is_not_loaded(cache, source, tmp_path):
    answer(source)
    (library,) = cache.iterdir()
    assert stat.S_IMODE(library.stat().st_mode) == 0o500
    library.chmod(0o777)
    assert answer(source) == 42
    assert stat.S_IMODE(library.stat().st_mode) == 0o500  # a new one
    elsewhere = tmp_path / "elsewhere.so"
    shutil.move(library, elsewhere)
    library.symlink_to(elsewhere)
    assert answer(source) == 42
    assert not library.is_symlink()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
def test_a_library_of_another_user_is_not_loaded(cache, source):
    answer(source)
    (library,) = cache.iterdir()
    os.chown(library, 12345, -1)
    assert answer(source) == 42
    assert library.stat().st_uid == os.getuid()


def test_the_compiler_is_quoted_in_one_line(cache, source):
    source.write_text("this is no C++;\n")
    with pytest.raises(OSError, match="error: expected") as caught:
        answer(source)
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_process_without_a_home_compiles_for_itself(source, monkeypatch):
    for name in ("REWA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    native._cache.cache_clear()
    assert answer(source) == 42
    native._cache.cache_clear()


def test_a_kernel_has_its_signatures(cache, source):
    source.write_text('#include <cstdint>\nextern "C" void add(int64_t* to, int64_t what) { *to += what * FACTOR; }\n')
    number = ctypes.c_int64(1)
    library = native.kernel(source, {"add": (ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)}, {"FACTOR": 10})
    assert library.add(ctypes.byref(number), 2**40) is None  # would be cut to 32 bits without its type
    assert number.value == 1 + 10 * 2**40
    with pytest.raises(ctypes.ArgumentError):
        library.add(1.5, 1)


def test_a_kernel_that_is_not_available_is_said_once(cache, source, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert native.kernel(source, {"answer": ()}) is None  # in silence
    with pytest.warns(RuntimeWarning, match=r"kernel\.cpp could not be compiled \(no C\+\+ compiler .*\): torch is used"):
        assert native.kernel(source, {"answer": ()}, {"ANSWER": 1}, otherwise="torch is used") is None
    assert native.kernel(source, {"answer": ()}, {"ANSWER": 2}, otherwise="torch is used") is None
