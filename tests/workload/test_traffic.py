"""Traffic as it is written and as it is replayed: what is understood, what is refused and how, and the stream."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from autotune.errors import InputError
from autotune.workload.traffic import MAX_SHAPES, Load, Traffic, parse_shapes, read_traffic


def shares_of(traffic: Traffic, dimension: str) -> dict[int, float]:
    return {size: round(share, 9) for size, share in traffic.sizes_of(dimension).items()}


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("batch=1:60%,4:30%,8:10%", {1: 0.6, 4: 0.3, 8: 0.1}),
        (" batch = 8:12.5 %, 1 : 87.5% ", {1: 0.875, 8: 0.125}),
        ("batch=1,4", {1: 0.5, 4: 0.5}),
        ("batch=3", {3: 1.0}),
        ("batch=2..5", dict.fromkeys((2, 3, 4, 5), 0.25)),
        ("batch=1,3..5", dict.fromkeys((1, 3, 4, 5), 0.25)),
        ("batch=1:50%,3..4:50%", {1: 0.5, 3: 0.25, 4: 0.25}),
    ],
)
def test_sizes_of_one_dimension(text: str, shares: dict[int, float]) -> None:
    """Sizes and ranges with shares, or all of them equally likely; a range's share is that of all in it."""
    assert shares_of(parse_shapes([text]), "batch") == shares


@pytest.mark.parametrize("texts", [["batch=1:75%,4:25%; seq=16,32"], ["batch=1:75%,4:25%", "seq=16,32"]])
def test_several_dimensions_are_independent(texts: list[str]) -> None:
    """Separated by a semicolon or given one by one: every combination, with the product of the shares."""
    loads = {tuple(each.sizes.items()): each.share for each in parse_shapes(texts).loads}
    assert loads == {
        (("batch", 1), ("seq", 16)): 0.375,
        (("batch", 1), ("seq", 32)): 0.375,
        (("batch", 4), ("seq", 16)): 0.125,
        (("batch", 4), ("seq", 32)): 0.125,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no shape is given"),
        ("16..128", "not understood"),
        ("two words=1", "not understood"),
        ("batch=", "'' is not a size"),
        ("batch=1.5", "'1.5' is not a size"),
        ("batch=1:60", "'1:60' is not a size"),
        ("batch=0", "0 is empty"),
        ("batch=5..2", "5..2 is empty"),
        ("batch=1:0%,2:100%", "is empty"),
        ("batch=1,2,1", "size 1 is given twice"),
        ("batch=1..4,3", "size 3 is given twice"),
        ("batch=1:60%,2", "some have none"),
        ("batch=1:60%,2:30%", "add up to 90 %"),
        ("batch=1; batch=2", "batch is given twice"),
        (f"batch=1..{MAX_SHAPES + 1}", "more than 10,000 shapes"),
        ("batch=1..200; seq=1..51", "more than 10,000 shapes"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_sentence(text: str, words: str) -> None:
    """A mistake is named together with the option it stands in."""
    with pytest.raises(InputError, match=r"^shapes") as caught:
        parse_shapes([text])
    assert words in str(caught.value)


def test_a_servers_log(tmp_path: Path) -> None:
    """A line is a shape with its count, 1 if left out; the same shape may come again, keys in any order."""
    log = tmp_path / "log.jsonl"
    log.write_text('{"batch": 4, "seq": 17, "count": 6}\n\n{"seq": 9, "batch": 1}\n{"seq": 17, "batch": 4}\n')
    assert read_traffic(log) == Traffic(
        loads=(Load(sizes={"batch": 1, "seq": 9}, share=1 / 8), Load(sizes={"batch": 4, "seq": 17}, share=7 / 8))
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("batch=4", "no JSON object with a shape"),
        ("[4]", "no JSON object with a shape"),
        ('{"count": 3}', "no JSON object with a shape"),
        ('{"batch": 0}', "batch is 0 and not a whole number above 0"),
        ('{"batch": 1.5}', "batch is 1.5 and not"),
        ('{"batch": true}', "batch is true and not"),
        ('{"batch": 1, "count": "many"}', 'count is "many" and not'),
        ('{"seq": 1}', "it names seq, the lines before batch"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: str, words: str) -> None:
    """One sentence says where and what."""
    log = tmp_path / "log.jsonl"
    log.write_text(f'{{"batch": 4}}\n{line}\n')
    with pytest.raises(InputError) as caught:
        read_traffic(log)
    assert str(caught.value).startswith(f"traffic={str(log)!r}, line 2: ")
    assert words in str(caught.value)


def test_a_log_that_is_missing_empty_or_no_text(tmp_path: Path) -> None:
    """Each is a sentence with the path."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, words in {"missing": "No such file", "empty": "holds no shape", "binary": "not UTF-8 text"}.items():
        with pytest.raises(InputError, match=words):
            read_traffic(tmp_path / name)


def test_a_stream_has_each_shape_by_its_share() -> None:
    """Counts are the exact ones rounded up or down; the order is the seed's. Of more shapes than there are calls, those
    that are called lie at equal distances from end to end."""
    traffic = parse_shapes(["batch=1:60%,4:30%,8:10%"])
    stream = traffic.stream(64, seed=3)
    counts = Counter(traffic.loads[index].sizes["batch"] for index in stream)
    assert {size: abs(counts[size] - 64 * share) < 1 for size, share in traffic.sizes_of("batch").items()} == {
        1: True, 4: True, 8: True,
    }  # fmt: skip
    assert stream == traffic.stream(64, seed=3)
    assert stream != traffic.stream(64, seed=4)
    assert sorted(stream) == sorted(traffic.stream(64, seed=4))
    many = parse_shapes(["seq=1..100"])
    sizes = sorted(many.loads[index].sizes["seq"] for index in many.stream(10, seed=0))
    assert {after - before for before, after in itertools.pairwise(sizes)} <= {9, 10, 11}


def test_logs_that_the_same_words_describe_are_different_traffic(tmp_path: Path) -> None:
    """A study of one is not gone on with under the other: the words for many sizes leave their shares out."""

    def logged(*counts: int) -> Traffic:
        lines = [json.dumps({"seq": size, "count": count}) for size, count in enumerate(counts, start=1)]
        (tmp_path / "log.jsonl").write_text("\n".join(lines))
        return read_traffic(tmp_path / "log.jsonl")

    one, other = logged(9, 1, 1, 1, 1, 1, 1, 1), logged(1, 9, 1, 1, 1, 1, 1, 1)
    assert str(one) == str(other)
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == logged(9, 1, 1, 1, 1, 1, 1, 1).fingerprint


def test_a_command_line_that_asks_for_it() -> None:
    """Its own words, which a report prints, where they say all of it; else it takes a file: sizes too many to name, or
    that go together."""
    for text in ("batch=1:60%,4:30%,8:10%", "seq=16..128", "batch=1,4; seq=16..18"):
        traffic = parse_shapes([text])
        assert (str(traffic), traffic.asked) == (text, {"shapes": text})
    many = parse_shapes(["seq=2,4,8,16,32,64,128"])
    assert (str(many), many.asked) == ("seq=7 sizes from 2 to 128", {"traffic": "FILE"})
    together = Traffic(loads=tuple(Load(sizes={"a": size, "b": size}, share=0.5) for size in (1, 2)))
    assert together.asked == {"traffic": "FILE"}


def test_traffic_holds_together() -> None:
    """Shapes with other dimensions, or shares that do not add up, are no traffic; JSON gives back the same."""
    traffic = parse_shapes(["batch=1:60%,4:40%"])
    assert Traffic.model_validate(json.loads(traffic.model_dump_json())) == traffic
    assert traffic.largest == {"batch": 4}
    with pytest.raises(ValidationError, match="same dimensions"):
        Traffic(loads=(Load(sizes={"a": 1}, share=0.5), Load(sizes={"b": 1}, share=0.5)))
    with pytest.raises(ValidationError, match="add up to 1"):
        Traffic(loads=(Load(sizes={"a": 1}, share=0.5),))
