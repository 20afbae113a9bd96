"""What can be recorded: free prompts of every kind, local YAMLs from anywhere, groups, chat templates, truncation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformers import AutoTokenizer

import recorder
from recorder import Prompt
from recorder.check import check_run
from recorder.looking import find_runs, open_run
from recorder.rundir import Run
from tests.conftest import TASKS, TINY, choice_task, record_run
from tests.recorder.interface.conftest import Cli

pytestmark = [pytest.mark.xdist_group("in-process"), pytest.mark.usefixtures("one_thread")]

KINDS = (
    Prompt(prompt="The capital of France is"),
    Prompt(prompt="Q: 7 + 8 = A:"),
    Prompt(prompt="The capital of Japan is", continuation=" Tokyo."),
    Prompt(prompt="The capital of Spain is", choices=(" Rome", " Madrid", " Lima"), gold=1),
    Prompt(prompt="The capital of Peru is", choices=(" Lima", " Oslo")),
)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Run:
    """Every kind of free prompt and one task, in one run."""
    out = tmp_path_factory.mktemp("prompted")
    fields: dict[str, Any] = {"tasks": ("ls_tiny_choice",), "include_path": str(TASKS), "limit": 2}
    return record_run(out, prompts=KINDS, max_new_tokens=5, **fields)


def table(run: Run, query: str) -> pd.DataFrame:
    return recorder.open(run.path).sql(query)


def test_every_prompt_is_a_document(prompted: Run) -> None:
    assert check_run(prompted.path).failed == []
    rows = table(prompted, "SELECT task, doc_id, count(*) AS n FROM requests GROUP BY ALL ORDER BY ALL")
    assert rows.values.tolist() == [
        ["ls_tiny_choice", 0, 4],
        ["ls_tiny_choice", 1, 4],
        ["prompts_choices", 0, 3],
        ["prompts_continuation", 0, 1],
        ["prompts_generate", 0, 1],
        ["prompts_generate", 1, 1],
        ["prompts_ranked", 0, 2],
    ]
    assert len(table(prompted, "SELECT * FROM docs")) == 7
    assert prompted.status["progress"]["docs_done"] == prompted.status["progress"]["docs_total"] == 7


def test_limit_is_of_tasks_and_prompts_alike(tmp_path: Path) -> None:
    """Or of neither; the count in the progress agrees with what was recorded."""
    run = record_run(tmp_path / "runs", prompts=KINDS[:2], limit=1, max_new_tokens=2)
    assert run.status["progress"]["docs_total"] == len(table(run, "SELECT * FROM docs"))


def test_generation(prompted: Run) -> None:
    rows = table(prompted, "SELECT * FROM requests WHERE task = 'prompts_generate' ORDER BY doc_id")
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    for row, prompt in zip(rows.itertuples(), KINDS[:2], strict=True):
        assert list(row.input_ids[: row.n_prompt]) == tokenizer(prompt.prompt).input_ids
        assert 1 <= len(row.input_ids) - row.n_prompt <= 5
        assert row.kind == "generate_until"
        assert row.stop_reason in ("eos", "length")
        assert pd.isna(row.is_gold)
        assert pd.isna(row.logprob)
    if "length" in rows["stop_reason"].tolist():
        assert (rows["input_ids"].map(len) - rows["n_prompt"]).max() == 5


def test_continuation(prompted: Run) -> None:
    (row,) = table(prompted, "SELECT * FROM requests WHERE task = 'prompts_continuation'").itertuples()
    assert row.continuation == " Tokyo."
    steps = table(prompted, "SELECT * FROM steps WHERE task = 'prompts_continuation' ORDER BY step")
    assert "".join(steps["text"]) == " Tokyo."
    assert steps["logprob"].sum() == pytest.approx(row.logprob, abs=1e-3)


def test_choices_with_gold(prompted: Run) -> None:
    rows = table(prompted, "SELECT * FROM requests WHERE task = 'prompts_choices' ORDER BY choice")
    assert rows["continuation"].tolist() == [" Rome", " Madrid", " Lima"]
    assert rows["is_gold"].tolist() == [False, True, False]
    assert rows["is_chosen"].sum() == 1
    assert rows["logprob"].idxmax() == rows["is_chosen"].tolist().index(True)
    (doc,) = table(prompted, "SELECT * FROM docs WHERE task = 'prompts_choices'").itertuples()
    assert doc.correct == rows["is_chosen"][1]


def test_choices_without_gold(prompted: Run) -> None:
    rows = table(prompted, "SELECT * FROM requests WHERE task = 'prompts_ranked' ORDER BY choice")
    assert rows["continuation"].tolist() == [" Lima", " Oslo"]
    assert rows["is_gold"].isna().all()
    (doc,) = table(prompted, "SELECT * FROM docs WHERE task = 'prompts_ranked'").itertuples()
    assert pd.isna(doc.correct)


def test_ungraded_prompts_have_no_score(prompted: Run) -> None:
    (scores,) = table(prompted, "SELECT scores FROM runs")["scores"]
    found = json.loads(scores)
    assert found["ls_tiny_choice"]
    assert found["prompts_choices"]
    assert not found.get("prompts_generate")
    assert not found.get("prompts_ranked")


def test_prompts_through_the_command_line(cli: Cli, tmp_path: Path) -> None:
    """Options and a file together; the two ways of writing a prompt give the same rows."""
    lines = [prompt.model_dump(exclude_none=True) for prompt in KINDS[2:]]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    options = ["--model", TINY, "--device", "cpu", "--out", tmp_path / "runs", "--max-new-tokens", 3, "--no-progress"]
    result = cli("record", *options, "--prompts", path, "--prompt", KINDS[0].prompt, "--prompt", "a, b=c; ünï 日本")
    assert result.code == 0, result.err
    (found,) = find_runs(tmp_path / "runs")
    assert result.out.strip() == str(found)
    run = open_run(found)
    docs = [json.loads(text) for text in table(run, "SELECT doc FROM docs ORDER BY task, doc_id")["doc"]]
    assert [doc["prompt"] for doc in docs] == [
        KINDS[3].prompt,
        KINDS[2].prompt,
        KINDS[0].prompt,
        "a, b=c; ünï 日本",
        KINDS[4].prompt,
    ]
    assert check_run(found).failed == []


def test_prompts_are_part_of_the_identity(tmp_path: Path) -> None:
    first = record_run(tmp_path / "runs", prompts=KINDS[:1], max_new_tokens=2, fresh=False)
    second = record_run(tmp_path / "runs", prompts=KINDS[1:2], max_new_tokens=2, fresh=False)
    assert first.path != second.path


@pytest.mark.parametrize("relative", [False, True])
def test_data_is_found_beside_its_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool) -> None:
    """Whatever the working directory is, and though that holds another file of the same name."""
    docs = [{"question": "Q: 1 + 1 = A:", "choices": ["2", "3"], "gold": 0}]
    task = choice_task(tmp_path / "tasks" / "deep", "ls_here", docs)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ls_here.jsonl").write_text('{"question": "WRONG", "choices": ["a", "b"], "gold": 0}\n')
    monkeypatch.chdir(elsewhere)
    include = "../tasks" if relative else str(tmp_path / "tasks")
    run = record_run(tmp_path / "runs", tasks=(task,), include_path=include)
    assert json.loads(table(run, "SELECT doc FROM docs")["doc"][0])["question"] == "Q: 1 + 1 = A:"
    assert Path.cwd() == elsewhere


def test_a_group_is_its_tasks(finished: Path, tmp_path: Path) -> None:
    store = recorder.open(finished)
    assert set(store.sql("SELECT DISTINCT task FROM docs")["task"]) == {"ls_tiny_choice", "ls_tiny_generate"}
    (listed,) = store.sql("SELECT tasks FROM runs")["tasks"]
    assert set(listed) == {"ls_tiny_choice", "ls_tiny_generate"}


def with_template(target: Path, template: str) -> Path:
    """The tiny model with a chat template in its tokenizer."""
    shutil.copytree(TINY, target)
    file = target / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["chat_template"] = template
    file.write_text(json.dumps(config), encoding="utf-8")
    return target


TURN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATES = {
    # template, BOS tokens that its prompts begin with
    "no BOS": (TURN, 0),
    "one BOS": ("{{ bos_token }}" + TURN, 1),
    "two BOS": ("{{ bos_token }}{{ bos_token }}" + TURN, 2),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_template_and_bos(tmp_path: Path, name: str) -> None:
    template, expected = TEMPLATES[name]
    model = with_template(tmp_path / "model", template)
    fields: dict[str, Any] = {"tasks": ("ls_tiny_choice",), "include_path": str(TASKS), "limit": 1}
    run = record_run(tmp_path / "runs", model=str(model), apply_chat_template=True, **fields)
    assert check_run(run.path).failed == []
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.bos_token_id is not None, "the tiny tokenizer has no BOS: this test says nothing"
    adds = tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    rows = table(run, "SELECT input_ids, n_prompt FROM requests ORDER BY choice")
    prompts = [list(row.input_ids[: row.n_prompt]) for row in rows.itertuples()]
    found = {prompt.count(tokenizer.bos_token_id) for prompt in prompts}
    assert len(found) == 1
    assert found <= {expected, expected + adds}
    assert all("user: " in tokenizer.decode(prompt) for prompt in prompts)
    (n,) = found
    warned = run.about["warnings"]
    assert (warned["without_bos"], warned["several_bos"]) == (4 * (n == 0), 4 * (n > 1))
    assert run.about["tokenizer"]["chat_template"] is True


def test_a_chat_template_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    options = ["--model", TINY, "--device", "cpu", "--out", tmp_path / "runs", "--include-path", TASKS]
    result = cli("record", *options, "--tasks", "ls_tiny_choice", "--apply-chat-template", "--no-progress")
    assert result.code == 2, result.err
    assert len(result.sentences) == 1
    assert "chat" in result.sentences[0]


def test_left_truncation_is_counted(tmp_path: Path) -> None:
    """Prompts longer than 32 tokens lose their beginning: how much is on disk, and what is left is what was fed."""
    short, long = "Q: 1 + 1 = A:", "The capital of France is Paris. " * 8 + "Q: 1 + 1 = A:"
    prompts = (
        Prompt(prompt=short, choices=(" 2", " 3"), gold=0),
        Prompt(prompt=long, choices=(" 2", " 3"), gold=0),
        Prompt(prompt=long),
    )
    run = record_run(tmp_path / "runs", prompts=prompts, max_new_tokens=4, model_args={"max_length": 32})
    assert check_run(run.path).failed == []
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    rows = table(run, "SELECT * FROM requests ORDER BY task, doc_id, choice")
    by_key = {(row.task, row.doc_id, row.choice): row for row in rows.itertuples()}
    for choice, text in enumerate((" 2", " 3")):
        assert by_key["prompts_choices", 0, choice].truncated_left == 0
        row = by_key["prompts_choices", 1, choice]
        whole = tokenizer(long + text).input_ids
        assert row.truncated_left == len(whole) - 33 > 0
        assert list(row.input_ids) == whole[-33:]
    row = by_key["prompts_generate", 0, 0]
    whole = tokenizer(long).input_ids
    assert row.n_prompt + row.truncated_left == len(whole)
    assert list(row.input_ids[: row.n_prompt]) == whole[row.truncated_left :]
    assert row.n_prompt <= 32 - 4
    assert run.about["warnings"]["truncated"] == 3
    assert run.about["max_length"] == 32
