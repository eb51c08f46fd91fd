//! One decision: who holds how much of a prompt, what each node could do for it, and in which order they are tried.

use crate::generations::{Generations, Known};
use crate::index::{self, PrefixIndex, Row};
use crate::keys::KEY_BYTES;
use crate::members::Members;
use crate::offers::{self, all, Board, Held, Offer, Prices};
use crate::prompt::{Prompt, Sampling};
use crate::pulls::{self, Pull};
use crate::rank;

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
    starts: Vec<Start>,
    /// Of the prompt: as estimated, or what some node is known to hold of it if that is more.
    tokens: u32,
    /// Of all members of all groups.
    offers: Vec<Offer>,
    /// Of all members of all groups, by row.
    tiers: Vec<Row>,
    claimed: Vec<(u32, u32)>,
    pulls: Vec<Pull>,
    rule: rank::Rule,
    /// Places in `offers` of those to try, best first; only the best of all until others are asked for.
    order: Vec<u32>,
    ranked: usize,
}

/// Where the group begins in what is kept of all of them.
#[derive(Clone, Copy, Default)]
struct Start {
    offers: usize,
    tiers: usize,
    claimed: usize,
    pulls: usize,
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
    /// Of a prompt of so many tokens, as estimated.
    pub fn new(tokens: u32) -> Self {
        Ranking {
            tokens,
            ..Ranking::default()
        }
    }

    /// Looks up one more group.
    pub fn look_up(&mut self, group: &Group<'_>, scratch: &mut Scratch) {
        let start = self.end();
        self.starts.push(start);
        if let Some(known) = group.index {
            let rows = known.matches(group.chain, &mut scratch.index);
            self.tiers.extend_from_slice(rows);
            let held = rows
                .iter()
                .map(|&[_, device, host, disk]| all([device, host, disk]));
            self.tokens = held.fold(self.tokens, u32::max);
        }
    }

    /// Weighs the group at that place, when all are looked up and those before it weighed. The board has all rows of its
    /// members.
    pub fn weigh(
        &mut self,
        at: usize,
        group: &Group<'_>,
        board: Board<'_>,
        policy: &Policy,
        request: &Request,
        scratch: &mut Scratch,
    ) {
        let (tokens, prices, held) = (self.tokens, &request.prices, &mut scratch.held);
        let rows = &group.members.numbers;
        let start = Start {
            tiers: self.starts[at].tiers,
            ..self.end()
        };
        self.starts[at] = start;
        let Known {
            given,
            counts,
            uses,
        } = group.claims.given(group.sample, request.now);
        let chain_keys = group.chain.len() / KEY_BYTES;
        let depth = |&count: &u32| {
            let keys = policy.sampling.spanned(count as usize).min(chain_keys);
            request.prompt.covered(keys, tokens)
        };
        let depths: Vec<u32> = counts.iter().map(depth).collect();
        self.claimed.extend(given.iter().map(|&(node, count)| {
            let place = counts.partition_point(|&other| other < count);
            (u32::from(node), depths[place])
        }));
        let tiers = &self.tiers[start.tiers..self.end_of(at).tiers];
        hold(held, board.rows(), tiers, &self.claimed[start.claimed..]);
        let asked = offers::Prompt {
            tokens,
            depths: &depths,
            uses: &uses,
            memory_s: policy.memory_s,
        };
        self.offers
            .resize(start.offers + rows.len(), Offer::default());
        let offers = &mut self.offers[start.offers..];
        offers::weigh(board, rows, held, &asked, prices, offers);
        let terms = pulls::Terms {
            tokens,
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
        let mut pulls = pulls::pulls(board, rows, known, held, &terms, offers);
        self.pulls.append(&mut pulls);
    }

    /// A request overtakes so much of what waits for a node that is in one of the groups: `seconds`, of its work there.
    pub fn relieve<E>(
        &mut self,
        groups: &[Group<'_>],
        row: u32,
        seconds: impl FnOnce(f64) -> Result<f64, E>,
    ) -> Result<(), E> {
        for (group, start) in groups.iter().zip(&self.starts) {
            if let Some(at) = group.members.position(row) {
                let [work, wait, ..] = &mut self.offers[start.offers + at as usize];
                *wait = (*wait - seconds(*work)?).max(0.0);
                break;
            }
        }
        Ok(())
    }

    /// When all groups are weighed. `draw`, from 0 to below 1, decides among what is nearly the same.
    pub fn rank(&mut self, policy: &Policy, weight: f64, draw: f64) {
        self.rule = rank::Rule {
            weight,
            limit: policy.limit,
            full_s: policy.full_s,
            tie: policy.tie,
            negligible_s: policy.negligible_s,
        };
        self.ranked = policy.most.min(self.offers.len());
        self.order = rank::best(&self.offers, &self.rule, draw)
            .into_iter()
            .collect();
    }

    /// How many there are to try.
    pub fn ranked(&self) -> usize {
        self.ranked
    }

    /// Rank 0 is the best.
    pub fn choice(&mut self, rank: usize) -> Option<Choice> {
        let number = *self.order_to(rank)?.get(rank)?;
        let group = self
            .starts
            .partition_point(|start| start.offers <= number as usize)
            - 1;
        let at = number - self.starts[group].offers as u32;
        let pull = self.pulls(group).iter().find(|pull| pull.at == at);
        Some(Choice {
            group,
            at,
            matched: self.offers[number as usize][4] as u32,
            pull: pull.map(|pull| (pull.source, pull.tokens)),
        })
    }

    /// It is the first from now on. None: there is none.
    pub fn prefer(&mut self, rank: usize) -> Option<()> {
        self.order_to(rank)?[..=rank].rotate_right(1);
        Some(())
    }

    /// The order as far as that: most requests are served by the best node, and nobody asks for others.
    fn order_to(&mut self, rank: usize) -> Option<&mut [u32]> {
        if rank >= self.ranked {
            return None;
        }
        if rank >= self.order.len() {
            self.order = rank::order(&self.offers, &self.rule, self.order[0], self.ranked);
        }
        Some(&mut self.order)
    }

    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    pub fn groups(&self) -> usize {
        self.starts.len()
    }

    /// Tokens that nodes hold, by their summaries.
    pub fn tiers(&self, group: usize) -> &[Row] {
        &self.tiers[self.starts[group].tiers..self.end_of(group).tiers]
    }

    /// (row, tokens): what it will hold because of what was just placed.
    pub fn claimed(&self, group: usize) -> &[(u32, u32)] {
        &self.claimed[self.starts[group].claimed..self.end_of(group).claimed]
    }

    pub fn pulls(&self, group: usize) -> &[Pull] {
        &self.pulls[self.starts[group].pulls..self.end_of(group).pulls]
    }

    /// Of memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.starts)
            + size_of_val(&*self.offers)
            + size_of_val(&*self.tiers)
            + size_of_val(&*self.claimed)
            + size_of_val(&*self.pulls)
            + size_of_val(&*self.order)
    }

    fn end_of(&self, group: usize) -> Start {
        self.starts.get(group + 1).copied().unwrap_or(self.end())
    }

    fn end(&self) -> Start {
        Start {
            offers: self.offers.len(),
            tiers: self.tiers.len(),
            claimed: self.claimed.len(),
            pulls: self.pulls.len(),
        }
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
