//! One decision: who holds how much of a prompt, what each node could do for it, and in which order they are tried.

use crate::generations::{Generations, Known};
use crate::index::{self, PrefixIndex, Row};
use crate::offers::{self, all, Board, Held, Offer, Prices};
use crate::prompt::{Prompt, Sampling};
use crate::pulls::{self, Pull};
use crate::rank;

/// Nodes that share a chain, by their rows on the board, and where each one is among them.
pub struct Members {
    rows: Vec<u32>,
    /// (row, position), by row.
    places: Vec<(u32, u32)>,
}

impl Members {
    pub fn new(rows: Vec<u32>) -> Self {
        let mut places: Vec<(u32, u32)> = rows.iter().copied().zip(0..).collect();
        places.sort_unstable();
        Members { rows, places }
    }

    /// The board must have so many.
    pub fn rows(&self) -> usize {
        self.places.last().map_or(0, |&(row, _)| row as usize + 1)
    }

    fn position(&self, row: u32) -> Option<u32> {
        let at = self.places.binary_search_by_key(&row, |&(row, _)| row);
        at.ok().map(|at| self.places[at].1)
    }
}

/// Members, and what is known of a prompt's chain there.
pub struct Group<'a> {
    pub members: &'a Members,
    /// None: claims are all that is known.
    pub index: Option<&'a PrefixIndex>,
    pub claims: &'a Generations,
    pub chain: &'a [u8],
    /// What claims are about.
    pub sample: &'a [u8],
}

/// What goes for every decision.
pub struct Policy {
    pub sampling: Sampling,
    /// How long uses count.
    pub memory_s: f64,
    /// Of a node with more load than `limit`, `full_s` is added to the cost.
    pub limit: f64,
    pub full_s: f64,
    /// Costs that differ by less are equal: as a share, and in seconds.
    pub tie: f64,
    pub negligible_s: f64,
    /// Nodes that are told in order.
    pub most: usize,
    pub latency_s: f64,
    /// Nodes that are considered for a pull.
    pub readers: usize,
}

/// What goes for this one.
pub struct Request {
    pub prompt: Prompt,
    pub tokens: u32,
    pub prices: Prices,
    pub found: f64,
    pub weight: f64,
    pub now: f64,
}

/// Memory that is used again and again.
#[derive(Default)]
pub struct Scratch {
    index: index::Scratch,
    held: Vec<Held>,
}

#[derive(Default)]
pub struct Ranking {
    pub groups: Vec<Found>,
    /// Of all members of all groups.
    pub offers: Vec<Offer>,
    /// Places in `offers` of the best, best first.
    pub order: Vec<u32>,
}

/// What was known of a group, by row.
pub struct Found {
    /// Where its members begin in `offers`.
    start: u32,
    pub tiers: Vec<Row>,
    /// Tokens that nodes will hold because of what was just placed.
    pub claimed: Vec<(u32, u32)>,
    pub pulls: Vec<Pull>,
}

pub struct Choice {
    pub group: usize,
    /// Position among its members.
    pub at: u32,
    pub matched: u32,
    /// The member to pull from, and how many tokens.
    pub pull: Option<(u32, u32)>,
}

impl Ranking {
    /// Weighs one more group. The board has all rows of its members.
    pub fn weigh(
        &mut self,
        group: &Group<'_>,
        board: Board<'_>,
        policy: &Policy,
        request: &Request,
        scratch: &mut Scratch,
    ) {
        let Request { tokens, prices, .. } = request;
        let Scratch { index, held } = scratch;
        let rows = &group.members.rows;
        let Known {
            given,
            counts,
            uses,
        } = group.claims.given(group.sample, request.now);
        let chain_keys = group.chain.len() / crate::keys::KEY_BYTES;
        let depth = |&count: &u32| {
            let keys = policy.sampling.spanned(count as usize).min(chain_keys);
            request.prompt.covered(keys, *tokens)
        };
        let depths: Vec<u32> = counts.iter().map(depth).collect();
        let claimed = given.iter().map(|&(node, count)| {
            let place = counts.partition_point(|&other| other < count);
            (u32::from(node), depths[place])
        });
        let claimed: Vec<(u32, u32)> = claimed.collect();
        let tiers = group.index.map_or(Vec::new(), |known| {
            known.matches(group.chain, index).to_vec()
        });
        hold(held, board.rows(), &tiers, &claimed);
        let asked = offers::Prompt {
            tokens: *tokens,
            depths: &depths,
            uses: &uses,
            memory_s: policy.memory_s,
        };
        let mut offers = offers::weigh(board, rows, held, &asked, prices);
        let terms = pulls::Terms {
            tokens: *tokens,
            prices,
            weight: request.weight,
            found: request.found,
            latency_s: policy.latency_s,
            readers: policy.readers,
            now: request.now,
        };
        let known = tiers.iter().filter_map(|&[row, device, host, disk]| {
            Some((group.members.position(row)?, all([device, host, disk])))
        });
        let held = |row: u32| all(held[row as usize]);
        let pulls = pulls::pulls(board, rows, known, held, &terms, &mut offers);
        self.groups.push(Found {
            start: self.offers.len() as u32,
            tiers,
            claimed,
            pulls,
        });
        if self.offers.is_empty() {
            self.offers = offers;
        } else {
            self.offers.extend(offers);
        }
    }

    /// A request overtakes so much of what waits for a node that is in one of the groups: `seconds`, of its work there.
    pub fn relieve<E>(
        &mut self,
        groups: &[&Members],
        row: u32,
        seconds: impl FnOnce(f64) -> Result<f64, E>,
    ) -> Result<(), E> {
        for (members, found) in groups.iter().zip(&self.groups) {
            if let Some(at) = members.position(row) {
                let [work, wait, ..] = &mut self.offers[(found.start + at) as usize];
                *wait -= seconds(*work)?;
                break;
            }
        }
        Ok(())
    }

    /// When all groups are weighed. `draw`, from 0 to below 1, decides among what is nearly the same.
    pub fn rank(&mut self, policy: &Policy, weight: f64, draw: f64) {
        let rule = rank::Rule {
            weight,
            limit: policy.limit,
            full_s: policy.full_s,
            tie: policy.tie,
            negligible_s: policy.negligible_s,
        };
        self.order = rank::rank(&self.offers, &rule, draw, policy.most);
    }

    pub fn choice(&self, rank: usize) -> Option<Choice> {
        let number = *self.order.get(rank)?;
        let group = self.groups.partition_point(|group| group.start <= number) - 1;
        let found = &self.groups[group];
        let at = number - found.start;
        let pull = found.pulls.iter().find(|pull| pull.at == at);
        Some(Choice {
            group,
            at,
            matched: self.offers[number as usize][3] as u32,
            pull: pull.map(|pull| (pull.source, pull.tokens)),
        })
    }

    /// It is the first from now on. False: there is none.
    pub fn prefer(&mut self, rank: usize) -> bool {
        let found = rank < self.order.len();
        if found {
            self.order[..=rank].rotate_right(1);
        }
        found
    }

    /// Of memory.
    pub fn bytes(&self) -> usize {
        let of = |found: &Found| {
            size_of_val(&*found.tiers) + size_of_val(&*found.claimed) + size_of_val(&*found.pulls)
        };
        let groups: usize = self.groups.iter().map(of).sum();
        groups + size_of_val(&*self.groups) + size_of_val(&*self.offers) + size_of_val(&*self.order)
    }
}

/// What each row holds of the prompt: what its summary says, or what is claimed if that is no less.
fn hold(held: &mut Vec<Held>, rows: usize, tiers: &[Row], claimed: &[(u32, u32)]) {
    held.clear();
    held.resize(rows, Held::default());
    for &[row, device, host, disk] in tiers {
        if let Some(one) = held.get_mut(row as usize) {
            *one = [device, host, disk];
        }
    }
    for &(row, tokens) in claimed {
        match held.get_mut(row as usize) {
            Some(one) if tokens >= all(*one) => *one = [tokens, 0, 0],
            _ => {}
        }
    }
}
