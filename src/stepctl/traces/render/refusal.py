"""The refusal of a conversation, and its reasons with their mends."""

from __future__ import annotations

NOT_CLOSED = "the chat template ends this turn with no special token: the model would not learn to stop"
NO_PROMPT = "the chat template's generation prompt does not begin this turn"
DEPENDS = "the chat template's text after this reply depends on the reply"
LEAVES_OUT_TOOLS = (
    "the chat template leaves out the tools: take a model whose template writes them, or take the column out"
)
LEAVES_OUT_CALLS = (
    "the chat template leaves out a tool call of this turn, or its arguments: take a model whose template writes them"
)
LEAVES_OUT_THINKING = (
    "the chat template leaves out the reasoning of this turn: "
    'set train.thinking = "drop" or give each turn a row of its own'
)
LEAVES_OUT_A_PART = "the chat template leaves out a part of this reply"


class ConversationRefused(Exception):
    """A conversation cannot be masked; ``reason`` has no text of it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason


def leaves_out_text(role: str) -> str:
    """The reason for a message whose text is not in the rendering."""
    return f"the chat template leaves out the text of this {role} turn"
