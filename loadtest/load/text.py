"""Text of a wanted number of tokens, the same for the same seed."""

import random

_COMMON = """
river shelf garden engine bread star music history window market winter letter bridge copper forest paper kitchen
harbour captain number mountain silver question answer evening machine teacher corner village carpet lantern orchard
doctor pocket station summer butter signal painter valley thunder basket ribbon castle desert island needle pepper
saddle temple walnut anchor barrel candle donkey feather hammer jacket kettle ladder marble napkin oyster pillow quarry
rabbit spider tunnel violin wagon yellow the a one this every some no that old new small great early late quiet bright
is has sees finds keeps gives takes holds sends brings under over near behind with without before after between and or
"""
_WORDS = _COMMON.split()
_SENTENCE_WORDS = 12
_SENTENCES = 1024


class Writer:
    """Sentences of common words. `tokens_per_word` is the model's, measured by `server.find`."""

    def __init__(self, tokens_per_word: float) -> None:
        self._tokens_per_word = tokens_per_word
        chance = random.Random(0)
        self._sentences = [" ".join(chance.choices(_WORDS, k=_SENTENCE_WORDS)) + "." for _ in range(_SENTENCES)]

    def write(self, tokens: int, chance: random.Random) -> str:
        """About so many tokens, one sentence at least: two texts of different chance differ from their start on."""
        sentences = max(1, round(tokens / (self._tokens_per_word * _SENTENCE_WORDS)))
        return " ".join(chance.choices(self._sentences, k=sentences))

    def sample(self, words: int) -> list[str]:
        """So many words of such text."""
        return " ".join(self._sentences).split()[:words]
