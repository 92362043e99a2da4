"""How much memory a call is likely to take: an estimate from the model's shape, for the plan."""

from __future__ import annotations

from typing import Any

_OVERHEAD = 600 << 20
"""Python, torch and its libraries, measured on a CPU: about 0.6 GB."""


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


def estimate(config: dict[str, Any], longest: int, bytes_per_weight: int = 4) -> int:
    """Bytes that training with LoRA takes at its peak, one example at a time.

    Weights once; per token of the longest example and layer the stored activations, about ``16 h + 3 i`` numbers and
    the attention scores ``heads x length``; the logits four times (logits, their float32 copy, softmax, gradient).
    """
    text = config.get("text_config") or config
    hidden, layers = int(text.get("hidden_size", 0)), int(text.get("num_hidden_layers", 0))
    heads, feed = int(text.get("num_attention_heads", 1)), int(text.get("intermediate_size") or 4 * hidden)
    activations = longest * layers * (16 * hidden + 3 * feed + heads * longest) * bytes_per_weight
    logits = 4 * longest * int(text.get("vocab_size", 0)) * 4
    return _OVERHEAD + parameters(config) * bytes_per_weight + activations + logits
