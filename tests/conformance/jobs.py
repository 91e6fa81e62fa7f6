"""What a job must get from a tuned model, of whatever framework: each case is a row of the table in docs/in-the-job.md.

A case is a function of a `Kit`, and raises where the promise is broken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import pytest

import autotune
from tests.conformance.kit import Kit


def holds_the_models_own(kit: Kit) -> None:
    """A model of the same class, with its weights, checkpoint, modes and attributes; compiled, and nothing is said."""
    model, tuned = kit.applied()
    assert kit.error(model, tuned) < kit.tolerance()
    assert isinstance(tuned, type(model))
    assert type(tuned).__name__ == type(model).__name__
    assert tuned.scale == model.scale
    assert list(kit.weights(tuned)) == list(kit.weights(model))
    assert all(one is kit.weights(model)[name] for name, one in kit.weights(tuned).items())
    kit.switch(tuned, True)
    assert model.training
    kit.switch(model, False)
    assert not tuned.training
    stats = autotune.stats(tuned)
    assert stats.state == "tuned"
    assert stats.num_compiles or kit.config["execution"] == "eager"
    assert kit.lines == []


def leaves_the_model_untouched(kit: Kit) -> None:
    """Class, attributes, types, weights and outputs are as if nothing had been applied."""
    model, untouched = kit.model(), kit.model()
    model(kit.x)
    before, weights = kit.parts(model), kit.weights(model)
    kit.applied(model)
    assert kit.parts(model) == before
    assert all(one is kit.weights(model)[name] for name, one in weights.items())
    for name, wanted in kit.weights(untouched).items():
        assert str(weights[name].dtype) == str(wanted.dtype)
        assert kit.apart(weights[name], wanted) == 0
    assert kit.apart(model(kit.x), untouched(kit.x)) == 0


def saves_the_models_own(kit: Kit) -> None:
    """Names, types and values of a checkpoint of what the job holds are the model's."""
    model, tuned = kit.applied()
    saved, weights = kit.saved(tuned), kit.weights(model)
    assert list(saved) == list(weights)
    for name, wanted in weights.items():
        assert str(saved[name].dtype) == str(wanted.dtype)
        assert kit.apart(saved[name], wanted) == 0


def copies_are_untuned(kit: Kit) -> None:
    """Copied, pickled or saved it is a model of the author's class with weights of its own, which can be tuned too."""
    model, tuned = kit.applied()
    others = [make(tuned) for make in kit.COPIES]
    next(iter(kit.CHANGES.values()))(model, tuned)
    for other in others:
        assert type(other) is type(model)
        assert kit.apart(other(kit.x), model(kit.x)) > 1e-3
        assert kit.error(model, tuned) < kit.tolerance()
        assert kit.error(*kit.applied(other)) < kit.tolerance()


def follows(change: str, kit: Kit) -> None:
    """The calls after a change give what the changed model gives, and at most a warning says that they are untuned."""
    model, tuned = kit.applied()
    assert kit.error(model, tuned) < kit.tolerance()
    before = kit.array(model(kit.x))
    kit.CHANGES[change](model, tuned)
    for _ in range(3):
        assert kit.error(model, tuned) < kit.tolerance()
    assert kit.apart(model(kit.x), before) > 1e-3
    if kit.stays_tuned:
        assert autotune.stats(tuned).state == "tuned"
    # A call in training mode may be refused too, which is said apart.
    assert len(kit.lines) <= (0 if kit.stays_tuned else 2)


def does_what_a_patched_model_does(patch: str, kit: Kit) -> None:
    """From the next call on, and what the model did before once the patch is taken back."""
    model, tuned = kit.applied()
    before = kit.array(model(kit.x))
    undo = kit.PATCHES[patch](model)
    try:
        for _ in range(2):
            assert kit.error(model, tuned) < kit.tolerance()
        assert kit.apart(model(kit.x), before) > 1e-3
    finally:
        undo()
    assert kit.error(model, tuned) < kit.tolerance()


def weights_loaded_early_stay(kit: Kit) -> None:
    """Between the first calls, while they may still be timed, and after the block."""
    model = kit.model()
    with kit.loaded().applied(model) as tuned:
        tuned(kit.x)
        next(iter(kit.CHANGES.values()))(model, tuned)
        changed = model(kit.x)
        assert kit.error(model, tuned) < kit.tolerance()
    assert kit.apart(model(kit.x), changed) == 0


def all_is_as_before_after_the_block(kit: Kit) -> None:
    """Calls are the untuned model's, also where the block ends in an exception."""
    model, settings = kit.model(), kit.settings()
    expected = model(kit.x)
    held = []

    def job():
        with kit.loaded().applied(model) as tuned:
            held.append(tuned)
            tuned(kit.x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    (tuned,) = held
    assert kit.apart(tuned(kit.x), expected) == 0
    assert kit.apart(model(kit.x), expected) == 0
    assert autotune.stats(tuned).state == "untuned"
    assert kit.settings() == settings


def a_second_application_takes_the_firsts_place(kit: Kit) -> None:
    """To the same model, or to what the job holds of it."""
    model, first = kit.applied()
    for given in (model, first):
        _, second = kit.applied(given)
        for tuned in (first, second):
            assert kit.error(model, tuned) < kit.tolerance()


def another_model_is_its_own(kit: Kit) -> None:
    """Another model of the class, tuned or not, neither has this one's weights nor its compiled code."""
    model, tuned = kit.applied()
    other, another = kit.applied()
    plain = kit.model()
    next(iter(kit.CHANGES.values()))(other, another)
    assert kit.apart(model(kit.x), other(kit.x)) > 1e-3
    for one, two in ((model, tuned), (other, another), (model, plain)):
        assert kit.error(one, two) < kit.tolerance()


def others_of_its_class_have_calls_of_their_own(make: str, kit: Kit) -> None:
    """What the job holds is the only object of its class that is called otherwise: one that is made from it answers
    with its own weights and attributes, is no tuned one, and can be tuned."""
    model = kit.model(kit.Cloned)
    _, tuned = kit.applied(model)
    expected = tuned(kit.x)
    other = kit.OTHERS[make](tuned)
    kit.switch(other, False)
    other.scale = 5.0
    assert kit.apart(other(kit.x), kit.plain(other)) < 1e-6
    assert kit.error(*kit.applied(other)) < kit.tolerance()
    assert kit.apart(other(kit.x), expected) > 1e-3
    assert kit.apart(tuned(kit.x), expected) < kit.tolerance()
    assert model.scale == 2.0
    assert kit.Cloned in (type(other), type(other).__base__)
    assert tuned.__class__ is kit.Cloned


def gradients_are_the_models(kit: Kit) -> None:
    """A call that records them is untuned, with one warning that names the ways out; the others stay tuned."""
    model, tuned = kit.applied()
    for _ in range(2):
        found, wanted = kit.gradients(tuned, model), kit.gradients(model, model)
        assert max(kit.apart(one, other) for one, other in zip(found, wanted, strict=True)) < 1e-4
        assert all(kit.array(each).any() for each in found)
        assert kit.error(model, tuned) < kit.tolerance()
    assert autotune.stats(tuned).state == "tuned"
    (line,) = kit.lines
    assert all(words in line for words in ("records gradients", "task='train'", *kit.WAYS_OUT))


def as_a_part_it_is_the_model(kit: Kit) -> None:
    """In a larger model of the job's own."""
    model, tuned = kit.applied()
    for one, other in zip(kit.containers(tuned), kit.containers(model), strict=True):
        assert kit.apart(one(kit.x), other(kit.x)) < kit.tolerance()
    assert kit.error(model, tuned) < kit.tolerance()


def settings_of_the_process_stay(kit: Kit) -> None:
    before = kit.settings()
    _, tuned = kit.applied(on_mismatch="apply")
    tuned(kit.rows(2))
    assert kit.settings() == before


def the_jobs_own_error(kit: Kit) -> None:
    """What the untuned model does not take either is raised as it is, and the config is kept."""
    model, tuned = kit.applied(on_mismatch="apply")
    for call in (model, tuned, tuned, tuned):
        with pytest.raises(kit.UnfitError):
            kit.array(call(kit.unfit()))
    assert kit.error(model, tuned) < kit.tolerance()
    assert autotune.stats(tuned).num_fallbacks == 0


def a_call_that_changes_what_it_reads_is_made_once(kind: int, kit: Kit) -> None:
    """`check=True` never costs a job its result: inputs and state are advanced once a call, and one line says that
    nothing was compared."""
    model, reference = kit.model(kit.WRITERS[kind]), kit.model(kit.WRITERS[kind])
    caches = kit.cache(), kit.cache()
    tuned = kit.loaded(kind=kit.WRITERS[kind]).apply(model, check=True, on_mismatch="apply", margin=None)
    for _ in range(2):
        assert kit.apart(tuned(kit.x, caches[0]), reference(kit.x, caches[1])) < kit.tolerance()
    assert kit.apart(*caches) == 0
    assert autotune.stats(tuned).num_fallbacks == 0
    said = "autotune: a call changes the model's inputs or its state: the first outputs cannot be checked"
    assert [line for line in kit.lines if "checked" in line] == [said]


def a_right_result_is_checked(kit: Kit) -> None:
    """What a compiler leaves in a model is no change of it."""
    model = kit.model()
    tuned = kit.loaded().apply(model, check=True, margin=None)
    assert kit.error(model, tuned) < kit.tolerance()
    assert (kit.lines, autotune.stats(tuned).state) == ([], "tuned")


def a_wrong_result_is_given_up(kit: Kit) -> None:
    """Computed in another precision, held against the model's: the outputs are the untuned ones, with one line."""
    model = kit.model()
    tuned = kit.loaded(kit.WRONG, tolerance=1e-6).apply(model, check=True, margin=None)
    for _ in range(3):
        assert kit.error(model, tuned) == 0
    (line,) = kit.lines
    assert "the first outputs are wrong: output: " in line
    assert autotune.stats(tuned).state == "untuned"


def no_call_is_torn(fails: str, kit: Kit) -> None:
    """Calls from four threads, each with a shape of its own, beside calls that fail: none is outside of the tolerance,
    and none raises. Where the job's own call fails MindSpore may raise its error in another thread that waits for its
    outputs, without any config as well."""
    model = kit.model()
    tuned = kit.loaded().apply(model, margin=None, on_mismatch="apply")
    done, wrong, half = [], [], threading.Barrier(5)

    def job(x, wanted):
        with kit.calls():
            for number in range(kit.num_calls):
                if number == kit.num_calls // 2:
                    half.wait()
                try:
                    apart = kit.apart(tuned(x), wanted)
                    wrong.extend([apart] if not apart < kit.tolerance() else [])
                except Exception as error:
                    wrong.extend([error] if fails == "a fallback" or not kit.is_of_unfit(error) else [])
                done.append(number)

    inputs = [kit.rows(num) for num in (4, 2, 3, 6)]
    threads = [threading.Thread(target=job, args=(x, model(x))) for x in inputs]
    for x in inputs:
        tuned(x)
    for thread in threads:
        thread.start()
    half.wait()
    if fails == "a fallback":
        unseen = kit.unseen()
        with kit.refusing(unseen):
            assert kit.error(model, tuned, unseen) < kit.tolerance()
    else:
        for _ in range(30):
            with pytest.raises(kit.UnfitError):
                kit.array(tuned(kit.unfit()))
    for thread in threads:
        thread.join()
    assert (len(done), wrong) == (4 * kit.num_calls, [])
    is_given_up = fails == "a fallback" and kit.config.get("execution") != "eager"
    assert autotune.stats(tuned).state == ("untuned" if is_given_up else "tuned")


ALWAYS: tuple[Callable[[Kit], None], ...] = (
    holds_the_models_own, leaves_the_model_untouched, saves_the_models_own, copies_are_untuned,
    weights_loaded_early_stay, all_is_as_before_after_the_block, a_second_application_takes_the_firsts_place,
    another_model_is_its_own, gradients_are_the_models, as_a_part_it_is_the_model, settings_of_the_process_stay,
    the_jobs_own_error, a_right_result_is_checked, a_wrong_result_is_given_up,
)  # fmt: skip


def with_values(varied: Mapping[Callable[..., None], Iterable[object]]) -> dict[str, Callable[[Kit], None]]:
    """Cases that are tried with several values, by name and value."""
    return {f"{case.__name__}: {value}": partial(case, value) for case, values in varied.items() for value in values}


def cases_of(kit: type[Kit], **others: Callable[[Kit], None]) -> dict[str, Callable[[Kit], None]]:
    """All that apply to a framework, by name."""
    varied: dict[Callable[..., None], Iterable[object]] = {
        follows: kit.CHANGES,
        does_what_a_patched_model_does: kit.PATCHES,
        others_of_its_class_have_calls_of_their_own: kit.OTHERS,
        a_call_that_changes_what_it_reads_is_made_once: range(len(kit.WRITERS)),
        no_call_is_torn: ("a fallback", "the job's own error"),
    }
    return {case.__name__: case for case in ALWAYS} | others | with_values(varied)


def run(case: Callable[[Kit], None], kit: Kit) -> None:
    with kit.listening(), kit.calls():
        case(kit)
