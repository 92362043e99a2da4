"""``stepctl pod rm`` ends what it can, and names what may be alive whatever goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.calls.renting import interrupt, run_with_pod
from tests.doubles.runpod import Fault
from tests.targets.runpod.acting import RUN, Desk

from stepctl.base.errors import Exit, StepctlError, UsageError
from stepctl.calls import removing
from stepctl.calls.world import World
from stepctl.cli.main import run as run_command
from stepctl.targets.runpod.errors import BadKey, PodAlive

LIST = r"^GET /v2/pods(\?|$)"


@pytest.mark.parametrize("word", ["run", "pod"])
def test_a_pod_is_deleted_although_the_list_cannot_be_had(world: World, desk: Desk, word: str) -> None:
    """Its id is in the record; only the confirmation waits for the list."""
    run_with_pod(world, desk)
    pod = str(desk.attempts[0].pod)
    named = RUN if word == "run" else pod
    desk.sandbox.fault(Fault(LIST, status=403, times=0))
    with pytest.raises(PodAlive, match=f"{pod} may still be alive.*cannot list the pods") as caught:
        removing.rm(world, None, named)
    assert (caught.value.exit_code, caught.value.next) == (Exit.POD_ALIVE, f"stepctl pod rm {RUN}")
    assert (desk.sandbox.pods(), desk.states()) == ([], ["ending"])
    desk.sandbox.clear()
    assert [each["pod"] for each in removing.rm(world, None, RUN)["ended"]] == [pod]


def test_a_list_that_fails_once_keeps_nothing_from_its_receipt(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    desk.sandbox.fault(Fault(LIST, status=403))
    assert [each["state"] for each in removing.rm(world, None, RUN)["ended"]] == ["gone"]


def test_without_a_list_one_pod_is_ended_alone(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    first = desk.attempts[0]
    other = msgspec.structs.replace(first, name=f"stepctl-{RUN}-9", pod="another")
    desk.file.update(lambda record: record.attempts.append(other))
    desk.sandbox.fault(Fault(LIST, status=403))
    assert [each["pod"] for each in removing.rm(world, None, str(first.pod))["ended"]] == [first.pod]
    assert desk.states() == ["gone", "made"]


def test_a_list_that_fails_is_the_error_where_nothing_is_open(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    pod = str(desk.attempts[0].pod)
    removing.rm(world, None, RUN)
    desk.sandbox.fault(Fault(LIST, status=403, times=0))
    for target, word in ((None, RUN), (None, pod), ("cloud", "nothing")):
        with pytest.raises(BadKey, match="cannot list the pods"):
            removing.rm(world, target, word)


def test_a_missing_key_tells_of_the_pod(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_pod(world, desk)
    pod = desk.attempts[0]
    key = desk.sandbox.key
    monkeypatch.delenv("RUNPOD_API_KEY")
    for word in (RUN, str(pod.pod)):
        with pytest.raises(PodAlive, match=f"{pod.pod} may still be alive.*no Runpod API key") as caught:
            removing.rm(world, None, word)
        assert caught.value.cost == f"${pod.price:.2f} per hour"
        assert "export RUNPOD_API_KEY=" in caught.value.next
        assert caught.value.next.endswith(f"; then: stepctl pod rm {word}")
    monkeypatch.setenv("RUNPOD_API_KEY", key)
    removing.rm(world, None, RUN)
    monkeypatch.delenv("RUNPOD_API_KEY")
    with pytest.raises(UsageError, match="no Runpod API key"):
        removing.rm(world, None, RUN)


def test_the_command_exits_with_8_and_the_pod(
    world: World, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_pod(world, desk)
    pod = desk.attempts[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNPOD_API_KEY")
    assert run_command(["pod", "rm", RUN]) == Exit.POD_ALIVE
    said = capsys.readouterr().err
    assert f"error: pod {pod.pod} may still be alive" in said
    assert f"still costs: ${pod.price:.2f} per hour" in said
    assert f"then: stepctl pod rm {RUN}\n" in said


def test_an_interrupt_tells_of_the_pod(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    pod = desk.attempts[0].pod
    for word in (RUN, str(pod)):
        with pytest.raises(PodAlive, match=f"{pod} may still be alive.*interrupted") as caught:
            removing.rm(replace(world, wait=interrupt), None, word)
        assert (caught.value.exit_code, caught.value.next) == (Exit.POD_ALIVE, f"stepctl pod rm {word}")
    removing.rm(world, None, RUN)
    assert desk.states() == ["gone"]


def test_a_create_without_an_answer_is_no_unknown_name(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    late = msgspec.structs.replace(desk.attempts[0], name=f"stepctl-{RUN}-9", pod=None, state="unresolved")
    desk.file.update(lambda record: record.attempts.append(late))
    with pytest.raises(PodAlive, match=r"its create had no answer.*no list shows it yet"):
        removing.rm(world, None, late.name)
    assert desk.states() == ["made", "unresolved"]


def test_an_interrupt_tells_of_a_stray(world: World, desk: Desk) -> None:
    pod = desk.make().pod
    with pytest.raises(PodAlive, match=f"{pod} may still be alive.*interrupted") as caught:
        removing.rm(replace(world, wait=interrupt), "cloud", str(pod))
    assert caught.value.next == f"stepctl pod rm {pod}"


def test_an_interrupt_with_nothing_open_is_one(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_pod(world, desk)
    removing.rm(world, None, RUN)
    monkeypatch.setattr(removing, "sweep", lambda *_, **__: interrupt(0))
    with pytest.raises(KeyboardInterrupt):
        removing.rm(world, None, RUN)


def test_a_bug_tells_of_the_pod(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_pod(world, desk)

    def broken(*_: object, **__: object) -> None:
        raise ValueError("words")

    monkeypatch.setattr(removing, "sweep", broken)
    with pytest.raises(PodAlive, match=f"{desk.attempts[0].pod} may still be alive.*bug in stepctl: Val") as caught:
        removing.rm(world, None, RUN)
    assert caught.value.code == "bug"
    assert "words" not in caught.value.message


def test_a_record_that_cannot_be_read_keeps_no_pod_alive(world: World, desk: Desk) -> None:
    file = run_with_pod(world, desk)
    pod = desk.attempts[0].pod
    file.path.write_text("{")
    with pytest.raises(StepctlError, match=r"pod\.json cannot be read") as caught:
        removing.rm(world, None, RUN)
    assert (caught.value.exit_code, caught.value.safe) == (Exit.POD_ALIVE, f"gone: pod {pod}")
    assert desk.sandbox.pods() == []


def test_a_pod_whose_record_cannot_be_read_is_ended_by_its_id(world: World, desk: Desk) -> None:
    file = run_with_pod(world, desk)
    pod = str(desk.attempts[0].pod)
    file.path.write_text("{")
    assert [each["pod"] for each in removing.rm(world, "cloud", pod)["ended"]] == [pod]
    assert desk.sandbox.pods() == []
