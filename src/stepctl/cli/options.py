"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Bucket = Annotated[
    str | None,
    typer.Option(help="Where lineages live: a directory, or hf://buckets/NAMESPACE/NAME[/PREFIX].", metavar="BUCKET"),
]
Lineage = Annotated[str | None, typer.Option(help="The chain of checkpoints.", metavar="NAME")]
Model = Annotated[str | None, typer.Option(help="Base model: a Hugging Face id or a folder.", metavar="MODEL")]
Run = Annotated[str, typer.Argument(help="Run id, a unique prefix of one, or: last.", metavar="RUN")]
Timeout = Annotated[float | None, typer.Option(help="Seconds to wait at most (exit code 124).", metavar="SEC", min=0)]
PodTarget = Annotated[str | None, typer.Option("--target", help="Target whose account is meant.", metavar="NAME")]
Method = Annotated[str | None, typer.Option(help="Training method: sft, dpo or kto.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens of an example that are kept.")]
OnLong = Annotated[str | None, typer.Option(help="Longer examples: truncate, refuse or drop.", metavar="WHAT")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave bad rows out instead of refusing the trace.")]
GradAccum = Annotated[int | None, typer.Option(help="Examples in one optimizer step (G).")]
