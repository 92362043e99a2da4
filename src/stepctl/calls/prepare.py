"""Steps 1 to 3 of a call: settings, the judged trace, the lineage's identity. Nothing is changed, nothing is spent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from stepctl.base.errors import StepctlError, TraceRefused, UsageError
from stepctl.base.text import visible
from stepctl.calls.decide import begun_by
from stepctl.calls.origin import Origin, find_origin, require_fits
from stepctl.calls.request import TrainRequest
from stepctl.calls.world import World
from stepctl.config.load import Loaded
from stepctl.config.model import LoraSettings, Settings, TrainSettings
from stepctl.lineage.buckets.base import Bucket
from stepctl.lineage.head import DAMAGE
from stepctl.lineage.identity import require_same
from stepctl.lineage.records import ROOT, Identity, Manifest
from stepctl.lineage.store import LineageState, read_lineage
from stepctl.models.resolve import ResolvedModel, is_folder, resolve_model
from stepctl.traces.judge import survey
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import BadRow, Judgement, RowWarning, Source
from stepctl.traces.rules import Rules

INHERITED = (
    "learning_rate",
    "weight_decay",
    "max_grad_norm",
    "max_length",
    "grad_accum",
    "seed",
    "train_on",
    "on_long",
    "thinking",
    "parse_special_tokens",
    "beta",
    "desirable_weight",
    "undesirable_weight",
)
"""Train settings that a lineage goes on with unless they are given: what a step is, not where it is made."""


_SHOWN = 20

_Section = TypeVar("_Section", LoraSettings, TrainSettings)


@dataclass(frozen=True)
class Prepared:
    """A call that may be made. ``settings`` are effective: what was not given is the lineage's, at ``parent``.

    With ``fresh`` it starts at a root, and nothing is the lineage's.
    """

    settings: Settings
    bucket: Bucket
    model: ResolvedModel
    identity: Identity
    judged: Judgement
    held_out: Judgement | None
    origin: Origin | None
    parent: str
    fresh: bool
    inherited: list[str]

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """What judging warns of."""
        held_out = self.held_out.warnings if self.held_out else []
        found = [msgspec.structs.replace(each, message=f"held-out rows: {each.message}") for each in held_out]
        return [_warning(w) for w in (*self.judged.warnings, *found)]


def _warning(warning: RowWarning) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(warning)
    return data


def inherit(
    loaded: Loaded, identity: Identity | None, origin: Origin | None, lora: dict[str, Any], train: dict[str, Any]
) -> Settings:
    """The settings of a call on a lineage: identity that was not given is taken from it.

    Args:
        loaded: today's settings and which of them were given.
        identity: the head's; None when the lineage is empty.
        origin: what an empty lineage starts from: its base model is taken.
        lora: LoRA shape to inherit (the head's, or the origin's for a new lineage).
        train: the head's train settings; those of the machine (device, precision, saves) are not inherited.
    """
    given, settings = loaded.given, loaded.settings
    changes: dict[str, Any] = {}
    if identity is not None and "method" not in given:
        changes["method"] = identity.method
    base = identity or (origin.identity if origin else None)
    if base is not None:
        if "model" not in given:
            changes["model"] = base.model
        same_model = changes.get("model", settings.model) == base.model
        if same_model and "revision" not in given and not is_folder(base.model):
            changes["revision"] = base.revision
    shape = {name: value for name, value in lora.items() if f"lora.{name}" not in given}
    changes["lora"] = _taken_over(settings.lora, shape, "LoRA shape")
    known = {name: train[name] for name in INHERITED if name in train and f"train.{name}" not in given}
    changes["train"] = _taken_over(settings.train, known, "train settings")
    return msgspec.structs.replace(settings, **changes)


def _taken_over(own: _Section, others: dict[str, Any], what: str) -> _Section:
    """``own`` with values that a checkpoint or an adapter brings: judged like those that a person gives."""
    try:
        return msgspec.convert({**msgspec.to_builtins(own), **others}, type(own))
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the {what} to go on with cannot be used: {error}",
            safe="nothing was trained",
            next="give that setting",
        ) from None


def _inherited(loaded: Loaded, settings: Settings) -> list[str]:
    """The train settings that are the lineage's, and not what today's settings say."""
    pairs = ((name, getattr(settings.train, name), getattr(loaded.settings.train, name)) for name in INHERITED)
    return [f"{name} {has} is the lineage's (the default is {says})" for name, has, says in pairs if has != says]


def inherit_from(loaded: Loaded, head: Manifest | None, origin: Origin | None) -> Settings:
    """:func:`inherit` from a lineage's head, or for an empty one from its origin."""
    lora = _shape(head.identity) if head else origin.lora if origin else {}
    return inherit(loaded, head.identity if head else None, origin, lora, head.settings if head else {})


def _shape(identity: Identity) -> dict[str, Any]:
    return {name: getattr(identity, name) for name in ("r", "alpha", "dropout", "target_modules")}


def read_state(bucket: Bucket, lineage: str, *, fresh: bool, claim: bool = False) -> LineageState:
    """Read a lineage; a fresh start leaves a damaged one behind, so it takes it for one without a head.

    Raises:
        StepctlError: as ``read_lineage``; damage only when the call would build on it.
    """
    try:
        return read_lineage(bucket, lineage, claim=claim)
    except StepctlError as error:
        if not fresh or error.code not in DAMAGE:
            raise
        return LineageState(
            head=None,
            head_sha256=None,
            head_step=0,
            parent=ROOT,
            ledger=(),
            checkpoints=[],
            incomplete=[],
            empty=False,
            notes=[error.message],
        )


def prepare(world: World, request: TrainRequest) -> Prepared:
    """Judge the call against the trace and the lineage as it is now.

    Raises:
        TraceRefused: rows are bad; all are listed.
        LineageConflict: another identity.
        UsageError, StepctlError: no such model, unreachable Hub.
    """
    loaded, bucket = world.loaded, world.bucket(new=True)
    state = read_state(bucket, loaded.settings.lineage, fresh=request.fresh)
    fresh = request.fresh and not begun_by(state.ledger, request.key)
    head = None if fresh else state.head
    origin = None
    if loaded.settings.init_from is not None:
        origin = find_origin(loaded.settings.init_from, bucket, loaded.project)
    settings = inherit_from(loaded, head, origin)
    model = resolve_model(settings.model, settings.revision, loaded.hf_token)
    if origin is not None and head is None:
        require_fits(origin, settings.lora, model)
    tokenizer = load_tokenizer(model.folder)
    judged = _judge(request.sources, tokenizer, settings)
    held_out = _judge((request.eval_source,), tokenizer, settings) if request.eval_source else None
    refuse_bad([*judged.refusals, *(held_out.refusals if held_out else [])], settings.train.skip_bad_rows)
    identity = _identity(settings, model, head, origin)
    if head is not None:
        require_same(settings.lineage, head.identity, identity)
    inherited = _inherited(loaded, settings)
    return Prepared(settings, bucket, model, identity, judged, held_out, origin, state.parent, fresh, inherited)


def _identity(settings: Settings, model: ResolvedModel, head: Manifest | None, origin: Origin | None) -> Identity:
    """What this call asks for; an origin that is not given again is the recorded one."""
    inherited = head.identity.origin if head else None
    return Identity(
        model=settings.model,
        revision=model.revision,
        method=settings.method,
        r=settings.lora.r,
        alpha=settings.lora.alpha,
        dropout=settings.lora.dropout,
        target_modules=tuple(sorted(settings.lora.target_modules)),
        vocab_size=model.vocab_size,
        origin=origin.sha256 if origin else inherited,
    )


def _judge(sources: tuple[Source, ...], tokenizer: TextTokenizer, settings: Settings) -> Judgement:
    return survey(sources, Rules.of(settings.method, settings.train), tokenizer)


def refuse_bad(bad: list[BadRow], skipping: bool) -> None:
    """Refuse a trace with bad rows; ``skipping`` when those that can be left out are.

    Raises:
        TraceRefused: there are bad rows; all are in its details, the first ones in its message.
    """
    if not bad:
        return
    count = len({(row.file, row.line) for row in bad})
    noun = "row" if count == 1 else "rows"
    skip = (
        ""
        if skipping or any(row.line is None or row.rest_unread for row in bad)
        else ", or leave them out: --skip-bad-rows"
    )
    raise TraceRefused(
        "\n".join([f"the trace is refused: {count} bad {noun}", *bad_lines(bad)]),
        safe="nothing was trained, and the head is as it was",
        next=f"mend or remove those rows, then run the command again{skip}",
        details={"bad": [msgspec.to_builtins(row) for row in bad]},
    )


def bad_lines(bad: list[BadRow]) -> list[str]:
    """What is wrong, by reason: rows with the same flaw are told together."""
    groups: dict[tuple[str, str | None, str], list[BadRow]] = {}
    for row in bad:
        groups.setdefault((row.file, _any_number(row.field), row.reason), []).append(row)
    lines = [_bad_group(rows) for rows in groups.values()]
    return lines[:_SHOWN] + ([f"  ... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])


def _any_number(field: str | None) -> str | None:
    return None if field is None else re.sub(r"\[\d+\]", "[]", field)


def _bad_group(rows: list[BadRow]) -> str:
    first = rows[0]
    lines = [str(row.line) for row in rows if row.line is not None]
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    where = (
        f"{visible(first.file)}, line{'s' * (len(lines) > 1)} {', '.join(lines[:_SHOWN])}{more}"
        if lines
        else visible(first.file)
    )
    field = f" {first.field if len(rows) == 1 else _any_number(first.field)}:" if first.field else ""
    return f"  {where}:{field} {first.reason}"
