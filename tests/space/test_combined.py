"""Search spaces of two frameworks as one: which configs there are, and what each is in its own framework."""

from __future__ import annotations

import pytest

from autotune.config import Config
from autotune.environment import installed_packages
from autotune.errors import InputError, StoreError
from autotune.planning.models import models_of
from autotune.planning.spaces import describe_spaces, spaces_of
from autotune.planning.targets import choose_targets
from autotune.space.combined import join_spaces, without_framework
from autotune.space.load import Circumstances, load_space
from autotune.study.manifest import Target, read_manifest

FAKE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://example.org/x", when: {execution: compile}, values: [plain, deep], default: plain}
  fuse: {doc: "https://example.org/x", when: {mode: [deep]}, values: [false, true], default: false}
  threads: {doc: "https://example.org/x", values: [1, 2], default: 1, runtime: true}
forbid:
  - {if: {mode: deep, fuse: true, threads: 2}, because: told to}
"""
SHAM = """
schema: 1
framework: sham
knobs:
  execution: {doc: "https://example.org/x", values: [graph, plain], untuned: plain, default: graph}
  level: {doc: "https://example.org/x", when: {execution: graph}, values: [O0, O1], default: O1}
"""


@pytest.fixture
def load(tmp_path):
    def make(framework, content):
        path = tmp_path / f"{framework}.yaml"
        path.write_text(content)
        return load_space(path, framework=framework, circumstances=Circumstances(version="0", device="cpu"))

    return make


@pytest.fixture
def fake(load):
    return load("fake", FAKE)


@pytest.fixture
def sham(load):
    return load("sham", SHAM)


@pytest.fixture
def joined(fake, sham):
    return join_spaces([fake, sham])


def joined_config(framework, settings):
    return Config({"framework": framework, **{f"{framework}.{name}": value for name, value in settings.items()}})


class TestSpace:
    """The pure part: knobs, conditions, rules, where it starts."""

    def test_its_configs_are_those_of_each_framework_and_no_others(self, joined, fake, sham):
        """A sum, not a product: each config belongs to one framework, conditions and rules as in its own space."""
        expected = [joined_config("fake", each.root) for each in fake.configs()]
        expected += [joined_config("sham", each.root) for each in sham.configs()]
        found = list(joined.configs())
        assert len(found) == len(set(found)) == len(expected) == joined.size(100)
        assert set(found) == set(expected)

    def test_a_rule_holds_under_the_new_names(self, joined):
        """What is forbidden in a framework's own space is forbidden in the joined one, with the same reason."""
        settings = {"execution": "compile", "mode": "deep", "fuse": True}
        assert joined.forbidden(joined_config("fake", {**settings, "threads": 2})) == "told to"
        assert joined.forbidden(joined_config("fake", {**settings, "threads": 1})) is None

    def test_a_knob_is_known_by_its_frameworks_name(self, joined):
        """The first knob chooses the framework; every other is active under its own framework only."""
        names = [knob.name for knob in joined.knobs]
        assert names[0] == "framework"
        assert names[1:] == [
            "fake.execution", "fake.mode", "fake.fuse", "fake.threads", "sham.execution", "sham.level",
        ]  # fmt: skip
        assert [knob.when["framework"] for knob in joined.knobs[1:]] == ["fake"] * 4 + ["sham"] * 2

    def test_anchors(self, joined, fake, sham):
        """First the untuned and default of the first framework, then those of the others; configs() begins so."""
        expected = [
            joined_config("fake", fake.untuned().root),
            joined_config("fake", fake.default().root),
            joined_config("sham", sham.untuned().root),
            joined_config("sham", sham.default().root),
        ]
        assert list(joined.anchors()) == expected == list(joined.configs())[:4]
        assert (joined.untuned(), joined.default("sham")) == (expected[0], expected[3])

    def test_a_single_space_has_its_own_two_anchors(self, fake):
        """Without a second framework nothing changes; an untuned model that is the default counts once."""
        assert fake.anchors() == (fake.untuned(), fake.default())
        assert fake.frameworks == ("fake",)

    def test_the_order_says_whose_untuned_model_is_the_base(self, fake, sham):
        """The same two spaces the other way round are another question."""
        other = join_spaces([sham, fake])
        assert other.untuned() == joined_config("sham", sham.untuned().root)
        assert other.fingerprint != join_spaces([fake, sham]).fingerprint

    def test_simplicity_counts_from_the_frameworks_own_default(self, joined, fake):
        """The other framework's default is one change away, not as many as it has knobs."""
        assert joined.num_changes(joined.default()) == 0
        assert joined.num_changes(joined.default("sham")) == 1
        deep = joined_config("fake", {**fake.default().root, "mode": "deep", "fuse": False})
        assert joined.num_changes(deep) == 2

    def test_runtime_knobs_stay_such(self, joined):
        """Configs that differ in how compiled code runs compile alike, under the new names too."""
        one, two = (joined_config("fake", {"execution": "eager", "threads": n}) for n in (1, 2))
        assert joined.compiled_part(one) == joined.compiled_part(two) != joined.compiled_part(joined.default())

    def test_plain(self, joined, fake, sham):
        """A framework is given its own config, without the choice and the prefix; a plain config stays as it is."""
        assert [without_framework(each) for each in joined.anchors()] == [*fake.anchors(), *sham.anchors()]
        assert without_framework(fake.default()) == fake.default()

    def test_words(self, joined):
        """People read the framework once, not before every knob."""
        assert str(joined.default("sham")) == "framework=sham execution=graph level=O1"

    def test_the_name_of_the_choice_is_taken(self, load):
        """A knob called `framework` in a space file would be taken for it."""
        with pytest.raises(InputError, match=r"knobs\.framework: the name is taken"):
            load("fake", FAKE.replace("threads:", "framework:"))


class TestStudy:
    """How a study of two frameworks is asked and recognised again. Nothing runs."""

    @pytest.fixture
    def manifest(self, make_manifest, workload, joined):
        sham = workload.model_copy(update={"framework": "sham", "reference": "/other.py:f"})
        other = Target(workload=sham, framework_version="7", space_file="sham.yaml")
        return make_manifest(space=joined, others=(other,))

    def test_a_config_finds_its_target(self, manifest, joined, fake, sham):
        """Workload, release and plain config are those of the config's own framework."""
        target, config = manifest.target_of(joined.default("sham"))
        assert (target.workload.framework, target.framework_version) == ("sham", "7")
        assert config == sham.default()
        target, config = manifest.target_of(joined.untuned())
        assert (target.workload, config) == (manifest.workload, fake.untuned())
        assert manifest.framework == "fake+sham"

    def test_a_single_framework_is_its_own_target(self, make_manifest, space):
        """Without others, every config is the base's as it is."""
        manifest = make_manifest()
        target, config = manifest.target_of(space.default())
        assert (target.workload, config) == (manifest.workload, space.default())
        assert manifest.framework == "fake"

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"framework_version": "8"}, "framework: fake 0 + sham 7 -> fake 0 + sham 8"),
            ({"source_sha256": "feed"}, "source file"),
            ({"reference": "/third.py:f"}, "model: "),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
    )
    def test_a_change_in_either_framework_is_another_question(self, manifest, change, words):
        """The other framework's release, model and source file are as much part of it as the base's."""
        (other,) = manifest.others
        if "framework_version" in change:
            now = other.model_copy(update=change)
        else:
            now = other.model_copy(update={"workload": other.workload.model_copy(update=change)})
        with pytest.raises(StoreError) as caught:
            manifest.require_same(manifest.model_copy(update={"others": (now,)}))
        assert words in str(caught.value)

    def test_it_survives_the_disk(self, manifest, tmp_path):
        """What is written is read again, the other framework included."""
        manifest.write(tmp_path / "manifest.json")
        assert read_manifest(tmp_path / "manifest.json") == manifest

    def test_the_anchors_are_asked_first(self, make_study, manifest, joined):
        """Both frameworks are known by their untuned and default before anything else is tried; then all others."""
        study = make_study(space=joined, others=manifest.others)
        with study.writing():
            asked = [study.ask(longest_s=60).config for _ in range(joined.size(100))]
            assert study.ask(longest_s=60) is None
        study.close()
        assert asked[:4] == list(joined.anchors())
        assert set(asked) == set(joined.configs())


class TestWish:
    """What the user typed, for one framework or several."""

    BOTH = ("torch", "mindspore")

    @pytest.mark.parametrize(
        ("texts", "frameworks", "expected"),
        [
            (("vit",), BOTH, {"torch": "vit", "mindspore": "vit"}),
            (("torch=a.py:f", "mindspore=b.py:g"), BOTH, {"torch": "a.py:f", "mindspore": "b.py:g"}),
            (("a.py:f",), ("torch",), {"torch": "a.py:f"}),
            (("torch=a.py:f",), ("torch",), {"torch": "a.py:f"}),
            (("run=3/a.py:f",), ("torch",), {"torch": "run=3/a.py:f"}),
        ],
        ids=str,
    )
    def test_models(self, texts, frameworks, expected):
        """One bundled name for all, one function for one framework, or one for each by name."""
        assert models_of(texts, frameworks) == expected

    @pytest.mark.parametrize(
        ("texts", "frameworks", "words"),
        [
            (("a.py:f",), BOTH, "one function gives one framework's model"),
            (("torch=a.py:f",), BOTH, "one model for each framework is needed: torch and mindspore"),
            (("torch=a.py:f", "torch=b.py:f"), BOTH, "one model for each"),
            (("torch=a.py:f", "mindspore=b.py:g"), ("torch",), "one model for each framework is needed: torch"),
            (("vit", "mindspore=b.py:g"), BOTH, "one model for each"),
            (("vit", "resnet18"), BOTH, "one model for each"),
        ],
        ids=str,
    )
    def test_models_that_do_not_fit(self, texts, frameworks, words):
        """Too few, too many, or a function for both: one sentence, and the tip shows what to write."""
        with pytest.raises(InputError, match=words) as caught:
            models_of(texts, frameworks)
        assert f"--model {frameworks[0]}=FILE.py:FUNCTION" in caught.value.tip

    def test_a_space_file_says_whose_it_is(self, fake, sham, tmp_path):
        """Any order; frameworks without a file of the user's are left to the bundled one."""
        one, other = tmp_path / "fake.yaml", tmp_path / "sham.yaml"
        assert spaces_of((other, one), ("fake", "sham")) == {"fake": one, "sham": other}
        assert spaces_of((other,), ("fake", "sham")) == {"sham": other}

    def test_space_files_that_do_not_fit(self, fake, sham, tmp_path):
        """A file of a framework that is not tuned, or two of one: refused with the path."""
        one, other = tmp_path / "fake.yaml", tmp_path / "sham.yaml"
        with pytest.raises(InputError, match=r"sham\.yaml: key framework: is 'sham', but the study uses fake"):
            spaces_of((other,), ("fake",))
        with pytest.raises(InputError, match=r"fake\.yaml is for fake too"):
            spaces_of((one, one), ("fake", "sham"))

    @pytest.mark.usefixtures("sham_backend")
    def test_frameworks(self):
        """Several are joined by a plus, the base first; a device must be there for all of them."""
        assert choose_targets("sham+fake", "cpu") == (("sham", "fake"), "cpu")
        assert choose_targets("fake+sham", "auto") == (("fake", "sham"), "cpu")
        assert choose_targets("fake", "cpu") == (("fake",), "cpu")
        with pytest.raises(InputError, match="names one twice"):
            choose_targets("fake+fake", "cpu")
        with pytest.raises(InputError, match="jax: unknown"):
            choose_targets("fake+jax", "cpu")

    def test_the_joined_space_can_be_looked_at(self):
        """`spaces --framework both` shows one space with the configs of each, the base's first."""
        if not {"torch", "mindspore"} <= installed_packages().keys():
            pytest.skip("torch or mindspore is not installed")
        (joined,) = describe_spaces("cpu", "both")
        each = {described["framework"]: described["num_configs"] for described in describe_spaces("cpu")}
        assert joined["framework"] == "torch+mindspore"
        assert joined["num_configs"] == each["torch"] + each["mindspore"]
        assert joined["knobs"][0]["values"] == ["torch", "mindspore"]

    @pytest.mark.parametrize(("device", "base"), [("cpu", "torch"), ("ascend", "mindspore")])
    def test_both_begins_with_the_framework_that_is_preferred(self, monkeypatch, device, base):
        """Its untuned model is what everything is compared with."""
        if not {"torch", "mindspore"} <= installed_packages().keys():
            pytest.skip("torch or mindspore is not installed")
        monkeypatch.setattr("autotune.planning.targets._require_device", lambda *_: None)
        frameworks, chosen = choose_targets("both", device)
        assert (frameworks[0], set(frameworks), chosen) == (base, {"torch", "mindspore"}, device)
