"""One figure of a bench, beside a peer's."""

Row = dict[str, object]


def row(figure: str, ours: float | None, peer: float | None, ratio: float | None, reach: str, ok: bool | None) -> Row:
    """`reach`: what is to be reached, in words; `ok`: whether it is. None where there is nothing to compare."""
    return {"figure": figure, "ours": ours, "peer": peer, "ratio": ratio, "reach": reach, "ok": ok}
