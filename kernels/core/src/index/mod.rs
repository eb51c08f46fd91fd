//! Which node holds which keys, in which tier: partitioned by key, many readers, one writer per partition.
//!
//! `table` maps keys to depth and node set, `sets` makes equal sets equal ids, `partition` is the queue and the
//! writer's token, `batch` and `steps` are a call's changes, `matching` finds how far each node's prefix reaches.

mod batch;
mod matching;
#[cfg(all(test, loom))]
mod models;
mod nodes;
mod partition;
mod sets;
mod steps;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

pub use batch::{Batch, Entry, Op};
pub use matching::{Row, Scratch};
pub use nodes::{Digest, MAX_NODES};

use nodes::{Delta, Nodes};
use partition::{Partition, Writer};
use sets::{Membership, Sets, EMPTY};
use steps::{Outcome, Steps};
use table::{Found, Placement, Table, Value};

use crate::sync::pin;

/// Tiers are numbered below this.
pub const MAX_TIERS: usize = 3;
/// An index has at most this many partitions.
pub const MAX_PARTITIONS: usize = 1024;

/// Node sets may take this much per key of the bound, a third of what the slots take, and never less than the floor.
const SET_BYTES_PER_KEY: usize = 16;
const SET_BYTES_FLOOR: usize = 1 << 20;

/// How far ahead of the work the slots are fetched from memory.
const LOOKAHEAD: usize = 12;

pub struct PrefixIndex {
    placement: Placement,
    partitions: Box<[Partition<Arc<Batch>>]>,
    sets: Sets,
    nodes: Nodes,
    max_keys: usize,
    /// Keys that somebody holds.
    keys: AtomicUsize,
    /// Changes that found no room, ever.
    dropped: AtomicUsize,
}

/// What an index holds, and the memory it takes.
pub struct Stats {
    pub keys: usize,
    /// Keys held, summed over the nodes.
    pub holdings: u64,
    pub bytes: usize,
    /// Changes that found no room, ever.
    pub dropped: usize,
    /// Distinct node sets.
    pub sets: usize,
}

impl PrefixIndex {
    /// `partitions` is a power of two up to MAX_PARTITIONS. Keys beyond `max_keys` are dropped.
    pub fn new(partitions: usize, max_keys: usize) -> Self {
        let placement = Placement::new(partitions);
        let share = |number: usize| number as f64 / partitions as f64;
        let set_bytes = max_keys.saturating_mul(SET_BYTES_PER_KEY);
        PrefixIndex {
            placement,
            partitions: (0..partitions)
                .map(|number| Partition::new(placement, share(number)))
                .collect(),
            sets: Sets::new(set_bytes.max(SET_BYTES_FLOOR)),
            nodes: Nodes::new(partitions),
            max_keys,
            keys: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        }
    }

    /// Changes to one node, in their order of application.
    pub fn batch<I>(&self, op: Op, node: u16, entries: I) -> Batch
    where
        I: Iterator<Item = Entry> + Clone,
    {
        Batch::new(op, node, entries, &self.placement)
    }

    /// Returns how many changes found no room. Whoever looks afterwards sees the others.
    ///
    /// Readers meanwhile see each key before or after its change.
    pub fn apply(&self, batch: Batch) -> usize {
        self.prefetch(&batch);
        let batch = Arc::new(batch);
        for number in batch.concerned() {
            self.partitions[number].push(Arc::clone(&batch));
        }
        for number in batch.concerned() {
            let apply = |job: Arc<Batch>, writer: &mut Writer<'_>| self.run(number, &job, writer);
            self.partitions[number].try_drain(apply);
        }
        // What is left is in the hands of others, or was pushed just after they had looked.
        for number in batch.concerned() {
            if batch.is_done() {
                break;
            }
            let apply = |job: Arc<Batch>, writer: &mut Writer<'_>| self.run(number, &job, writer);
            self.partitions[number].settle(apply);
        }
        batch.dropped()
    }

    /// Fetches from memory where the first entries of each partition are, all together: a small batch has few of each.
    /// `run` fetches the others ahead of its work.
    fn prefetch(&self, batch: &Batch) {
        let guard = pin();
        for number in batch.concerned() {
            let table = self.partitions[number].table(&guard);
            for entry in batch.share(number).iter().take(LOOKAHEAD) {
                table.prefetch(self.placement.of(entry.key).1);
            }
        }
    }

    /// Forgets all that the node holds.
    pub fn clear(&self, node: u16) {
        self.apply(self.batch(Op::Clear, node, std::iter::empty()));
    }

    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Of all the node's keys. Exact if nobody changes the node meanwhile.
    pub fn digest(&self, node: u16) -> Digest {
        let digests = self.digests(node);
        digests.fold((0, 0), |sum, part| {
            (sum.0.wrapping_add(part.0), sum.1 ^ part.1)
        })
    }

    /// Of its keys in each partition. Indexes of as many partitions agree on which key is in which.
    pub fn digests(&self, node: u16) -> impl Iterator<Item = Digest> + '_ {
        self.nodes.digests(node)
    }

    /// Lookups of a match and changes by each partition, ever. Approximate when many threads are at it.
    pub fn traffic(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.partitions
            .iter()
            .map(|partition| partition.traffic.get())
    }

    /// What the node holds in some partitions, by depth. A snapshot if nobody changes the node meanwhile.
    pub fn dump(&self, node: u16, partitions: Range<usize>) -> Vec<Entry> {
        let guard = pin();
        let held = self
            .digests(node)
            .skip(partitions.start)
            .take(partitions.len());
        let mut entries = Vec::with_capacity(held.map(|(count, _)| count as usize).sum());
        let mut membership = Membership::new(&self.sets, &guard, node);
        for partition in &self.partitions[partitions] {
            for (key, Found { value, .. }) in partition.table(&guard).iter() {
                if let Some(tier) = membership.tier(value.set()) {
                    entries.push(Entry {
                        key,
                        depth: value.depth(),
                        tier,
                    });
                }
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.depth, entry.key));
        entries
    }

    pub fn stats(&self) -> Stats {
        let guard = pin();
        let tables = self.partitions.iter();
        let slots: usize = tables.map(|it| it.table(&guard).capacity()).sum();
        let (sets, set_bytes) = self.sets.size();
        Stats {
            keys: self.keys.load(Ordering::Relaxed),
            holdings: self.nodes.holdings(),
            bytes: slots * Table::SLOT_BYTES + set_bytes + self.nodes.bytes(),
            dropped: self.dropped.load(Ordering::Relaxed),
            sets,
        }
    }

    /// Applies a batch's share to a partition, as its writer.
    fn run(&self, number: usize, batch: &Batch, writer: &mut Writer<'_>) {
        let mut job = Job {
            index: self,
            number,
            op: batch.op,
            steps: Steps::new(&self.sets, writer.guard, batch.op, batch.node),
            delta: Delta::default(),
            dropped: 0,
        };
        if batch.op == Op::Clear {
            let mut membership = Membership::new(&self.sets, writer.guard, batch.node);
            for (key, found) in writer.table().iter() {
                if membership.tier(found.value.set()).is_some() {
                    job.change(writer, key, found, Entry::default());
                }
            }
        }
        let share = batch.share(number);
        self.partitions[number].traffic.changed(share.len());
        for (at, &entry) in share.iter().enumerate() {
            if let Some(ahead) = share.get(at + LOOKAHEAD) {
                writer.table().prefetch(self.placement.of(ahead.key).1);
            }
            let found = writer
                .table()
                .find(entry.key, self.placement.of(entry.key).1);
            job.change(writer, entry.key, found, entry);
        }
        job.steps.finish();
        if !job.delta.is_nothing() {
            self.nodes.change(batch.node, number, job.delta);
        }
        self.dropped.fetch_add(job.dropped, Ordering::Relaxed);
        batch.finish_one(job.dropped);
    }

    /// Takes one of `max_keys`; false: there is none left.
    fn take_key(&self) -> bool {
        let free = self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !free {
            self.give_key();
        }
        free
    }

    fn give_key(&self) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A batch's share while it is applied to a partition.
struct Job<'a> {
    index: &'a PrefixIndex,
    number: usize,
    op: Op,
    steps: Steps<'a>,
    delta: Delta,
    dropped: usize,
}

impl Job<'_> {
    fn change(&mut self, writer: &mut Writer<'_>, key: u64, found: Found, entry: Entry) {
        let index = self.index;
        let from = found.value.set();
        if from == EMPTY {
            if self.op != Op::Store {
                return;
            }
            if !index.take_key() {
                self.dropped += 1;
                return;
            }
        }
        let step = self.steps.take(from, entry.tier);
        match step.outcome {
            Outcome::Kept => {}
            Outcome::Joined => self.delta.join(key, entry.tier),
            Outcome::Moved => {
                self.delta.leave(key, step.was);
                self.delta.join(key, entry.tier);
            }
            Outcome::Left => self.delta.leave(key, step.was),
            Outcome::Refused => {
                self.dropped += 1;
                if from == EMPTY {
                    index.give_key();
                }
                return;
            }
            Outcome::Forgotten => {
                self.dropped += 1;
                for &member in index.sets.members(from, writer.guard) {
                    let mut delta = Delta::default();
                    delta.leave(key, sets::tier_of(member));
                    index
                        .nodes
                        .change(sets::node_of(member), self.number, delta);
                }
            }
        }
        let value = if step.to == EMPTY {
            index.give_key();
            Value::REMOVED
        } else if self.op == Op::Store {
            Value::new(entry.depth, step.to)
        } else {
            Value::new(found.value.depth(), step.to)
        };
        if value != found.value {
            writer.set(found, key, value);
        }
    }
}
