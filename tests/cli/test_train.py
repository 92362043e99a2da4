"""``stepctl train`` as a user calls it; the trainer is the stand-in."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.doubles.project import Project, rows, until

FIELDS = (
    "run state method model lineage target device precision num_examples rows_done rows_total grad_accum "
    "steps_run from_step global_step loss losses eval_loss checkpoint resumed_from trace_sha256 "
    "supervised_tokens replayed exact warnings elapsed_sec timings_sec "
).split()


def test_steps_are_counted_from_where_the_last_call_ended(project: Project) -> None:
    first = project.train(project.trace("a.jsonl", rows(10)))
    assert (first["from_step"], first["steps_run"], first["global_step"]) == (0, 3, 3)
    assert first["resumed_from"] is None
    assert len(first["losses"]) == 3
    assert first["loss"] == first["losses"][-1]
    second = project.train(project.trace("b.jsonl", rows(1, 50)))
    assert (second["from_step"], second["global_step"]) == (3, 4)
    assert second["resumed_from"] == first["checkpoint"]
    assert project.trained() == 11
    project.verify()


def test_the_json_object_has_every_field(project: Project) -> None:
    held_out = project.trace("held.jsonl", rows(2, 90))
    answer = project.train(project.trace("a.jsonl", rows(4)), "--eval", held_out, "--key", "k")
    assert set(FIELDS) <= set(answer)
    assert {"imports", "model", "data", "steps", "save", "commit"} <= set(answer["timings_sec"])
    assert answer["eval_loss"] < answer["eval_loss_before"]
    assert answer["exit_code"] == 0


def test_several_files_and_stdin_are_one_trace(project: Project) -> None:
    project.trace("a.jsonl", rows(3))
    text = "".join(json.dumps(row) + "\n" for row in rows(2, 10))
    answer = project.train("a.jsonl", "-", stdin=text)
    assert (answer["num_examples"], answer["steps_run"]) == (5, 2)


def test_an_empty_stdin_is_refused(project: Project) -> None:
    done = project.run("train", "-")
    assert done.returncode == 3
    assert "no rows" in done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"text": "a"}\n{"text": 5}\n', "line 2"),
        ('{"messages": [\n', "line 1"),
        ('{"foo": 1}\n', "line 1"),
        ('{"text": ""}\n', "line 1"),
        ('{"messages": [{"role": "user", "content": "x"}]}\n', "line 1"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_done(project: Project, text: str, line: str) -> None:
    answer = project.train(project.trace("bad.jsonl", text), code=3)
    assert answer["error"]["details"]["bad"]
    assert line in answer["error"]["message"]
    assert not project.runs()
    assert not (project.path / "checkpoints").exists()


def test_bad_held_out_rows_are_refused_too(project: Project) -> None:
    project.trace("a.jsonl", rows(1))
    project.train("a.jsonl", "--eval", project.trace("held.jsonl", '{"text": 1}\n'), code=3)
    assert not project.runs()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("nope.jsonl",), "does not exist"),
        (("a.jsonl", "a.jsonl"), "twice"),
        (("model",), "folder"),
        (("a.jsonl", "--fresh", "--continue"), "--fresh"),
        (("a.jsonl", "--key", " "), "--key"),
        (("a.jsonl", "--no-such-option"), "no-such-option"),
        (("a.jsonl", "--model", "./nowhere"), "nowhere"),
        (("a.jsonl", "--target", "moon"), "moon"),
    ],
)
def test_wrong_usage_is_exit_2(project: Project, arguments: tuple[str, ...], word: str) -> None:
    project.trace("a.jsonl", rows(1))
    answer = project.train(*arguments, code=2)
    assert word in answer["error"]["message"]


def test_a_hub_model_without_a_hub_says_how_to_use_a_folder(project: Project) -> None:
    answer = project.train(project.trace("a.jsonl", rows(1)), "--model", "nobody/nothing", code=1)
    assert "--model /path/to/model" in answer["error"]["next"]
    assert "nobody/nothing" in answer["error"]["message"]


def test_a_key_is_trained_once_even_after_pruning(project: Project) -> None:
    project.trace("a.jsonl", rows(4))
    first = project.train("a.jsonl", "--key", "a")
    for i in range(5):
        project.train(project.trace(f"c{i}.jsonl", rows(4, 100 + 10 * i)))
    assert len(project.status()["checkpoints"]) == 3
    again = project.train("a.jsonl", "--key", "a")
    assert again["replayed"]
    assert (again["run"], again["from_step"], again["global_step"], again["losses"]) == (
        first["run"],
        first["from_step"],
        first["global_step"],
        first["losses"],
    )
    assert project.trained() == 24
    answer = project.train(project.trace("b.jsonl", rows(4, 40)), "--key", "a", code=4)
    assert answer["error"]["code"] == "key_conflict"


def test_a_replay_does_not_need_the_run_store(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)), "--key", "a")
    (project.path / "runs").rename(project.path / "gone")
    again = project.train("a.jsonl", "--key", "a")
    assert again["replayed"]
    assert (again["global_step"], again["loss"]) == (1, 1.0)


def test_other_identity_is_refused_and_named(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    answer = project.train(project.trace("b.jsonl", rows(4, 9)), env={"LORA_ALPHA": "64"}, code=4)
    assert "alpha" in answer["error"]["message"]
    assert project.status()["step"] == 1


def test_identity_that_is_not_given_is_inherited(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)), env={"LORA_R": "4", "LORA_ALPHA": "32"})
    project.train(project.trace("b.jsonl", rows(4, 9)))
    assert project.status()["step"] == 2


def test_a_changed_model_folder_is_refused(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    config = project.model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_size": 16}))
    answer = project.train(project.trace("b.jsonl", rows(4, 9)), code=4)
    assert "model" in answer["error"]["message"]


def test_a_renamed_model_folder_is_the_same_model(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    project.model.rename(project.path / "elsewhere")
    answer = project.train(project.trace("b.jsonl", rows(4, 9)), "--model", "./elsewhere")
    assert answer["global_step"] == 2


def test_expect_step_holds_the_head_against_a_number(project: Project) -> None:
    project.trace("a.jsonl", rows(4))
    project.train("a.jsonl", "--expect-step", 0, "--key", "a")
    answer = project.train(project.trace("b.jsonl", rows(4, 9)), "--expect-step", 0, code=4)
    assert answer["error"]["details"]["head_step"] == 1
    assert project.train("a.jsonl", "--expect-step", 0, "--key", "a")["replayed"]


def test_a_trace_without_a_key_trains_again_with_a_warning(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    answer = project.train("a.jsonl")
    assert answer["global_step"] == 2
    assert "trained_before" in [w["code"] for w in answer["warnings"]]


def test_fresh_starts_at_0_and_keeps_the_old_work(project: Project) -> None:
    old = project.train(project.trace("a.jsonl", rows(8)))
    project.trace("b.jsonl", rows(4, 20))
    new = project.train("b.jsonl", "--fresh", "--key", "f", env={"LORA_R": "4"})
    assert (new["from_step"], new["global_step"], new["resumed_from"]) == (0, 1, None)
    status = project.status()
    assert (status["head"], status["step"]) == (new["checkpoint"], 1)
    assert old["checkpoint"] in [c["checkpoint"] for c in status["checkpoints"]]
    assert project.train("b.jsonl", "--fresh", "--key", "f", env={"LORA_R": "4"})["replayed"]
    assert project.train(project.trace("c.jsonl", rows(4, 40)))["from_step"] == 1
    assert project.trained() == 8
    project.verify()


def test_a_failed_fresh_call_leaves_the_head(project: Project) -> None:
    old = project.train(project.trace("a.jsonl", rows(8)))
    project.faults(nan_at=1)
    project.train(project.trace("b.jsonl", rows(4, 20)), "--fresh", code=1)
    assert project.status()["head"] == old["checkpoint"]


def test_init_from_starts_a_lineage_at_step_0_and_is_held(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(8)), "--lineage", "sft")
    project.train(project.trace("b.jsonl", rows(4, 20)), "--lineage", "sft")
    new = project.train(project.trace("c.jsonl", rows(4, 30)), "--init-from", "sft@2")
    assert (new["from_step"], new["global_step"]) == (0, 1)
    assert project.train(project.trace("d.jsonl", rows(4, 40)))["global_step"] == 2
    assert project.train(project.trace("e.jsonl", rows(4, 50)), "--init-from", "sft@2")["global_step"] == 3
    answer = project.train(project.trace("f.jsonl", rows(4, 60)), "--init-from", "sft", code=4)
    assert answer["error"]["code"] == "identity_differs"
    project.train("f.jsonl", "--init-from", "no-such-lineage", code=2)


def test_dry_run_changes_nothing(project: Project, tmp_path: Path) -> None:
    project.trace("a.jsonl", rows(10))
    before = sorted(p for p in tmp_path.rglob("*") if "home" not in p.parts)
    done = project.run("train", "a.jsonl", "--dry-run", "--json")
    # The stand-in answers no questions of the plan: the refusal must say so, and change nothing.
    assert done.returncode in (0, 1)
    assert sorted(p for p in tmp_path.rglob("*") if "home" not in p.parts) == before


def test_a_non_finite_step_is_named_and_not_committed(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    project.faults(nan_at=3)
    answer = project.train(project.trace("b.jsonl", rows(12, 20)), code=1)
    assert answer["state"] == "failed"
    assert answer["error"]["code"] == "non_finite"
    assert answer["error"]["details"] == {"step": 3, "rows": [5, 6, 7, 8]}
    assert project.status()["step"] == 1
    project.faults()
    assert project.train("b.jsonl")["from_step"] == 1


def test_out_of_memory_says_what_to_type(project: Project) -> None:
    project.faults(oom_at=1)
    answer = project.train(project.trace("a.jsonl", rows(4)), code=1)
    assert answer["error"]["code"] == "out_of_memory"
    assert "--max-length" in answer["error"]["next"]


def test_ctrl_c_saves_and_exits_6_and_the_rest_is_continued(project: Project) -> None:
    project.trace("a.jsonl", rows(10))
    project.faults(pause_at="step:1")
    process = project.start("train", "a.jsonl", "--json")
    run = project.wait_for("step:1")
    process.send_signal(signal.SIGINT)
    until(lambda: (run / "control/stop").exists())
    project.go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 6, err
    answer = json.loads(out)
    assert (answer["state"], answer["global_step"], answer["rows_done"], answer["rows_total"]) == ("stopped", 1, 4, 10)
    project.faults()
    refused = project.train("a.jsonl", code=4)
    assert refused["error"]["code"] == "unfinished_trace"
    rest = project.train("a.jsonl", "--continue")
    assert (rest["from_step"], rest["steps_run"], rest["rows_done"]) == (1, 2, 10)
    assert project.trained() == 10
    assert project.train("a.jsonl", "--continue")["replayed"]


def test_ctrl_c_twice_cancels_without_saving(project: Project) -> None:
    project.faults(pause_at="step:1")
    process = project.start("train", project.trace("a.jsonl", rows(10)), "--json")
    run = project.wait_for("step:1")
    process.send_signal(signal.SIGINT)
    until(lambda: (run / "control/stop").exists())
    process.send_signal(signal.SIGINT)
    until(lambda: (run / "control/cancel").exists())
    project.go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    assert json.loads(out)["steps_run"] == 0
    assert project.status()["head"] is None


def test_detach_attach_stop_and_cancel(project: Project) -> None:
    project.faults(pause_at="step:1")
    started = project.train(project.trace("a.jsonl", rows(10)), "--detach", "--key", "a")
    assert started["state"] == "running"
    run = project.wait_for("step:1")
    assert project.run("train", "attach", "last", "--timeout", "0", "--json").returncode == 124
    following = project.start("train", "attach", "last", "--json")
    same_key = project.start("train", "a.jsonl", "--key", "a", "--json")
    busy = project.train(project.trace("b.jsonl", rows(4, 40)), "--no-wait", code=4)
    assert busy["error"]["code"] == "busy"
    conflict = project.train("b.jsonl", "--key", "a", code=4)
    assert conflict["error"]["code"] == "key_conflict"
    stopping = project.start("train", "stop", run.name, "--json")
    until(lambda: (run / "control/stop").exists())
    project.go()
    for process, code in ((following, 6), (same_key, 6), (stopping, 0)):
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        assert json.loads(out)["state"] == "stopped"
    project.faults(pause_at="step:2")
    rest = project.train("a.jsonl", "--key", "a", "--detach")
    assert rest["rows_done"] == 4
    run = project.wait_for("step:2")
    cancelling = project.start("train", "cancel", "last", "--json")
    until(lambda: (run / "control/cancel").exists())
    project.go()
    assert cancelling.communicate(timeout=60) and cancelling.returncode == 0
    assert project.run("train", "attach", "last").returncode == 7
    assert project.status()["step"] == 1
    project.faults()
    assert project.train("a.jsonl", "--key", "a")["rows_done"] == 10
    assert project.trained() == 10


def test_attach_leaves_on_ctrl_c(project: Project) -> None:
    project.faults(pause_at="step:1")
    project.train(project.trace("a.jsonl", rows(4)), "--detach")
    project.wait_for("step:1")
    process = project.start("train", "attach", "last", "--json")
    assert process.stderr is not None
    until(lambda: process.stderr and "gradient norm" in process.stderr.readline())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["state"] == "running"
    project.go()
    assert project.run("train", "attach", "last").returncode == 0


def test_a_call_waits_for_the_one_before(project: Project) -> None:
    project.faults(pause_at="step:1")
    first = project.start("train", project.trace("a.jsonl", rows(4)), "--json")
    project.wait_for("step:1")
    second = project.start("train", project.trace("b.jsonl", rows(4, 20)), "--json")
    assert second.stderr is not None
    until(lambda: second.stderr and "waiting for run" in second.stderr.readline())
    project.go()
    first.communicate(timeout=60)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert json.loads(out)["from_step"] == 1


def test_verbs_files_and_options_are_told_apart(project: Project) -> None:
    project.trace("attach", rows(1))
    assert project.run("train", "attach").returncode == 2
    assert project.train("./attach")["steps_run"] == 1
    assert project.train("./attach", "--key", "stop")["steps_run"] == 1
    early = project.run("train", "--json", "attach", "last")
    assert early.returncode == 2
    assert "verb" in early.stderr
    help_text = project.run("train", "--help").stdout
    assert "--expect-step" in help_text
    assert "attach" in help_text
    assert project.run("train").returncode == 2


def test_run_words(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(1)))
    name = project.runs()[0].name
    assert project.run("train", "attach", name[:-2]).returncode == 0
    assert project.run("train", "attach", "2").returncode == 0
    missing = project.run("train", "attach", "nothing")
    assert missing.returncode == 2
    assert "no run" in missing.stderr


def test_people_are_told_what_happened(project: Project) -> None:
    done = project.run("train", project.trace("a.jsonl", rows(5)))
    assert done.returncode == 0
    assert "step 0 -> 2" in done.stdout
    assert "step 2 (2 of 2): loss 0.5000" in done.stderr
    listing = project.run("runs", "ls").stdout
    assert "done" in listing
    assert "0 -> 2" in listing
    assert '"state": "done"' in project.run("runs", "show", "last").stdout
    assert "loss 0.5000" in project.run("runs", "logs", "last").stdout
    assert "head:" in project.run("status").stdout


def test_a_damaged_head_is_refused_by_name_and_fresh_leaves_it(project: Project) -> None:
    old = project.train(project.trace("a.jsonl", rows(4)))
    file = project.path / "checkpoints/main/checkpoints" / old["checkpoint"] / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    answer = project.train(project.trace("b.jsonl", rows(4, 9)), code=1)
    assert answer["error"]["code"] == "damaged_checkpoint"
    assert "optimizer.safetensors" in answer["error"]["message"]
    new = project.train("b.jsonl", "--fresh")
    assert (new["from_step"], new["global_step"]) == (0, 1)
    assert project.train(project.trace("c.jsonl", rows(4, 19)))["from_step"] == 1


def test_every_command_that_a_message_names_exists() -> None:
    """What a person is told to type can be typed."""
    import re

    import typer
    from tests.doubles.project import ROOT

    from stepctl.cli.main import app

    commands: dict[str, object] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    told = set(re.findall(r"stepctl (lineage|config) ([a-z]+)", source))
    for group, verb in told:
        assert verb in getattr(commands[group], "commands", {}), f"stepctl {group} {verb}"
