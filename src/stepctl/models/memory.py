"""How much memory a call is likely to take, and which GPUs hold it: from shapes, settings and total memories alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepctl.base.errors import UsageError

_OVERHEAD = 600 << 20
"""Python, torch and its libraries, measured on a CPU: about 0.6 GB."""

_USABLE = 0.9
"""Share of a GPU's memory that is planned with; the rest is for CUDA itself, kernels' workspaces and fragments."""

_SPREAD_SLACK = 1.25
"""What transformers keeps free on a GPU for the largest block, in blocks, when it spreads a model."""

_ADAPTER_WIDTH = 16
"""Bytes of an adapter's weight: itself, its gradient and two moments, in fp32."""


def parameters(config: dict[str, Any]) -> int:
    """Number of weights of a decoder with grouped attention and a gated feed-forward layer.

    ``V h`` for the embedding (twice when the head is not tied), and per layer ``2 h² + 2 h h_kv + 3 h i`` with hidden
    size h, key-value width h_kv, feed-forward width i.
    """
    text = config.get("text_config") or config
    hidden, layers = int(text.get("hidden_size", 0)), int(text.get("num_hidden_layers", 0))
    heads = int(text.get("num_attention_heads", 1)) or 1
    kv = hidden * int(text.get("num_key_value_heads") or heads) // heads
    feed = int(text.get("intermediate_size") or 4 * hidden)
    embedding = int(text.get("vocab_size", 0)) * hidden * (1 if text.get("tie_word_embeddings") else 2)
    return embedding + layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * feed)


def activations(config: dict[str, Any], tokens: int, bytes_per_weight: int, *, scores: bool) -> int:
    """Bytes beyond the weights while one example of ``tokens`` is trained.

    Per token and layer about ``16 h + 3 i`` numbers, and with ``scores`` those of the attention, ``heads x tokens``,
    which fused kernels on a GPU do not keep; the logits four times (logits, their float32 copy, softmax, gradient).
    """
    text = config.get("text_config") or config
    hidden, layers = int(text.get("hidden_size", 0)), int(text.get("num_hidden_layers", 0))
    heads, feed = int(text.get("num_attention_heads", 1)), int(text.get("intermediate_size") or 4 * hidden)
    kept = 16 * hidden + 3 * feed + (heads * tokens if scores else 0)
    return tokens * layers * kept * bytes_per_weight + 4 * tokens * int(text.get("vocab_size", 0)) * 4


def estimate(config: dict[str, Any], longest: int, bytes_per_weight: int = 4) -> int:
    """Bytes that training with LoRA on a CPU takes at its peak, one example of ``longest`` tokens at a time."""
    return (
        _OVERHEAD + parameters(config) * bytes_per_weight + activations(config, longest, bytes_per_weight, scores=True)
    )


@dataclass(frozen=True)
class Size:
    """What a model asks of GPUs.

    ``parameters`` are the base's weights, ``block`` those of its largest part that stays on one GPU (a layer, or the
    embedding), ``adapter`` the adapter's. ``tokens`` is the longest example that the settings let through: were it
    that of the rows, two calls could be arranged in another way than one call over the rows of both.
    """

    config: dict[str, Any]
    parameters: int
    block: int
    adapter: int
    tokens: int

    def weights(self, width: int) -> int:
        """Bytes of all weights and of the optimizer, the base's at ``width`` bytes each."""
        return self.parameters * width + self.adapter * _ADAPTER_WIDTH

    def peak(self, width: int) -> int:
        """Bytes in all."""
        return self.weights(width) + activations(self.config, self.tokens, width, scores=False)


@dataclass(frozen=True)
class Gpu:
    """A GPU: its index among the visible ones, its total memory in bytes, its compute capability."""

    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]

    @property
    def usable(self) -> int:
        return int(self.memory_bytes * _USABLE)


@dataclass(frozen=True)
class Arrangement:
    """``gpus`` in use. With several, ``budgets`` has bytes of weights by GPU index, and ``balanced`` says that the
    GPUs are alike. ``tight``: the weights fit, the longest example that the settings let through may not."""

    gpus: tuple[Gpu, ...]
    budgets: dict[int, int] = field(default_factory=dict)
    balanced: bool = True
    tight: bool = False


def arrange(gpus: Sequence[Gpu], size: Size, width: int) -> Arrangement:
    """The first of ``gpus`` that holds the model, or all of them together.

    Args:
        gpus: those that may be used, in order of preference; at least one.
        size: what the model asks for.
        width: bytes of a weight of the base.

    Raises:
        UsageError: not even the weights fit, all GPUs together.
    """
    weights, peak = size.weights(width), size.peak(width)
    for gpu in gpus:
        if gpu.usable >= peak:
            return Arrangement((gpu,))
    together = sum(gpu.usable for gpu in gpus) - (_spared(size, width) if len(gpus) > 1 else 0)
    if len(gpus) > 1 and together >= peak:
        return _spread(gpus, size, width, rest=peak - weights)
    if together < weights:
        raise too_large(gpus, weights)
    if len(gpus) > 1:
        return _spread(gpus, size, width, rest=0)
    return Arrangement((gpus[0],), tight=True)


def _spared(size: Size, width: int) -> int:
    return int(_SPREAD_SLACK * size.block * width)


def _spread(gpus: Sequence[Gpu], size: Size, width: int, *, rest: int) -> Arrangement:
    """Each GPU gives room for ``rest`` (what is no weight) in proportion to its memory.

    Equal GPUs are balanced by transformers. Of unequal ones it would fill the smallest and put what is over on the
    disk; they are filled in order, each with its share, the last one with whatever it holds.
    """
    total, weights = sum(gpu.usable for gpu in gpus), size.weights(width)
    balanced = min(gpu.memory_bytes for gpu in gpus) >= 0.95 * max(gpu.memory_bytes for gpu in gpus)
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    budgets = {}
    for gpu in ordered:
        most = gpu.usable - rest * gpu.usable // total
        share = weights * gpu.usable // total + 2 * _spared(size, width)
        budgets[gpu.index] = most if balanced or gpu is ordered[-1] else min(most, share)
    return Arrangement(tuple(ordered), budgets, balanced, tight=rest == 0)


def too_large(gpus: Sequence[Gpu], needed: int) -> UsageError:
    """The error when ``gpus`` do not hold ``needed`` bytes; nothing goes to the CPU or the disk in their place."""
    listed = ", ".join(f"{gpu.index}: {gpu.name}, {gigabytes(gpu.memory_bytes)}" for gpu in gpus)
    all_of_them = "the GPU has" if len(gpus) == 1 else f"the {len(gpus)} GPUs have together"
    return UsageError(
        f"the model needs {gigabytes(needed)} for its weights and the adapter's optimizer alone, and {all_of_them} "
        f"{gigabytes(sum(gpu.usable for gpu in gpus))} that can be planned with ({listed})",
        safe="nothing was trained",
        next="list more GPUs in train.gpu_ids, take precision bf16, a smaller model, or another machine",
        code="does_not_fit",
    )


def gigabytes(count: int) -> str:
    """``count`` bytes for a person."""
    return f"{count / (1 << 30):.1f} GiB"
