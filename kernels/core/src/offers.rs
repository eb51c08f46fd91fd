//! What many nodes could do for one request, weighed and ranked in one pass: arrays in, arrays out.
//!
//! The formulas are those of `router/scheduler/cost.py`, which says why; all that is policy comes in as numbers.

/// Seconds of work and of wait, and load: 1 when the node is full.
pub type Offer = [f64; 3];

/// A board of accounts: rows of `fill, reported at, waits by size, drags by size`.
pub struct Board<'a> {
    pub bytes: &'a [u8],
    pub sizes: usize,
    /// Prompts of fewer bits than this, in tokens, are of size 0; each more is the next size.
    pub smallest: u32,
}

impl Board<'_> {
    pub fn row_bytes(&self) -> usize {
        (2 + 2 * self.sizes) * size_of::<f64>()
    }

    pub fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        let start = row * self.row_bytes() + column * size_of::<f64>();
        let bytes = self.bytes[start..start + size_of::<f64>()].try_into();
        f64::from_ne_bytes(bytes.expect("eight bytes"))
    }

    fn offer(&self, row: usize, uncached: u32, work: f64) -> Offer {
        let size = (u32::BITS - uncached.leading_zeros()).saturating_sub(self.smallest) as usize;
        let size = size.min(self.sizes - 1);
        let wait = self.at(row, 2 + size) + work * self.at(row, 2 + self.sizes + size);
        [work, wait, self.at(row, 0)]
    }
}

/// Seconds per token, and per token and token that it attends to.
pub struct Prices {
    pub token: f64,
    pub pair: f64,
}

impl Prices {
    fn seconds(&self, tokens: u32, matched: u32) -> f64 {
        let (tokens, matched) = (f64::from(tokens), f64::from(matched));
        tokens * (self.token + self.pair * (matched + (tokens + 1.0) / 2.0))
    }
}

/// For each of `rows`, for a prompt of `tokens` of which `held` (row, tokens) are there; the most said of a row counts.
/// Rows are below `board.rows()`; what is held elsewhere does not count.
pub fn weigh(
    board: &Board<'_>,
    rows: &[u32],
    held: impl Iterator<Item = (u32, u32)>,
    tokens: u32,
    prices: &Prices,
) -> Vec<Offer> {
    let mut matched = vec![0_u32; board.rows()];
    for (row, count) in held {
        if let Some(most) = matched.get_mut(row as usize) {
            *most = count.max(*most);
        }
    }
    let new = prices.seconds(tokens, 0);
    rows.iter()
        .map(|&row| match matched[row as usize] {
            0 => board.offer(row as usize, tokens, new),
            count => {
                let uncached = tokens.saturating_sub(count).max(1);
                let work = prices.seconds(uncached, tokens.saturating_sub(uncached));
                board.offer(row as usize, uncached, work)
            }
        })
        .collect()
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

/// Positions of all offers, best first. `draw`, from 0 to below 1, decides among those that are nearly the same.
pub fn rank(offers: &[Offer], rule: &Rule, draw: f64) -> Vec<u32> {
    let cost = |[work, wait, load]: Offer| {
        let full = if load > rule.limit { rule.full_s } else { 0.0 };
        work + rule.weight * wait + full
    };
    let costs: Vec<f64> = offers.iter().map(|&offer| cost(offer)).collect();
    let mut order: Vec<u32> = (0..offers.len() as u32).collect();
    order.sort_by(|&one, &other| costs[one as usize].total_cmp(&costs[other as usize]));
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
    let near = 1 + order[1..]
        .iter()
        .take_while(|&&at| costs[at as usize] <= bound)
        .count();
    if near > 1 {
        let chosen = choose(offers, &order[..near], draw);
        order[..=chosen].rotate_right(1);
    }
    order
}

/// Where in `near` the choice falls: anywhere, unless another is better in work or wait and worse in neither.
fn choose(offers: &[Offer], near: &[u32], draw: f64) -> usize {
    let mut chosen = ((draw * near.len() as f64) as usize).min(near.len() - 1);
    let [mut work, mut wait, _] = offers[near[chosen] as usize];
    for (position, &at) in near.iter().enumerate() {
        let [other_work, other_wait, _] = offers[at as usize];
        if other_work <= work && other_wait <= wait && (other_work < work || other_wait < wait) {
            (chosen, work, wait) = (position, other_work, other_wait);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Rule {
        Rule {
            weight: 0.5,
            limit: 0.9,
            full_s: 1e9,
            tie: 0.05,
            negligible_s: 0.001,
        }
    }

    #[test]
    fn the_cheapest_is_first_and_the_full_are_last() {
        let offers = [
            [2.0, 0.0, 0.0],
            [0.1, 0.0, 1.0],
            [1.0, 0.0, 0.0],
            [1.0, 4.0, 0.0],
        ];
        assert_eq!(rank(&offers, &rule(), 0.0), [2, 0, 3, 1]);
        assert!(rank(&[], &rule(), 0.0).is_empty());
    }

    #[test]
    fn what_costs_no_number_is_last() {
        let mut offers = vec![[1.0, 0.0, 0.0]; 100];
        offers.iter_mut().step_by(3).for_each(|it| it[0] = f64::NAN);
        let order = rank(&offers, &rule(), 0.5);
        assert!(order[..66].iter().all(|at| at % 3 != 0));
    }

    #[test]
    fn chance_decides_among_equals_but_not_for_what_is_worse() {
        let equal = [[1.0, 0.0, 0.0]; 3];
        assert_eq!(rank(&equal, &rule(), 0.99), [2, 0, 1]);
        let worse = [[1.0, 0.0, 0.0], [1.0, 0.01, 0.0]];
        assert_eq!(rank(&worse, &rule(), 0.99), [0, 1]);
    }

    #[test]
    fn what_is_held_is_not_computed() {
        let rows: Vec<f64> = [[0.5, 0.0, 1.0, 2.0, 0.0, 3.0]; 2].concat();
        let bytes: Vec<u8> = rows.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let board = Board {
            bytes: &bytes,
            sizes: 2,
            smallest: 7,
        };
        let held = [(1, 990), (1, 20), (9, 1000)];
        let offers = weigh(
            &board,
            &[0, 1],
            held.into_iter(),
            1000,
            &Prices {
                token: 0.01,
                pair: 0.0,
            },
        );
        assert_eq!(offers, [[10.0, 32.0, 0.5], [0.1, 1.0, 0.5]]);
    }
}
