"""The paths of the API, and whose key may do what.

Guesses about the real service: a secret's listing holds ``id`` and ``name``; a secret is deleted by its id or its name;
a key that only reaches one pod gets 403 everywhere else; the body of a 410 is a problem.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from . import bodies
from .base import Answer, Limits, Problem, Request, iso
from .catalog import Catalog
from .cloud import Cloud
from .pods import Pod

Handler = Callable[..., Answer]
LAST_WORDS = 0.3
"""Seconds that a pod which ended itself goes on, so that it reads the answer; about 2 at the provider."""
GENERIC = re.compile(r"python-httpx|python-requests|python-urllib|curl/|wget|^$", re.IGNORECASE)


class Api:
    """One account's API. ``edge`` refuses generic user agents; ``page`` is the most pods in one list, 0 is all."""

    def __init__(self, cloud: Cloud, catalog: Catalog, limits: Limits, key: str) -> None:
        self.cloud, self.catalog, self.limits, self.key = cloud, catalog, limits, key
        self.edge, self.page = False, 0
        self.ssh_keys: list[str] = []
        self.secret_ids: dict[str, tuple[str, str]] = {}
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/pods", self._list),
            ("POST", "/pods", self._create),
            ("GET", "/pods/{}", self._get),
            ("PATCH", "/pods/{}", self._patch),
            ("DELETE", "/pods/{}", self._delete),
            ("POST", "/pods/{}/action", self._action),
            ("GET", "/pods/{}/logs", self._logs),
            ("GET", "/catalog/gpus", catalog.list_gpus),
            ("GET", "/catalog/datacenters", catalog.list_centers),
            ("GET", "/network-volumes", catalog.list_volumes),
            ("GET", "/account/secrets", self._secrets),
            ("POST", "/account/secrets", self._add_secret),
            ("DELETE", "/account/secrets/{}", self._delete_secret),
            ("GET", "/account/ssh-keys", self._ssh_keys),
            ("PUT", "/account/ssh-keys", self._put_ssh_keys),
        ]
        self._routes = [
            (method, re.compile("/v2" + path.replace("{}", "([^/]+)")), handler) for method, path, handler in routes
        ]

    def reset(self) -> None:
        """As at the start, without pods."""
        self.edge, self.page = False, 0
        self.limits.enforced, self.limits.minute = False, 60
        self.ssh_keys, self.secret_ids = [], {}
        self.cloud.secrets.clear()
        self.limits.clear()

    def identify(self, request: Request) -> set[str]:
        """Whose key the request carries, as ``request.who``; also what faults may call its caller."""
        key = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if key == self.key:
            request.who = "account"
            return {"account"}
        with self.cloud.lock:
            for pod in [*self.cloud.pods.values(), *self.cloud.gone.values()]:
                if key == pod.key:
                    request.who = pod.id
                    return {"pod", pod.id, pod.name}
        return set()

    def answer(self, request: Request, changes: dict[str, Any]) -> Answer:
        """Do what the request asks for; ``changes``: of the quirks of the pod that it makes."""
        if self.edge and GENERIC.search(request.headers.get("User-Agent") or ""):
            request.exempt = True
            return Answer(403, b"error code: 1010", {}, "text/plain")
        if request.path.startswith("/v1/"):
            return Problem(410, "REST API v1 was retired; use /v2").answer
        found = [(method, match, handler) for method, path, handler in self._routes if (match := _fits(path, request))]
        if not found:
            return Problem(404, "resource not found").answer
        allowed = [one for one in found if one[0] == request.method]
        if not allowed:
            allow = {"Allow": ", ".join(method for method, _, _ in found)}
            return Problem(405, "The requested method is not allowed for this path.", headers=allow).answer
        if not request.who:
            missing = not request.headers.get("Authorization")
            return Problem(401, "missing bearer token" if missing else "invalid bearer token").answer
        headers, refusal = self.limits.count()
        _, match, handler = allowed[0]
        try:
            if refusal:
                raise refusal
            self._permit(request, handler, match.groups())
            more = {"changes": changes} if handler == self._create else {}
            answer = handler(request, *match.groups(), **more)
        except Problem as problem:
            answer = problem.answer
        answer.headers = {**headers, **answer.headers}
        return answer

    def _permit(self, request: Request, handler: Handler, ids: tuple[str, ...]) -> None:
        """A pod's key looks at its own pod, starts, stops and ends it, and nothing else."""
        own = handler in (self._get, self._delete, self._action) and ids == (request.who,)
        if request.who != "account" and not own:
            raise Problem(403, "access denied")

    def _list(self, request: Request) -> Answer:
        with self.cloud.lock:
            pods = self.cloud.listed()
            asked = request.query.get("limit", "")
            size = int(asked) if asked.isdigit() and int(asked) else self.page
            start = int(request.query.get("cursor") or 0)
            chosen = pods[start : start + size] if size else pods
            body: dict[str, Any] = {"pods": [pod.view() for pod in chosen]}
            if size:
                more = start + size < len(pods)
                body["pagination"] = {"hasNextPage": more, "nextCursor": str(start + size) if more else None}
            request.exempt = any(pod.odd for pod in chosen)
        return Answer(body=body)

    def _create(self, request: Request, changes: dict[str, Any]) -> Answer:
        body = request.json()
        bodies.check_create(body)
        with self.cloud.lock:
            if body.get("startSsh") and self.ssh_keys:
                body["env"] = {"PUBLIC_KEY": "\n".join(self.ssh_keys), **body.get("env", {})}
            pod = self.cloud.create(body, changes)
            request.exempt, request.then = pod.odd, self.cloud.tick
            return Answer(201, pod.view(), effect=f"created {pod.id}")

    def _get(self, request: Request, id_: str) -> Answer:
        with self.cloud.lock:
            pod = self.cloud.find(id_, look=True)
            request.exempt = pod.odd
            return Answer(body=pod.view())

    def _patch(self, request: Request, id_: str) -> Answer:
        body = request.json()
        bodies.check(body, bodies.PATCH)
        with self.cloud.lock:
            pod = self.cloud.find(id_)
            pod.locked = body.pop("locked", pod.locked)
            pod.body.update(body)
            return Answer(body=pod.view(), effect=f"changed {id_}")

    def _delete(self, request: Request, id_: str) -> Answer:
        myself = request.who == id_
        pod = self.cloud.delete(id_, request.who, kill=not myself)
        ended = pod.status == "TERMINATED"
        effect = f"ended {id_}" if ended else "" if pod.ends_at is None else f"ends {id_}"
        if ended and myself:
            request.then = lambda: self._reap(pod)
        return Answer(204, effect=effect)

    def _reap(self, pod: Pod) -> None:
        time.sleep(LAST_WORDS)
        self.cloud.reap(pod)

    def _action(self, request: Request, id_: str) -> Answer:
        body = request.json()
        bodies.check(body, bodies.ACTION, ("action",))
        if body["action"] == "terminate":
            return self._delete(request, id_)
        with self.cloud.lock:
            pod = self.cloud.act(id_, body["action"], request.who)
            return Answer(body=pod.view(), effect=f"{body['action']} {id_}")

    def _logs(self, request: Request, id_: str) -> Answer:
        pod = self.cloud.find(id_)
        quiet = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return Answer(headers=quiet, content_type="text/event-stream", stream=pod.log.stream(request))

    def _secrets(self, _: Request) -> Answer:
        listed = [{"id": id_, "name": name, "createdAt": at} for id_, (name, at) in self.secret_ids.items()]
        return Answer(body={"secrets": listed})

    def _add_secret(self, request: Request) -> Answer:
        body = request.json()
        bodies.check(body, bodies.SECRET, ("name", "value"))
        name = body["name"]
        with self.cloud.lock:
            if name in self.cloud.secrets:
                raise Problem(409, f"a secret named {name} already exists")
            id_, at = secrets.token_hex(6), iso(self.cloud.clock.now())
            self.cloud.secrets[name], self.secret_ids[id_] = body["value"], (name, at)
        return Answer(201, {"id": id_, "name": name, "createdAt": at}, effect=f"secret {name}")

    def _delete_secret(self, _: Request, which: str) -> Answer:
        with self.cloud.lock:
            for id_, (name, _at) in list(self.secret_ids.items()):
                if which in (id_, name):
                    del self.secret_ids[id_], self.cloud.secrets[name]
                    return Answer(204, effect=f"no secret {name}")
        raise Problem(404, "secret not found")

    def _ssh_keys(self, _: Request) -> Answer:
        return Answer(body={"keys": self.ssh_keys})

    def _put_ssh_keys(self, request: Request) -> Answer:
        body = request.json()
        bodies.check(body, bodies.KEYS, ("keys",))
        self.ssh_keys = body["keys"]
        return Answer(body={"keys": self.ssh_keys}, effect="ssh keys")


def _fits(path: re.Pattern[str], request: Request) -> re.Match[str] | None:
    return path.fullmatch(request.path)
