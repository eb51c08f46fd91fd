"""`trunkline bench quant`, at a size that takes little time: that it measures, and in which order things must come."""

import pytest

from trunkline.loadtest.bench import quant


def test_every_figure_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {
        "TEXTS": 1,
        "TEXT_TOKENS": 64,
        "PROMPTS": 2,
        "PROMPT_TOKENS": 32,
        "ANSWER_TOKENS": 4,
        "COPIED_PAGES": 2,
    }.items():
        monkeypatch.setattr(quant, name, small)
    rows = {str(row["figure"]): row for row in quant.run(1)}
    assert len(rows) == 2 * 6
    for name in quant.FORMATS:
        size = rows[f"{name}, bytes of a page"]
        assert size["peer"] == 737_280
        assert 0.25 < float(str(size["ratio"])) < 0.26
        perplexity = rows[f"{name}, perplexity"]
        assert perplexity["ours"] != perplexity["peer"], "the context did go through the tier"
        assert 0.9 < float(str(perplexity["ratio"])) < 1.1
        assert rows[f"{name}, greedy answers the same"]["peer"] == 2
    assert {row["ok"] for row in rows.values()} == {None}, "nothing is promised"
