"""A row as a person reads it: what is supervised and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from stepctl.traces.render.mask import IGNORED
from stepctl.traces.render.probe import common_start
from stepctl.traces.render.tokenizer import TextTokenizer


def spans(tokenizer: TextTokenizer, ids: Sequence[int], labels: Sequence[int]) -> list[tuple[str, bool]]:
    """The text of tokens in stretches, each supervised or not; joined they are the decoded whole.

    Special tokens are shown. A character that two stretches share, a part of its bytes each, is in the later one.

    Args:
        tokenizer: of the model.
        ids: the tokens.
        labels: as many; -100 where a token is not supervised.
    """
    whole = tokenizer.decode(ids)
    stretches: list[tuple[str, bool]] = []
    at = end = 0
    for supervised, run in groupby(labels, key=lambda label: label != IGNORED):
        end += len(list(run))
        place = len(whole) if end == len(ids) else max(at, common_start(whole, tokenizer.decode(ids[:end])))
        stretches.append((whole[at:place], supervised))
        at = place
    return stretches
