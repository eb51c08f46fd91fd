//! What many nodes could do for one request, weighed and ranked in one pass: arrays in, arrays out.
//!
//! The formulas are those of `router/scheduler/cost.py`, which says why; all that is policy comes in as numbers.

use crate::copies::{Asked, Copies};

/// Seconds of work and of wait, load (1 when the node is full), tokens held, and when the node last reported.
pub type Offer = [f64; 5];

/// Columns of a board before those that go by size: how much less a prompt of that size waits, for those that it
/// passes, and how many it holds up.
const FILL: usize = 0;
const REPORTED_AT: usize = 1;
const WAIT: usize = 2;
const DRAG: usize = 3;
/// Seconds per token from the host tier to the device, and from disk.
const HOST: usize = 4;
const DISK: usize = 5;
/// Not 0: the columns by size count.
const PASSES: usize = 6;
const COLUMNS: usize = 7;

/// A board of accounts, a row of f64s for each node.
pub struct Board<'a> {
    pub bytes: &'a [u8],
    pub sizes: usize,
    /// Prompts of fewer bits than this, in tokens, are of size 0; each more is the next size.
    pub smallest: u32,
}

impl Board<'_> {
    pub fn row_bytes(&self) -> usize {
        (COLUMNS + 2 * self.sizes) * size_of::<f64>()
    }

    pub fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    fn row(&self, number: u32) -> Row<'_> {
        let start = number as usize * self.row_bytes();
        let (cells, _) = self.bytes[start..start + self.row_bytes()].as_chunks();
        Row { cells, board: self }
    }
}

struct Row<'a> {
    cells: &'a [[u8; 8]],
    board: &'a Board<'a>,
}

impl Row<'_> {
    #[inline]
    fn at(&self, column: usize) -> f64 {
        f64::from_ne_bytes(self.cells[column])
    }

    /// With `matched` of the prompt's `tokens` there after `brought` seconds, and so much work for the others. In place:
    /// an array that is passed on is stored and loaded in pieces of different size, which the processor waits for.
    #[inline]
    fn offer(&self, offer: &mut Offer, tokens: u32, matched: u32, work: f64, brought: f64) {
        let (queue, drag) = self.wait(tokens.saturating_sub(matched).max(1));
        offer[0] = work;
        offer[1] = queue.max(brought) + work * drag;
        offer[2] = self.at(FILL);
        offer[3] = f64::from(matched);
        offer[4] = self.at(REPORTED_AT);
    }

    /// Of a prompt with so many tokens to compute: until its turn, and per second of its work.
    #[inline]
    fn wait(&self, uncached: u32) -> (f64, f64) {
        let (queue, drag) = (self.at(WAIT), self.at(DRAG));
        if self.at(PASSES) == 0.0 {
            return (queue, drag);
        }
        let bits = u32::BITS - uncached.leading_zeros();
        let sizes = self.board.sizes;
        let size = COLUMNS + (bits.saturating_sub(self.board.smallest) as usize).min(sizes - 1);
        (queue - self.at(size), drag + self.at(size + sizes))
    }

    /// With `held` on the device, or brought there in so many seconds.
    #[inline]
    fn computing_rest(
        &self,
        offer: &mut Offer,
        tokens: u32,
        held: u32,
        brought: f64,
        prices: &Prices,
    ) {
        let uncached = tokens.saturating_sub(held).max(1);
        let work = prices.seconds(uncached, tokens.saturating_sub(uncached));
        self.offer(offer, tokens, held, work, brought);
    }

    /// Of promoting all that is held, what the host tier has of it, or nothing: what is over first. So the node decides,
    /// which does not know what its work is worth to others.
    #[inline(never)]
    fn promoting(
        &self,
        offer: &mut Offer,
        tokens: u32,
        [ready, host, disk]: Held,
        prices: &Prices,
    ) {
        let from_host = f64::from(host) * self.at(HOST);
        let from_disk = from_host + f64::from(disk) * self.at(DISK);
        let (mut first, mut possible) = (f64::INFINITY, [0.0; 5]);
        for (held, brought) in [
            (ready, 0.0),
            (all([ready, host, 0]), from_host),
            (all([ready, host, disk]), from_disk),
        ] {
            self.computing_rest(&mut possible, tokens, held, brought, prices);
            let (queue, _) = self.wait(tokens.saturating_sub(held).max(1));
            let over = queue.max(brought) + possible[0];
            if over < first {
                first = over;
                *offer = possible;
            }
        }
    }
}

/// Tokens of a prompt that a node holds: on the device (or claimed: they will be there when they are needed), in the
/// host tier, on disk. A prefix mostly lies in this order, for what is used least is evicted first.
pub type Held = [u32; 3];

fn all(held: Held) -> u32 {
    held.iter()
        .fold(0, |sum, &tokens| sum.saturating_add(tokens))
}

/// Seconds per token, and per token and token that it attends to.
pub struct Prices {
    pub token: f64,
    pub pair: f64,
}

impl Prices {
    pub fn seconds(&self, tokens: u32, matched: u32) -> f64 {
        let (tokens, matched) = (f64::from(tokens), f64::from(matched));
        tokens * (self.token + self.pair * (matched + (tokens + 1.0) / 2.0))
    }
}

/// A prompt, and what is known of it.
pub struct Prompt<'a> {
    pub tokens: u32,
    /// Where claims on it end, in tokens, ascending.
    pub depths: &'a [u32],
    /// How often requests came within `memory_s` that share it as far as there.
    pub uses: &'a [f64],
    pub memory_s: f64,
}

/// For each of `rows`, for a prompt of which summaries say what is `held` by rows, and claims how far (place in
/// `depths`) a row will hold it; the most said of a row counts. Rows are below `board.rows()`, others do not count.
pub fn weigh(
    board: &Board<'_>,
    rows: &[u32],
    held: impl Iterator<Item = (u32, Held)>,
    claimed: impl Iterator<Item = (u32, u32)>,
    prompt: &Prompt<'_>,
    prices: &Prices,
) -> Vec<Offer> {
    let tokens = prompt.tokens;
    let mut known = vec![Held::default(); board.rows()];
    for (row, what) in held {
        if let Some(one) = known.get_mut(row as usize) {
            *one = what;
        }
    }
    for (row, place) in claimed {
        let count = prompt.depths.get(place as usize).copied().unwrap_or(0);
        match known.get_mut(row as usize) {
            Some(one) if count >= all(*one) => *one = [count, 0, 0],
            _ => {}
        }
    }
    let new = prices.seconds(tokens, 0);
    let mut offers = vec![[0.0; 5]; rows.len()];
    for (offer, &number) in offers.iter_mut().zip(rows) {
        let row = board.row(number);
        match known[number as usize] {
            [0, 0, 0] => row.offer(offer, tokens, 0, new, 0.0),
            [ready, 0, 0] => row.computing_rest(offer, tokens, ready, 0.0, prices),
            held => row.promoting(offer, tokens, held, prices),
        }
    }
    if prompt.uses.iter().any(|&uses| uses > 0.0) {
        let held = rows.iter().map(|&row| all(known[row as usize]));
        let asked = prompt.depths.iter().zip(prompt.uses);
        let asked = asked.map(|(&tokens, &uses)| Asked { tokens, uses });
        let copies = Copies::new(held, tokens, asked, prompt.memory_s, prices);
        for [work, _, _, matched, _] in &mut offers {
            *work -= copies.spared(*matched as u32);
        }
    }
    offers
}

/// How offers compare; see `router/scheduler/cost.py`.
pub struct Rule {
    pub weight: f64,
    pub limit: f64,
    /// Added to the cost of what is above the limit.
    pub full_s: f64,
    pub tie: f64,
    pub negligible_s: f64,
}

/// Positions of the best offers, at most `most`, best first. `draw`, from 0 to below 1, decides among those that are
/// nearly the same.
pub fn rank(offers: &[Offer], rule: &Rule, draw: f64, most: usize) -> Vec<u32> {
    let cost = |[work, wait, load, ..]: &Offer| {
        let full = if *load > rule.limit { rule.full_s } else { 0.0 };
        work + rule.weight * wait + full
    };
    let costs: Vec<f64> = offers.iter().map(cost).collect();
    let cheaper = |one: &u32, other: &u32| {
        let costs = costs[*one as usize].total_cmp(&costs[*other as usize]);
        costs.then(one.cmp(other))
    };
    let mut order: Vec<u32> = (0..offers.len() as u32).collect();
    if most < order.len() {
        order.select_nth_unstable_by(most, cheaper);
        order.truncate(most);
    }
    order.sort_unstable_by(cheaper);
    let Some(&first) = order.first() else {
        return order;
    };
    let best = costs[first as usize];
    let full = if best >= rule.full_s {
        rule.full_s
    } else {
        0.0
    };
    let bound = full + (best - full) * (1.0 + rule.tie) + rule.negligible_s;
    let near = |at: &u32| *at == first || costs[*at as usize] <= bound;
    let near: Vec<u32> = (0..offers.len() as u32).filter(near).collect();
    if near.len() > 1 {
        let chosen = choose(offers, &near, draw);
        match order.iter().position(|&at| at == chosen) {
            Some(place) => order[..=place].rotate_right(1),
            None => {
                order.pop();
                order.insert(0, chosen);
            }
        }
    }
    order
}

/// Whom of `near` the choice falls on: anybody, unless another is better in work or wait and worse in neither. Then any
/// of those that are as good as that one: were it the first of them, the first nodes would work more than others.
fn choose(offers: &[Offer], near: &[u32], draw: f64) -> u32 {
    let (drawn, draw) = pick(near, draw);
    let [mut work, mut wait, ..] = offers[drawn as usize];
    for &at in near {
        let [other_work, other_wait, ..] = offers[at as usize];
        if other_work <= work && other_wait <= wait {
            (work, wait) = (other_work, other_wait);
        }
    }
    let best = |at: &u32| offers[*at as usize][..2] == [work, wait];
    if best(&drawn) {
        return drawn;
    }
    let best: Vec<u32> = near.iter().copied().filter(best).collect();
    pick(&best, draw).0
}

/// Any, by a number from 0 to below 1, and what is left of it to draw with.
fn pick(from: &[u32], draw: f64) -> (u32, f64) {
    let place = draw * from.len() as f64;
    (from[(place as usize).min(from.len() - 1)], place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        weight: 0.5,
        limit: 0.9,
        full_s: 1e9,
        tie: 0.05,
        negligible_s: 0.001,
    };

    fn offers(terms: &[[f64; 3]]) -> Vec<Offer> {
        let whole = |&[work, wait, load]: &[f64; 3]| [work, wait, load, 0.0, 0.0];
        terms.iter().map(whole).collect()
    }

    #[test]
    fn the_cheapest_is_first_and_the_full_are_last() {
        let offers = offers(&[
            [2.0, 0.0, 0.0],
            [0.1, 0.0, 1.0],
            [1.0, 0.0, 0.0],
            [1.0, 4.0, 0.0],
        ]);
        assert_eq!(rank(&offers, &RULE, 0.0, 9), [2, 0, 3, 1]);
        assert_eq!(rank(&offers, &RULE, 0.0, 2), [2, 0]);
        assert!(rank(&[], &RULE, 0.0, 9).is_empty());
    }

    #[test]
    fn what_costs_no_number_is_last() {
        let mut offers = offers(&[[1.0, 0.0, 0.0]; 100]);
        offers.iter_mut().step_by(3).for_each(|it| it[0] = f64::NAN);
        let order = rank(&offers, &RULE, 0.5, 100);
        assert!(order[..66].iter().all(|at| at % 3 != 0));
    }

    #[test]
    fn chance_decides_among_equals_but_not_for_what_is_worse() {
        let equal = offers(&[[1.0, 0.0, 0.0]; 3]);
        assert_eq!(rank(&equal, &RULE, 0.99, 9), [2, 0, 1]);
        assert_eq!(rank(&equal, &RULE, 0.99, 2), [2, 0]);
        let worse = offers(&[[1.0, 0.0, 0.0], [1.0, 0.01, 0.0]]);
        assert_eq!(rank(&worse, &RULE, 0.99, 9), [0, 1]);
        let best = offers(&[[1.0, 0.01, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]);
        assert_eq!(rank(&best, &RULE, 0.1, 1), [1]);
        assert_eq!(rank(&best, &RULE, 0.3, 1), [2]);
    }

    /// Of two nodes with these seconds per token from the host tier and from disk.
    fn board(host: f64, disk: f64) -> Vec<u8> {
        let row = [0.5, 7.0, 2.0, 3.0, host, disk, 0.0, 1.0, 0.0, 0.0, 1.0];
        let mut passing = row;
        passing[PASSES] = 1.0;
        let rows = [row, passing].concat();
        rows.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn weighed(bytes: &[u8], held: &[(u32, Held)], claimed: &[(u32, u32)]) -> Vec<Offer> {
        let (sizes, smallest) = (2, 7);
        let board = Board {
            bytes,
            sizes,
            smallest,
        };
        let prices = Prices {
            token: 0.01,
            pair: 0.0,
        };
        let depths: Vec<u32> = claimed.iter().map(|&(_, tokens)| tokens).collect();
        let claimed = claimed
            .iter()
            .zip(0..)
            .map(|(&(row, _), place)| (row, place));
        let prompt = Prompt {
            tokens: 1000,
            depths: &depths,
            uses: &[],
            memory_s: 10.0,
        };
        weigh(
            &board,
            &[0, 1],
            held.iter().copied(),
            claimed,
            &prompt,
            &prices,
        )
    }

    #[test]
    fn what_is_held_is_not_computed() {
        let board = board(0.0, 0.0);
        let held = [(1, [20, 0, 0]), (9, [1000, 0, 0])];
        let offers = weighed(&board, &held, &[(1, 990), (9, 1)]);
        assert_eq!(offers[0], [10.0, 32.0, 0.5, 0.0, 7.0]);
        assert_eq!(offers[1], [0.1, 1.0 + 0.1 * 3.0, 0.5, 990.0, 7.0]);
    }

    #[test]
    fn what_is_promoted_is_waited_for() {
        let held = [(0, [100, 400, 400])];
        let work = |matched: f64| (1000.0 - matched) / 100.0;
        let wait = |matched: f64, brought: f64| brought.max(2.0) + work(matched) * 3.0;
        for (host, disk, matched, brought) in [
            (0.001, 0.001, 900.0, 0.8),
            (0.01, 0.005, 900.0, 6.0),
            (0.01, 1.0, 500.0, 4.0),
            (1.0, 1.0, 100.0, 0.0),
        ] {
            let offer = weighed(&board(host, disk), &held, &[])[0];
            let expected = [work(matched), wait(matched, brought), 0.5, matched, 7.0];
            assert_eq!(offer, expected, "{host} {disk}");
        }
    }
}
