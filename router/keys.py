"""Key chains of a prompt: what the index is asked for."""

from array import array

from trunkline.kernels.core import hash64, page_chain, text_chain
from trunkline.router.body import Prompt
from trunkline.shared.canonical import Canonical
from trunkline.shared.names import TEXT_CHUNK
from trunkline.shared.namespace import Namespace

_MAX_SEEDS = 4096


class Seeds:
    """First seeds of chains by namespace and salt: hashed once, not once per request."""

    def __init__(self) -> None:
        self._seeds: dict[tuple[int, str, bool], tuple[Namespace, int]] = {}
        """By the identity of the namespace, whose hash is that of five strings; the value keeps it alive."""

    def get(self, namespace: Namespace, salt: str, text: bool) -> int:
        key = (id(namespace), salt, text)
        known = self._seeds.get(key)
        if known is None:
            salted = namespace.salted(salt)
            seed = hash64(salted.text_seed_bytes() if text else salted.page_seed_bytes())
            if len(self._seeds) >= _MAX_SEEDS:
                self._seeds.clear()
            known = self._seeds[key] = (namespace, seed)
        return known[1]


class PromptKeys:
    """The chains of one prompt, one per namespace among the candidates, and what they weigh in tokens.

    Tokens of text are estimated from its bytes; `bytes_per_token` is what was learned about the model.
    """

    __slots__ = ("_content", "_salt", "_seeds", "text", "text_bytes", "tokens")

    def __init__(self, prompt: Prompt, salt: str, seeds: Seeds, bytes_per_token: float) -> None:
        content = prompt.content
        self._content = content
        self._salt = salt
        self._seeds = seeds
        self.text: tuple[list[bytes], list[bytes | str], bool] | None
        """Frames, texts, and whether they are closed: by these a key stands for tokens. None for token ids."""
        if isinstance(content, Canonical):
            self.text = content.frames, content.texts, content.closed
            self.text_bytes = sum(map(len, content.texts))
            """Bytes of text in UTF-8; 0 for token ids."""
            self.tokens = max(1, int(self.text_bytes / bytes_per_token))
            """Of the whole prompt; exact for token ids."""
        else:
            self.text = None
            self.text_bytes = 0
            self.tokens = len(content)

    def chain(self, namespace: Namespace) -> bytes:
        """Packed u64 keys in order."""
        content = self._content
        if isinstance(content, array):
            return page_chain(self._seeds.get(namespace, self._salt, text=False), content)
        seed = self._seeds.get(namespace, self._salt, text=True)
        return text_chain(seed, content.frames, content.texts, TEXT_CHUNK, content.closed)
