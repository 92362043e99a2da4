"""Only the account that rented a pod can say that it is gone, and only definite words count as such."""

from __future__ import annotations

import httpx
import pytest
from tests.doubles.runpod import Fault
from tests.targets.runpod.acting import RUN, Desk

from stepctl.base.errors import Exit
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.end import end_all, require_owner
from stepctl.targets.runpod.errors import PodAlive
from stepctl.targets.runpod.presence import Presence
from stepctl.targets.runpod.records import Pod


def note_account(desk: Desk, account: str | None = None) -> None:
    desk.file.update(lambda record: setattr(record, "account", account or desk.api.account))


def other(desk: Desk) -> Api:
    """An account that has nothing."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/pods"):
            return httpx.Response(200, json={"pods": []})
        return httpx.Response(404, json={"title": "Not Found", "status": 404})

    http = httpx.Client(transport=httpx.MockTransport(answer))
    return Api(desk.api.url, "rpa_OTHER", http=http, sleep=desk.clock.sleep, now=desk.clock.now)


def test_what_stands_for_an_account(desk: Desk) -> None:
    names = {Api(url, key).account for url in ("http://127.0.0.1/v2", "http://127.0.0.2/v2") for key in ("k1", "k2")}
    assert len(names) == 4
    assert desk.api.account == desk.api.another().account
    assert desk.sandbox.key not in desk.api.account


def test_another_account_confirms_nothing(desk: Desk) -> None:
    made = desk.make()
    note_account(desk)
    with pytest.raises(PodAlive, match="another API key") as caught:
        end_all(other(desk), desk.file, desk.pace, "client", "stepctl pod rm")
    assert (caught.value.exit_code, caught.value.next) == (Exit.POD_ALIVE, f"stepctl pod rm {RUN}")
    assert desk.states() == ["made"]
    assert [pod["id"] for pod in desk.sandbox.pods()] == [made.pod]
    assert desk.end().open == []


def test_lists_of_another_account_resolve_nothing(desk: Desk) -> None:
    desk.sandbox.fault(Fault("^POST /v2/pods$", drop=True, when="after", times=0, pod={"unlisted": 40}))
    with pytest.raises(Exception, match="not known whether"):
        desk.make()
    note_account(desk)
    desk.clock.sleep(3600)
    with pytest.raises(PodAlive, match="another API key"):
        end_all(other(desk), desk.file, desk.pace, "client", "stepctl pod rm")
    assert set(desk.states()) == {"unresolved"}


def test_a_key_that_was_replaced_is_told_by_the_pod_that_it_knows(desk: Desk) -> None:
    desk.make()
    note_account(desk, "0123456789abcdef")
    assert desk.end().open == []
    assert desk.file.load().account == desk.api.account


def test_nothing_is_rented_beside_the_pod_of_another_account(desk: Desk) -> None:
    desk.make()
    note_account(desk)
    with pytest.raises(PodAlive, match="another API key"):
        require_owner(other(desk), desk.file, desk.pace)
    desk.end()
    require_owner(other(desk), desk.file, desk.pace)
    assert desk.file.load().account == other(desk).account


def test_a_working_pod_is_not_gone_by_the_word_of_another_account(desk: Desk) -> None:
    desk.make()
    note_account(desk)
    api = other(desk)
    presence = Presence(lambda: api, desk.file, desk.pace)
    with pytest.raises(PodAlive, match="another API key"):
        presence.first()
    assert presence.gone == ""


@pytest.mark.parametrize("status", ["", "MIGRATING"])
def test_a_status_that_we_do_not_know_says_nothing(desk: Desk, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.make()
    monkeypatch.setattr(desk.api, "pod", lambda pod: Pod(id=pod, status=status))
    presence = Presence(lambda: desk.api, desk.file, desk.pace)
    for _ in range(5):
        presence.look()
    presence.be_sure()
    assert (presence.gone, presence.doubtful) == ("", False)


@pytest.mark.parametrize("status", ["EXITED", "ERROR"])
def test_a_stopped_pod_is_gone_after_three_looks_in_a_row(desk: Desk, status: str) -> None:
    made = desk.make()
    presence = Presence(lambda: desk.api, desk.file, desk.pace)
    desk.sandbox.set_status(made.pod or "", status)
    presence.look()
    presence.look()
    desk.sandbox.set_status(made.pod or "", "RUNNING")
    presence.look()
    desk.sandbox.set_status(made.pod or "", status)
    presence.look()
    presence.look()
    assert presence.gone == ""
    presence.look()
    assert presence.gone == f"pod {made.pod} is {status}: its container does not run any more"


def test_what_the_provider_says_does_not_count_while_the_pod_is_heard(desk: Desk) -> None:
    made = desk.make()
    desk.sandbox.end(made.pod or "")
    presence = Presence(lambda: desk.api, desk.file, desk.pace)
    for _ in range(2):
        presence.look()
    for _ in range(5):
        presence.look(answers=True)
    presence.look()
    presence.look()
    assert presence.gone == ""
    presence.look()
    assert presence.gone
