"""From the engine's tokens to the text of one choice: one pure state machine for streams and whole answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from forebay_server.messages import FinishReason, RequestOutput
from forebay_server.text.detokenizer import Detokenizer
from forebay_server.text.stop_strings import StopMatcher
from forebay_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextUpdate:
    """What one engine output means for the text."""

    text: str
    """To be appended; often empty."""
    num_tokens: int
    """How many of the output's tokens count; fewer than there are when a stop string ended the choice among them."""
    text_offsets: list[int]
    """For each counted token: characters of the whole text (held-back ones included) before it."""
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    """The stop string, or the id of a stop token, that ended the choice; None for the end-of-sequence token."""


class ChoiceText:
    """The text of one choice while it grows.

    Args:
        tokenizer: of the model.
        stop: stop strings.
        include_stop: keep the stop string in the text.
        skip_special_tokens: control tokens have no text.
        shown_token_ids: control tokens that have one all the same.
        min_tokens: stop strings are not looked for in the first so many tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        shown_token_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, shown_token_ids=shown_token_ids
        )
        self._matcher = StopMatcher(stop, include_stop=include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._eos_token_ids = frozenset(tokenizer.eos_token_ids)
        self._num_tokens = 0
        self._num_characters = 0

    def push(self, output: RequestOutput) -> TextUpdate:
        """Add the tokens of one engine output; whichever end comes first in token order wins."""
        shown: list[str] = []
        offsets: list[int] = []
        last = len(output.token_ids) - 1
        for index, token_id in enumerate(output.token_ids):
            self._num_tokens += 1
            offsets.append(self._num_characters)
            is_stop_token = index == last and output.finish_reason == "stop" and output.stop_token_id == token_id
            if is_stop_token and not self._include_stop:
                break
            stop = self._show(self._detokenizer.push(token_id), shown)
            if stop is not None:
                return TextUpdate("".join(shown), index + 1, offsets, "stop", stop)
        stop_reason: str | int | None = None
        finish_reason = output.finish_reason
        if finish_reason is not None:
            stop_reason = self._show(self._detokenizer.flush(), shown)
            if stop_reason is not None:
                finish_reason = "stop"
            else:
                shown.append(self._matcher.flush())
                if output.stop_token_id is not None and output.stop_token_id not in self._eos_token_ids:
                    stop_reason = output.stop_token_id
        return TextUpdate("".join(shown), last + 1, offsets, finish_reason, stop_reason)

    def _show(self, text: str, shown: list[str]) -> str | None:
        """Pass text through the stop matcher; return the stop string that it completes."""
        if not text:
            return None
        self._num_characters += len(text)
        if self._num_tokens <= self._min_tokens:
            shown.append(text)
            return None
        released, stop = self._matcher.push(text)
        shown.append(released)
        return stop
