"""Requests and their answers, the odd ones too: what is repeated, what is waited for, and what a person reads."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from tests.doubles.runpod import Fault
from tests.targets.runpod.acting import L4, Clock, Desk

import stepctl
from stepctl.base.errors import Exit, StepctlError, UsageError
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.errors import (
    Ambiguous,
    BadKey,
    Blocked,
    NoBalance,
    NoStock,
    OddAnswer,
    RateLimited,
    Rejected,
    RetiredApi,
    RunpodError,
    Unreachable,
    says_no_stock,
)
from stepctl.targets.runpod.records import CreateGpu, CreatePod
from stepctl.targets.runpod.wire import LONGEST_LIMIT, PATIENCE, TRIES

KEY = "rpa_very_secret_key"
URL = "https://api.runpod.io/v2"
BODY = CreatePod(name="stepctl-r-1", image="i", gpu=CreateGpu(id=L4, count=1), cloud="SECURE", disk=50)
Answering = Callable[[httpx.Request], httpx.Response]


class Scripted:
    """An API that gives one answer after the other, then the last for ever."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.clock = Clock()
        self.api = Api(
            URL,
            KEY,
            http=httpx.Client(transport=httpx.MockTransport(self.answer)),
            sleep=self.clock.sleep,
            now=self.clock.now,
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def says(status: int, body: Any = None, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()})


def problem(status: int, detail: str, *errors: str) -> httpx.Response:
    return says(status, {"title": "T", "status": status, "detail": detail, "errors": list(errors)})


PODS = says(200, {"pods": []})


def test_every_request_names_us_and_carries_the_key() -> None:
    scripted = Scripted(PODS)
    scripted.api.pods()
    [request] = scripted.requests
    assert request.headers["user-agent"] == f"stepctl/{stepctl.__version__}"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert str(request.url) == f"{URL}/pods"


def test_the_edge_lets_us_in(desk: Desk) -> None:
    desk.sandbox.settings(edge=True)
    assert desk.api.pods() == []


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (problem(401, "invalid bearer token"), BadKey, "not accepted"),
        (problem(403, "access denied"), BadKey, "may not do this"),
        (httpx.Response(403, text="error code: 1010"), Blocked, "not about your key"),
        (says(403, {"error_code": 1010, "error_name": "browser_signature_banned"}), Blocked, "1010"),
        (httpx.Response(403, text="<title>Cloudflare</title> Error 1010"), Blocked, "1010"),
        (problem(402, "low"), NoBalance, "balance"),
        (says(410, {"error": "gone"}), RetiredApi, "no longer served"),
        (httpx.Response(410), RetiredApi, "no longer served"),
        (httpx.Response(302, headers={"location": "https://elsewhere"}), OddAnswer, "302"),
        (httpx.Response(200, text="<html>hello</html>"), OddAnswer, "not one of its API"),
        (says(200, []), OddAnswer, "not one of its API"),
        (says(200, {"pods": [{"name": "no id"}]}), OddAnswer, "not one of its API"),
        (problem(503, "try later"), Unreachable, "server failed"),
        (httpx.ReadTimeout("timed out"), Unreachable, "no answer"),
    ],
)
def test_errors_say_what_happened_and_what_to_do(
    answer: httpx.Response | Exception, kind: type[RunpodError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        Scripted(answer).api.pods()
    error = caught.value
    assert error.next
    assert error.exit_code == Exit.FAILED
    assert "cannot list the pods" in error.message


def test_what_the_provider_says_is_told_and_its_request_named() -> None:
    answer = problem(422, "Request validation failed.", "$.disk: too small", "$: 'x' not allowed")
    answer.headers["x-request-id"] = "abc123"
    with pytest.raises(Rejected) as caught:
        Scripted(answer).api.create(BODY)
    assert "Request validation failed.; $.disk: too small; $: 'x' not allowed" in caught.value.message
    assert caught.value.details == {"status": 422, "request_id": "abc123"}


@pytest.mark.parametrize(
    "answer",
    [
        problem(400, f"bad key {KEY}"),
        says(401, {"error": {"message": f"{KEY}?"}}),
        problem(500, f"{KEY} failed"),
        httpx.ConnectError(f"to {KEY}"),
        httpx.ReadError(f"with {KEY}"),
    ],
)
def test_the_key_is_nowhere(answer: httpx.Response | Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for act in ("create", "pods", "delete"):
        api = Scripted(answer).api
        try:
            getattr(api, act)(*([BODY] if act == "create" else ["p"] if act == "delete" else []))
        except StepctlError as error:
            shown = f"{error!r} {error.message} {error.next} {error.cost} {error.details}"
            assert KEY not in shown
        else:
            pytest.fail("it went well")
        assert KEY not in repr(api)
    assert KEY not in caplog.text


def test_no_traceback_shows_the_key() -> None:
    try:
        Scripted(problem(500, "x")).api.pods()
    except RunpodError as error:
        assert KEY not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "schlüssel"])
def test_what_cannot_be_a_key_is_refused_unshown(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        Api(URL, key)
    assert not key or key not in caught.value.message


@pytest.mark.parametrize("act", ["pods", "pod", "delete", "gpus"])
@pytest.mark.parametrize("trouble", [says(500), says(502), httpx.ReadTimeout("x"), httpx.ConnectError("x")])
def test_reads_and_deletes_are_repeated(act: str, trouble: httpx.Response | Exception) -> None:
    good = {"pods": PODS, "pod": says(200, {"id": "p"}), "delete": says(204), "gpus": says(200, {"gpus": []})}[act]
    args = {"pod": ["p"], "delete": ["p"], "gpus": [1, "SECURE"]}.get(act, [])
    scripted = Scripted(trouble, trouble, good)
    getattr(scripted.api, act)(*args)
    assert len(scripted.requests) == 3
    assert scripted.clock.waited == 1 + 2
    scripted = Scripted(trouble)
    with pytest.raises(Unreachable):
        getattr(scripted.api, act)(*args)
    assert len(scripted.requests) == TRIES
    assert scripted.clock.waited == 1 + 2 + 4 + 8


@pytest.mark.parametrize(
    "answer",
    [
        says(500),
        problem(503, "busy"),
        httpx.Response(524, text="timeout"),
        says(408),
        httpx.Response(307, headers={"location": "/v2/pods"}),
        httpx.ReadTimeout("x"),
        httpx.RemoteProtocolError("server disconnected"),
        httpx.WriteError("x"),
        httpx.Response(201, text="<html>"),
        says(201, {"name": "no id"}),
        says(200, []),
    ],
)
def test_a_create_is_never_repeated(answer: httpx.Response | Exception) -> None:
    scripted = Scripted(answer)
    with pytest.raises(Ambiguous) as caught:
        scripted.api.create(BODY)
    assert len(scripted.requests) == 1
    assert BODY.name in caught.value.message
    assert BODY.name in caught.value.cost
    assert caught.value.next == "stepctl pod ls"


@pytest.mark.parametrize("answer", [httpx.ConnectError("refused"), httpx.ConnectTimeout("x"), httpx.PoolTimeout("x")])
def test_a_create_that_never_left_is_no_question(answer: Exception) -> None:
    scripted = Scripted(answer)
    with pytest.raises(Unreachable) as caught:
        scripted.api.create(BODY)
    assert (len(scripted.requests), caught.value.sent) == (1, False)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"detail": "There are no longer any instances available with the requested specifications."}),
        (500, {"error": "There are no longer any instances available with the requested specifications."}),
        (500, {"error": "no instances available"}),
        (500, {"error": {"message": "no instances available"}}),
        (503, {"title": "x", "detail": "create pod: there are no longer any instances available"}),
        (400, {"message": "This machine does not have the resources: not enough free GPUs"}),
    ],
)
def test_no_stock(status: int, body: dict[str, Any]) -> None:
    with pytest.raises(NoStock) as caught:
        Scripted(says(status, body)).api.create(BODY)
    assert caught.value.status == status
    assert L4 in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "internal",
        "disk is too large",
        "no such template",
        "instance type is not valid",
        "unknown GPU",
        "",
        "no balance",
    ],
)
def test_what_is_not_about_stock(text: str) -> None:
    assert not says_no_stock(text)


def test_rate_limits_are_waited_for() -> None:
    scripted = Scripted(says(429, retry_after="12"), says(429, retry_after="7"), PODS)
    scripted.api.pods()
    assert scripted.clock.waited == 19
    scripted = Scripted(says(429, retry_after="12"), says(201, {"id": "p"}))
    assert scripted.api.create(BODY).id == "p"


def test_a_long_rate_limit_is_told_instead() -> None:
    scripted = Scripted(says(429, retry_after="1800"))
    with pytest.raises(RateLimited) as caught:
        scripted.api.pods()
    assert (scripted.clock.waited, caught.value.details["retry_after"]) == (0, 1800)
    scripted = Scripted(says(429, retry_after="50"))
    with pytest.raises(RateLimited):
        scripted.api.pods()
    assert 100 <= scripted.clock.waited <= LONGEST_LIMIT


def test_retry_after_may_be_a_time_or_nonsense_or_missing() -> None:
    date = datetime.now(UTC)
    later = format_datetime(date + timedelta(seconds=40), usegmt=True)
    scripted = Scripted(says(429, retry_after=later, date=format_datetime(date, usegmt=True)), PODS)
    scripted.api.pods()
    assert 38 <= scripted.clock.waited <= 40
    for header in ("soon", "nan", "-5", ""):
        scripted = Scripted(says(429, retry_after=header), PODS)
        scripted.api.pods()
        assert 1 <= scripted.clock.waited <= 5
    scripted = Scripted(says(429, ratelimit='"minute";r=0;t=33, "hour";r=2800;t=1812'), PODS)
    scripted.api.pods()
    assert scripted.clock.waited == 33


def test_a_quota_that_is_used_up_holds_the_next_request_back() -> None:
    used = says(200, {"pods": []}, ratelimit='"minute";r=0;t=12, "hour";r=2800;t=1812')
    left = says(200, {"pods": []}, ratelimit='"minute";r=1;t=12, "hour";r=2799;t=1800')
    scripted = Scripted(used, left)
    scripted.api.pods()
    assert scripted.clock.waited == 0
    scripted.api.pods()
    assert scripted.clock.waited == pytest.approx(12, abs=0.5)
    scripted.api.pods()
    assert scripted.clock.waited == pytest.approx(12, abs=0.5)


def test_sixty_a_minute_are_kept(desk: Desk) -> None:
    desk.sandbox.settings(limits=True)
    for _ in range(130):
        desk.api.pods()
    assert [call.status for call in desk.sandbox.calls() if call.status != 200] == []
    assert desk.clock.waited > 60


def test_a_failing_server_may_ask_for_a_longer_pause() -> None:
    scripted = Scripted(says(503, retry_after="20"), PODS)
    scripted.api.pods()
    assert scripted.clock.waited == 20


def test_a_request_into_the_void_is_given_up() -> None:
    scripted = Scripted(httpx.ReadTimeout("x"))

    def slowly(request: httpx.Request) -> httpx.Response:
        scripted.clock.sleep(30)
        return scripted.answer(request)

    api = Api(
        URL,
        KEY,
        http=httpx.Client(transport=httpx.MockTransport(slowly)),
        sleep=scripted.clock.sleep,
        now=scripted.clock.now,
    )
    with pytest.raises(Unreachable):
        api.pods()
    assert len(scripted.requests) < TRIES
    assert scripted.clock.waited <= PATIENCE + 31


def test_lists_are_read_to_their_end(desk: Desk) -> None:
    for n in range(5):
        desk.api.create(_named(n))
    desk.sandbox.settings(page=2)
    assert len(desk.api.pods()) == 5
    assert [call.query for call in desk.sandbox.calls("GET /v2/pods")] == ["", "cursor=2", "cursor=4"]


def _named(n: int) -> CreatePod:
    return CreatePod(name=f"stepctl-r-{n}", image="i", gpu=CreateGpu(id=L4, count=1), cloud="SECURE", disk=50)


@pytest.mark.parametrize("cursor", [None, "", 7, "same"])
def test_half_a_list_is_an_error(cursor: Any) -> None:
    """Absence from a list is a proof only when the list is whole."""
    page = says(200, {"pods": [], "pagination": {"hasNextPage": True, "nextCursor": cursor}})
    with pytest.raises(OddAnswer):
        Scripted(page).api.pods()


def test_a_page_that_fails_fails_the_list() -> None:
    page = says(200, {"pods": [{"id": "a"}], "pagination": {"hasNextPage": True, "nextCursor": "2"}})
    with pytest.raises(Unreachable):
        Scripted(page, says(500)).api.pods()


def test_the_providers_clock(desk: Desk) -> None:
    assert desk.api.server_time() is None
    desk.sandbox.advance(-86400)
    desk.api.pods()
    told = desk.api.server_time()
    assert told is not None
    assert abs(datetime.now(UTC) - timedelta(days=1) - told) < timedelta(seconds=3)
    desk.clock.waited += 60
    later = desk.api.server_time()
    assert later is not None
    assert timedelta(seconds=60) <= later - told < timedelta(seconds=62)


def test_delete_tells_whether_it_was_there(desk: Desk) -> None:
    pod = desk.make()
    assert pod.pod
    assert desk.api.delete(pod.pod)
    assert not desk.api.delete(pod.pod)
    desk.sandbox.reset()
    pod_id = desk.api.create(_named(1)).id
    desk.sandbox.fault(Fault("^DELETE", drop=True, when="after"))
    assert desk.api.delete(pod_id)  # the first try did it, the second found nothing


def test_actions(desk: Desk) -> None:
    pod = desk.api.create(_named(1))
    with pytest.raises(Rejected) as caught:
        desk.api.action(pod.id, "start")
    assert caught.value.status == 409
    assert desk.api.action(pod.id, "terminate")
    assert not desk.api.action(pod.id, "terminate")


def test_a_pod_of_another_shape_hides_no_other() -> None:
    odd = {"id": "a", "name": "stepctl-r-1", "cost": "0.5", "runtime": "none", "ssh": 7, "env": {"A": "b", "C": 5}}
    api = Scripted(says(200, {"pods": [odd, {"id": "b", "new": {"field": 1}}]})).api
    first, second = api.pods()
    assert (first.id, first.name, first.price, first.env) == ("a", "stepctl-r-1", 0.5, {"A": "b"})
    assert second.id == "b"


def test_the_catalog(desk: Desk) -> None:
    found = {gpu.id: gpu for gpu in desk.api.gpus(2, "COMMUNITY")}
    assert "unknown" not in found
    assert found[L4].availability == "NONE"  # not offered in that cloud
    [call] = desk.sandbox.calls("catalog")
    assert call.query == "include=AVAILABILITY&product=POD&count=2&cloud=COMMUNITY"
    odd = says(200, {"gpus": [{"id": "A", "price": "free"}, {"id": "B"}]})
    assert [gpu.id for gpu in Scripted(odd).api.gpus(1, "SECURE")] == ["B"]


def test_logs_end_in_silence_or_in_time(desk: Desk) -> None:
    pod = desk.api.create(_named(1))
    for n in range(5):
        desk.sandbox.add_log(pod.id, f"line {n}")
    lines = list(desk.api.logs(pod.id, "container", 3, silence=0.3))
    assert [(line.line, line.source) for line in lines] == [(f"line {n}", "container") for n in (2, 3, 4)]
    assert lines[0].ts
    assert list(desk.api.logs(pod.id, "container", 100, seconds=-1)) == []
    with pytest.raises(Rejected):
        list(desk.api.logs("nothing"))


@pytest.mark.parametrize(("name", "value"), [("ALL_PROXY", "socks5://127.0.0.1:1080"), ("HTTPS_PROXY", "foo://x:1")])
def test_a_proxy_that_cannot_be_used_is_told(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(each, raising=False)
        monkeypatch.delenv(each.lower(), raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="proxy") as caught:
        Api("https://api.example.com/v2", "rpa_KEY")
    assert "HTTPS_PROXY" in caught.value.next
