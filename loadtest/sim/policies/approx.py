"""What a router without events believes that nodes hold: the prompts that it sent there."""

from collections import OrderedDict

from trunkline.loadtest.sim.job import Job


class AssumedCache:
    """Block keys of one node, least recently used ones out first; a prompt's later blocks are older than its first."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def matched(self, job: Job) -> int:
        """Leading blocks of the prompt that are taken to be there."""
        count = 0
        for key in job.chain.keys:
            if key not in self._held:
                break
            count += 1
        return count

    def insert(self, job: Job) -> int:
        """The prompt was sent there. Returns the number of blocks that were new."""
        held, before = self._held, len(self._held)
        for key in reversed(job.chain.keys):
            held[key] = None
            held.move_to_end(key)
        new = len(held) - before
        while len(held) > self._blocks:
            held.popitem(last=False)
        return new


def match_ratio(matched: float, job: Job) -> float:
    """Share of the prompt's whole blocks."""
    return matched / len(job.chain.keys) if job.chain.keys else 0.0
