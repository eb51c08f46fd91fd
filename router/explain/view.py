"""A decision as JSON, from the numbers that it kept."""

import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from trunkline.router.node import Node
from trunkline.router.scheduler import cost
from trunkline.router.scheduler.decision import Decision
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A node as the decision saw it. Seconds and tokens."""

    node: Node
    offer: cost.Offer
    cost: float
    """Without regard to the load limit."""
    ranked: float
    """With regard to it."""
    summary: str
    """`known`, `unknown`, or `assumed`: the node has no events."""
    tiers: dict[str, int]
    """Tokens of the prompt that its summary says it holds, `claimed`: expected beyond,
    because recently placed, and `pulled`: to be brought from another node."""

    @property
    def matched(self) -> int:
        """Tokens that it was expected not to compute."""
        return int(self.offer[4])


def brief(decision: Decision, settings: SchedulerSettings, now: float) -> dict[str, object]:
    """What happened, without the candidates. `now` is by the scheduler's clock."""
    return _brief(decision, _candidates(decision, settings), settings, now)


def full(decision: Decision, settings: SchedulerSettings, now: float) -> dict[str, object]:
    """Everything that is known of the decision; candidates in the order of their cost, what was tried first."""
    candidates = _candidates(decision, settings)
    tried = _tried(decision)
    candidates.sort(key=lambda candidate: candidate.ranked)
    candidates.sort(key=lambda candidate: tried.index(candidate.node) if candidate.node in tried else len(tried))
    return _brief(decision, candidates, settings, now) | {
        "weight": decision.weight,
        "load_limit": settings.load_limit,
        "tie": settings.tie,
        "candidates": [_shown(candidate, decision, settings) for candidate in candidates],
        "tries": [
            *({"node": node.name, "failed": reason} for node, reason in decision.failures),
            *({"node": node.name, "failed": None} for node in tried[len(decision.failures) :]),
        ],
    }


def grounds(decision: Decision, settings: SchedulerSettings) -> tuple[int | None, list[dict[str, str]]]:
    """Tokens expected at the node that was tried last, and the reasons: what takes a look at every candidate."""
    return _grounds(decision, _candidates(decision, settings), settings)


def _grounds(
    decision: Decision, candidates: list[_Candidate], settings: SchedulerSettings
) -> tuple[int | None, list[dict[str, str]]]:
    served = next((candidate for candidate in candidates if candidate.node is decision.node), None)
    return served.matched if served is not None else None, _why(decision, candidates, settings)


def _brief(
    decision: Decision, candidates: list[_Candidate], settings: SchedulerSettings, now: float
) -> dict[str, object]:
    matched, why = _grounds(decision, candidates, settings)
    return {
        "request_id": decision.request_id,
        "at": datetime.fromtimestamp(time.time() - (now - decision.at), UTC).isoformat(timespec="milliseconds"),
        "model": decision.model,
        "prompt_tokens": decision.tokens,
        "node": decision.node.name if decision.node is not None else None,
        "matched_tokens": matched,
        "blind": decision.blind,
        "why": why,
        "outcome": outcome(decision),
    }


def _candidates(decision: Decision, settings: SchedulerSettings) -> list[_Candidate]:
    """In the order in which the ranking numbers them."""
    if decision.ranking is None:
        return []
    offers = decision.ranking.offers()
    costs = cost.costs(offers, decision.weight, math.inf)
    ranked = cost.costs(offers, decision.weight, settings.load_limit)
    numbers = zip(offers, costs, ranked, strict=True)
    candidates = []
    for place, group in enumerate(decision.groups):
        known = {node: tiers for node, *tiers in decision.ranking.known(place)}
        claimed = dict(decision.ranking.claimed(place))
        pulled = {at: tokens for at, _, tokens in decision.ranking.pulls(place)}
        for at, node in enumerate(group.nodes):
            summary = "assumed" if group.assumed else "unknown" if node.index in decision.unknown else "known"
            device, host, disk = known.get(node.index, (0, 0, 0))
            beyond = max(0, claimed.get(node.index, 0) - device - host - disk)
            held = {"device": device, "host": host, "disk": disk, "claimed": beyond, "pulled": pulled.get(at, 0)}
            candidates.append(_Candidate(node, *next(numbers), summary, held))
    return candidates


def _tried(decision: Decision) -> list[Node]:
    tried = [node for node, _ in decision.failures]
    if decision.node is not None and decision.node not in tried:
        tried.append(decision.node)
    return tried


def _shown(candidate: _Candidate, decision: Decision, settings: SchedulerSettings) -> dict[str, object]:
    prices = Prices.of(decision.per_token, decision.per_pair)
    *shown, _, told_at = candidate.offer
    terms = dict(zip(cost.TERMS, shown, strict=True))
    return {
        "node": candidate.node.name,
        "cost_s": candidate.cost,
        **terms,
        # Of a copy `work_s` is only a part.
        "prefill_s": prices.seconds(max(1, decision.tokens - candidate.matched), candidate.matched),
        "full": terms["load"] > settings.load_limit,
        "report_age_s": decision.at - told_at if math.isfinite(told_at) else None,
        "summary": candidate.summary,
        "matched_tokens": candidate.matched,
        "tiers": candidate.tiers,
    }


def _why(decision: Decision, candidates: list[_Candidate], settings: SchedulerSettings) -> list[dict[str, str]]:
    """Reasons, the first being what the choice rests on. It is about the node that was tried first."""
    first = next((candidate for candidate in candidates if candidate.node in _tried(decision)[:1]), None)
    if first is None:
        return []
    reasons = []
    bound = cost.near_bound(min(candidate.ranked for candidate in candidates), settings.tie)
    near = sum(candidate.ranked <= bound for candidate in candidates)
    if len(candidates) == 1:
        reasons.append(("only", f"{first.node.name} was the only node ready for the model"))
    elif first.ranked > bound:
        best = min(candidates, key=lambda candidate: candidate.ranked)
        text = f"{best.node.name} cost the least ({best.cost:.3f} s), but {first.node.name} had room at once"
        reasons.append(("room", text))
    elif near > 1:
        reasons.append(("near_tie", f"{near} nodes cost nearly the same; {first.node.name} was chosen among them"))
    else:
        reasons.append(("cost", f"{first.node.name} cost the least: {first.cost:.3f} s"))
    limit = f"{settings.load_limit:.0%}"
    cheaper = [one for one in candidates if one.cost < first.cost and one.offer[3] > settings.load_limit]
    if first.offer[3] > settings.load_limit:
        reasons.append(("all_full", f"every node was above the load limit of {limit}"))
    elif cheaper:
        given_up = min(cheaper, key=lambda candidate: candidate.cost)
        text = f"{given_up.node.name} cost less ({given_up.cost:.3f} s) but was above the load limit of {limit}"
        reasons.append(("load_limit", text))
    if decision.blind:
        unknown = sum(candidate.summary == "unknown" for candidate in candidates)
        text = f"blind: what {unknown} of the {len(candidates)} nodes hold was not known"
        reasons.append(("blind", text))
    for node, failure in decision.failures:
        reasons.append(("retry", f"{node.name} was tried and failed: {failure}"))
    return [{"reason": reason, "text": text} for reason, text in reasons]


def outcome(decision: Decision) -> dict[str, object]:
    """Numbers are None where they are not known (yet); `reported` is what the node said after the request's end."""
    reported = None
    if decision.finished is not None:
        reported = {
            name: value for name, value in msgspec.structs.asdict(decision.finished).items() if name != "request_id"
        }
    state = "failed" if decision.error else "done" if decision.total_s else "under way"
    return {
        "state": state,
        "status": decision.status or None,
        "error": decision.error or None,
        "queued_s": decision.queued_s or None,
        "first_byte_s": decision.first_byte_s or None,
        "total_s": decision.total_s or None,
        "reported": reported,
    }
