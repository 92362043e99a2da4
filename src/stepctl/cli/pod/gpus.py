"""``stepctl pod gpus``: what could be rented."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepctl.cli.options import Json, PodTarget
from stepctl.cli.output import Output


def gpus(target: PodTarget = None, json: Json = False) -> int:
    """List GPU types: memory, price of the target's whole pod, stock (a guess of the provider), the cheapest first."""
    from stepctl.calls.account import account
    from stepctl.cli.session import open_world
    from stepctl.targets.runpod.records import usd

    output = Output(json)
    world = open_world(output, {})
    with account(world, target) as rented:
        options = rented.options
        found = rented.api.gpus(options.gpu_count, options.cloud)
    rows = []
    for gpu in found:
        each = usd(getattr(gpu.price, options.cloud.lower())) if gpu.price else None
        price = None if each is None else round(each * options.gpu_count, 4)
        rows.append({"gpu": gpu.id, "memory_gb": gpu.memory, "price_per_hour": price, "stock": gpu.availability})
    rows.sort(key=lambda row: (row["price_per_hour"] is None, row["price_per_hour"] or 0, str(row["gpu"])))
    document = {"cloud": options.cloud, "gpu_count": options.gpu_count, "gpus": rows}
    output.result(document, _lines(rows, options.gpu_count, options.cloud))
    return 0


def _lines(rows: list[dict[str, Any]], count: int, cloud: str) -> Iterator[str]:
    yield f"{'GPU type':<36} {'memory':>8} {'$/h':>7}  stock    ({count} in a pod, {cloud})"
    for row in rows:
        price = "-" if row["price_per_hour"] is None else f"{row['price_per_hour']:.2f}"
        memory = "-" if row["memory_gb"] is None else f"{row['memory_gb']:g} GB"
        yield f"{row['gpu']:<36} {memory:>8} {price:>7}  {row['stock'] or '-'}"
