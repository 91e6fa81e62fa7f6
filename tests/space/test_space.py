"""`SearchSpace`: exactly the configs that the file means, and a sentence with file and key where it means none."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from autotune.backends.registry import entry_of
from autotune.config import Config
from autotune.errors import InputError
from autotune.files import read_yaml
from autotune.space.load import Circumstances, load_space
from autotune.space.schema import Need, Start
from autotune.space.space import SearchSpace
from autotune.workload.workload import Device, Task
from tests.conftest import REPOSITORY

Entry = dict[str, Any]
Load = Callable[..., SearchSpace]

BUNDLED = sorted((REPOSITORY / "search_spaces").glob("*.yaml"))
DEVICES: tuple[Device, ...] = get_args(Device)


def knob(*values: Any, **more: Any) -> Entry:
    first = values[0]["value"] if isinstance(values[0], dict) else values[0]
    return {"doc": "https://example.org/x", "values": list(values), "default": first, **more}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a space file with these knobs and load it. JSON is YAML too, and says exactly what is meant."""

    def make(
        knobs: dict[str, Entry],
        forbid: list[Entry] | None = None,
        *,
        version: str = "2.0",
        device: str = "cpu",
        here: Entry | None = None,
        **top: Any,
    ) -> SearchSpace:
        content = {"schema": 1, "framework": "fake", "knobs": knobs, "forbid": forbid or [], **top}
        path = tmp_path / "space.yaml"
        path.write_text(json.dumps(content, indent=1))
        circumstances = Circumstances(version=version, device=device, **(here or {}))  # type: ignore[arg-type]
        return load_space(path, framework="fake", circumstances=circumstances)

    return make


def roots(space: SearchSpace) -> list[Entry]:
    return [config.root for config in space.configs()]


# The bundled files


def versions_of(framework: str) -> list[str]:
    """The oldest release that is supported, one in between, a recent build, one of the future."""
    return [entry_of(framework).oldest, "2.8.0", "2.13.0+cpu", "4.0"]


def spaces_of(path: Path) -> dict[tuple[str, str], SearchSpace]:
    return {
        (version, device): load_space(
            path, framework=path.stem, circumstances=Circumstances(version=version, device=device)
        )
        for version in versions_of(path.stem)
        for device in DEVICES
    }


def test_there_are_bundled_spaces() -> None:
    """PyTorch's space file is where this test and the tool look for it."""
    assert "torch.yaml" in [path.name for path in BUNDLED]


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_a_bundled_space_holds_for_every_release_and_device(path: Path) -> None:
    """Each loads everywhere, starts with untuned and default, has two configs at least, and none twice."""
    for place, space in spaces_of(path).items():
        configs = list(itertools.islice(space.configs(), 5001))
        assert configs[:2] == [space.untuned(), space.default()], place
        assert space.untuned() != space.default(), place
        assert len(set(configs)) == len(configs) <= 5000, place


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_a_bundled_space_enumerates_what_its_own_rules_allow(path: Path) -> None:
    """In each config the active knobs are exactly those whose condition holds, with values on offer, none forbidden."""
    for place, space in spaces_of(path).items():
        for config in space.configs():
            active = [knob for knob in space.knobs if config.matches(knob.when)]
            assert list(config.knobs()) == [knob.name for knob in active], place
            assert all(config[knob.name] in knob.values for knob in active), place
            assert not any(config.matches(pattern) for pattern, _ in space.forbid), place


@pytest.mark.slow
@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_every_bundled_value_comes_up_somewhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No knob or value of a bundled file is dead: some allowed config has it, for some release, device and task."""
    generator = random.Random(0)
    seen: set[tuple[str, str]] = set()
    shapes = frozenset[Need]({"traffic", "padding"})
    for version, device, task in itertools.product(versions_of(path.stem), DEVICES, get_args(Task)):
        of_packages = {"zentorch": f"{version}.1"}  # It names the release of torch that it was built for.
        monkeypatch.setattr("autotune.space.load.package_version", lambda name, of=of_packages: of.get(name, "9999"))
        here = Circumstances(
            version=version, device=device, task=task, preset="exhaustive", num_cores=1024, process_settings=True,
            python="3.11.7", starts=frozenset(get_args(Start)),
        )  # fmt: skip
        spaces = [
            load_space(path, framework=path.stem, circumstances=replace(here, known=known))
            for known in (frozenset(get_args(Need)) - shapes, shapes)
        ]
        # The deep space is too large to enumerate.
        drawn = [space.walk(lambda _, values: generator.choice(values)) for _ in range(1000) for space in spaces]
        allowed = [config for config in drawn if all(space.forbidden(config) is None for space in spaces)]
        allowed += [config for space in spaces for config in (space.untuned(), space.default())]
        seen |= {(name, json.dumps(value)) for config in allowed for name, value in config.root.items()}
    for name, entry in read_yaml(path)["knobs"].items():
        for value in entry["values"]:
            if isinstance(value, dict) and "registered" in value:
                continue  # What packages register here.
            plain = value["value"] if isinstance(value, dict) else value
            assert (name, json.dumps(plain)) in seen, (name, plain)


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_every_bundled_restriction_says_why(path: Path) -> None:
    """Each knob says what it is about, and each value that only some releases or devices take says why."""
    for name, entry in read_yaml(path)["knobs"].items():
        assert entry["about"], name
        assert all(value["because"] for value in entry["values"] if isinstance(value, dict)), name


# Enumeration


def test_order_of_enumeration(load: Load) -> None:
    """The untuned and the default come first, once if they are one, then the file's order, the last knob fastest."""
    assert roots(load({"a": knob(1, 2)})) == [{"a": 1}, {"a": 2}]
    space = load({"a": knob(1, 2, untuned=2), "b": knob("x", "y", default="y")})
    assert roots(space) == [
        {"a": 2, "b": "y"},
        {"a": 1, "b": "y"},
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x"},
    ]


def test_untuned_is_the_default_where_nothing_else_is_said(load: Load) -> None:
    """A knob without `untuned` has its default in the untuned model; null is a value that can be said."""
    space = load({"a": knob(1, None, 2, untuned=None), "b": knob(3, 4, default=4)})
    assert space.untuned() == Config({"a": None, "b": 4})
    assert space.default() == Config({"a": 1, "b": 4})


def test_a_knob_is_part_of_a_config_only_while_its_condition_holds(load: Load) -> None:
    """Configs hold active knobs only, through chains of conditions too, so none is listed twice."""
    space = load(
        {
            "execution": knob("eager", "compile", untuned="eager", default="compile"),
            "backend": knob("inductor", "aot", when={"execution": "compile"}),
            "mode": knob(0, 1, when={"backend": ["inductor", "aot"], "execution": "compile"}),
            "deep": knob(True, False, when={"mode": 1}),
        }
    )
    found = roots(space)
    assert found[0] == {"execution": "eager"}
    assert found[1] == {"execution": "compile", "backend": "inductor", "mode": 0}
    assert {"execution": "compile", "backend": "aot", "mode": 1, "deep": False} in found
    assert len(found) == 1 + 2 * (1 + 2)
    assert Counter(json.dumps(each) for each in found).most_common(1)[0][1] == 1


@pytest.mark.parametrize("values", [(1, True), (False, 0), (1, 1.0)], ids=str)
def test_values_that_python_takes_for_equal_are_refused(load: Load, values: tuple[Any, ...]) -> None:
    """1, 1.0 and true beside each other are refused: the search engine cannot tell them apart."""
    with pytest.raises(InputError, match=r"space\.yaml: key knobs\.level\.values"):
        load({"level": knob(*values)})


def test_forbidden_combinations_are_left_out_with_their_reason(load: Load) -> None:
    """A rule removes each config that fits it, lists meaning any of, and tells why; others are not touched."""
    space = load(
        {"a": knob(1, 2, 3), "b": knob("x", "y")},
        forbid=[{"if": {"a": [2, 3], "b": "y"}, "because": "they clash"}],
    )
    assert roots(space) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 3, "b": "x"}]
    assert space.forbidden(Config({"a": 3, "b": "y"})) == "they clash"
    assert space.forbidden(Config({"a": 1, "b": "y"})) is None
    assert space.size(100) == 4
    inactive = {"a": knob("off", "on"), "b": knob(1, 2, when={"a": "on"})}
    space = load(inactive, forbid=[{"if": {"b": 2}, "because": "a combination needs all its knobs to be active"}])
    assert roots(space) == [{"a": "off"}, {"a": "on", "b": 1}]


def test_a_rule_may_hold_on_some_devices_only(load: Load) -> None:
    """On any other device the combination is tried."""
    rule = {"if": {"a": 2}, "devices": ["cpu"], "because": "a CPU gains nothing"}
    assert [len(roots(load({"a": knob(1, 2)}, forbid=[rule], device=device))) for device in ("cpu", "gpu")] == [1, 2]


CONDITIONS: list[tuple[Entry, Entry, Entry]] = [
    ({"preset": "standard"}, {"preset": "exhaustive"}, {"preset": "quick"}),
    ({"cores": 4}, {"num_cores": 4}, {"num_cores": 3}),
    ({"error": 2e-3}, {"tolerance": 2e-3}, {"tolerance": 1e-3}),
    ({"error": 1e-6}, {"tolerance": 1e-3}, {"tolerance": 0.0}),
    ({"needs": ["traffic", "padding"]}, {"known": {"traffic", "padding"}}, {"known": {"traffic"}}),
    ({"needs": ["one shape"]}, {}, {"known": {"traffic"}}),
    ({"packages": ["pytest"]}, {}, {}),
    ({"packages": ["pytest", "no-such-package-anywhere"]}, {}, {}),
]


@pytest.mark.parametrize(("condition", "enough", "less"), CONDITIONS)
def test_a_value_and_a_knob_are_on_offer_where_their_conditions_hold(
    load: Load, condition: Entry, enough: Entry, less: Entry
) -> None:
    """Depth of the search, cores, tolerated error and installed packages, for one value as for a whole knob."""
    missing = "no-such-package-anywhere" in condition.get("packages", [])
    for here, offered in ((enough, not missing), (less, not less and not missing)):
        space = load({"a": knob(1, {"value": 2, **condition}), "b": knob(1, 2, **condition)}, here=here)
        assert [each.name for each in space.knobs] == (["a", "b"] if offered else ["a"])
        assert space.knobs[0].values == ((1, 2) if offered else (1,))


NEEDS: list[tuple[Entry, str, Entry, bool]] = [
    ({"packages": ["numpy"]}, "cpu", {}, True),
    ({"packages": ["numpy>=1"]}, "cpu", {}, True),
    ({"packages": ["numpy>=99"]}, "cpu", {}, False),
    ({"packages": {"cpu": ["there-is-no-such-package"]}}, "cpu", {}, False),
    ({"packages": {"cpu": ["there-is-no-such-package"]}}, "ascend", {}, True),
    ({"python": "<3.12"}, "cpu", {"python": "3.11.7"}, True),
    ({"python": "<3.12"}, "cpu", {"python": "3.12.0"}, False),
]


@pytest.mark.parametrize(("needs", "device", "here", "is_offered"), NEEDS, ids=str)
def test_what_a_value_needs(load: Load, needs: Entry, device: str, here: Entry, is_offered: bool) -> None:
    """A distribution in a range, everywhere or on some devices; a Python, where a framework reads its bytecode."""
    value = {"value": 2, "because": "x", **needs}
    space = load({"a": {**knob(1), "values": [1, value]}}, device=device, here=here)
    assert space.knobs[0].values == ((1, 2) if is_offered else (1,))


def test_a_huge_space_is_listed_lazily(load: Load) -> None:
    """A space of 10^20 configs gives its first ones at once and is counted up to the limit only."""
    space = load({f"k{number}": knob(*range(10)) for number in range(20)})
    assert len(list(itertools.islice(space.configs(), 5))) == 5
    assert space.size(100) == 100


def test_a_walk_asks_for_active_knobs_in_order(load: Load) -> None:
    """A sampler is asked for each active knob once, in the file's order, with the values on offer."""
    space = load({"a": knob(1, 2), "b": knob(3, 4, when={"a": 2}), "c": knob(5, 6, when={"b": 4})})
    asked: list[tuple[str, tuple[Any, ...]]] = []

    def last(name: str, values: tuple[Any, ...]) -> Any:
        asked.append((name, values))
        return values[-1]

    assert space.walk(last) == Config({"a": 2, "b": 4, "c": 6})
    assert asked == [("a", (1, 2)), ("b", (3, 4)), ("c", (5, 6))]
    asked.clear()
    assert space.walk(lambda name, values: (asked.append((name, values)), values[0])[1]) == Config({"a": 1})
    assert asked == [("a", (1, 2))]


def test_changes_are_counted_from_the_untuned_model_or_from_the_default(load: Load) -> None:
    """The simpler of two equals has fewer knobs that differ from the nearer of the two; and of equally many, what is
    nearer to the untuned model."""
    space = load({"a": knob(1, 2, untuned=2), "b": knob(1, 2, when={"a": 1}), "c": knob(1, 2, 3)})
    assert space.simplicity(space.default()) == (0, True)
    assert space.simplicity(space.untuned()) == (0, False)
    assert space.simplicity(Config({"a": 1, "b": 2, "c": 1})) == (1, True)
    assert space.simplicity(Config({"a": 1, "b": 2, "c": 2})) == (2, True)
    assert space.simplicity(Config({"a": 2, "c": 2})) == (1, False) < space.simplicity(Config({"a": 1, "b": 1, "c": 2}))


# Filters by release and device


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.5", ["old"]),
        ("2.6", ["old", "new"]),
        ("2.6.0+cpu", ["old", "new"]),
        ("2.6.0a0+git1234", ["old"]),
        ("2.9.1", ["old", "new"]),
        ("2.10", ["new"]),
        ("2.11.0.dev20260101", ["new"]),
        ("3.0", []),
    ],
)
def test_values_are_offered_by_release(load: Load, version: str, expected: list[str]) -> None:
    """A version range is compared by number, not by text, with local and development builds included."""
    space = load(
        {
            "a": knob(0),
            "b": knob({"value": "old", "versions": "<2.10"}, {"value": "new", "versions": ">=2.6,<3"}),
        },
        version=version,
    )
    offered = {knob.name: list(knob.values) for knob in space.knobs}
    assert offered.get("b", []) == expected


@pytest.mark.parametrize(("device", "expected"), [("cpu", [1]), ("gpu", [1, 2, 3]), ("ascend", [1, 3])])
def test_values_are_offered_by_device(load: Load, device: str, expected: list[int]) -> None:
    """A value that only some devices take is offered there only; without a word it is offered everywhere."""
    values = [1, {"value": 2, "devices": ["gpu"]}, {"value": 3, "devices": ["gpu", "ascend"], "because": "x"}]
    space = load({"a": knob(*values)}, device=device)
    assert list(space.knobs[0].values) == expected


@pytest.mark.parametrize("restriction", [{"versions": ">=3"}, {"devices": ["gpu", "ascend"]}])
def test_a_whole_knob_can_be_left_out(load: Load, restriction: Entry) -> None:
    """A knob that this release or device lacks is gone, and so are the knobs that depend on it."""
    space = load({"a": knob(1, 2), "b": knob(3, **restriction), "c": knob(5, when={"b": 3})})
    assert roots(space) == [{"a": 1}, {"a": 2}]


def test_a_default_that_is_not_offered_gives_way_to_the_first_value(load: Load) -> None:
    """Where the default does not exist, the first value on offer takes its place."""
    restricted = knob({"value": "x", "devices": ["gpu"]}, "y", "z", default="x")
    assert load({"a": restricted}, device="cpu").default() == Config({"a": "y"})
    assert load({"a": restricted}, device="gpu").default() == Config({"a": "x"})


def test_an_untuned_value_that_is_not_offered_is_refused(load: Load) -> None:
    """Nothing else may stand for the untuned model: every comparison would rest on it."""
    restricted = knob({"value": "x", "devices": ["gpu"]}, "y", default="y", untuned="x")
    with pytest.raises(InputError, match=r"key knobs\.a\.untuned: 'x' is not offered for .* on cpu"):
        load({"a": restricted}, device="cpu")
    assert load({"a": restricted}, device="gpu").untuned() == Config({"a": "x"})


RECIPE: Entry = {"about": "x", "source": "https://example.org/", "settings": {"a": 2, "b": "deep", "d": 1}}
RECIPES = {
    "a": knob(1, 2, 3),
    "b": knob("plain", "usual", {"value": "deep", "preset": "exhaustive"}, when={"a": [1, 2]}),
    "d": knob(0, 1, preset="exhaustive"),
}


@pytest.mark.parametrize(
    ("more", "here", "deep"),
    [
        ({}, {}, {(2, "deep", 1)}),
        ({"devices": ["gpu"]}, {}, set()),
        ({"preset": "standard"}, {"preset": "quick"}, set()),
        ({"needs": ["few rows"]}, {"known": {"many rows"}}, set()),
        ({}, {"preset": "exhaustive"}, {(a, "deep", d) for a in (1, 2) for d in (0, 1)}),
    ],
    ids=["offered", "another device", "not so deep", "another load", "deep enough without it"],
)
def test_what_a_preset_leaves_out_is_tried_in_a_recipe_as_a_whole(
    load: Load, more: Entry, here: Entry, deep: set[tuple[Any, ...]]
) -> None:
    """A recipe adds its own config to the space, and no other; where it does not hold the space is as without it."""
    space = load(RECIPES, recipes={"load": {**RECIPE, **more}}, here=here)
    found = {(config["a"], config.get("b"), config.get("d")) for config in space.configs()}
    assert {config for config in found if config[1] == "deep"} == deep
    if not space.recipes:
        assert space == load(RECIPES, here=here)
    elif here.get("preset") != "exhaustive":
        assert {config for config in found if config[2] == 1} == deep
        assert len(found) == len(roots(load(RECIPES, here=here))) + 1


def test_a_value_of_two_recipes_is_tried_in_either(load: Load) -> None:
    """And in nothing that is neither."""
    other = {**RECIPE, "settings": {"a": 1, "d": 1}}
    space = load(RECIPES, recipes={"one": RECIPE, "other": other})
    found = {(config["a"], config.get("b")) for config in space.configs() if config.get("d") == 1}
    assert found == {(2, "deep"), (1, "plain"), (1, "usual")}


# Mistakes in the file


@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ({"defualt": 1}, "knobs.b.defualt", "unknown key"),
        ({"default": 4}, "knobs.b.default", "4 is not one of the values"),
        ({"untuned": "1"}, "knobs.b.untuned", "'1' is not one of the values"),
        ({"values": [1, 2, 1]}, "knobs.b.values", "given twice"),
        ({"values": [1, {"value": 1, "versions": ">=3"}]}, "knobs.b.values", "given twice"),
        ({"values": []}, "knobs.b.values", "at least 1"),
        ({"values": [1, [2]]}, "knobs.b.values.1", ""),
        ({"values": [1, {"value": 2, "version": ">=3"}]}, "knobs.b.values.1.ValueEntry.version", "unknown key"),
        ({"values": [1, {"value": 2, "versions": "from 3 on"}]}, "knobs.b.values.1", "not a version range"),
        ({"values": [1, {"value": 2, "devices": ["tpu"]}]}, "knobs.b.values.1", "'cpu', 'gpu' or 'ascend'"),
        ({"versions": "2.6+"}, "knobs.b.versions", "'2.6+' is not a version range such as '>=2.6,<3'"),
        ({"devices": ["cuda"]}, "knobs.b.devices.0", "'cpu', 'gpu' or 'ascend'"),
        ({"doc": "see the manual"}, "knobs.b.doc", "URL"),
        ({"when": {"nobody": 1}}, "knobs.b.when", "'nobody' is not an earlier knob"),
        ({"when": {"b": 1}}, "knobs.b.when", "'b' is not an earlier knob"),
        ({"when": {"a": 3}}, "knobs.b.when.a", "3 is not one of its values"),
        ({"when": {"a": {"x": 1}}}, "knobs.b.when.a", ""),
    ],
    ids=str,
)
def test_a_mistake_in_a_knob(load: Load, tmp_path: Path, entry: Entry, key: str, message: str) -> None:
    """A knob that cannot be meant is refused; the sentence names the file, the full key and what is wrong."""
    with pytest.raises(InputError) as caught:
        load({"a": knob(1, 2), "b": {**knob(1, 2), **entry}, "c": knob(1)})
    assert str(caught.value).startswith(f"{tmp_path / 'space.yaml'}: key {key}")
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["doc", "values", "default"])
def test_what_a_knob_must_have(load: Load, key: str) -> None:
    """A knob without documentation link, values or default is refused by name of what is missing."""
    entry = knob(1, 2)
    del entry[key]
    with pytest.raises(InputError, match=rf"space\.yaml: key knobs\.a\.{key}: is missing"):
        load({"a": entry})


@pytest.mark.parametrize(
    ("rule", "key", "message"),
    [
        ({"if": {"c": 1}, "because": "x"}, "forbid.1.if", "'c' is not a knob"),
        ({"if": {"a": 3}, "because": "x"}, "forbid.1.if.a", "3 is not one of its values"),
        ({"if": {"a": [1, True]}, "because": "x"}, "forbid.1.if.a", "True is not one of its values"),
        ({"if": {}, "because": "x"}, "forbid.1.if", "at least 1"),
        ({"if": {"a": 2}, "because": ""}, "forbid.1.because", "at least 1"),
        ({"if": {"a": 2}}, "forbid.1.because", "is missing"),
        ({"because": "x"}, "forbid.1.if", "is missing"),
        ({"if": {"a": 2}, "because": "x", "unless": {}}, "forbid.1.unless", "unknown key"),
    ],
    ids=str,
)
def test_a_mistake_in_a_rule(load: Load, tmp_path: Path, rule: Entry, key: str, message: str) -> None:
    """A rule on unknown knobs or values, on nothing, or without a reason is refused by file and key."""
    with pytest.raises(InputError) as caught:
        load({"a": knob(1, 2)}, forbid=[{"if": {"a": 2}, "because": "fine"}, rule])
    assert str(caught.value).startswith(f"{tmp_path / 'space.yaml'}: key {key}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("top", "key", "message"),
    [
        ({"recipes": {"r": {**RECIPE, "settings": {"c": 1}}}}, "recipes.r.settings", "'c' is not a knob"),
        ({"recipes": {"r": {**RECIPE, "settings": {"a": 9}}}}, "recipes.r.settings.a", "9 is not one of its values"),
        ({"schema": 2}, "schema", "1"),
        ({"framework": "torch"}, "framework", "'torch', but the study uses 'fake'"),
        ({"constraints": []}, "constraints", "unknown key"),
        ({"knobs": {}}, "knobs", "at least 1"),
    ],
    ids=str,
)
def test_a_mistake_at_the_top(load: Load, tmp_path: Path, top: Entry, key: str, message: str) -> None:
    """Another schema, another framework, an unknown key and a space without knobs are refused by file and key."""
    with pytest.raises(InputError) as caught:
        load(**{"knobs": {"a": knob(1)}, **top})
    assert str(caught.value).startswith(f"{tmp_path / 'space.yaml'}: key {key}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [1, 2], ids=["default", "untuned"])
def test_the_two_configs_that_every_study_needs_are_never_forbidden(load: Load, value: int) -> None:
    """A rule that would remove the untuned model or the default compile is refused, with its reason quoted."""
    with pytest.raises(InputError, match=rf"key forbid: rules out a={value}, .*\(no good\)"):
        load({"a": knob(1, 2, 3, untuned=2)}, forbid=[{"if": {"a": value}, "because": "no good"}])


@pytest.mark.parametrize("spelling", [".inf", "-.inf", ".nan"])
def test_a_value_is_finite(tmp_path: Path, spelling: str) -> None:
    """Infinity and NaN have no JSON form: the child would run another config than the study records."""
    path = tmp_path / "space.yaml"
    path.write_text(
        "schema: 1\nframework: fake\nknobs:\n"
        f"  a: {{doc: 'https://example.org/x', values: [1, {spelling}], default: 1}}\n"
    )
    with pytest.raises(InputError, match=r"knobs\.a\.values"):
        load_space(path, framework="fake", circumstances=Circumstances(version="1", device="cpu"))


# The fingerprint, by which a study knows that it is asked the same question


KNOBS: dict[str, Entry] = {
    "a": knob(1, 2, 3),
    "b": knob("x", "y", when={"a": [1, 2]}),
    "c": knob(1, {"value": 2, "devices": ["gpu"]}),
}
RULE: Entry = {"if": {"a": 2, "b": "y"}, "because": "they clash"}


def changed(name: str, **entry: Any) -> dict[str, Entry]:
    return {**KNOBS, name: {**KNOBS[name], **entry}}


@pytest.mark.parametrize(
    ("knobs", "forbid"),
    [
        (changed("a", values=[1, 2, 3, 4]), [RULE]),
        (changed("a", values=[1, 3, 2]), [RULE]),
        (changed("c", values=[True], default=True), [RULE]),
        (changed("a", default=2), [RULE]),
        (changed("a", untuned=2), [RULE]),
        (changed("b", when={"a": 1}), [RULE]),
        (changed("b", when={}), [RULE]),
        ({"d" if name == "c" else name: entry for name, entry in KNOBS.items()}, [RULE]),
        ({name: KNOBS[name] for name in ("a", "c", "b")}, [RULE]),
        ({**KNOBS, "d": knob(1)}, [RULE]),
        (KNOBS, []),
        (KNOBS, [{**RULE, "if": {"a": 3, "b": "y"}}]),
    ],
    ids=["value", "order of values", "type of a value", "default", "untuned", "condition", "no condition", "name",
         "order of knobs", "knob", "no rule", "rule"],
)  # fmt: skip
def test_the_fingerprint_changes_with_the_content(load: Load, knobs: dict[str, Entry], forbid: list[Entry]) -> None:
    """Each change of what is searched, or in which order, changes the fingerprint."""
    assert load(knobs, forbid).fingerprint != load(KNOBS, [RULE]).fingerprint


@pytest.mark.parametrize(
    ("knobs", "top"),
    [
        (changed("a", doc="https://example.org/other"), {}),
        (changed("a", about="in other words"), {}),
        (changed("c", values=[1, {"value": 2, "devices": ["gpu"], "because": "in other words"}]), {}),
        (changed("c", values=[1]), {}),
        (changed("a", versions=">=1"), {}),
        (KNOBS, {"about": "in other words"}),
    ],
    ids=["doc", "about", "because", "not on this device", "holds here anyway", "about the space"],
)
def test_the_fingerprint_stays_with_the_documentation(load: Load, knobs: dict[str, Entry], top: Entry) -> None:
    """Links, words, and what does not concern this release and device change nothing: a study can go on."""
    assert load(knobs, [RULE], **top).fingerprint == load(KNOBS, [RULE]).fingerprint


def test_what_a_space_keeps_is_no_part_of_it(load: Load) -> None:
    """Anchors and fingerprint are made once; a space that has made them is equal to one that has not, is written alike,
    and a copy with other knobs has its own."""
    space, fresh = (load({"mode": knob("a", "b", untuned="b"), "jit": knob(True)}) for _ in range(2))
    assert space.untuned() is space.untuned()
    assert space.default() is space.default()
    fingerprint = space.fingerprint
    assert space == fresh
    assert (repr(space), space.model_dump(), space.model_dump_json()) == (
        repr(fresh), fresh.model_dump(), fresh.model_dump_json(),
    )  # fmt: skip
    fewer = space.model_copy(update={"knobs": space.knobs[:1]})
    assert fewer.untuned() == Config({"mode": "b"})
    assert fewer.default() == Config({"mode": "a"})
    assert fewer.fingerprint != fingerprint


def test_a_space_survives_the_manifest(load: Load) -> None:
    """Read back from a study's JSON, a space is the same: configs, order, types and fingerprint."""
    space = load({**KNOBS, "d": knob(1, False, 1.5, None, "1", default=None)}, [RULE])
    read = SearchSpace.model_validate_json(space.model_dump_json())
    assert read == space
    assert read.fingerprint == space.fingerprint
    assert re.fullmatch("[0-9a-f]{12}", space.fingerprint)
    assert [config.canonical() for config in read.configs()] == [config.canonical() for config in space.configs()]
