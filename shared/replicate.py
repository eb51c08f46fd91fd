"""What a router answers to a replication."""

import msgspec


class Copy(msgspec.Struct, frozen=True):
    """What a node has of a prefix that it was told to pull. Tokens."""

    node: str
    held: int = 0
    pulled: int = 0
    seconds: float = 0.0
    error: str = ""


class Replicated(msgspec.Struct, frozen=True):
    """What became of a replication."""

    model: str
    tokens: int
    """Of the prefix, that its holder has."""
    holder: str
    held_by: list[str]
    """Nodes that had as much of it already, the holder among them."""
    copies: list[Copy]
