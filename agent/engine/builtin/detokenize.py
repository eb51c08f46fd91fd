"""Token ids to text as they come: whole characters only, and nothing that may turn out to be a stop string."""

import codecs
from collections.abc import Sequence

from trunkline.agent.engine.text import TextModel


class Detokenizer:
    """The text of one generation. Special tokens have none.

    Bytes that cannot become a character any more are U+FFFD. Text is cut before the stop string that is complete
    first (of two that are complete at once, the longer). How the text was cut into tokens makes no difference.
    """

    def __init__(self, model: TextModel, stop: Sequence[str] = ()) -> None:
        self._model = model
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = [_Matcher(text) for text in sorted(stop, key=len, reverse=True)]
        self._held = ""
        """Text that begins a stop string, perhaps."""
        self.stopped = False
        """Whether a stop string was found. Nothing comes after it."""

    def push(self, token: int) -> str:
        """The text that is certain now, often none."""
        if self.stopped or token in self._model.special_ids:
            return ""
        return self._release(self._decoder.decode(self._model.token_bytes(token)))

    def finish(self) -> str:
        """What was held back. The generation is over."""
        if self.stopped:
            return ""
        rest = self._release(self._decoder.decode(b"", final=True))
        if self.stopped:
            return rest
        rest, self._held = rest + self._held, ""
        return rest

    def _release(self, text: str) -> str:
        if not self._stops:
            return text
        for at, character in enumerate(text):
            for stop in self._stops:
                if stop.advance(character):
                    self.stopped = True
                    whole, self._held = self._held + text[: at + 1], ""
                    return whole[: len(whole) - len(stop.text)]
        whole = self._held + text
        certain = len(whole) - max(stop.matched for stop in self._stops)
        self._held = whole[certain:]
        return whole[:certain]


class _Matcher:
    """Finds one text in a stream of characters (Knuth, Morris, Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Length of the longest beginning of `text` with which the stream ends."""
        self._shorter = [0] * len(text)
        for size in range(1, len(text)):
            self._shorter[size] = self._next(self._shorter[size - 1], text[size])

    def advance(self, character: str) -> bool:
        """Whether the stream ends with the text now. Not to be called again after that."""
        self.matched = self._next(self.matched, character)
        return self.matched == len(self.text)

    def _next(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._shorter[matched - 1]
        return matched + (self.text[matched] == character)
