"""``python -m stepctl.trainer.complete``: what a base model with an adapter says to a prompt.

One JSON object on stdin (:class:`Request`), one JSON line on stdout (:class:`Completion`, or an error) and exit code 0
or 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Struct

from stepctl.base.errors import UsageError
from stepctl.config.model import LoraSettings, Precision
from stepctl.jobs.spec import ModelSpec
from stepctl.trainer import environment
from stepctl.trainer.speak import answer, leave

if TYPE_CHECKING:
    from stepctl.models.memory import Size
    from stepctl.trainer.device import Placement

_END_OF_TURN = "<|im_end|>"


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``adapter`` is a PEFT folder; ``temperature`` 0 takes the likeliest token each time.

    ``chat`` puts the prompt into the tokenizer's chat template as a user's turn, where it has one.
    """

    model: ModelSpec
    prompt: str
    adapter: str | None = None
    max_new_tokens: Annotated[int, Meta(ge=1)] = 64
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    seed: Annotated[int, Meta(ge=0)] = 0
    device: str = "auto"
    gpu_ids: tuple[int, ...] = ()
    precision: Precision = "auto"
    hf_token: str | None = None
    chat: bool = True


class Completion(Struct, frozen=True, kw_only=True):
    """``tokens`` counts what was generated, a stop token included."""

    text: str
    tokens: int
    device: str


def complete(request: Request) -> Completion:
    """Load the model, say what it answers.

    Raises:
        StepctlError: the model, the adapter or the device cannot be used, or the prompt is empty or too long.
        OutOfMemory: no memory left.
    """
    environment.prepare()
    import torch

    from stepctl.trainer import device

    environment.quiet()
    placement = device.choose(request.device, request.precision, request.gpu_ids, lambda: _size(request))
    device.settle(placement)
    with device.memory_errors():
        model, placement = _load(request, placement)
        tokenizer = _tokenizer(request)
        ids = _prompt_ids(tokenizer, request, model)
        torch.manual_seed(request.seed)
        sampling = (
            {"do_sample": True, "temperature": request.temperature} if request.temperature else {"do_sample": False}
        )
        stops = _stop_ids(model, tokenizer)
        inputs = torch.tensor([ids], dtype=torch.long, device=placement.device)
        with (
            torch.no_grad(),
            torch.autocast(placement.device.type, dtype=torch.bfloat16, enabled=placement.precision == "bf16"),
        ):
            output = model.generate(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=request.max_new_tokens,
                eos_token_id=stops or None,
                pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(stops, default=0),
                **sampling,
            )
    new = output[0, len(ids) :].tolist()
    text = str(tokenizer.decode(new, skip_special_tokens=True))
    return Completion(text=text, tokens=len(new), device=placement.where)


def _size(request: Request) -> Size:
    from stepctl.trainer.size import measure

    # An adapter that only answers has no optimizer, and is nothing beside its base.
    return measure(request.model, LoraSettings(r=1), request.max_new_tokens, request.hf_token)


def _load(request: Request, placement: Placement) -> tuple[Any, Placement]:
    from stepctl.trainer import device, state
    from stepctl.trainer import model as models

    model = models.load_base(request.model, placement, request.hf_token)
    placement = device.landed(placement, model)
    if request.adapter is not None:
        folder = Path(request.adapter)
        lora = state.lora_of(folder)
        model = models.add_adapter(model, lora, request.seed, request.model.source, request.model.revision)
        state.init_from(folder, models.adapter_parameters(model), lora)
    return (model if placement.spread else model.to(placement.device)).eval(), placement


def _tokenizer(request: Request) -> Any:
    from transformers import AutoTokenizer

    from stepctl.trainer.model import explain

    model = request.model
    try:
        return AutoTokenizer.from_pretrained(
            model.source,
            revision=model.revision or "main",
            token=request.hf_token,
            trust_remote_code=model.trust_remote_code,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise explain(model, error) from error


def _prompt_ids(tokenizer: Any, request: Request, model: Any) -> list[int]:
    if request.chat and tokenizer.chat_template:
        turn = [{"role": "user", "content": request.prompt}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(request.prompt)["input_ids"]
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not ids:
        raise UsageError("the prompt is empty", next="give a text")
    if limit is not None and len(ids) + request.max_new_tokens > limit:
        raise UsageError(
            f"the prompt has {len(ids)} tokens and {request.max_new_tokens} are to follow, and the model takes {limit}",
            next="give a shorter prompt, or ask for fewer tokens",
        )
    return [int(token) for token in ids]


def _stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends an answer: the model's, the tokenizer's, and the end of a ChatML turn."""
    own = model.generation_config.eos_token_id
    found = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id}
    found.add(tokenizer.get_vocab().get(_END_OF_TURN))
    return sorted(token for token in found if token is not None)


def serve(stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Answer the one request on ``stdin``."""

    def work() -> Completion:
        try:
            request = msgspec.json.decode(stdin.read(), type=Request)
        except msgspec.MsgspecError as error:
            raise UsageError(f"the request cannot be read: {error}") from error
        return complete(request)

    return answer(work, stdout)


if __name__ == "__main__":
    leave(serve(sys.stdin.buffer, sys.stdout.buffer))
