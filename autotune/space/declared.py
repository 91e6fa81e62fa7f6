"""`Declaration`: the regions, variants and padding that a model's author declared, and the components of a
pipeline; and the knobs that regions, variants and components become."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.config import VARIANT, Scalar
from autotune.errors import InputError
from autotune.measure.measurement import Component
from autotune.schema import Record
from autotune.space.schema import Need, Pattern
from autotune.space.space import Knob, SearchSpace
from autotune.workload.components import regions_of
from autotune.workload.regions import KNOB, WHOLE, Region

DOC = "docs/regions-and-variants.md"


class Declaration(Record):
    """Facts about a built model that can be used without its framework."""

    regions: tuple[str, ...] | None = None
    """None: not declared."""
    repeated: str | None = None
    """The region of its repeated blocks, found by its structure; None if it has none."""
    variants: dict[str, dict[str, str | None]] = {}
    """Variant -> its values, the model as it is first -> `package.module:function` that makes it (None: none, or not to
    be imported by that name)."""
    padding: tuple[str, ...] = ()
    """Dimensions of the traffic that may be padded."""
    lacks: tuple[Need, ...] = ()
    """Needs that every model meets of which this is not known, and this one does not."""
    met: tuple[Need, ...] = ()
    """Needs that the model meets, beside those of its shapes."""
    records_gradients: bool = False
    """In each of its calls: the model differentiates within itself, or an input requires gradients."""
    tolerance: float | None = None
    """Relative error of its outputs to accept where nobody says: it multiplies in a type of less precision than its
    tensors have. None: it does not."""
    constant_weights: bool = True
    """Its weights may become constants of compiled code."""
    components: tuple[Component, ...] = ()
    """What the call of a pipeline calls; empty for one model."""
    imported: tuple[str, ...] = ()
    """See `Workload.imported`."""
    built_once: bool = False
    """See `Workload.built_once`."""

    def regions_to_try(self, *, found_too: bool) -> tuple[str, ...]:
        """Regions to compile instead of the whole: the declared ones, or else, with `found_too`, the one found. A
        pipeline has no whole: its components are tried without a declaration."""
        if self.regions is not None:
            return tuple(region for region in self.regions if region != WHOLE)
        found = (self.repeated,) if self.repeated and found_too else ()
        return (*regions_of({component.path: component.share for component in self.components}), *found)


def with_declared_knobs(
    space: SearchSpace, declared: Declaration, compiled: Pattern, *, found_too: bool
) -> SearchSpace:
    """The space with a knob `region` and a knob for each variant. Raises InputError if it has a knob of that name.

    `compiled` are the settings under which the framework compiles a module: elsewhere there is no region to choose, and
    a space that never has them gets no such knob. `found_too`: a region that nobody declared is tried as well.
    """
    regions = declared.regions_to_try(found_too=found_too)
    added = [_knob(f"{VARIANT}{name}", tuple(values), {}) for name, values in declared.variants.items()]
    forbid = space.forbid
    if regions and _offers(space, compiled):
        whole = () if declared.components else (WHOLE,)
        added.append(_knob(KNOB, (*whole, *regions), compiled))
        forbid += tuple(_in_parts(regions, space))
    for knob in added:
        if any(knob.name == known.name for known in space.knobs):
            raise InputError(f"the search space has a knob {knob.name}, which the model declares too")
    return space.model_copy(update={"knobs": (*space.knobs, *added), "forbid": forbid})


def _in_parts(regions: tuple[str, ...], space: SearchSpace) -> Iterator[tuple[Pattern, str]]:
    parts: list[Scalar] = [region for region in regions if Region.parse(region).compiled]
    if parts:
        yield from (({**pattern, KNOB: parts}, because) for pattern, because in space.forbid_in_parts)


def _knob(name: str, values: tuple[Scalar, ...], when: Pattern) -> Knob:
    """The first value is the model as it is, which is also the default of a framework's compile."""
    return Knob(name=name, doc=DOC, values=values, when=when, default=values[0], untuned=values[0])


def _offers(space: SearchSpace, settings: Pattern) -> bool:
    offered = {knob.name: knob.values for knob in space.knobs}
    return all(value in offered.get(name, ()) for name, value in settings.items())
