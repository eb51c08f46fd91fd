"""The bench of transfers finds what it asks for, in one question."""

from trunkline.loadtest.bench.transfer.locate import loopback


def test_a_chain_is_located_with_one_question() -> None:
    rows = {str(row["figure"]).partition(": ")[2]: row for row in loopback(1, 20)}
    assert rows["questions"]["ok"]
    assert rows["bytes of question"]["ours"] == 24 + 32 + 8 + 12 * 13
