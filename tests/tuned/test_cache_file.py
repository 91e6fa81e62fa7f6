"""The artifact's file: what is read, what is refused, and in which words."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile

import pytest

from autotune.errors import InputError
from autotune.measure.measurement import TensorSpec
from autotune.tuned import cache_file as artifacts
from autotune.tuned.cache_file import CacheFile, Key, compiler_variables, pack, read_verified, unpack, why_unfit

KEY = Key(
    framework="torch",
    framework_version="2.13.0",
    autotune_version="0.1.0",
    python="3.11.4",
    platform="Linux x86_64 glibc 2.36",
    processor="A processor",
    cpu_flags_sha256="ab" * 32,
    num_cores=2,
    device="cpu",
    tools={"C++ compiler": "g++ 12.2"},
    variables={"OMP_NUM_THREADS": "2"},
    structure_sha256="cd" * 32,
    inputs=(TensorSpec(shape=(1, 3, 224, 224), dtype="float32"),),
    config="0123456789ab",
)


def tar_of(*entries: tarfile.TarInfo) -> bytes:
    """A gzipped tar of entries without content."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for entry in entries:
            archive.addfile(entry)
    return content.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


@pytest.fixture
def caches(tmp_path):
    folder = tmp_path / "caches"
    (folder / "inductor" / "ab").mkdir(parents=True)
    (folder / "inductor" / "ab" / "kernel.so").write_bytes(b"\x7fELF" * 100)
    (folder / "key.json").write_text("{}")
    (folder / "key.json").chmod(0o400)
    return folder


@pytest.fixture
def shipped(tmp_path, caches):
    """A file as it was exported, in the folder `home`."""
    content = pack(caches)
    home = tmp_path / "home"
    home.mkdir()
    (home / "best.cache").write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    return home, CacheFile(file="best.cache", sha256=sha256, num_bytes=len(content), key=KEY, check_first_call=False)


def test_a_folder_comes_back_as_it_was(shipped, caches, tmp_path):
    """Packed, read and unpacked: the same files with the same content, which their owner can remove again."""
    home, file = shipped
    unpack(read_verified(home, file), tmp_path / "back")
    names = sorted(path.relative_to(caches) for path in caches.rglob("*") if path.is_file())
    assert names == sorted(p.relative_to(tmp_path / "back") for p in (tmp_path / "back").rglob("*") if p.is_file())
    assert all((tmp_path / "back" / name).read_bytes() == (caches / name).read_bytes() for name in names)
    assert all((tmp_path / "back" / name).stat().st_mode & 0o777 == 0o600 for name in names)


def test_equal_folders_give_equal_bytes(caches):
    """The checksum tells content apart, not the time of the export."""
    first = pack(caches)
    os.utime(caches / "key.json", (0, 0))
    assert pack(caches) == first


@pytest.mark.parametrize("name", ["../best.cache", "/etc/passwd", "sub/best.cache", "..", ".", ""])
def test_a_path_is_no_file_name(shipped, name):
    """The YAML cannot name a file outside of its own folder."""
    home, file = shipped
    with pytest.raises(InputError):
        read_verified(home / "sub", file.model_copy(update={"file": name}))


def test_more_than_an_artifact_may_have(shipped, monkeypatch):
    """A file that would fill the memory is not even opened, and one that would fill the disk not unpacked."""
    home, file = shipped
    content = read_verified(home, file)
    with pytest.raises(InputError, match="more than an artifact may have"):
        read_verified(home, file.model_copy(update={"num_bytes": artifacts.MAX_BYTES + 1}))
    monkeypatch.setattr(artifacts, "MAX_BYTES", 300)
    with pytest.raises(InputError, match="unpacks to more than 300 bytes"):
        unpack(content, home / "back")


HOSTILE = {
    "leaves the folder": (tar_of(entry("../outside")), "outside"),
    "an absolute path": (tar_of(entry("/outside")), None),
    "a link": (tar_of(entry("inside", tarfile.SYMTYPE, "/etc/passwd")), "no plain file"),
    "a hard link": (tar_of(entry("inside", tarfile.LNKTYPE, "/etc/passwd")), "no plain file"),
    "a device": (tar_of(entry("inside", tarfile.CHRTYPE)), "no plain file"),
    "no tar file": (b"not at all", "cannot be unpacked"),
    "a broken stream": (tar_of(entry("inside"))[:30], "cannot be unpacked"),
    "no tar in the stream": (gzip.compress(b"not at all"), "cannot be unpacked"),
}


@pytest.mark.parametrize("content", HOSTILE)
def test_nothing_is_unpacked_outside_of_the_folder(tmp_path, content):
    """An archive that somebody made by hand: a sentence, or a file inside of the folder; never one outside."""
    archive, words = HOSTILE[content]
    inside = tmp_path / "a" / "b"
    if words is None:
        unpack(archive, inside)
        assert (inside / "outside").exists()
    else:
        with pytest.raises(InputError, match=words):
            unpack(archive, inside)
    assert not (tmp_path / "a" / "outside").exists()
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


DIFFERENCES = [
    ({"framework_version": "2.14.0"}, "it was made for framework version 2.13.0, here 2.14.0"),
    ({"tools": {"C++ compiler": "g++ 13.1"}}, r"C\+\+ compiler g\+\+ 12.2, here g\+\+ 13.1"),
    ({"tools": {}}, r"C\+\+ compiler g\+\+ 12.2, here none"),
    ({"variables": {"OMP_NUM_THREADS": "4"}}, "threads 2, here 4"),
    ({"variables": {"CXX": "g++"}, "num_cores": 1}, "threads 2, here 1"),
    ({"cpu_flags_sha256": "00" * 32}, "cpu flags sha256"),
    ({"processor": "x", "config": "x", "python": "3.12.0", "device": "gpu"}, "; and 1 more"),
]


@pytest.mark.parametrize(("change", "words"), DIFFERENCES)
def test_another_key(change, words):
    """What differs is named, with both values; of many differences the first ones."""
    assert re.search(words, str(why_unfit(KEY, KEY.model_copy(update=change), shapes_matter=True)))


def test_threads_count_and_not_what_says_how_many_there_are():
    """One core, and one thread on several, run the same code."""
    pinned = KEY.model_copy(update={"num_cores": 1, "variables": {}})
    one_of_four = KEY.model_copy(update={"num_cores": 4, "variables": {"OMP_NUM_THREADS": "1"}})
    assert why_unfit(pinned, one_of_four, shapes_matter=True) is None
    assert why_unfit(one_of_four, pinned, shapes_matter=True) is None


def test_shapes_matter_where_the_framework_does_not_look():
    """For the others a first call with another shape just compiles."""
    other = KEY.model_copy(update={"inputs": (TensorSpec(shape=(8, 3, 224, 224), dtype="float32"),)})
    assert why_unfit(KEY, other, shapes_matter=False) is None
    assert "float32[1, 3, 224, 224], here float32[8, 3, 224, 224]" in str(why_unfit(KEY, other, shapes_matter=True))
    assert why_unfit(KEY, KEY, shapes_matter=True) is None


def test_every_part_of_a_key_counts():
    """No part can differ unseen: each field changes the digest, and is told."""
    key = KEY.model_copy(update={"variables": {}})
    for name, value in key:
        other = {"tools": {"x": "1"}, "variables": {"x": "1"}, "inputs": ()}.get(
            name, 7 if name == "num_cores" else "x"
        )
        changed = key.model_copy(update={name: other})
        assert value != other
        assert changed.sha256 != key.sha256
        assert why_unfit(key, changed, shapes_matter=True) is not None


def test_variables_of_the_compilers(monkeypatch):
    """Those that may change what is compiled belong to the key; where caches lie does not."""
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("HOME", "/somewhere")
    found = compiler_variables(left_out={"TORCHINDUCTOR_CACHE_DIR"})
    assert found["TORCHINDUCTOR_FREEZING"] == "1"
    assert not {"TORCHINDUCTOR_CACHE_DIR", "HOME"} & found.keys()
