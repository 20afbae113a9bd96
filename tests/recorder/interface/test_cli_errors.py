"""Bad input is one sentence on stderr that names the offender, and exit code 2; never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recorder.looking import find_runs, open_run
from tests.conftest import REPO, TASKS, TINY, choice_task, write_task
from tests.recorder.interface.conftest import Cli, Result

pytestmark = pytest.mark.xdist_group("in-process")

QUESTIONS = [{"question": f"Q: {n} + 1 = A:", "choices": ["1", "2"], "gold": 0} for n in range(3)]


def sentence(result: Result) -> str:
    """The one sentence of a refused command."""
    assert result.code == 2, (result.code, result.err)
    assert len(result.sentences) == 1, result.err
    assert result.out == ""
    assert "Traceback" not in result.err
    text = result.sentences[0]
    assert text.startswith("layerscope: ")
    return text


class Record:
    """`layerscope record` of the tiny model on ls_tiny_choice; a field given as None leaves its option out."""

    def __init__(self, cli: Cli, out: Path) -> None:
        self.cli, self.out = cli, out

    def __call__(self, *more: Any, **options: Any) -> Result:
        given = {"model": TINY, "tasks": "ls_tiny_choice", "include_path": TASKS, "device": "cpu", "limit": 2}
        given |= {"out": self.out, "dtype": "float32", **options}
        argv: list[Any] = ["record", "--no-progress"]
        for name, value in given.items():
            if value is not None:
                argv += [f"--{name.replace('_', '-')}", value]
        return self.cli(*argv, *more)


@pytest.fixture
def record(cli: Cli, tmp_path: Path, one_thread: None) -> Record:
    return Record(cli, tmp_path / "runs")


def no_run_left(record: Record) -> None:
    assert not record.out.exists() or list(record.out.iterdir()) == []


# -- what no model is needed for -----------------------------------------------------------------------------------

OPTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown signal": ({"signals": "logit_lens,tunedlens"}, ("'tunedlens'", "logit_lens", "similarity")),
    "a signal nearly right": ({"signals": "logit-lens"}, ("'logit-lens'", "did you mean logit_lens")),
    "batch size": ({"batch_size": "x"}, ("--batch-size", "'x'", "auto")),
    "batch size 0": ({"batch_size": "0"}, ("batch_size", "at least 1")),
    "top k": ({"top_k": "0"}, ("top_k", "greater than or equal to 1")),
    "top k too large": ({"top_k": "1000"}, ("top_k", "100")),
    "limit": ({"limit": "0"}, ("limit", "greater than or equal to 1")),
    "positions": ({"positions": "foo"}, ("positions", "'scored' or 'all'")),
    "model args": ({"model_args": "max_length"}, ("--model-args", "'max_length'", "key=value")),
    "gen kwargs": ({"gen_kwargs": "do_sample"}, ("--gen-kwargs", "'do_sample'", "key=value")),
    "remote code": ({"model_args": "trust_remote_code=True"}, ("trust_remote_code", "remote code is never run")),
    "remote code, 1": ({"model_args": "trust_remote_code=1"}, ("trust_remote_code", "remote code is never run")),
    "nothing to do": ({"tasks": None}, ("--tasks", "--prompt", "--prompts")),
    "no model": ({"model": None}, ("model",)),
    "lens memory": ({"lens_memory": "1"}, ("lens_memory",)),
    "unknown run": ({"run": "20200101T000000z-abcdef"}, ("20200101T000000z-abcdef",)),
    "run and fresh": ({"run": "x", "fresh_": None}, ("--run", "x")),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(record: Record, name: str) -> None:
    options, words = OPTIONS[name]
    text = sentence(record(**{key: value for key, value in options.items() if not key.endswith("_")}))
    for word in words:
        assert word in text
    no_run_left(record)


def test_run_and_fresh_together(record: Record) -> None:
    text = sentence(record("--fresh", run="x"))
    assert "--run" in text
    assert "--fresh" in text


def test_out_is_a_file(record: Record) -> None:
    record.out.write_text("in the way")
    text = sentence(record())
    assert str(record.out) in text
    assert "--out" in text
    text = sentence(record(out=record.out / "deeper"))
    assert "--out" in text


PROMPTS: dict[str, tuple[bytes | None, tuple[str, ...]]] = {
    "missing": (None, ("p.jsonl", "No such file")),
    "not JSON": (b'{"prompt": "a"}\n{oops\n', ("p.jsonl", "line 2", "JSON")),
    "empty": (b"\n\n", ("p.jsonl", "no prompts")),
    "no prompt": (b'{"continuation": "a"}', ("line 1", "prompt", "required")),
    "wrong key": (b'{"prompt": "a", "choises": ["a", "b"]}', ("line 1", "choises", "continuation, choices, gold")),
    "not an object": (b'["a"]', ("line 1",)),
    "not UTF-8": (b'{"prompt": "caf\xe9"}', ("p.jsonl",)),
    "one choice": (b'{"prompt": "a", "choices": ["b"]}', ("line 1", "at least two")),
    "gold out of range": (b'{"prompt": "a", "choices": ["b", "c"], "gold": 2}', ("line 1", "gold")),
    "gold without choices": (b'{"prompt": "a", "gold": 0}', ("line 1", "gold")),
    "continuation and choices": (b'{"prompt": "a", "continuation": "b", "choices": ["c", "d"]}', ("line 1", "both")),
    "a number": (b'{"prompt": 5}', ("line 1", "prompt")),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_file(record: Record, tmp_path: Path, name: str) -> None:
    data, words = PROMPTS[name]
    path = tmp_path / "p.jsonl"
    if data is not None:
        path.write_bytes(data)
    text = sentence(record(tasks=None, prompts=path))
    for word in words:
        assert word in text
    no_run_left(record)


CONFIGS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "missing": (None, ("c.json", "No such file")),
    "not JSON": ("{oops", ("c.json", "not JSON")),
    "a list": ("[]", ("c.json", "object")),
    "unknown field": ('{"modell": "x"}', ("modell", "no such field", "batch_size")),
    "wrong type": ('{"top_k": "many"}', ("top_k",)),
    "prompts of another kind": ('{"prompts": 5}', ("prompts",)),
    "tasks of another kind": ('{"tasks": 5}', ("tasks",)),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("more", [(), ("--prompt", "hello")])
def test_config_file(cli: Cli, tmp_path: Path, name: str, more: tuple[str, ...]) -> None:
    data, words = CONFIGS[name]
    path = tmp_path / "c.json"
    if data is not None:
        path.write_text(data)
    options = ["--model", TINY, "--out", tmp_path / "runs", *([] if "tasks" in name else ["--tasks", "x"])]
    text = sentence(cli("record", "--config", path, *options, *more))
    for word in words:
        assert word in text


# -- what is found out while loading -------------------------------------------------------------------------------


def test_model_paths(record: Record, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for model, words in {
        "/nowhere/at/all": ("/nowhere/at/all", "not found"),
        "./nowhere": ("./nowhere", "not found"),
        "nowhere.gguf": ("nowhere.gguf", "not found"),
        str(tmp_path / "empty"): ("config.json",),
    }.items():
        text = sentence(record(model=model))
        for word in (model, *words):
            assert word in text
    no_run_left(record)


def test_model_of_the_hub_that_cannot_be_had(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    text = sentence(record(model="no-such-owner/no-such-model"))
    assert "no-such-owner/no-such-model" in text
    assert "not found" in text
    no_run_left(record)


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_no_causal_model(record: Record, tmp_path: Path, kind: str) -> None:
    import transformers

    small: dict[str, Any] = {"vocab_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "bert":
        config = transformers.BertConfig(**small, hidden_size=8, intermediate_size=8)
        model: Any = transformers.BertForMaskedLM(config)
    else:
        config = transformers.T5Config(vocab_size=4096, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        model = transformers.T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path / kind)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path / kind / name)
    text = sentence(record(model=tmp_path / kind))
    assert kind in text.lower()
    assert "causal" in text
    no_run_left(record)


def test_broken_weights(record: Record, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    text = sentence(record(model=tmp_path / "model"))
    assert str(tmp_path / "model") in text
    no_run_left(record)


def test_config_json_is_garbage(record: Record, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{")
    assert str(tmp_path / "model") in sentence(record(model=tmp_path / "model"))


def test_devices(record: Record) -> None:
    import torch

    missing = f"cuda:{torch.cuda.device_count()}"  # one more than there are: also true where there is a GPU
    for device in (missing, *([] if torch.cuda.is_available() else ["cuda"]), "cuda:x", "tpu"):
        text = sentence(record(device=device))
        assert f"--device {device}" in text
        assert "cpu" in text
    no_run_left(record)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("nosuchargument=3", ("nosuchargument",)),
        ("pretrained=x", ("pretrained",)),
        ("device=cpu", ("device", "option of the same name")),
        ("use_cache=x", ("use_cache",)),
    ],
)
def test_model_arguments(record: Record, args: str, words: tuple[str, ...]) -> None:
    text = sentence(record(model_args=args))
    for word in words:
        assert word in text
    no_run_left(record)


def test_dtype(record: Record) -> None:
    text = sentence(record(dtype="float7"))
    assert "--dtype float7" in text
    assert "bfloat16" in text


def test_unknown_task(record: Record) -> None:
    text = sentence(record(tasks="ls_tiny_choise"))
    assert "'ls_tiny_choise'" in text
    assert "ls_tiny_choice" in text
    assert str(TASKS) in text
    no_run_left(record)


def test_unknown_task_without_a_folder(record: Record) -> None:
    text = sentence(record(tasks="arc_eazy", include_path=None))
    assert "'arc_eazy'" in text
    assert "arc_easy" in text
    assert "--include-path" in text


def test_include_path_is_no_directory(record: Record, tmp_path: Path) -> None:
    text = sentence(record(include_path=tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in text


def test_a_document_without_choices(record: Record, tmp_path: Path) -> None:
    name = choice_task(tmp_path / "t", "ls_hollow", [*QUESTIONS, {"question": "x", "choices": [], "gold": 0}])
    text = sentence(record(tasks=name, include_path=tmp_path / "t", limit=None))
    assert "ls_hollow" in text
    assert "document 3" in text
    assert "choices" in text
    no_run_left(record)
    assert record(tasks=name, include_path=tmp_path / "t", limit=3).code == 0  # the others can be recorded


def test_a_missing_data_file(record: Record, tmp_path: Path) -> None:
    name = choice_task(tmp_path / "t", "ls_gone", QUESTIONS)
    (tmp_path / "t" / "ls_gone.jsonl").unlink()
    text = sentence(record(tasks=name, include_path=tmp_path / "t"))
    assert "ls_gone" in text
    no_run_left(record)


def test_data_that_is_no_json(record: Record, tmp_path: Path) -> None:
    name = choice_task(tmp_path / "t", "ls_garbage", QUESTIONS)
    (tmp_path / "t" / "ls_garbage.jsonl").write_text("{oops\n")
    assert "ls_garbage" in sentence(record(tasks=name, include_path=tmp_path / "t"))
    no_run_left(record)


def test_a_template_that_names_no_column(record: Record, tmp_path: Path) -> None:
    name = choice_task(tmp_path / "t", "ls_typo", QUESTIONS, doc_to_choice="choisses")
    assert "ls_typo" in sentence(record(tasks=name, include_path=tmp_path / "t"))


def test_a_yaml_that_cannot_be_parsed(record: Record, tmp_path: Path) -> None:
    choice_task(tmp_path / "t", "ls_good", QUESTIONS)
    (tmp_path / "t" / "bad.yaml").write_text("task: [oops\n")
    result = record(tasks="ls_good", include_path=tmp_path / "t")
    assert result.code in (0, 2), result.err  # lm-eval may skip it or refuse it; either way no traceback
    if result.code == 2:
        sentence(result)


def test_more_examples_than_there_are(record: Record) -> None:
    """More solved examples than the fewshot split holds: refused, naming the option or the task."""
    text = sentence(record(num_fewshot=500))
    assert "ls_tiny_choice" in text or "fewshot" in text
    no_run_left(record)


def test_an_empty_text_to_score(record: Record, tmp_path: Path) -> None:
    name = write_task(
        tmp_path / "t",
        "ls_mute",
        [{"text": "a", "answer": ""}],
        output_type="loglikelihood",
        doc_to_text="{{text}}",
        doc_to_target="{{answer}}",
        target_delimiter="",
        metric_list=[{"metric": "acc"}],
    )
    text = sentence(record(tasks=name, include_path=tmp_path / "t"))
    assert "ls_mute" in text


def test_a_lone_surrogate(record: Record, tmp_path: Path) -> None:
    """Recorded or refused by a sentence; never a traceback, never a run that cannot be read."""
    docs = [{"question": "Q: 1 + 1 = \ud800 A:", "choices": ["1", "2"], "gold": 1}]
    name = choice_task(tmp_path / "t", "ls_surrogate", docs)
    result = record(tasks=name, include_path=tmp_path / "t")
    if result.code == 0:
        assert record.cli("check", record.out).code == 0
    else:
        assert "ls_surrogate" in sentence(result)


def test_a_lone_surrogate_in_a_prompt(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a \\ud800 b", "continuation": " c"}\n')
    result = record(tasks=None, prompts=path)
    if result.code == 0:
        assert record.cli("check", record.out).code == 0
    else:
        sentence(result)


# -- runs that are there already -----------------------------------------------------------------------------------


def test_run_of_another_configuration(record: Record, finished: Path) -> None:
    fields = open_run(finished).about["config"]
    text = sentence(
        record(
            model=fields["model"], tasks="ls_all_tiny", top_k=3, seed=7, out=finished.parent, run=finished.name, limit=5
        )
    )
    assert finished.name in text
    assert "top_k was 5 and is now 3" in text
    assert "seed was 1234 and is now 7" in text
    assert "limit" not in text
    assert "--fresh" in text


def test_a_smaller_limit_of_a_finished_run(record: Record) -> None:
    """Starts another run of the smaller size, or reuses; the finished run stays what it was."""
    assert record(limit=3).code == 0
    (first,) = find_runs(record.out)
    before = {path.name: path.read_bytes() for path in (first / "tables").iterdir()}
    assert record(limit=2).code == 0
    assert {path.name: path.read_bytes() for path in (first / "tables").iterdir()} == before
    for path in find_runs(record.out):
        assert open_run(path).state == "complete"
    assert record.cli("check", record.out).code == 0
    text = record.cli("sql", "SELECT run_id, count(*) AS n FROM docs GROUP BY ALL", record.out, "--format", "csv").out
    assert sorted(line.rpartition(",")[2] for line in text.split()[1:]) in (["2", "3"], ["3"])


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("check",), ("sql", "SELECT 1"), ("dashboard",)])
def test_a_missing_directory(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    assert str(tmp_path / "nowhere") in sentence(cli(*command, tmp_path / "nowhere"))


@pytest.mark.parametrize("command", [("check",), ("sql", "SELECT 1"), ("dashboard",)])
def test_a_file_in_place_of_a_directory(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("x")
    assert str(tmp_path / "file") in sentence(cli(*command, tmp_path / "file"))


def test_no_runs_to_check(cli: Cli, tmp_path: Path) -> None:
    assert "no runs" in sentence(cli("check", tmp_path))


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELEKT 1", "SELEKT"),
        ("SELECT nosuch FROM runs", "nosuch"),
        ("SELECT * FROM nosuch", "nosuch"),
        ("SELECT nosuch(1)", "nosuch"),
        ("SELECT 'x'::INT", "x"),
        ("", ""),
        ("SELECT 1;;; SELECT (", ""),
    ],
)
def test_sql_that_cannot_be_asked(cli: Cli, finished: Path, query: str, word: str) -> None:
    assert word in sentence(cli("sql", query, finished))


def test_formats(cli: Cli, finished: Path) -> None:
    assert "--format xml" in sentence(cli("sql", "SELECT 1", finished, "--format", "xml"))
    assert "--format xml" in sentence(cli("schema", "--format", "xml"))


# -- through real processes ----------------------------------------------------------------------------------------


def process(*argv: Any, **environment: str) -> Result:
    done = subprocess.run(
        [sys.executable, "-m", "recorder.cli", *map(str, argv)],
        cwd=REPO,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="backslashreplace",
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_the_record_extra_is_missing(tmp_path: Path) -> None:
    """As where only the viewer is installed: importing torch fails."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
    )
    result = process(
        *("record", "--model", TINY, "--tasks", "ls_tiny_choice", "--include-path", TASKS, "--out", tmp_path / "runs"),
        "--no-progress",
        PYTHONPATH=str(tmp_path),
    )
    text = sentence(result)
    assert "pip install 'layerscope[record]'" in text
    assert "torch" in text
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_error_beyond_ascii_in_an_ascii_locale(tmp_path: Path) -> None:
    result = process(
        *("check", tmp_path / "nowhere-日本"), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING=""
    )
    assert "nowhere-" in sentence(result)


def test_a_bad_option_through_a_real_process(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"model": str(TINY), "tasks": ["x"], "positions": "foo"}))
    assert "positions" in sentence(process("record", "--config", config))
