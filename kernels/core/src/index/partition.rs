//! A share of the key space: a table for readers, and its one writer fed by a queue.
//!
//! The writer is whoever has the token. A caller puts its job in the queue, then takes the token if it is free and
//! works the queue off; if it is not, somebody else is about to, and the caller goes on with its other partitions
//! before it comes back to wait. So there are no threads, and one slow partition holds up only who needs it.

// Not those of loom: nothing depends on them.
use std::sync::atomic::{AtomicU64, Ordering};

use super::table::{Found, Placement, Table, Value};
use crate::sync::{pin, Guard, Mutex, Queue, Rcu};

const MIN_CAPACITY: usize = if cfg!(loom) { 4 } else { 64 };

/// Aligned so that partitions share no cache lines.
#[repr(align(128))]
pub struct Partition<J> {
    placement: Placement,
    table: Rcu<Table>,
    /// At most one job per caller: a caller waits for its job before it brings the next.
    jobs: Queue<J>,
    token: Mutex<Tally>,
    pub traffic: Traffic,
}

/// How often the partition was used. On a line of its own: readers write it.
///
/// Loaded and stored, not added to: that costs a tenth, and threads that meet lose each other's count, no more.
#[derive(Default)]
#[repr(align(128))]
pub struct Traffic {
    lookups: AtomicU64,
    changes: AtomicU64,
}

impl Traffic {
    #[inline]
    pub fn looked_up(&self) {
        let lookups = self.lookups.load(Ordering::Relaxed);
        self.lookups.store(lookups + 1, Ordering::Relaxed);
    }

    pub fn changed(&self, keys: usize) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + keys as u64, Ordering::Relaxed);
    }

    /// (lookups, changes)
    pub fn get(&self) -> (u64, u64) {
        (
            self.lookups.load(Ordering::Relaxed),
            self.changes.load(Ordering::Relaxed),
        )
    }
}

/// What only the writer knows about the table.
struct Tally {
    /// Slots with a key.
    used: usize,
    /// Slots with a key that somebody holds.
    live: usize,
    /// Slots per live key after a rebuild.
    spread: f64,
}

impl<J> Partition<J> {
    /// `share` in 0..1 differs between the partitions of an index: they fill alike, and would all be rebuilt within
    /// the same call if they grew alike.
    pub fn new(placement: Placement, share: f64) -> Self {
        Partition {
            placement,
            table: Rcu::new(Table::new(MIN_CAPACITY)),
            jobs: Queue::new(),
            traffic: Traffic::default(),
            token: Mutex::new(Tally {
                used: 0,
                live: 0,
                spread: 1.8 + 0.4 * share,
            }),
        }
    }

    pub fn table<'g>(&self, guard: &'g Guard) -> &'g Table {
        self.table.load(guard)
    }

    pub fn push(&self, job: J) {
        self.jobs.push(job);
    }

    /// Works off what is in the queue, unless somebody else is at it.
    pub fn try_drain(&self, apply: impl FnMut(J, &mut Writer<'_>)) {
        if let Ok(mut tally) = self.token.try_lock() {
            self.drain(&mut tally, apply);
        }
    }

    /// When this returns, everything that was in the queue when it was called is applied.
    pub fn settle(&self, apply: impl FnMut(J, &mut Writer<'_>)) {
        let mut tally = self.token.lock().expect("a writer panicked");
        self.drain(&mut tally, apply);
    }

    fn drain(&self, tally: &mut Tally, mut apply: impl FnMut(J, &mut Writer<'_>)) {
        // No more than there were at the start, or a caller could work for the others without end.
        for _ in 0..self.jobs.len() {
            let Some(job) = self.jobs.pop() else { return };
            let guard = pin();
            let mut writer = Writer {
                placement: self.placement,
                current: &self.table,
                table: self.table.load(&guard),
                tally: &mut *tally,
                guard: &guard,
            };
            apply(job, &mut writer);
            writer.trim();
        }
    }
}

/// The only one who changes a partition's table, for the time of one job.
pub struct Writer<'a> {
    placement: Placement,
    current: &'a Rcu<Table>,
    table: &'a Table,
    tally: &'a mut Tally,
    pub guard: &'a Guard,
}

impl<'a> Writer<'a> {
    /// The table as it is now; `set` with a new key may replace it.
    #[inline]
    pub fn table(&self) -> &'a Table {
        self.table
    }

    /// `found` is what the table says of `key` now.
    #[inline]
    pub fn set(&mut self, mut found: Found, key: u64, value: Value) {
        if found.value == Value::ABSENT {
            // Up to 3/4 of the slots are used; beyond that, searches get long.
            if (self.tally.used + 1) * 4 > self.table.capacity() * 3 {
                self.rebuild();
                found = self.table.find(key, self.placement.of(key).1);
            }
            self.tally.used += 1;
        }
        self.tally.live += usize::from(value.set() != 0);
        self.tally.live -= usize::from(found.value.set() != 0);
        self.table.set(found, key, value);
    }

    /// Gives memory back when little of it is used.
    fn trim(&mut self) {
        let capacity = self.table.capacity();
        if capacity > MIN_CAPACITY && self.tally.live * 8 < capacity {
            self.rebuild();
        }
    }

    fn rebuild(&mut self) {
        let room = ((self.tally.live + 1) as f64 * self.tally.spread).ceil() as usize;
        let table = Table::new(room.max(MIN_CAPACITY));
        // Places keep their order, so both tables are walked from front to back.
        for (key, found) in self.table.iter() {
            let vacant = table.find(key, self.placement.of(key).1);
            table.set(vacant, key, found.value);
        }
        self.tally.used = self.tally.live;
        self.current.replace(table, self.guard);
        self.table = self.current.load(self.guard);
        self.guard.flush();
    }
}
