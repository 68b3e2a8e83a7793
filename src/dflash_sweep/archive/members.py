"""The members of an archive, written with their hashes and read back with suspicion. Imports `errors` only.

Reading believes nothing: names must be plain relative paths, members plain files, each of them listed in the manifest
with its size and hash, and the sizes are counted while bytes come out, so that no small file becomes an endless one.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from dflash_sweep.errors import StorageError

MANIFEST = "manifest.json"
FORMAT = "dflash-sweep archive"
FORMAT_VERSION = 1

MAX_MEMBERS = 200_000
MAX_MANIFEST_BYTES = 64 << 20
_CHUNK = 1 << 20
_PART = re.compile(r"[^\x00-\x1f\x7f/\\:]+")
_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError, RuntimeError)
"""What zipfile raises for bytes that are no zip file, or one that was changed."""
_ALL_ALIKE = (1980, 1, 1, 0, 0, 0)
"""Every member's time: when a file was packed is no property of its content."""


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def is_safe(name: str) -> bool:
    """True for a plain relative path that stays inside whatever folder it is joined to, on every system."""
    parts = name.split("/")
    return bool(name) and all(_PART.fullmatch(part) and part.strip(". ") for part in parts)


# ---------------------------------------------------------------- writing


class Writer:
    """A new archive; the manifest is written last, on leaving the block. A failed one leaves no file."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self._path, self._draft = path, path.with_name(path.name + ".new")
        self._manifest = manifest
        self._members: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        if self._path.is_dir():
            raise StorageError(f"{self._path}: cannot be written: it is a folder")
        try:
            self._zip = zipfile.ZipFile(self._draft, "w", zipfile.ZIP_DEFLATED)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        try:
            if kind is None:
                text = json.dumps({**self._manifest, "members": self._members}, ensure_ascii=False, indent=1)
                self._zip.writestr(self._info(MANIFEST), text.encode())
            self._zip.close()
            if kind is None:
                self._draft.replace(self._path)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error
        finally:
            self._draft.unlink(missing_ok=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Members written so far, the manifest left out."""
        return tuple(self._members)

    @staticmethod
    def _info(name: str) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(name, _ALL_ALIKE)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        return info

    def add(self, name: str, content: bytes) -> None:
        """One member in one piece."""
        self.add_parts(name, iter((content,)))

    def add_parts(self, name: str, parts: Iterator[bytes]) -> None:
        """One member, piece by piece. Raises ValueError for a name that no reader would take."""
        if not is_safe(name) or name in self._members or name == MANIFEST:
            raise ValueError(f"{name!r} is no name for a member")
        digest, size = hashlib.sha256(), 0
        with self._zip.open(self._info(name), "w", force_zip64=True) as member:
            for part in parts:
                member.write(part)
                digest.update(part)
                size += len(part)
        self._members[name] = {"size": size, "sha256": digest.hexdigest()}


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Member:
    """What the manifest says of one member."""

    size: int
    sha256: str


class Reader:
    """An existing archive, looked at as a whole when it is opened. Raises StorageError for anything that is not right.

    `max_bytes`: what all members together may unpack to.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error
        except _UNREADABLE as error:
            raise StorageError(f"{path}: is no archive of a study ({_first_line(error)})") from error
        try:
            self.manifest = self._checked(max_bytes)
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._zip.close()

    def _refuse(self, reason: str) -> StorageError:
        return StorageError(f"{self._path}: {reason}; nothing was imported")

    def _checked(self, max_bytes: int) -> dict[str, Any]:
        entries = self._zip.infolist()
        if len(entries) > MAX_MEMBERS:
            raise self._refuse(f"has {len(entries)} members; at most {MAX_MEMBERS} are taken")
        for entry in entries:
            self._check_entry(entry)
        names = [entry.filename for entry in entries]
        if len(set(names)) != len(names):
            raise self._refuse("has two members of one name")
        manifest = self._read_manifest()
        self.members = self._listed(manifest)
        if unlisted := sorted(set(names) - set(self.members) - {MANIFEST}):
            raise self._refuse(f"member {unlisted[0]!r} is not in its manifest")
        if missing := sorted(set(self.members) - set(names)):
            raise self._refuse(f"member {missing[0]!r} of its manifest is missing")
        whole = sum(member.size for member in self.members.values())
        if whole > max_bytes:
            limit = f"at most {max_bytes >> 20} MiB are unpacked"
            raise self._refuse(f"unpacks to {whole >> 20} MiB; {limit} (--max-mib allows more)")
        return manifest

    def _check_entry(self, entry: zipfile.ZipInfo) -> None:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if not is_safe(entry.filename) or entry.filename != entry.orig_filename:
            raise self._refuse(f"member {entry.orig_filename!r} is no plain relative path")
        if kind not in (0, stat.S_IFREG) or entry.is_dir():
            raise self._refuse(f"member {entry.filename!r} is no plain file")
        if entry.flag_bits & 0x1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._refuse(f"member {entry.filename!r} is encrypted or packed in an unusual way")

    def _read_manifest(self) -> dict[str, Any]:
        try:
            with self._zip.open(MANIFEST) as member:
                text = member.read(MAX_MANIFEST_BYTES + 1)
            if len(text) > MAX_MANIFEST_BYTES:
                raise self._refuse(f"its {MANIFEST} is larger than {MAX_MANIFEST_BYTES >> 20} MiB")
            manifest = json.loads(text)
        except KeyError:
            raise self._refuse(f"is no archive of a study: it has no {MANIFEST}") from None
        except (RecursionError, OSError, *_UNREADABLE) as error:
            raise self._refuse(f"its {MANIFEST} cannot be read ({_first_line(error)})") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise self._refuse("is no archive of a study")
        if manifest.get("format_version") != FORMAT_VERSION:
            version = manifest.get("format_version")
            raise self._refuse(f"has format version {version}; this version of dflash-sweep reads {FORMAT_VERSION}")
        return manifest

    def _listed(self, manifest: dict[str, Any]) -> dict[str, Member]:
        listed = manifest.get("members")
        try:
            if not isinstance(listed, dict):
                raise TypeError("no list of members")
            found = {str(name): Member(int(entry["size"]), str(entry["sha256"])) for name, entry in listed.items()}
        except (TypeError, KeyError, ValueError) as error:
            raise self._refuse(f"its {MANIFEST} cannot be read ({error})") from error
        if any(member.size < 0 for member in found.values()):
            raise self._refuse(f"its {MANIFEST} has a member of negative size")
        return found

    # ------------------------------------------------------------ content

    def verify(self) -> None:
        """Read every member once. Raises StorageError naming the first that is not what the manifest says."""
        for name in self.members:
            for _ in self.parts(name):
                pass

    def parts(self, name: str) -> Iterator[bytes]:
        """A member's bytes, piece by piece; raises StorageError as soon as, or once, they are not those of the
        manifest."""
        if name not in self.members:
            raise self._refuse(f"has no member {name!r}")
        expected, digest, size = self.members[name], hashlib.sha256(), 0
        try:
            with self._zip.open(name) as member:
                while part := member.read(_CHUNK):
                    size += len(part)
                    if size > expected.size:
                        raise self._refuse(f"member {name!r} is larger than its manifest says")
                    digest.update(part)
                    yield part
        except (OSError, *_UNREADABLE) as error:
            raise self._refuse(f"member {name!r} is damaged ({_first_line(error)})") from error
        if size != expected.size or digest.hexdigest() != expected.sha256:
            raise self._refuse(f"member {name!r} is not the one of its manifest")

    def whole(self, name: str) -> bytes:
        """A whole member."""
        return b"".join(self.parts(name))

    def json(self, name: str) -> Any:
        """A member of JSON."""
        try:
            return json.loads(self.whole(name))
        except (ValueError, RecursionError) as error:
            raise self._refuse(f"member {name!r} is no JSON ({error})") from error

    def json_lines(self, name: str) -> Iterator[Any]:
        """A member of JSON lines, one at a time."""
        rest = b""
        for part in self.parts(name):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield self._line(name, line)
        if rest:
            yield self._line(name, rest)

    def _line(self, name: str, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._refuse(f"a line of member {name!r} is no JSON ({error})") from error

    def copy(self, name: str, target: Path) -> None:
        """Write a member to a file that is not there yet, under a folder of ours."""
        target.parent.mkdir(parents=True, exist_ok=True)
        out: BinaryIO
        with target.open("xb") as out:
            for part in self.parts(name):
                out.write(part)
