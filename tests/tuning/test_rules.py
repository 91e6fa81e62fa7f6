"""The file of rules: readable, editable, never lost; and what a rule excludes where."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml

from autotune.config import Config
from autotune.errors import InputError, StoreError
from autotune.measure.measurement import Reason
from autotune.space.load import Circumstances, load_space
from autotune.tuning.failure_rules.rules import (
    FILE_NAME,
    Rule,
    RuleEvidence,
    Scope,
    add_rule,
    forget_rules,
    id_of,
    read_rules,
    scope_of,
)
from tests.conftest import REPOSITORY

SCOPE = Scope(
    model="m:f", arguments={"width": 8}, framework="fake", version="0", device="cpu", device_name="a processor"
)


def rule(pattern=None, *, scope=SCOPE, reason="compile_error", knobs=("execution", "behaviour"), **more):
    pattern = {"behaviour": "compile_error"} if pattern is None else pattern
    fields = {
        "id": id_of(pattern, reason, scope, knobs or ()), "pattern": pattern, "reason": reason, "stage": "compile",
        "error": "RuntimeError: no", "scope": scope, "knobs": knobs,
        "evidence": RuleEvidence(study="s", failed=(2, 4), worked=(1,), proof="hybrid", trials_spent=1),
        "created": "2026-01-01T00:00:00+00:00", **more,
    }  # fmt: skip
    return Rule.model_validate(fields)


def test_what_was_written_is_read(tmp_path):
    """Every field survives, null and booleans in a pattern too; a person finds pattern and error in one line each."""
    rules = [
        rule(),
        rule({"dynamic": None, "fullgraph": True, "fusion": 1}, scope=SCOPE.model_copy(update={"study": "x"})),
    ]
    for each in rules:
        add_rule(tmp_path, each)
    assert read_rules(tmp_path) == rules
    text = (tmp_path / FILE_NAME).read_text()
    assert "  pattern: {dynamic: null, fullgraph: true, fusion: 1}\n" in text
    assert "  error: 'RuntimeError: no'\n" in text
    assert text.startswith("# ")


def test_no_file_no_rules(tmp_path):
    """Reading creates nothing, and forgetting neither."""
    assert read_rules(tmp_path) == forget_rules(tmp_path, None) == []
    assert list(tmp_path.iterdir()) == []


def test_a_rule_written_by_hand_is_short(tmp_path):
    """Id, pattern, reason, stage, error and scope will do."""
    (tmp_path / FILE_NAME).write_text(
        "schema: 1\nrules:\n"
        "- {id: mine, pattern: {mode: lite}, reason: crash, stage: run, error: it burns,\n"
        "   scope: {model: 'm:f', framework: fake, version: '0', device: cpu, device_name: x}}\n"
    )
    (read,) = read_rules(tmp_path)
    assert (read.evidence, read.knobs) == (None, None)


def test_the_same_finding_is_one_rule_and_a_wider_one_takes_its_place(tmp_path):
    """Found again it is not written twice; found more general it replaces what it makes superfluous, and no more."""
    narrow, wide = rule({"a": 1, "b": 2}), rule({"a": 1})
    other = rule({"a": 1, "b": 2}, reason="crash")
    elsewhere = rule({"a": 1, "b": 2}, scope=SCOPE.model_copy(update={"version": "1"}))
    for each in (narrow, narrow, other, elsewhere, wide, wide):
        add_rule(tmp_path, each)
    assert read_rules(tmp_path) == [other, elsewhere, wide]


def test_forgetting(tmp_path):
    """One by its id, or all; what is not there is no rule that was forgotten."""
    one, two = rule({"a": 1}), rule({"b": 1})
    add_rule(tmp_path, one)
    add_rule(tmp_path, two)
    assert forget_rules(tmp_path, {one.id}) == [one]
    assert forget_rules(tmp_path, {one.id}) == []
    assert read_rules(tmp_path) == [two]
    assert forget_rules(tmp_path, None) == [two]
    assert read_rules(tmp_path) == []


WHOLE = "{id: a, pattern: {m: 1}, reason: crash, stage: run, error: x, scope: SCOPE}\n"
BROKEN = [
    ("", "is empty"),
    ("- a\n", "holds a list"),
    ("schema: 1\nrules: {", "line"),
    ("schema: 2\nrules: []\n", "key schema"),
    ("schema: 1\nrules: 7\n", "key rules"),
    ("schema: 1\nrules: [7]\n", "key rules.0"),
    ("schema: 1\nrules: [{id: a}]\n", "is missing"),
    ("schema: 1\nrules: []\nmore: 1\n", "unknown key"),
    ("schema: 1\nrules: []\nrules: []\n", "given twice"),
    ("[" * 5000, "not YAML"),
    ("schema: 1\nrules:\n- " + WHOLE.replace("m: 1", ""), "key rules.0.pattern"),
    ("schema: 1\nrules:\n- " + WHOLE.replace("m: 1", "m: on"), "'on'"),
    ("schema: 1\nrules:\n- " + WHOLE.replace("m: 1", "m: [1]"), "key rules.0.pattern.m"),
    ("schema: 1\nrules:\n- " + WHOLE.replace("crash", "bad luck"), "key rules.0.reason"),
    ("schema: 1\nrules:\n" + 2 * ("- " + WHOLE), "two rules have the id 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), BROKEN)
def test_a_broken_file_is_a_sentence_and_stays_as_it_is(tmp_path, content, words):
    """The file is named; nothing is written over what someone edited by hand."""
    path = tmp_path / FILE_NAME
    path.write_text(content.replace("SCOPE", "{model: a, framework: b, version: c, device: cpu, device_name: d}"))
    before = path.read_text()
    for attempt in (read_rules, lambda folder: add_rule(folder, rule()), lambda folder: forget_rules(folder, None)):
        with pytest.raises(InputError, match=FILE_NAME) as caught:
            attempt(tmp_path)
        assert words in str(caught.value)
    assert path.read_text() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    """Permissions are named."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="cannot write"):
        add_rule(tmp_path, rule())


def test_two_processes_lose_nothing(tmp_path):
    """Two studies that learn at the same time: every rule of both is in the file."""
    script = (
        "import sys; from pathlib import Path; from autotune.tuning.failure_rules.rules import *\n"
        "rule = Rule.model_validate_json(sys.argv[2])\n"
        "for n in range(15):\n"
        "    pattern = {sys.argv[3]: n}\n"
        "    add_rule(Path(sys.argv[1]), rule.model_copy(update={'id': f'{sys.argv[3]}{n}', 'pattern': pattern}))\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), rule().model_dump_json(), name], cwd=REPOSITORY)
        for name in ("a", "b")
    ]
    assert [each.wait(timeout=120) for each in children] == [0, 0]
    assert {each.id for each in read_rules(tmp_path)} == {f"{name}{n}" for name in "ab" for n in range(15)}


class TestScope:
    """A rule holds where all that it depends on is the same, and nowhere else."""

    @pytest.fixture
    def environment(self, measurement):
        return measurement.environment

    @pytest.mark.parametrize(
        ("change", "reason", "same"),
        [
            ({}, "compile_error", True),
            ({"name": "another", "id": "another", "created": "later"}, "compile_error", True),
            ({"framework_version": "1"}, "compile_error", False),
            ({"variables": {"A": "1"}}, "compile_error", False),
            ({"tolerance": 0.5}, "compile_error", True),
            ({"tolerance": 0.5}, "wrong_result", False),
            ({"reference_precision": "float64"}, "wrong_result", False),
            ({"id": "another"}, "wrong_result", True),
            ({"id": "another"}, "timeout", False),
            ({"id": "another"}, "out_of_memory", False),
        ],
    )
    def test_of_a_study(self, make_manifest, environment, change, reason, same):
        """Release, variables, and for wrong results tolerance and reference; limits never leave their study."""
        manifest, reason = make_manifest(), Reason(reason)
        other = manifest.model_copy(update=change)
        assert scope_of(manifest, environment, reason).is_same(scope_of(other, environment, reason)) is same

    @pytest.mark.parametrize(
        "change",
        [
            {"reference": "x:y"},
            {"arguments": {"rows": 8}},
            {"source_sha256": "0"},
            {"device": "gpu"},
            {"framework": "f"},
        ],
        ids=str,
    )
    def test_of_a_workload(self, make_manifest, workload, environment, change):
        """Another model, other arguments, a changed file, another device or framework: another scope."""
        one = scope_of(make_manifest(), environment, Reason.CRASH)
        other = make_manifest(workload=workload.model_copy(update=change))
        assert not one.is_same(scope_of(other, environment, Reason.CRASH))

    def test_of_a_machine(self, make_manifest, environment):
        """A CPU is known by its processor, another device by the name that the framework gives it."""
        manifest = make_manifest()
        other = environment.model_copy(update={"processor": "another"})
        assert not scope_of(manifest, environment, Reason.CRASH).is_same(scope_of(manifest, other, Reason.CRASH))

    def test_one_and_true_are_two(self):
        """YAML tells them apart, and so does a scope."""
        other = SCOPE.model_copy(update={"arguments": {"width": True}})
        assert not SCOPE.model_copy(update={"arguments": {"width": 1}}).is_same(other)


class TestExcludes:
    """Which configs a rule takes away."""

    def test_those_that_have_all_settings(self, space):
        """All of the pattern, values of the same type."""
        one = rule({"behaviour": "wrong", "latency_ms": 2}, knobs=None)
        assert one.excludes(Config({"execution": "compile", "behaviour": "wrong", "latency_ms": 2}), space)
        assert not one.excludes(Config({"execution": "compile", "behaviour": "wrong", "latency_ms": 8}), space)
        assert not one.excludes(Config({"execution": "compile", "behaviour": "wrong", "latency_ms": 2.0}), space)

    def test_a_knob_that_is_new_since_may_help(self, space, space_file):
        """Found in a space without `rescue`, the rule says nothing about configs that set it."""
        one = rule(knobs=tuple(each.name for each in space.knobs))
        entry = "  rescue: {doc: 'https://example.org/x', values: [false, true], default: false}\n"
        space_file.write_text(space_file.read_text() + entry)
        larger = load_space(space_file, framework="fake", circumstances=Circumstances(version="0", device="cpu"))
        failing = {"execution": "compile", "behaviour": "compile_error", "latency_ms": 6}
        assert one.excludes(Config(failing), space)
        assert one.excludes(Config({**failing, "rescue": False}), larger)
        assert not one.excludes(Config({**failing, "rescue": True}), larger)


def test_texts_that_look_like_something_else_come_back_as_texts(tmp_path):
    """Values that YAML would take for numbers, dates or booleans; an error with colons and a `#`."""
    texts = {"a": "1e3", "b": "2.10", "c": "on", "d": "2026-01-01", "e": "null", "f": "0x1F", "g": "~", "h": "1_000"}
    one = rule(texts, error="x: {y} # z 'q' \\ \u2028 \x07", created="1e5")
    add_rule(tmp_path, one)
    assert read_rules(tmp_path) == [one]
    assert yaml.safe_load((tmp_path / FILE_NAME).read_text())["rules"][0]["pattern"]["c"] == "on"
