"""In which order prompts are computed: the shortest first, but none waits for more than its own length deserves.
And how many at once: a step that completes a short prompt takes no long one along.

    due = arrival + patience * what is left to compute, in seconds

Prefill goes to the prompts by their due times. A prompt of 0.1 s that comes in the middle of one of 5 s is computed
first, which costs the long one 2 % and saves the short one nearly all of its wait. It ages by standing still: others'
due times move on with the clock, so a prompt of w seconds is overtaken only by those that come less than patience * w
after it, however many come. Patience 0 is first come, first served.

Where tenants share the nodes, the router says by how many seconds a request's tenant is behind its share. The request
is due so much earlier (`lead_s`): a long prompt of one tenant, however long it has waited, is left for a short one of
another who asked for little. Nor does what is of the tenant ahead of all (lead 0) ride along in the step that
completes a prompt of another. And while the node has requests of others it takes a quarter of a step at most: nobody
can leave a step that has begun.

A priority counts as in vLLM: lower ones go first. Each step of it halves or doubles the patience, which is Smith's
rule (weighted shortest work first) for weights that are powers of two; nobody starves whatever others ask for.

Tokens that a step takes along delay the prompts that it completes, by the time that they take. Left out, they need
another step, whose fixed part (weights read, kernels launched) delays everybody who still waits. With few waiting,
steps are short and first tokens early; with many, they are full and lose nothing. Patience 0 fills every step.
"""

from collections.abc import Sequence

MAX_PRIORITY = 16
"""Priorities are within -MAX_PRIORITY and MAX_PRIORITY."""
_FIXED_SHARE = 1 / 32
"""The fixed part of a step takes as long as this share of its token budget: 256 tokens of 8192 for an 8B model on an
H100 (7 ms). Anything from 1/64 to 1/8 is within 1 % in the simulator."""
_AHEAD = 4
"""The tenant ahead has one part in so many of a step. With a half, others waited half as long again for the step under
way; what all together get done is the same."""


def due(arrival: float, left_s: float, patience: float, priority: int = 0, lead_s: float = 0.0) -> float:
    """When a prompt's turn is, on the clock of `arrival`; seconds."""
    return arrival + patience * left_s * 2.0**priority - (lead_s if patience else 0.0)


def kept(budget: int, led: int) -> int:
    """Of what a step has for prompts, what those without a lead leave; `led` requests that the node has do have one."""
    return budget * (_AHEAD - 1) // _AHEAD if led else 0


def ends_step(tokens: int, lead_s: float, complete: Sequence[float], waiting: int, step_tokens: int) -> bool:
    """Whether the next prompt, of so many `tokens` and this lead, had better wait for the next step.

    `complete`: leads of the prompts that are done with this step; `waiting` are not in it, the next one included;
    `step_tokens`: budget.
    """
    if not lead_s and any(complete):
        return True
    return tokens * len(complete) > _FIXED_SHARE * step_tokens * waiting
