//! Prefixes that nodes were given lately, in two indices: what is added goes to the young one, the old one is dropped as
//! a whole. So age and memory are bounded without bookkeeping per key. Beside them: how often prefixes were asked for.

use std::sync::{Mutex, MutexGuard};

use crate::demand::Demand;
use crate::index::{Entry, Op, PrefixIndex, Scratch};
use crate::keys::{key_at, KEY_BYTES};

/// Few, for one thread adds at a time and each has its price; several, so that growing moves little at once.
const PARTITIONS: usize = 8;

/// A node, and how many leading keys of a chain it was given.
pub type Given = (u16, u32);

/// Who was given how much of a chain, by node; and how many leading keys that is, each number once, ascending, with how
/// often chains came lately that had so many in common with one before.
pub struct Known {
    pub given: Vec<Given>,
    pub counts: Vec<u32>,
    pub uses: Vec<f64>,
}

pub struct Generations {
    max_keys: usize,
    /// Held for every call: they are short, and mostly come from one thread.
    both: Mutex<Both>,
}

struct Both {
    young: PrefixIndex,
    old: PrefixIndex,
    /// Of keys in one of the two that are the last one that two chains have in common.
    demand: Demand,
    scratch: Scratch,
}

impl Generations {
    /// Each generation has room for `max_keys`. What was asked for `memory_s` ago counts 1/e.
    pub fn new(max_keys: usize, memory_s: f64) -> Self {
        let generation = || PrefixIndex::new(PARTITIONS, max_keys);
        Generations {
            max_keys,
            both: Mutex::new(Both {
                young: generation(),
                old: generation(),
                demand: Demand::new(memory_s),
                scratch: Scratch::default(),
            }),
        }
    }

    /// Of the packed `keys`, for every node that was given the first one.
    pub fn given(&self, keys: &[u8], now: f64) -> Known {
        let Both {
            young,
            old,
            demand,
            scratch,
        } = &mut *self.both();
        let mut given: Vec<Given> = leading(young, keys, scratch).collect();
        for (node, count) in leading(old, keys, scratch) {
            match given.binary_search_by_key(&node, |&(node, _)| node) {
                Ok(at) => given[at].1 = given[at].1.max(count),
                Err(at) => given.insert(at, (node, count)),
            }
        }
        let counts = distinct(&given);
        let uses = counts
            .iter()
            .map(|&count| demand.uses(last(keys, count), now));
        let mut uses: Vec<f64> = uses.collect();
        // Whatever has a longer prefix in common has the shorter one in common.
        for at in (1..uses.len()).rev() {
            uses[at - 1] = uses[at - 1].max(uses[at]);
        }
        Known {
            given,
            counts,
            uses,
        }
    }

    /// The node is given the chain: what the young generation lacks of it is added, up to `limit` keys. Returns how many.
    pub fn give(&self, node: u16, keys: &[u8], limit: usize, now: f64) -> usize {
        let Both {
            young,
            demand,
            scratch,
            ..
        } = &mut *self.both();
        let given: Vec<Given> = leading(young, keys, scratch).collect();
        for count in distinct(&given) {
            demand.add(last(keys, count), now);
        }
        let known = given.iter().find(|&&(known, _)| known == node);
        let known = known.map_or(0, |&(_, count)| count as usize);
        let end = (keys.len() / KEY_BYTES).min(known.saturating_add(limit));
        if end <= known {
            return 0;
        }
        let entries = (known..end).map(|at| Entry {
            key: key_at(keys, at),
            depth: at as u32 + 1,
            tier: 0,
        });
        young.apply(young.batch(Op::Store, node, entries));
        end - known
    }

    /// The young generation becomes the old one; `forget`: nothing is old.
    pub fn turn(&self, forget: bool) {
        let fresh = || PrefixIndex::new(PARTITIONS, self.max_keys);
        let mut both = self.both();
        let young = std::mem::replace(&mut both.young, fresh());
        both.old = if forget { fresh() } else { young };
        both.demand.turn(forget);
    }

    /// The node was given nothing.
    pub fn clear(&self, node: u16) {
        let both = self.both();
        both.young.clear(node);
        both.old.clear(node);
    }

    /// Distinct keys, those in both generations counted twice.
    pub fn keys(&self) -> usize {
        let both = self.both();
        both.young.stats().keys + both.old.stats().keys
    }

    fn both(&self) -> MutexGuard<'_, Both> {
        self.both.lock().expect("a call panicked")
    }
}

fn leading<'s>(
    index: &PrefixIndex,
    keys: &[u8],
    scratch: &'s mut Scratch,
) -> impl Iterator<Item = Given> + 's {
    let rows = index.matches(keys, scratch).iter();
    rows.map(|&[node, count, ..]| (node as u16, count))
}

/// Of how many leading keys there are, each number once, ascending.
fn distinct(given: &[Given]) -> Vec<u32> {
    let mut counts: Vec<u32> = given.iter().map(|&(_, count)| count).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Of so many leading keys, one at least.
fn last(keys: &[u8], count: u32) -> u64 {
    key_at(keys, count as usize - 1)
}
