"""Whether a call may extend a lineage."""

from __future__ import annotations

from stepctl.base.errors import LineageConflict
from stepctl.lineage.records import Identity

_CONTENT = "files:"


def differences(lineage: Identity, asked: Identity) -> list[str]:
    """What differs, one line each, empty when the call may extend the lineage.

    A model that is a folder is known by its content, wherever it is. Target modules are a set. An ``asked.origin`` of
    None asks for nothing.
    """
    lines = _model_differences(lineage, asked)

    def compare(what: str, has: object, wants: object) -> None:
        if has != wants:
            lines.append(f"{what}: the lineage has {has}, this call asks for {wants}")

    compare("method", lineage.method, asked.method)
    compare("LoRA rank", lineage.r, asked.r)
    compare("LoRA alpha", lineage.alpha, asked.alpha)
    compare("LoRA dropout", lineage.dropout, asked.dropout)
    compare("LoRA target modules", _names(lineage.target_modules), _names(asked.target_modules))
    compare("vocabulary size", lineage.vocab_size, asked.vocab_size)
    if asked.origin is not None:
        compare("origin (--init-from, sha256 of the adapter it started from)", lineage.origin or "none", asked.origin)
    return lines


def require_same(name: str, lineage: Identity, asked: Identity) -> None:
    """Raise unless the call may extend the lineage.

    Raises:
        LineageConflict: it lists every difference.
    """
    lines = differences(lineage, asked)
    if lines:
        raise LineageConflict(
            f"lineage {name} was trained differently:\n" + "\n".join(f"  {line}" for line in lines),
            safe="nothing was trained, and the head is as it was",
            next="leave these settings out to inherit them, name another lineage, or start over with --fresh",
            code="identity_differs",
            details={"lineage": name, "differences": lines},
        )


def _model_differences(lineage: Identity, asked: Identity) -> list[str]:
    by_content = lineage.revision.startswith(_CONTENT) or asked.revision.startswith(_CONTENT)
    if lineage.revision == asked.revision and (by_content or lineage.model == asked.model):
        return []
    if lineage.model == asked.model:
        what = "content of the model folder" if by_content else "model revision"
        return [f"{what}: the lineage has {lineage.revision}, this call asks for {asked.revision}"]
    return [
        f"model: the lineage has {lineage.model} ({lineage.revision}), this call asks for {asked.model} "
        f"({asked.revision})"
    ]


def _names(modules: tuple[str, ...]) -> str:
    return ", ".join(sorted(set(modules)))
