//! Nodes that had better bring a prefix from the one that holds it than compute it. The formula is that of
//! `router/scheduler/cost.py`, which says why; what is policy in it comes in as numbers.

use crate::offers::{Board, Offer, Prices, LINK};

/// Columns of a link: tokens per second; when it is free of what comes in, and of what goes out; tokens that may still
/// come without pushing out what is in use, and without pushing anything out; and tokens of a step.
const RATE: usize = 0;
const IN_FREE_AT: usize = 1;
const OUT_FREE_AT: usize = 2;
const SPARE: usize = 3;
const ROOM: usize = 4;
const STEP: usize = 5;

/// The node at a position had better pull so many tokens from the one at `source`.
pub struct Pull {
    pub at: u32,
    pub source: u32,
    pub tokens: u32,
}

/// What it is decided by.
pub struct Terms<'a> {
    /// Of the prompt.
    pub tokens: u32,
    pub prices: &'a Prices,
    /// Of a wait.
    pub weight: f64,
    /// How often a token that is pushed out would have been found again.
    pub found: f64,
    pub latency_s: f64,
    /// Nodes, those with the shortest waits, that are considered.
    pub readers: usize,
    pub now: f64,
}

/// A node that lends, its position, and tokens of the prompt that it holds.
struct Lender {
    at: u32,
    tokens: u32,
    link: [f64; LINK],
}

/// Who pulls, and the `offers` (of `rows`, in their order) that are replaced by that. `known`: (position, tokens) of what
/// may be lent; `held` by row: what counts as there, be it only expected.
pub fn pulls(
    board: Board<'_>,
    rows: &[u32],
    known: impl Iterator<Item = (u32, u32)>,
    held: impl Fn(u32) -> u32,
    terms: &Terms<'_>,
    offers: &mut [Offer],
) -> Vec<Pull> {
    let Terms { tokens, prices, .. } = *terms;
    let Some(lender) = lender(board, rows, known, terms.now) else {
        return Vec::new();
    };
    let uncached = tokens.saturating_sub(lender.tokens).max(1);
    let rest_s = prices.seconds(uncached, tokens - uncached);
    let mut pulls = Vec::new();
    for (at, queue, drag) in first(board, rows, uncached, terms.readers) {
        let row = board.row(rows[at as usize]);
        let own = if at == lender.at {
            lender.tokens
        } else {
            held(rows[at as usize])
        };
        let (Some(link), Some(count @ 1..)) = (row.link(), lender.tokens.checked_sub(own)) else {
            continue;
        };
        if f64::from(count) > link[SPARE] {
            continue;
        }
        let mut work = rest_s;
        if f64::from(count) > link[ROOM] {
            work += terms.found * prices.seconds(count, own);
        }
        let begins = terms
            .now
            .max(link[IN_FREE_AT])
            .max(lender.link[OUT_FREE_AT]);
        let takes = f64::from(count) / link[RATE].min(lender.link[RATE]);
        let hidden_s = rest_s.min(link[STEP] * prices.token);
        let pull_s = terms.latency_s + (begins - terms.now + takes) - hidden_s;
        let (wait, drag) = (queue.max(pull_s), rest_s * drag);
        let offer = &mut offers[at as usize];
        let cost = |work: f64, wait: f64, drag: f64| work + terms.weight * (wait + drag);
        let [own_work, own_wait, own_drag, load, _, reported_at] = *offer;
        if cost(work, wait, drag) < cost(own_work, own_wait, own_drag) {
            let matched = f64::from(lender.tokens);
            *offer = [work, wait, drag, load, matched, reported_at];
            pulls.push(Pull {
                at,
                source: lender.at,
                tokens: count,
            });
        }
    }
    pulls
}

/// Of those that hold most and lend, the one whose link is free first.
fn lender(
    board: Board<'_>,
    rows: &[u32],
    known: impl Iterator<Item = (u32, u32)>,
    now: f64,
) -> Option<Lender> {
    let busy = |link: &[f64; LINK]| (link[OUT_FREE_AT] - now).max(0.0);
    let mut best: Option<Lender> = None;
    for (at, tokens) in known {
        let most = best.as_ref().map_or(0, |best| best.tokens);
        if tokens == 0 || tokens < most {
            continue;
        }
        if let Some(link) = board.row(rows[at as usize]).link() {
            let freer = |best: &Lender| busy(&link) < busy(&best.link);
            if tokens > most || best.as_ref().is_some_and(freer) {
                best = Some(Lender { at, tokens, link });
            }
        }
    }
    best
}

/// Positions of the nodes at which a prompt waits least, with the seconds until its turn, and what each second of its
/// work holds up.
fn first(board: Board<'_>, rows: &[u32], uncached: u32, count: usize) -> Vec<(u32, f64, f64)> {
    let mut first: Vec<(u32, f64, f64)> = Vec::with_capacity(count + 1);
    for (at, &number) in rows.iter().enumerate() {
        let (queue, drag) = board.row(number).wait(uncached);
        let place = first.partition_point(|&(_, other, _)| other <= queue);
        if place < count {
            first.insert(place, (at as u32, queue, drag));
            first.truncate(count);
        }
    }
    first
}
