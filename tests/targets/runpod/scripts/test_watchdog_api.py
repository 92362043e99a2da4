"""How a pod is ended: by which program, by which request, and again until it is gone."""

from __future__ import annotations

import os
import signal
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.targets.runpod.scripts.guarded import GuardedPod, program, until
from tests.targets.runpod.scripts.stub_api import KEY, POD, StubApi

MEANS = ["curl", "wget", "python3", "perl"]
HANGS = "#!/bin/sh\nexec sleep 1000\n"


def small_wget(pod: GuardedPod) -> bool:
    """With busybox the pod's wget is a small one."""
    return pod.shell == "busybox" and "wget" in pod.means


@pytest.mark.parametrize("means", MEANS)
def test_each_program_ends_the_pod(pod: GuardedPod, api: StubApi, means: str) -> None:
    pod.means = (means,)
    pod.start()
    assert pod.state("OFFSET") == 40
    pod.at(900).ends("lease").terminated()
    until(lambda: "terminate: 204" in pod.said, "a word about it")
    assert {one.key for one in api.seen} == {KEY}
    assert {one.agent for one in api.seen} == {"stepctl-watchdog"}


@pytest.mark.parametrize("means", MEANS)
def test_the_key_is_in_no_command_line_environment_or_log(pod: GuardedPod, api: StubApi, means: str) -> None:
    pod.means = (means,)
    api.answers |= {"terminate": [500], "DELETE": [500]}
    pod.start().at(900).ends("lease")
    until(lambda: api.count("stop") or small_wget(pod), "all requests")
    if not small_wget(pod):
        assert not api.leaks
    assert KEY not in pod.said
    files = [path for path in (*pod.dir.rglob("*"), *(pod.folder / "stepctl-watchdog").rglob("*")) if path.is_file()]
    assert len(files) > 3
    for path in files:
        assert KEY.encode() not in path.read_bytes() or path.name == "wget.conf"
        assert path.stat().st_mode & 0o077 == 0 or path.name in ("starts", "first"), path


@pytest.mark.parametrize("missing", ["curl", "wget", "python3"])
def test_two_of_three_programs_are_enough(pod: GuardedPod, api: StubApi, missing: str) -> None:
    pod.means = [name for name in ("curl", "wget", "python3") if name != missing]
    api.answers |= {"terminate": [500], "DELETE": [500, 204]}
    pod.start().at(900).ends("lease").terminated()
    until(lambda: api.count("DELETE") == 2, "a DELETE that is accepted")


def test_without_any_program_it_says_so_loudly_and_goes_on_trying(pod: GuardedPod, api: StubApi) -> None:
    pod.means = ()
    pod.start()
    assert "no curl, python3 or wget: no training" in pod.said
    assert not pod.text_of("reached")
    pod.at(900).ends("lease")
    until(lambda: pod.said.count("terminate: no answer (no curl, python3 or wget: no training)") > 2, "many tries")
    (pod.folder / "bin" / "curl").symlink_to(program("curl"))
    pod.terminated()


def test_a_program_that_is_broken_gives_way_to_the_next(pod: GuardedPod) -> None:
    pod.means = ("python3",)
    pod.programs["curl"] = "#!/bin/sh\necho 'curl: (60) no certificates' >&2\nexit 60\n"
    pod.start().at(900).ends("lease").terminated()
    assert "terminate: 204, by python3" in until(lambda: "terminate: 204" in pod.said and pod.said, "a word")


def test_a_program_that_hangs_gives_way_to_the_next(pod: GuardedPod) -> None:
    pod.means = ("python3",)
    pod.programs["curl"] = HANGS
    pod.start().at(900).ends("lease").terminated()


def test_a_provider_that_never_answers_does_not_hang_the_guard(pod: GuardedPod, api: StubApi) -> None:
    api.hangs = True
    pod.start().at(900).ends("lease")
    until(lambda: "terminate: no answer (curl: " in pod.said, "a word about it")
    api.hangs = False
    pod.terminated()


def test_an_api_that_is_unreachable_for_a_while(pod: GuardedPod, api: StubApi) -> None:
    pod.start()
    api.close()
    pod.at(900).ends("lease")
    until(lambda: pod.said.count("terminate: no answer") > 2, "tries")
    api.open()
    pod.terminated()


def test_an_api_that_is_unreachable_from_the_start_and_heals(pod: GuardedPod, api: StubApi) -> None:
    api.close()
    pod.start()
    assert not pod.text_of("reached")
    api.open()
    pod.at(5)
    assert pod.state("OFFSET") == 40
    assert pod.text_of("reached") == "200\n"


def test_errors_of_the_provider_are_tried_again(pod: GuardedPod, api: StubApi) -> None:
    api.answers |= {"terminate": [500, 503, 429, 204], "DELETE": [500], "stop": [502]}
    pod.start().at(900).ends("lease")
    until(lambda: api.count("terminate") == 4, "four tries")
    assert api.endings[:10] == ["terminate", "DELETE", "stop"] * 3 + ["terminate"]


def test_where_terminate_is_refused_it_deletes_and_where_that_is_it_stops(pod: GuardedPod, api: StubApi) -> None:
    api.answers |= {"terminate": [409], "DELETE": [403]}
    pod.start().at(900).ends("lease")
    until(lambda: api.count("stop"), "a stop")
    assert api.endings[:3] == ["terminate", "DELETE", "stop"]


def test_a_pod_that_the_provider_no_longer_has_is_as_good_as_ended(pod: GuardedPod, api: StubApi) -> None:
    api.answers["terminate"] = [404]
    pod.start().at(900).ends("lease")
    until(lambda: api.count("stop"), "another try, in all ways")
    assert api.endings[:4] == ["terminate", "terminate", "DELETE", "stop"]


def test_an_accepted_request_that_did_nothing_is_made_again_in_all_ways(pod: GuardedPod, api: StubApi) -> None:
    pod.start().at(900).ends("lease")
    until(lambda: api.count("stop") >= 2, "more tries")
    assert api.endings[:7] == ["terminate", *["terminate", "DELETE", "stop"] * 2]


def test_a_refused_key_is_said_and_does_not_open_the_door(pod: GuardedPod, api: StubApi) -> None:
    pod.env["RUNPOD_API_KEY"] = "wrong"
    pod.start()
    assert "the provider does not tell this pod's age: 401" in pod.said
    assert not pod.text_of("reached")
    pod.at(900).ends("lease")
    until(lambda: api.count("stop") >= 2, "more tries")
    assert api.endings[:6] == ["terminate", "DELETE", "stop"] * 2


@pytest.mark.parametrize(("kind", "opens"), [("application/problem+json", True), ("text/html", False)])
def test_a_key_that_may_not_look_opens_the_door_but_not_a_page_of_the_edge(
    pod: GuardedPod, api: StubApi, kind: str, opens: bool
) -> None:
    api.answers["GET"], api.kind = [403], kind
    pod.start()
    assert bool(pod.text_of("reached")) == opens
    pod.at(900).ends("lease").terminated()


@pytest.mark.parametrize("means", MEANS)
def test_a_redirect_is_no_success(pod: GuardedPod, api: StubApi, means: str) -> None:
    """Not even when what it leads to answers 200."""
    pod.means = (means,)
    elsewhere = StubApi()
    api.location = f"{elsewhere.url}/pods/{POD}"
    api.answers |= {"GET": [302, 200], "terminate": [302], "DELETE": [307, 204], "stop": [301]}
    pod.start().at(900).ends("lease")
    until(lambda: api.count("terminate") > 1, "it goes on")
    if small_wget(pod):
        assert api.endings[:2] == ["terminate", "stop"]
    else:
        assert api.endings[:3] == ["terminate", "DELETE", "stop"]
        assert not elsewhere.seen
    assert "terminate: 30" in pod.said
    elsewhere.close()


def test_the_last_way_is_runpodctl(pod: GuardedPod, api: StubApi) -> None:
    note = pod.folder / "note"
    pod.programs["runpodctl"] = f'#!/bin/sh\necho "$* $RUNPOD_API_KEY" >>"{note}"\n[ "$1" = pod ]\n'
    api.close()
    pod.start().at(900).ends("lease")
    until(lambda: "runpodctl pod delete: accepted" in pod.said, "a word about it")
    assert note.read_text().splitlines()[:2] == [f"remove pod {POD} {KEY}", f"pod delete {POD} {KEY}"]
    api.open()


@pytest.mark.parametrize("name", ["RUNPOD_POD_ID", "RUNPOD_API_KEY"])
def test_a_pod_that_does_not_know_itself_says_so(pod: GuardedPod, api: StubApi, name: str) -> None:
    pod.env.pop(name)
    pod.start().at(900).ends("lease")
    until(lambda: f"{name} is not set" in pod.said, "a word about it")
    assert not pod.text_of("reached")
    if name == "RUNPOD_POD_ID":
        pod.looks()
        assert not api.seen


def certificate(folder: Path) -> ssl.SSLContext:
    """A server's context; ``ca.pem`` is what a client must trust."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize("means", ["openssl", "curl", "python3", "wget"])
@pytest.mark.parametrize("trusted", [True, False])
def test_the_key_goes_only_to_a_server_with_a_certificate_that_is_trusted(
    tmp_path: Path, means: str, trusted: bool
) -> None:
    (tmp_path / "tls").mkdir()
    stub = StubApi(certificate(tmp_path / "tls"))
    pod = GuardedPod(tmp_path, "dash", stub)
    pod.means = (means,)
    if trusted:
        pod.env["SSL_CERT_FILE"] = str(tmp_path / "tls" / "ca.pem")
        pod.programs["wget"] = f'#!/bin/sh\nexec {program("wget")} --ca-certificate "$SSL_CERT_FILE" "$@"\n'
    try:
        pod.start()
        assert pod.state_text("OFFSET") == ("40" if trusted else "")
        pod.at(900).ends("lease")
        if trusted:
            pod.terminated()
        else:
            until(lambda: "terminate: no answer" in pod.said, "a word about it")
            assert not stub.seen
    finally:
        pod.close()
        stub.close()


def test_signals_and_a_log_that_nobody_reads_do_not_end_the_guard(pod: GuardedPod) -> None:
    pod.unread = True
    pod.start()
    assert pod.guard is not None
    for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGALRM):
        os.kill(pod.guard.pid, number)
        pod.looks()
    pod.at(900)
    until(lambda: pod.ending == "lease", "the end")
    pod.terminated()


def test_its_own_log_is_bounded(pod: GuardedPod) -> None:
    (pod.dir / "watchdog.log").write_text("x" * 262100 + "\n")
    pod.start().at(900).ends("lease")
    until(lambda: (pod.dir / "watchdog.log.1").exists(), "a new log")
    assert until(lambda: pod.text_of("watchdog.log"), "a line").startswith("age ")
    assert len(pod.text_of("watchdog.log")) < 10_000


def test_a_folder_that_cannot_be_written_does_not_end_the_guard(pod: GuardedPod, api: StubApi) -> None:
    pod.env |= {"STEPCTL_DIR": str(pod.folder / "none" / "file"), "STEPCTL_MAX_SECONDS": "30"}
    (pod.folder / "none").write_text("in the way")
    pod.start(wait=False)
    until(lambda: api.endings, "the end, for an age of 40 s")
    assert "ends this pod: deadline" in pod.said
