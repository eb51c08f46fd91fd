"""In which order prompts are computed: the shortest first, but none waits for more than its own length deserves.

    due = arrival + patience * what is left to compute, in seconds

Prefill goes to the prompts by their due times. A prompt of 0.1 s that comes in the middle of one of 5 s is computed
first, which costs the long one 2 % and saves the short one nearly all of its wait. It ages by standing still: others'
due times move on with the clock, so a prompt of w seconds is overtaken only by those that come less than patience * w
after it, however many come. Patience 0 is first come, first served.

A priority counts as in vLLM: lower ones go first. Each step of it halves or doubles the patience, which is Smith's
rule (weighted shortest work first) for weights that are powers of two; nobody starves whatever others ask for.
"""

MAX_PRIORITY = 16
"""Priorities are within -MAX_PRIORITY and MAX_PRIORITY."""


def due(arrival: float, left_s: float, patience: float, priority: int = 0) -> float:
    """When a prompt's turn is, on the clock of `arrival`; seconds."""
    return arrival + patience * left_s * 2.0**priority
