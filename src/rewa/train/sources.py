"""Where data comes from: the files it is made of, looked for on this machine or fetched and checked."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from rewa.files import replacing
from rewa.names import nearest

__all__ = ["SOURCES", "Source", "download", "find"]


@dataclass(frozen=True)
class Source:
    """Where files come from.

    Args:
        url: Address that the names are appended to.
        digests: File names and their checksums, ``"md5:..."`` or ``"sha256:..."``.
        folder: Folder that they go to.
        members: If the file is a tar archive, those of its members that are wanted.
    """

    url: str
    digests: dict[str, str]
    folder: str
    members: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """Names of the files that are used."""
        return [Path(member).name for member in self.members] or list(self.digests)


SOURCES = {
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar-10-batches-bin",
        (*(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)), "cifar-10-batches-bin/test_batch.bin"),
    ),
    "fashion-mnist": Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
        "fashion-mnist",
    ),
    "shakespeare": Source(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        {"input.txt": "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
        "tinyshakespeare",
    ),
}
PLACES = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}  # Debian's package dataset-fashion-mnist


def download(name: str, root: Path, *, url: str | None = None) -> Path:
    """Fetch data from its source, check it and put it into a folder; files appear whole or not at all.

    Args:
        name: ``"cifar10"``, ``"fashion-mnist"`` or ``"shakespeare"``.
        root: Folder for data; the files go to a folder in it.
        url: Another address to fetch the files from; the checksums are the same.

    Returns:
        The folder with the files.

    Raises:
        OSError: If the files cannot be fetched.
        ValueError: If they are not what they should be.
    """
    if name not in SOURCES:
        raise ValueError(nearest("data to download", name, SOURCES))
    source = SOURCES[name]
    address = (source.url if url is None else url).rstrip("/") + "/"
    folder = Path(root) / source.folder
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for file, digest in source.digests.items():
            if source.members:
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    archive = Path(scratch, file)
                    _fetch(address + file, archive, digest)
                    _extract(archive, source.members, folder)
            else:
                with replacing(folder / file) as path:
                    _fetch(address + file, path, digest)
    finally:
        for path in missing:
            with suppress(OSError):  # a folder that holds something is not removed
                path.rmdir()
    return folder


def _fetch(url: str, path: Path, digest: str) -> None:
    kind, _, expected = digest.partition(":")
    found = hashlib.new(kind, usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=60) as response, path.open("wb") as file:
            while chunk := response.read(1 << 20):
                found.update(chunk)
                file.write(chunk)
    except (OSError, HTTPException) as error:
        raise OSError(f"could not download {url}: {error}") from error
    if found.hexdigest() != expected:
        raise ValueError(f"{url} has the {kind} checksum {found.hexdigest()}, not {expected}: nothing was kept")


def _extract(archive: Path, members: Sequence[str], folder: Path) -> None:
    """Copy the wanted members; no name or link of the archive ever becomes a path."""
    with tarfile.open(archive) as tar:
        for member in members:
            try:
                info = tar.getmember(member)
            except KeyError:
                raise ValueError(f"{archive.name} does not hold {member}") from None
            content = tar.extractfile(info) if info.isreg() else None
            if content is None:
                raise ValueError(f"{member} in {archive.name} is not a file")
            with content, replacing(folder / Path(member).name) as path, path.open("wb") as file:
                shutil.copyfileobj(content, file)


def _base(root: Path | None) -> Path | None:
    """The folder for data: the one given, or else that of the environment."""
    if root is not None:
        return Path(root)
    return Path(value) if (value := os.environ.get("REWA_DATA")) else None


def find(name: str, root: Path | None, wanted: Sequence[str], folder: str, fetch: bool) -> Path:
    """The folder that holds all the files of some data.

    Args:
        name: Name of the data.
        root: Folder with the data, or with a folder of it; None for the environment variable ``REWA_DATA``.
        wanted: Names of the files.
        folder: Name of the folder that they may be in.
        fetch: Whether to download them if they are missing.

    Raises:
        FileNotFoundError: If they are not there, and are not to be fetched.
    """
    base = _base(root)
    places = [] if base is None else [base / folder, base]
    if name in PLACES:
        places.append(PLACES[name])
    for place in places:
        if all((place / file).exists() for file in wanted):
            return place
    if fetch:
        if base is None:
            raise ValueError(f"to download {name}, say where to: give root (--data) or set REWA_DATA")
        return download(name, base)
    started = [place for place in places if any((place / file).exists() for file in wanted)]
    missing = [str(place / file) for place in started for file in wanted if not (place / file).exists()]
    raise FileNotFoundError(
        f"{name}: {missing[0] if missing else wanted[0]} is missing (looked in {', '.join(map(str, places)) or 'no folder'}). "
        "Give the folder with the data as root (--data) or in the environment variable REWA_DATA"
        + (f", or fetch it with --download (rewa.train.sources.download({name!r}, root))" if name in SOURCES else "")
    )
