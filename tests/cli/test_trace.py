"""``stepctl trace``: what a person and a program are told of a file, and that ``train`` judges the same way."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from tests.doubles.project import Project, rows, until

END = "<|im_end|>"
BAD = (
    '{"messages": [{"role": "user", "content": "zqj-sentinel"}]}',
    '{"messages": [{"role": "user", "content": "zqj-sentinel"}, {"role": "assistant", "content": ""}]}',
    '{"prompt": "p", "completion": "c"',
)


def ask(project: Project, *args: object, code: int = 0) -> dict[str, Any]:
    done = project.call("trace", *args, "--json")
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and "this is a bug" not in done.stderr, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def said(project: Project, *args: object, code: int = 0) -> tuple[str, str]:
    done = project.call("trace", *args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def lines(data: list[dict[str, Any]], *more: str) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in data) + "".join(f"{line}\n" for line in more)


def test_every_row_is_judged_not_only_the_first_bad_one(project: Project) -> None:
    project.trace("a.jsonl", lines(rows(3), *BAD))
    found = ask(project, "check", "a.jsonl", code=3)
    assert [(bad["line"], bad["field"]) for bad in found["bad"]] == [
        (4, "messages"),
        (5, "messages[1].content"),
        (6, None),
    ]
    assert all(bad["file"] == "a.jsonl" and bad["reason"] for bad in found["bad"])
    assert (found["state"], found["rows_total"], found["rows_kept"], found["steps"]) == ("refused", 6, 3, 0)
    assert found["exit_code"] == 3
    out, err = said(project, "check", "a.jsonl", code=3)
    assert "a.jsonl: JSON lines, 6 rows" in out
    assert "a.jsonl, line 4: messages: has no assistant turn" in out
    assert "refused" in out.splitlines()[-1]
    assert "zqj-sentinel" not in out + err


def test_bad_rows_are_left_out_when_asked(project: Project) -> None:
    project.trace("a.jsonl", lines(rows(5), *BAD))
    found = ask(project, "check", "a.jsonl", "--skip-bad-rows")
    assert (found["rows_total"], found["rows_kept"], found["rows_skipped"], found["steps"]) == (8, 5, 3, 2)
    assert len(found["bad"]) == 3
    report = project.train("a.jsonl", "--skip-bad-rows", "--key", "k")
    assert (report["rows_total"], report["rows_done"], report["steps_run"]) == (5, 5, 2)
    refused = project.run("train", "a.jsonl")
    assert refused.returncode == 3
    assert "--skip-bad-rows" in refused.stderr
    assert project.train("a.jsonl", "--skip-bad-rows", "--key", "k")["replayed"]


def test_a_file_that_ends_too_early_is_never_passed_over(project: Project) -> None:
    """Nobody knows how many rows are missing."""
    whole = gzip.compress(lines(rows(50)).encode(), mtime=0)
    (project.path / "a.jsonl.gz").write_bytes(whole[:-40])
    found = ask(project, "check", "a.jsonl.gz", "--skip-bad-rows", code=3)
    assert found["state"] == "refused"
    project.trace("b.json", json.dumps(rows(3))[:-30])
    assert ask(project, "check", "b.json", "--skip-bad-rows", code=3)["steps"] == 0
    project.trace("c.jsonl", "\n".join(BAD))
    assert ask(project, "check", "c.jsonl", "--skip-bad-rows", code=3)["rows_kept"] == 0


def test_what_the_trace_adds_up_to(project: Project) -> None:
    data = rows(6)
    again = json.loads(json.dumps(data[0]))
    other = json.loads(json.dumps(data[1]))
    other["messages"][1]["content"] = "It is not known."
    long = {"prompt": "q", "completion": "word " * 60}
    project.trace("a.jsonl", [*data, again, other, long])
    found = ask(project, "check", "a.jsonl", "--max-length", "120")
    assert (found["rows_total"], found["rows_kept"], found["duplicates"], found["same_prompt"]) == (9, 9, 1, 1)
    assert (found["truncated"], found["longest"], found["steps"]) == (1, 120, 3)
    # 300 bytes and the end of turn, of which 119 have room behind the prompt.
    assert found["lost_tokens"] == 182
    assert found["kinds"] == {"messages": 8, "prompt and completion": 1}
    assert sum(each["rows"] for each in found["lengths"]) == 9
    assert {each["at_most"] for each in found["lengths"]} <= {64, 128, 256, 512}
    assert {(each["code"], each["line"]) for each in found["warnings"]} >= {
        ("cut", 9),
        ("cut", None),
        ("duplicates", 7),
    }
    assert found["forecast_sec"] is None
    report = project.train("a.jsonl", "--max-length", "120")
    assert report["steps_run"] == found["steps"]
    forecast = ask(project, "check", "a.jsonl")
    assert forecast["max_length"] == 120, "the lineage's"
    assert forecast["forecast_sec"] is not None
    out, err = said(project, "check", "a.jsonl")
    assert "repeated: 1 the same, 1 the same prompt with another answer" in out
    assert "steps: 3, of 4 rows each" in out
    assert "up to" in out and "#" in out
    assert "182" not in err and "% of the supervised tokens are lost" in err


@pytest.mark.parametrize(("on_long", "kept", "code"), [("truncate", 3, 0), ("drop", 2, 0), ("refuse", 2, 3)])
def test_what_is_too_long(project: Project, on_long: str, kept: int, code: int) -> None:
    project.trace("a.jsonl", [*rows(2), {"prompt": "q", "completion": "word " * 60}])
    found = ask(project, "check", "a.jsonl", "--max-length", "120", "--on-long", on_long, code=code)
    assert (found["rows_kept"], found["rows_dropped"]) == (kept, int(on_long == "drop"))
    if on_long == "drop":
        assert ("dropped_long", 3) in [(each["code"], each["line"]) for each in found["warnings"]]
        report = project.train("a.jsonl", "--max-length", "120", "--on-long", "drop", "--grad-accum", "2")
        assert (report["rows_total"], report["steps_run"]) == (2, 1)
    if on_long == "refuse":
        assert found["bad"][0]["line"] == 3
        assert "120" in found["bad"][0]["reason"] and "302" in found["bad"][0]["reason"]


def test_nothing_left_is_refused(project: Project) -> None:
    project.trace("a.jsonl", [{"prompt": "q", "completion": "word " * 60}])
    found = ask(project, "check", "a.jsonl", "--max-length", "20", "--on-long", "drop", code=3)
    assert [bad["reason"] for bad in found["bad"]] == ["no row is left: all are longer than max_length"]


def test_a_row_as_the_model_sees_it(project: Project) -> None:
    project.trace("a.jsonl", "\n" + lines(rows(2)))
    found = ask(project, "show", "a.jsonl", "--row", 3)
    assert (found["row"], found["line"], found["kind"], found["format"]) == (2, 3, "messages", "JSON lines")
    assert found["text"].startswith("<|im_start|>user\nWhat is 1 plus 1?<|im_end|>\n<|im_start|>assistant\n")
    assert [span["text"] for span in found["spans"] if span["supervised"]] == [f"1 plus 1 is 2.{END}"]
    assert "".join(span["text"] for span in found["spans"]) == found["text"]
    assert len(found["token_ids"]) == len(found["labels"])
    assert all(label in (-100, token) for token, label in zip(found["token_ids"], found["labels"], strict=True))
    assert "chat_template.jinja" in found["template"]
    out, _ = said(project, "show", "a.jsonl", "--row", 3)
    assert f"assistant\n⟦1 plus 1 is 2.{END}⟧" in out
    assert "row 2, line 3 of a.jsonl (JSON lines): messages" in out


def test_preferences_are_shown_side_by_side_and_labels_are_told(project: Project) -> None:
    project.trace("a.jsonl", [{"prompt": "2+2?", "chosen": "4", "rejected": "5"}])
    found = ask(project, "show", "a.jsonl", "--row", 1, "--method", "dpo")
    for side, answer in (("chosen", "4"), ("rejected", "5")):
        assert [span["text"] for span in found[side]["spans"] if span["supervised"]] == [f"{answer}{END}"]
    assert "text" not in found
    project.trace("b.jsonl", [{"prompt": "2+2?", "completion": "5", "label": "no"}])
    assert ask(project, "show", "b.jsonl", "--row", 1, "--method", "kto")["desirable"] is False


def test_controls_of_the_terminal_are_shown_not_obeyed(project: Project) -> None:
    project.trace("a.jsonl", [{"text": "a\x1b[2Jb\x07\tc"}])
    out, _ = said(project, "show", "a.jsonl", "--row", 1)
    assert "\x1b" not in out and "\x07" not in out
    assert "a␛[2Jb␇\tc" in out


def test_what_cannot_be_shown_says_why(project: Project) -> None:
    project.trace("a.jsonl", lines(rows(1), "", *BAD))
    bad = project.call("trace", "show", "a.jsonl", "--row", 3)
    assert bad.returncode == 3
    assert "a.jsonl, line 3: messages: has no assistant turn" in bad.stderr
    for row, words in ((2, "no row at line 2; the next one is at line 3"), (9, "no row at line 9; the last one is at")):
        gone = project.call("trace", "show", "a.jsonl", "--row", row)
        assert gone.returncode == 2
        assert words in gone.stderr
    assert project.call("trace", "show", "none.jsonl", "--row", 1).returncode == 2
    assert project.call("trace", "check", "a.jsonl", "a.jsonl").returncode == 2


def test_rows_come_on_stdin_and_from_pipes_too(project: Project) -> None:
    text = lines(rows(2))
    done = project.run("trace", "check", "-", "--json", stdin=text)
    assert json.loads(done.stdout)["files"] == [{"name": "-", "format": "JSON lines", "rows": 2}]
    shown = project.run("trace", "show", "-", "--row", "2", "--json", stdin=text)
    assert json.loads(shown.stdout)["line"] == 2


def test_several_files_of_several_forms_are_one_trace(project: Project) -> None:
    project.trace("a.jsonl", lines(rows(2)))
    project.trace("b.json", json.dumps(rows(2, 10), indent=2))
    (project.path / "c.bin").write_bytes(gzip.compress(lines(rows(1, 20)).encode()))
    found = ask(project, "check", "a.jsonl", "b.json", "c.bin")
    assert [(each["name"], each["rows"]) for each in found["files"]] == [("a.jsonl", 2), ("b.json", 2), ("c.bin", 1)]
    assert found["files"][2]["format"].startswith("JSON lines")
    assert found["trace_sha256"] == project.train("a.jsonl", "b.json", "c.bin")["trace_sha256"]


def test_rows_of_another_method_are_refused_with_counts_of_what_there_is(project: Project) -> None:
    preference = {"prompt": "p", "chosen": "a", "rejected": "b"}
    project.trace("a.jsonl", [*rows(2), preference, {"text": "plain"}])
    found = ask(project, "check", "a.jsonl", code=3)
    assert {bad["line"] for bad in found["bad"]} == {3}
    assert found["kinds"] == {"messages": 2, "preference": 1, "text": 1}
    out, _ = said(project, "check", "a.jsonl", code=3)
    assert "shapes: 2 messages, 1 preference, 1 text; method sft" in out


def test_checking_changes_nothing(project: Project) -> None:
    project.trace("a.jsonl", rows(2))
    before = sorted(project.path.rglob("*"))
    ask(project, "check", "a.jsonl")
    ask(project, "show", "a.jsonl", "--row", 1)
    assert sorted(project.path.rglob("*")) == before


def test_a_lineage_that_cannot_be_read_does_not_keep_a_trace_from_being_judged(project: Project) -> None:
    project.trace("a.jsonl", rows(2))
    (project.path / "checkpoints").write_text("in the way")
    done = project.call("trace", "check", "a.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    assert "the lineage cannot be read" in done.stderr


def test_a_call_goes_on_only_with_the_rows_that_it_began_with(project: Project) -> None:
    data = [{"prompt": "q", "completion": "word " * (1 + 59 * (n % 2))} for n in range(12)]
    project.trace("a.jsonl", data)
    settings = ("--key", "k", "--grad-accum", "2", "--max-length", "40", "--on-long", "drop")
    project.faults(pause_at="step:1")
    process = project.start("train", "a.jsonl", *settings)
    run = project.wait_for("step:1")
    stop = project.start("train", "stop", "last")
    until(lambda: (run / "control/stop").exists())
    project.go()
    assert (process.wait(60), stop.wait(60)) == (6, 0)
    project.faults()
    refused = project.run("train", "a.jsonl", "--key", "k", "--max-length", "1024", "--on-long", "truncate", "--json")
    assert refused.returncode == 4, refused.stderr
    assert json.loads(refused.stdout)["error"]["code"] == "other_rows"
    report = project.train("a.jsonl", *settings)
    assert (report["rows_done"], report["rows_total"]) == (6, 6)


def test_left_out_rows_are_told_by_train_too(project: Project) -> None:
    project.trace("a.jsonl", lines(rows(3), *BAD))
    report = project.train("a.jsonl", "--skip-bad-rows")
    assert report["rows_total"] == 3
    assert report["warnings"][0]["code"] == "skipped_rows"
    assert report["warnings"][0]["message"].startswith("3 rows left out as bad: a.jsonl, line 4: messages: has no")


def test_what_stands_behind_a_broken_element_cannot_be_shown(project: Project) -> None:
    project.trace("a.json", json.dumps(rows(3)).replace("}]}, {", "}]} {", 2))
    done = project.call("trace", "show", "a.json", "--row", 3, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["details"]["bad"][0]["line"] == 1
    assert "what follows was not read" in done.stderr


def test_why_a_row_is_left_out(project: Project) -> None:
    row = {"messages": [{"role": "user", "content": "q", "weight": 1}, {"role": "assistant", "content": "a " * 60}]}
    project.trace("a.jsonl", [row])
    toml = (project.path / "stepctl.toml").read_text()
    (project.path / "stepctl.toml").write_text(f'{toml}[train]\non_long = "drop"\n')
    done = project.call("trace", "show", "a.jsonl", "--row", 1, "--max-length", "20")
    assert done.returncode == 2
    assert 'left out: its 141 tokens are more than max_length (20), and on_long is "drop"' in done.stderr
