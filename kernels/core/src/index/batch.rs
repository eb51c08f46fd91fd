//! One call's changes for one node, sorted by partition.

use super::table::Placement;
use crate::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The node holds the keys, at these depths and in these tiers.
    Store,
    /// Those of the keys that the node holds are in these tiers now.
    Move,
    /// The node holds none of the keys.
    Remove,
    /// The node holds nothing.
    Clear,
}

/// A key and what to do with it: `depth` (tokens) matters to a store, `tier` to a store and a move.
#[derive(Clone, Copy, Default)]
pub struct Entry {
    pub key: u64,
    pub depth: u32,
    pub tier: u8,
}

/// Shared by the partitions that it concerns.
pub struct Batch {
    pub op: Op,
    pub node: u16,
    entries: Vec<Entry>,
    /// Partition `i` has `entries[starts[i]..starts[i + 1]]`.
    starts: Vec<usize>,
    /// Partitions that are not through with it.
    pending: AtomicUsize,
    dropped: AtomicUsize,
}

impl Batch {
    /// `entries` are in their order of application, which each partition keeps.
    pub fn new<I>(op: Op, node: u16, entries: I, placement: &Placement) -> Self
    where
        I: Iterator<Item = Entry> + Clone,
    {
        let partitions = placement.partitions();
        let mut starts = vec![0; partitions + 1];
        for entry in entries.clone() {
            starts[placement.partition(entry.key) + 1] += 1;
        }
        for partition in 0..partitions {
            starts[partition + 1] += starts[partition];
        }
        let mut sorted = vec![Entry::default(); starts[partitions]];
        let mut next = starts.clone();
        for entry in entries {
            let at = &mut next[placement.partition(entry.key)];
            sorted[*at] = entry;
            *at += 1;
        }
        let concerned = match op {
            Op::Clear => partitions,
            _ => starts
                .windows(2)
                .filter(|share| share[0] < share[1])
                .count(),
        };
        Batch {
            op,
            node,
            entries: sorted,
            starts,
            pending: AtomicUsize::new(concerned),
            dropped: AtomicUsize::new(0),
        }
    }

    /// The partitions that have something to do.
    pub fn concerned(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.starts.len() - 1)
            .filter(|&partition| self.op == Op::Clear || !self.share(partition).is_empty())
    }

    /// The entries of a partition.
    pub fn share(&self, partition: usize) -> &[Entry] {
        &self.entries[self.starts[partition]..self.starts[partition + 1]]
    }

    /// A partition is through; `dropped` of its changes found no room.
    pub fn finish_one(&self, dropped: usize) {
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.pending.fetch_sub(1, Ordering::Release);
    }

    pub fn is_done(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Changes that found no room, once the batch is done.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }
}
