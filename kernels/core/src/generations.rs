//! Prefixes that nodes were given lately, in two indices: what is added goes to the young one, the old one is dropped as
//! a whole. So age and memory are bounded without bookkeeping per key.

use std::sync::{Mutex, MutexGuard};

use crate::index::{Entry, Op, PrefixIndex, Scratch};
use crate::keys::{key_at, KEY_BYTES};

/// Few, for one thread adds at a time and each has its price; several, so that growing moves little at once.
const PARTITIONS: usize = 8;

/// A node, and how many leading keys of a chain it was given.
pub type Given = (u16, u32);

pub struct Generations {
    max_keys: usize,
    /// Held for every call: they are short, and mostly come from one thread.
    both: Mutex<Both>,
}

struct Both {
    young: PrefixIndex,
    old: PrefixIndex,
    scratch: Scratch,
}

impl Generations {
    /// Each generation has room for `max_keys`.
    pub fn new(max_keys: usize) -> Self {
        let generation = || PrefixIndex::new(PARTITIONS, max_keys);
        Generations {
            max_keys,
            both: Mutex::new(Both {
                young: generation(),
                old: generation(),
                scratch: Scratch::default(),
            }),
        }
    }

    /// For every node that was given the first of the packed `keys`, by node: how far.
    pub fn given(&self, keys: &[u8]) -> Vec<Given> {
        let Both {
            young,
            old,
            scratch,
        } = &mut *self.both();
        let mut given: Vec<Given> = leading(young, keys, scratch).collect();
        for (node, count) in leading(old, keys, scratch) {
            match given.binary_search_by_key(&node, |&(node, _)| node) {
                Ok(at) => given[at].1 = given[at].1.max(count),
                Err(at) => given.insert(at, (node, count)),
            }
        }
        given
    }

    /// The node is given the chain: what the young generation lacks of it is added, up to `limit` keys. Returns how many.
    pub fn give(&self, node: u16, keys: &[u8], limit: usize) -> usize {
        let Both { young, scratch, .. } = &mut *self.both();
        let known = leading(young, keys, scratch)
            .find(|&(known, _)| known == node)
            .map_or(0, |(_, count)| count as usize);
        let end = (keys.len() / KEY_BYTES).min(known.saturating_add(limit));
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
