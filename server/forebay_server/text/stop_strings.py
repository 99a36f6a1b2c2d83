"""Find stop strings in text that arrives in pieces, holding back no more than could still become one of them.

Source: the failure function of Knuth, Morris and Pratt ("Fast pattern matching in strings", 1977): after each
character, the length of the longest beginning of the stop string that the text ends with. That length is also exactly
what must be held back.
"""

from collections.abc import Sequence


class _Pattern:
    """One stop string and how much of it the text ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._fallback = [0] * len(text)
        length = 0
        for index in range(1, len(text)):
            while length and text[index] != text[length]:
                length = self._fallback[length - 1]
            length += text[index] == text[length]
            self._fallback[index] = length

    def push(self, character: str) -> bool:
        """Whether the stop string is complete with this character."""
        while self.num_matched and self.text[self.num_matched] != character:
            self.num_matched = self._fallback[self.num_matched - 1]
        self.num_matched += self.text[self.num_matched] == character
        return self.num_matched == len(self.text)


class StopMatcher:
    """Watches one choice's text. The stop string that is complete first wins; of two at the same place, the longer.

    Args:
        stop: the stop strings, none empty.
        include_stop: the matched string is part of the text.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None:
        self._patterns = [_Pattern(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text.

        Returns:
            What may be shown now, and the stop string if one is complete (then no more may be pushed).
        """
        if not self._patterns:
            return text, None
        for index, character in enumerate(text):
            matched = [pattern for pattern in self._patterns if pattern.push(character)]
            if matched:
                stop = matched[0].text
                upto_stop = self._held + text[: index + 1]
                return upto_stop if self._include_stop else upto_stop[: -len(stop)], stop
        self._held += text
        num_held = max(pattern.num_matched for pattern in self._patterns)
        shown = self._held[: len(self._held) - num_held]
        self._held = self._held[len(shown) :]
        return shown, None

    def flush(self) -> str:
        """The end without a stop string: what was held back."""
        held, self._held = self._held, ""
        return held
