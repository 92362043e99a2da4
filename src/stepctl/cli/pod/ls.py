"""``stepctl pod ls``: the account's pods that are ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepctl.cli.options import Json, PodTarget
from stepctl.cli.output import Output


def ls(target: PodTarget = None, json: Json = False) -> int:
    """List our pods: state, age, price, what they cost so far and what ends them; pods that no run here knows are
    marked as strays."""
    from stepctl.calls.account import account
    from stepctl.calls.pods import look, rows
    from stepctl.cli.session import open_world

    output = Output(json)
    world = open_world(output, {})
    with account(world, target) as rented:
        found = look(world, rented)
    pods = rows(world, found)
    for run, why in found.unreadable.items():
        output.warning(f"the pods of run {run} are not known: {why}")
    secrets = [secret.name for secret in found.secrets]
    total = sum(each["price_per_hour"] or 0.0 for each in pods)
    document = {
        "pods": pods,
        "leftover_secrets": secrets,
        "unreadable": list(found.unreadable),
        "price_per_hour": total,
    }
    output.result(document, _lines(pods, secrets, total))
    return 0


def _lines(pods: list[dict[str, Any]], secrets: list[str], total: float) -> Iterator[str]:
    from stepctl.cli.display import dollars, duration

    if not pods:
        yield "nothing is rented"
    else:
        yield f"{'pod':<16} {'state':<10} {'age':>8} {'$/h':>6} {'spent':>7}  {'ends itself at':<20} run"
    for each in pods:
        age = "-" if each["age_sec"] is None else duration(each["age_sec"])
        price = "-" if each["price_per_hour"] is None else f"{each['price_per_hour']:.2f}"
        spent = "-" if each["spent_usd"] is None else dollars(each["spent_usd"])
        ends = (each["kept_until"] or each["ends_at"] or "unknown")[:19]
        late = "  PAST ITS DEADLINE" if each["past_deadline"] else ""
        yield f"{each['pod']:<16} {each['state']:<10} {age:>8} {price:>6} {spent:>7}  {ends:<20} {each['run']}{late}"
    if pods:
        yield f"together ${total:.2f} an hour; stepctl pod rm RUN ends one"
    if any(each["stray"] for each in pods):
        yield "stray: no run here knows it; it may be another machine's, or forgotten: stepctl pod rm POD ends it"
    if any(each["past_deadline"] for each in pods):
        yield "past its deadline: it failed to end itself; stepctl pod reap ends it"
    for name in secrets:
        yield f"leftover secret: {name} (stepctl pod reap deletes it)"
