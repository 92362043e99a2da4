"""``stepctl lineage verify``: every stored byte against its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output

if TYPE_CHECKING:
    from stepctl.lineage.store import Report


def verify(bucket: Bucket = None, lineage: Lineage = None, model: Model = None, json: Json = False) -> int:
    """Check every file of every complete checkpoint against its manifest (exit 1 when something is damaged)."""
    import msgspec

    from stepctl.cli.session import open_world
    from stepctl.lineage.store import verify as check

    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model})
    report = check(world.bucket(), world.loaded.settings.lineage)
    document = {"state": "damaged" if report.damages else "clean", "exit_code": 1 if report.damages else 0}
    output.result({**document, **msgspec.to_builtins(report)}, _lines(report))
    return 1 if report.damages else 0


def _lines(report: Report) -> Iterator[str]:
    for damage in report.damages:
        yield f"damaged: {damage.checkpoint}/{damage.path} {damage.problem}"
    for name in report.incomplete:
        yield f"incomplete: {name} has no manifest; it counts as nothing, and is removed after 7 days"
    for path in report.extra:
        yield f"not ours: {path}"
    for note in report.notes:
        yield f"note: {note}"
    if not report.checkpoints and not report.damages:
        yield "no checkpoints: nothing to verify"
        return
    count, hurt = len(report.checkpoints), len(report.damages)
    verdict = f"{hurt} damaged file{'s' if hurt != 1 else ''}" if hurt else "all as their manifests say"
    yield f"{count} checkpoint{'s' if count != 1 else ''}: {verdict}"
