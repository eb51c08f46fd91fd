"""What must be equal before KV may be shared."""

import msgspec

TEXT_SEED_SUFFIX = b"\x00text"


class Namespace(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Two pages may be shared only if their namespaces are equal.

    `fingerprint` identifies weights and tokenizer (hex), `dtype` the KV element type, `layout` the page layout
    (for example ``"16x30x2x3x64"``: page tokens, layers, K and V, KV heads, head_dim), `lora` the adapter,
    `salt` the tenant's salt (hex; empty: the tenant that everybody without credentials shares).
    """

    fingerprint: str
    dtype: str
    layout: str
    lora: str = ""
    salt: str = ""

    def salted(self, salt: str) -> "Namespace":
        return msgspec.structs.replace(self, salt=salt) if salt != self.salt else self

    def page_seed_bytes(self) -> bytes:
        """What is hashed into the first seed of a page key chain. Length-prefixed fields: unambiguous."""
        fields = (self.fingerprint, self.dtype, self.layout, self.lora, self.salt)
        return b"".join(len(raw).to_bytes(4, "little") + raw for raw in (field.encode() for field in fields))

    def text_seed_bytes(self) -> bytes:
        """What is hashed into the first seed of a text key chain."""
        return self.page_seed_bytes() + TEXT_SEED_SUFFIX
