"""Models in other engines, as a study times them: untuned, the answer, OpenVINO and ONNX Runtime.

    pip install --constraint constraints.txt -e '.[backends]'
    taskset -c 0,1 python benchmarks/engines.py          prints the table; --write puts it into docs/other-backends.md

Each model has a short study whose last block has all of them. Some two minutes a model on two quiet cores.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.study.budget import Budget
from benchmarks.evidence import REPOSITORY, commit, table, with_section
from benchmarks.processes import Product

KINDS = "benchmarks/models/kinds_torch.py"
MODELS = {"ResNet-18": "resnet18", "U-Net": f"{KINDS}:unet", "BERT": "bert_small", "ViT": "vit"}
ENGINES = ("OpenVINO", "ONNX Runtime")
PAGE = REPOSITORY / "docs" / "other-backends.md"


def main() -> None:
    """Measure the models that were asked for, and print or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, action="append", help="this one alone; may be given again")
    parser.add_argument("--trials", type=int, default=5, help="of each study (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/other-backends.md")
    given = parser.parse_args()
    rows, releases = [], set()
    with Product() as product:
        budget = product.folder / "budget.json"
        one_look = Budget().confirmation.model_copy(update={"num_looks": 1})
        budget.write_text(Budget(num_trials=given.trials, confirmation=one_look).model_dump_json())
        for number, name in enumerate(given.model or MODELS):
            model = str(REPOSITORY / MODELS[name]) if ":" in MODELS[name] else MODELS[name]
            document = product.tune(model, "torch", study=f"s{number}", budget=budget)
            cells, of = row(document)
            rows.append([name, *cells])
            releases |= of
            print(rows[-1], flush=True)
    header = ["model", "untuned", "answer", *ENGINES, "verdict"]
    words = f"Milliseconds a call in one block, float32. {', '.join(sorted(releases))}, commit {commit()}: `python"
    text = f"{words} benchmarks/engines.py --trials {given.trials}`.\n\n{table(header, rows)}\n"
    print(text)
    if given.write:
        PAGE.write_text(with_section(PAGE.read_text(), "engines", text))


def row(document: dict[str, Any]) -> tuple[list[str], set[str]]:
    """The cells of a study behind the model's name, and the releases of the engines. A study without an engine has
    empty cells."""
    block: dict[str, Any] = document["engines"] or {"figures": [], "untuned": None, "best": None}
    figures = {one["title"]: one for one in block["figures"]}
    values = [block["untuned"], block["best"], *(figures.get(title, {}).get("value") for title in ENGINES)]
    cells = ["" if value is None else f"{1000 * value:.3g}" for value in values]
    for title, one in figures.items():
        if one["problem"] is not None:
            print(f"{title}: {one['problem']}", file=sys.stderr)
    return [*cells, document["verdict"] or "none"], {f"{title} {one['release']}" for title, one in figures.items()}


if __name__ == "__main__":
    main()
