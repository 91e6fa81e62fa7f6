"""The shelf of compile caches: only whole ones are used, few are kept, nothing stays."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.tuning.blocks import Contestant
from autotune.tuning.cache_store import CacheStore
from autotune.tuning.field import confirmed_caches, keep_confirmed


@pytest.fixture
def shelf(tmp_path):
    return CacheStore(tmp_path / "caches", max_bytes=250)


def fill(shelf, number, num_bytes=100):
    folder = shelf.place(number)
    (folder / "inductor").mkdir(parents=True)
    (folder / "inductor" / "code").write_bytes(b"x" * num_bytes)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_cache_without_a_marker_is_never_used(shelf, tmp_path):
    """A process that is killed while it compiles leaves half a cache, a framework without caches an empty folder or
    none: nobody takes them for a compile that was paid."""
    fill(shelf, 1)
    shelf.place(2).mkdir(parents=True)
    for number in (2, 3):
        shelf.shelve(number)
    for number in (1, 2, 3):
        assert not shelf.holds(number)
        assert not shelf.copy(number, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()


def test_a_whole_cache_is_copied(shelf, tmp_path):
    """The copy is one's own: what is written into it does not change the original."""
    fill(shelf, 1)
    shelf.shelve(1)
    assert shelf.copy(1, tmp_path / "copy")
    (tmp_path / "copy" / "inductor" / "more").touch()
    assert files(tmp_path / "copy") == ["inductor/code", "inductor/more"]
    assert files(shelf.place(1)) == ["inductor/code"]


def test_a_copy_that_cannot_be_made_leaves_nothing(shelf, tmp_path):
    """No room, no permission: the compile is paid again, from an empty folder."""
    fill(shelf, 1)
    shelf.shelve(1)
    (tmp_path / "file").touch()
    assert not shelf.copy(1, tmp_path / "file" / "copy")


def test_only_the_wanted_are_kept(shelf):
    """Everything else goes, with its marker: also a cache that never became whole."""
    for number in (1, 2, 3):
        fill(shelf, number, 1)
    for number in (1, 2):
        shelf.shelve(number)
    shelf.keep([2])
    assert [shelf.holds(number) for number in (1, 2, 3)] == [False, True, False]
    assert sorted(path.name for path in shelf.place(0).parent.iterdir()) == ["0002", "0002.whole"]


def test_room_is_given_in_the_order_of_worth(shelf):
    """250 bytes are room for two caches of 100: the one of least worth is removed."""
    for number in (1, 2, 3):
        fill(shelf, number)
        shelf.shelve(number)
    shelf.keep([3, 1, 2, 3])
    assert [shelf.holds(number) for number in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize("how", ["end", "error"])
def test_the_shelf_is_empty_before_and_after(shelf, how):
    """An earlier run's caches are not ours to use, and ours are gone when we are, however we go."""
    fill(shelf, 1)
    shelf.shelve(1)

    def use():
        with shelf.open():
            assert not shelf.holds(1)
            fill(shelf, 2)
            shelf.shelve(2)
            assert shelf.holds(2)
            if how == "error":
                raise KeyboardInterrupt

    if how == "error":
        with pytest.raises(KeyboardInterrupt):
            use()
    else:
        use()
    assert not shelf.place(2).parent.exists()


def test_what_a_confirmation_measured_is_kept_for_the_export(tmp_path, make_request):
    """Only of configs whose compiler picks kernels by timing them, and only of the latest confirmation."""
    study = SimpleNamespace(folder=tmp_path / "study", manifest=SimpleNamespace(id="1"))

    def contestant(number, *, picks):
        cache = tmp_path / "confirm" / str(number)
        cache.mkdir(parents=True)
        (cache / "kernel").touch()
        request = make_request({"execution": "compile"}).model_copy(update={"number": number, "cache": str(cache)})
        return Contestant(f"trial-{number:04d}", request, compiles_anew=picks)

    keep_confirmed(study, [contestant(0, picks=False), contestant(3, picks=True)])
    kept = confirmed_caches(study)
    assert [kept.holds(number) for number in (0, 3)] == [False, True]
    assert files(kept.place(3)) == ["kernel"]
    keep_confirmed(study, [contestant(7, picks=True)])
    assert [kept.holds(number) for number in (3, 7)] == [False, True]
    keep_confirmed(study, [contestant(8, picks=False)])
    assert not (study.folder / "confirmed").exists()


def test_a_cache_on_another_host_is_not_kept(tmp_path, make_request):
    """Nothing lies where it should; the export then compiles once more."""
    request = make_request({"execution": "compile"}).model_copy(update={"cache": str(tmp_path / "elsewhere")})
    study = SimpleNamespace(folder=tmp_path / "study", manifest=SimpleNamespace(id="1"))
    keep_confirmed(study, [Contestant("trial-0003", request, compiles_anew=True)])
    assert not confirmed_caches(study).holds(request.number)
