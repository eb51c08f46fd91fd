"""How long things took in an engine, and how large its steps were."""

from trunkline.shared.metrics import agent as catalog
from trunkline.shared.wire import Finished


class EngineHistograms:
    """Written by the engine thread; any may look."""

    def __init__(self) -> None:
        self.queue = catalog.QUEUE.distribution()
        self.prefill = catalog.PREFILL.distribution()
        self.steps = {kind: catalog.STEP_TIME.distribution() for kind in catalog.STEP.words}
        self.sequences = catalog.STEP_SEQUENCES.distribution()
        self.tokens = catalog.STEP_TOKENS.distribution()

    def step(self, sequences: int, tokens: int, seconds: float, *, prefill: bool) -> None:
        """A step over so many, with a part of a prompt in it or not."""
        self.steps["prefill" if prefill else "decode"].add(seconds)
        self.sequences.add(sequences)
        self.tokens.add(tokens)

    def finished(self, finished: Finished) -> None:
        self.queue.add(finished.queue_s)
        self.prefill.add(finished.prefill_s)
