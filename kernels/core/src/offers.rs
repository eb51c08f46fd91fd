//! What many nodes could do for one request, weighed in one pass.
//!
//! The formulas are those of `router/scheduler/cost.py`, which says why; all that is policy comes in as numbers.

use crate::copies::{Asked, Copies};

/// Seconds of work, of wait and of drag, load (1 when the node is full), tokens held, and when the node last reported.
pub type Offer = [f64; 6];

/// Columns of an account.
const FILL: usize = 0;
const REPORTED_AT: usize = 1;
const WAIT: usize = 2;
pub const DRAG: usize = 3;
/// Seconds per token from the host tier to the device, and from disk.
const HOST: usize = 4;
const DISK: usize = 5;
/// Not 0: the node's row of `passing` counts.
const PASSES: usize = 6;
/// Not 0: the node's row of `links` counts.
pub const LINKED: usize = 7;
const ACCOUNT: usize = 8;
/// As bytes.
type Account = [u8; ACCOUNT * size_of::<f64>()];
/// Columns of a link, see `pulls`.
pub const LINK: usize = 6;

/// What the accounts of all nodes say: rows of f64s, by the node's number. What every decision reads of every node is by
/// itself, so that it takes few lines of a cache.
#[derive(Clone, Copy)]
pub struct Board<'a> {
    pub accounts: &'a [u8],
    /// By size: how much less a prompt of that size waits, for those that it passes; then how many it holds up.
    pub passing: &'a [u8],
    pub links: &'a [u8],
    pub sizes: usize,
    /// Prompts of fewer bits than this, in tokens, are of size 0; each more is the next size.
    pub smallest: u32,
}

impl<'a> Board<'a> {
    /// Nodes of which all is there.
    pub fn rows(&self) -> usize {
        let of = |bytes: &[u8], columns: usize| bytes.len() / (columns * size_of::<f64>());
        let passing = of(self.passing, 2 * self.sizes);
        of(self.accounts, ACCOUNT)
            .min(passing)
            .min(of(self.links, LINK))
    }

    pub fn row(self, number: u32) -> Row<'a> {
        Row {
            account: &self.accounts.as_chunks().0[number as usize],
            number,
            board: self,
        }
    }
}

/// The f64s of one row.
fn cells(bytes: &[u8], number: u32, columns: usize) -> &[[u8; 8]] {
    let start = number as usize * columns;
    &bytes.as_chunks().0[start..start + columns]
}

pub struct Row<'a> {
    account: &'a Account,
    number: u32,
    board: Board<'a>,
}

impl<'a> Row<'a> {
    #[inline]
    pub fn at(&self, column: usize) -> f64 {
        f64::from_ne_bytes(self.account.as_chunks().0[column])
    }

    /// None: the node neither pulls nor lends.
    #[inline]
    pub fn link(&self) -> Option<[f64; LINK]> {
        let linked = self.at(LINKED) != 0.0;
        linked.then(|| {
            let cells = cells(self.board.links, self.number, LINK);
            std::array::from_fn(|column| f64::from_ne_bytes(cells[column]))
        })
    }

    /// With `matched` of the prompt's `tokens` there after `brought` seconds, and so much work for the others. In place:
    /// an array that is passed on is stored and loaded in pieces of different size, which the processor waits for.
    #[inline]
    fn offer(&self, offer: &mut Offer, tokens: u32, matched: u32, work: f64, brought: f64) {
        let (queue, drag) = self.wait(tokens.saturating_sub(matched).max(1));
        offer[0] = work;
        offer[1] = queue.max(brought);
        offer[2] = work * drag;
        offer[3] = self.at(FILL);
        offer[4] = f64::from(matched);
        offer[5] = self.at(REPORTED_AT);
    }

    /// Of a prompt with so many tokens to compute: until its turn, and per second of its work.
    #[inline]
    pub fn wait(&self, uncached: u32) -> (f64, f64) {
        let (queue, drag) = (self.at(WAIT), self.at(DRAG));
        if self.at(PASSES) == 0.0 {
            return (queue, drag);
        }
        let bits = u32::BITS - uncached.leading_zeros();
        let sizes = self.board.sizes;
        let size = (bits.saturating_sub(self.board.smallest) as usize).min(sizes - 1);
        let passing = cells(self.board.passing, self.number, 2 * sizes);
        let [passed, longer] = [size, size + sizes].map(|at| f64::from_ne_bytes(passing[at]));
        (queue - passed, drag + longer)
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
        let (mut first, mut possible) = (f64::INFINITY, Offer::default());
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

pub fn all(held: Held) -> u32 {
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

/// A prompt, and how often it is asked for.
pub struct Prompt<'a> {
    pub tokens: u32,
    /// Where claims on it end, in tokens, ascending.
    pub depths: &'a [u32],
    /// How often requests came within `memory_s` that share it as far as there.
    pub uses: &'a [f64],
    pub memory_s: f64,
}

/// For each of `rows`, for a prompt of which so much is `held` by row. Rows are below `board.rows()` and have their
/// place in `held`; `offers` are as many.
pub fn weigh(
    board: Board<'_>,
    rows: &[u32],
    held: &[Held],
    prompt: &Prompt<'_>,
    prices: &Prices,
    offers: &mut [Offer],
) {
    let tokens = prompt.tokens;
    let new = prices.seconds(tokens, 0);
    for (offer, &number) in offers.iter_mut().zip(rows) {
        let row = board.row(number);
        match held[number as usize] {
            [0, 0, 0] => row.offer(offer, tokens, 0, new, 0.0),
            [ready, 0, 0] => row.computing_rest(offer, tokens, ready, 0.0, prices),
            held => row.promoting(offer, tokens, held, prices),
        }
    }
    if prompt.uses.iter().any(|&uses| uses > 0.0) {
        let held = rows.iter().map(|&row| all(held[row as usize]));
        let asked = prompt.depths.iter().zip(prompt.uses);
        let asked = asked.map(|(&tokens, &uses)| Asked { tokens, uses });
        let copies = Copies::new(held, tokens, asked, prompt.memory_s, prices);
        // Most nodes hold nothing of it.
        let new_spared = copies.spared(0);
        for [work, _, _, _, matched, _] in offers {
            *work -= if *matched == 0.0 {
                new_spared
            } else {
                copies.spared(*matched as u32)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two nodes with these seconds per token from the host tier and from disk, the second of which lets prompts pass.
    fn weighed(host: f64, disk: f64, held: &[Held; 2]) -> Vec<Offer> {
        let bytes = |cells: &[f64]| -> Vec<u8> {
            cells.iter().flat_map(|cell| cell.to_ne_bytes()).collect()
        };
        let account = |passes: f64| [0.5, 7.0, 2.0, 3.0, host, disk, passes, 0.0];
        let board = Board {
            accounts: &bytes(&[account(0.0), account(1.0)].concat()),
            passing: &bytes(&[1.0, 0.0, 0.0, 1.0].repeat(2)),
            links: &bytes(&[0.0; 2 * LINK]),
            sizes: 2,
            smallest: 7,
        };
        assert_eq!(board.rows(), 2);
        let prices = Prices {
            token: 0.01,
            pair: 0.0,
        };
        let prompt = Prompt {
            tokens: 1000,
            depths: &[],
            uses: &[],
            memory_s: 10.0,
        };
        let mut offers = vec![Offer::default(); 2];
        weigh(board, &[0, 1], held, &prompt, &prices, &mut offers);
        offers
    }

    #[test]
    fn what_is_held_is_not_computed() {
        let offers = weighed(0.0, 0.0, &[[0; 3], [990, 0, 0]]);
        assert_eq!(offers[0], [10.0, 2.0, 30.0, 0.5, 0.0, 7.0]);
        assert_eq!(offers[1], [0.1, 1.0, 0.1 * 3.0, 0.5, 990.0, 7.0]);
    }

    #[test]
    fn what_is_promoted_is_waited_for() {
        let work = |matched: f64| (1000.0 - matched) / 100.0;
        for (host, disk, matched, brought) in [
            (0.001, 0.001, 900.0_f64, 0.8_f64),
            (0.01, 0.005, 900.0, 6.0),
            (0.01, 1.0, 500.0, 4.0),
            (1.0, 1.0, 100.0, 0.0),
        ] {
            let offer = weighed(host, disk, &[[100, 400, 400], [0; 3]])[0];
            let (work, wait) = (work(matched), brought.max(2.0));
            let expected = [work, wait, 3.0 * work, 0.5, matched, 7.0];
            assert_eq!(offer, expected, "{host} {disk}");
        }
    }
}
