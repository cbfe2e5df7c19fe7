"""Where data comes from: files that are found or named, downloads that are whole or not there at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rewa.train import sources
from rewa.train.datasets import load
from rewa.train.sources import SOURCES, Source, download
from tiny_data import write_cifar10, write_fashion


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist", "shakespeare"])
def test_missing_data_says_what_to_do(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sources, "PLACES", {})
    with pytest.raises(FileNotFoundError) as error:
        load(name, root=tmp_path)
    for part in (name, str(tmp_path), "--data", "REWA_DATA", "--download"):
        assert part in str(error.value)
    monkeypatch.delenv("REWA_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="looked in no folder"):
        load(name)
    with pytest.raises(ValueError, match="say where to"):
        load(name, download=True)
    assert not list(tmp_path.iterdir())


def test_the_missing_file_is_named(tmp_path, monkeypatch):
    write_cifar10(tmp_path, monkeypatch)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin is missing"):
        load("cifar10", root=tmp_path)


# ------------------------------------------------------------------------------------------------------ downloads


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder, and the address on this machine that serves it."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


def md5(content):
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_download_of_files(tmp_path, server, monkeypatch):
    folder, url = server
    write_fashion(folder)
    digests = {file: md5((folder / file).read_bytes()) for file in SOURCES["fashion-mnist"].digests}
    monkeypatch.setitem(SOURCES, "fashion-mnist", Source(url, digests, "fashion-mnist"))
    monkeypatch.setattr(sources, "PLACES", {})
    made = load("fashion-mnist", root=tmp_path / "data", validation=5, download=True)
    assert made.sizes["train"] == 25
    assert {path.name for path in (tmp_path / "data" / "fashion-mnist").iterdir()} == set(digests)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()  # what is there is not fetched again
    assert load("fashion-mnist", root=tmp_path / "data", validation=5, download=True).sizes == made.sizes


def test_download_with_another_checksum_keeps_nothing(tmp_path, server):
    folder, url = server
    (folder / "input.txt").write_text("To be, or not to be")
    with pytest.raises(ValueError, match=r"input\.txt has the sha256 checksum .* not 86c4e6aa.*nothing was kept"):
        download("shakespeare", tmp_path / "data", url=url)
    assert not (tmp_path / "data").exists()


def test_a_failed_download_leaves_the_old_file(tmp_path, server):
    folder, url = server
    (folder / "input.txt").write_text("To be, or not to be")
    old = tmp_path / "tinyshakespeare" / "input.txt"
    old.parent.mkdir()
    old.write_text("old")
    with pytest.raises(ValueError, match="checksum"):
        download("shakespeare", tmp_path, url=url)
    assert [path.name for path in old.parent.iterdir()] == ["input.txt"]
    assert old.read_text() == "old"


def test_download_that_is_not_there(tmp_path, server):
    with pytest.raises(OSError, match=r"could not download .*input\.txt: HTTP Error 404"):
        download("shakespeare", tmp_path / "data", url=server[1])
    assert not (tmp_path / "data").exists()


def test_a_failed_download_removes_only_what_it_made(tmp_path, server):
    (tmp_path / "own").mkdir()
    (tmp_path / "empty" / "tinyshakespeare").mkdir(parents=True)
    for root in ("own/deep/data", "empty"):
        with pytest.raises(OSError, match="could not download"):
            download("shakespeare", tmp_path / root, url=server[1])
    assert not list((tmp_path / "own").iterdir())
    assert (tmp_path / "empty" / "tinyshakespeare").is_dir()


def test_a_download_that_fails_later_keeps_what_is_whole(tmp_path, server, monkeypatch):
    folder, url = server
    (folder / "first").write_text("first")
    digests = {"first": md5(b"first"), "second": md5(b"second")}
    monkeypatch.setitem(SOURCES, "shakespeare", Source(url, digests, "two"))
    with pytest.raises(OSError, match=r"could not download .*second"):
        download("shakespeare", tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").rglob("*")] == ["two", "first"]


def archive(members):
    """A tar.gz of names and contents, or of ready-made entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def serve_cifar10(server, monkeypatch, members):
    folder, url = server
    content = archive(members)
    (folder / "cifar-10-binary.tar.gz").write_bytes(content)
    digests = {"cifar-10-binary.tar.gz": md5(content)}
    source = Source(url, digests, "cifar-10-batches-bin", SOURCES["cifar10"].members)
    monkeypatch.setitem(SOURCES, "cifar10", source)
    return source.members


def test_download_of_an_archive_takes_only_what_it_knows(tmp_path, server, monkeypatch):
    records = write_cifar10(tmp_path / "made", monkeypatch)
    contents = zip(SOURCES["cifar10"].members, (part.tobytes() for part in records), strict=True)
    serve_cifar10(server, monkeypatch, [("../../evil.txt", b"evil"), ("/tmp/evil.bin", b"evil"), *contents])
    root = tmp_path / "deep" / "data"
    made = load("cifar10", root=root, validation=3, download=True)
    assert made.sizes["train"] == 17
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == sorted(SOURCES["cifar10"].files)
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(("content", "message"), [((), "does not hold"), ((None,), "is not a file")])
def test_archives_with_other_members_are_refused(tmp_path, server, monkeypatch, content, message):
    serve_cifar10(server, monkeypatch, [(SOURCES["cifar10"].members[0], part) for part in content])
    with pytest.raises(ValueError, match=message):
        download("cifar10", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_download_of_unknown_data(tmp_path):
    with pytest.raises(ValueError, match="there is no data to download 'imagenet'"):
        download("imagenet", tmp_path)
