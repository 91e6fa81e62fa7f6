"""The keys of all that is stored, beside the schema that they have: a key that goes counts a schema up.

`formats.json` has the keys of the present schema. One that may be left out is added by

    GOLDEN=write .venv/bin/pytest tests/test_formats.py

For a key that goes and was never needed, say in the format's table that it is `gone`, and remove its lines from
`formats.json`: whatever wrote it reads what lacks it. For any other key that goes, is needed from now on, or takes less
than before: count the format's schema up, say in its table what became of the key, and keep a study or an export of the
schema before in `study/older/`. Where a key takes less than before and nothing that was written exceeds that, its line
in `formats.json` is removed before they are written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from autotune.answer.result import EXPORTED_CACHE
from autotune.bench.workers import LOST_TRIALS, NEIGHBOURS
from autotune.measure.measurement import Outcome
from autotune.plugins.postgres.database import Driver
from autotune.schema import Format
from autotune.study.earlier import STUDY
from autotune.study.manifest import Manifest
from autotune.study.marker import Home, Marker
from autotune.study.records import ENGINE_BLOCK, SUSTAINED
from autotune.study.slots import Slot
from autotune.study.stored_trials import Lease
from autotune.study.study import Study
from autotune.tuned.tuned_config import EXPORT, TunedConfig
from autotune.tuning.priors import _GIVEN

KEYS = Path(__file__).with_name("formats.json")
OLDER = Path(__file__).parent / "study" / "older"
SLOTS = [slot for slot in vars(Study).values() if isinstance(slot, Slot)]
SLOTS += [EXPORTED_CACHE, NEIGHBOURS, LOST_TRIALS, _GIVEN, ENGINE_BLOCK, SUSTAINED]
FORMATS: dict[str, tuple[Format, dict[str, Any]]] = {
    "study": (
        STUDY,
        {"manifest": Manifest, "outcome": Outcome, "lease": Lease, "home": Home, "marker": Marker, "driver": Driver}
        | {slot.name: slot.kind for slot in SLOTS},
    ),
    "export": (EXPORT, {"file": TunedConfig}),
}


def keys_of(kinds: dict[str, Any]) -> dict[str, Any]:
    """Place -> what it may hold, for each key of each record."""
    found: dict[str, Any] = {}
    for part, kind in kinds.items():
        schema = TypeAdapter(kind).json_schema()
        for name, record in {part: schema, **schema.get("$defs", {})}.items():
            needed = record.get("required", ())
            for key, value in record.get("properties", {}).items():
                found[f"{name}.{key}"] = {"holds": alternatives(value), "needed": key in needed}
            if "enum" in record:
                found[name] = {"holds": sorted(map(json.dumps, record["enum"])), "needed": False}
    return dict(sorted(found.items()))


def alternatives(value: dict[str, Any]) -> list[str]:
    """Each thing that may stand there, as text."""
    choices = value.get("anyOf") or value.get("oneOf")
    if choices:
        return sorted({text for choice in choices for text in alternatives(choice)})
    if "enum" in value:
        return sorted(map(json.dumps, value["enum"]))
    said = {key: part for key, part in value.items() if key not in ("title", "description", "default")}
    return [json.dumps(said, sort_keys=True)]


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_written_is_read_or_its_schema_has_counted_up(name):
    """No key goes, is needed from now on, or takes less, while the schema stays; and each earlier schema has a golden
    file that the tests open."""
    form, kinds = FORMATS[name]
    kept, now = json.loads(KEYS.read_text()) if KEYS.exists() else {}, keys_of(kinds)
    before = kept.get(name, {"schema": form.schema, "keys": {}})
    if before["schema"] == form.schema and before["keys"]:
        for place, then in before["keys"].items():
            assert place in now, f"{place} has gone: count the schema up (see above)"
            assert set(then["holds"]) <= set(now[place]["holds"]), (
                f"{place} takes less: count the schema up (see above)"
            )
        needed = [place for place, is_now in now.items() if is_now["needed"] and not _was_needed(before["keys"], place)]
        assert not needed, f"needed from now on, and earlier files lack it: {', '.join(needed)}"
    assert golden_schemas(name) >= set(range(first_kept(name), form.schema + 1))
    if os.environ.get("GOLDEN") == "write":
        kept[name] = {"schema": form.schema, "keys": now}
        KEYS.write_text(written(kept))
    assert {"schema": form.schema, "keys": now} == json.loads(KEYS.read_text())[name], "see above"


def written(kept: dict[str, Any]) -> str:
    """JSON with a line for each key."""
    formats = []
    for name, form in sorted(kept.items()):
        lines = ",\n".join(f"  {json.dumps(place)}: {json.dumps(found)}" for place, found in form["keys"].items())
        formats.append(f'{json.dumps(name)}: {{"schema": {form["schema"]}, "keys": {{\n{lines}\n}}}}')
    return "{\n" + ",\n".join(formats) + "\n}\n"


def _was_needed(keys: dict[str, Any], place: str) -> bool:
    """A key of a record that was not there before may be needed: nothing that was written holds that record."""
    is_new = not any(known.startswith(f"{place.partition('.')[0]}.") for known in keys)
    return is_new or (place in keys and keys[place]["needed"])


def first_kept(name: str) -> int:
    """The first schema of which there is a golden file."""
    return {"study": 3, "export": 1}[name]


def golden_schemas(name: str) -> set[int]:
    """Schemas of the golden files."""
    files = {"study": "*/manifest.json", "export": "*/best.yaml"}[name]
    return {yaml.safe_load(path.read_text())["schema"] for path in OLDER.glob(files)}
