//! An open-addressing table of u64 keys that one writer changes while any number of readers look keys up.
//!
//! What makes that safe without locks: a slot that has a key keeps that key for as long as the table lives, and the
//! value is published after the key. A removed key keeps its slot; the next rebuild leaves it out.

#[cfg(not(loom))]
use std::alloc::{alloc_zeroed, handle_alloc_error, Layout};
use std::hash::{BuildHasher, RandomState};

use crate::sync::atomic::{AtomicU64, Ordering};

/// What a key maps to: its depth in tokens and the id of the set of nodes that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(u64);

impl Value {
    /// No slot has this key.
    pub const ABSENT: Value = Value(0);
    /// A slot has this key, nobody holds it.
    pub const REMOVED: Value = Value(1 << 32);

    /// `set` is not 0.
    pub fn new(depth: u32, set: u32) -> Self {
        Value(u64::from(depth) << 32 | u64::from(set))
    }

    pub fn depth(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// 0: nobody.
    pub fn set(self) -> u32 {
        self.0 as u32
    }
}

/// Says where a key belongs. Its secrets are drawn once per index, so that nobody can choose keys that collide in a
/// table. The partition has no secret: indexes of as many partitions agree on it, and can be compared one by one.
#[derive(Clone, Copy)]
pub struct Placement {
    secrets: [u64; 2],
    bits: u32,
}

impl Placement {
    /// `partitions` is a power of two.
    pub fn new(partitions: usize) -> Self {
        // loom runs the same program again and again.
        let secret = |number: u64| match cfg!(loom) {
            true => number,
            false => RandomState::new().hash_one(number),
        };
        Placement {
            secrets: [secret(0), secret(1) | 1],
            bits: partitions.trailing_zeros(),
        }
    }

    pub fn partitions(&self) -> usize {
        1 << self.bits
    }

    /// The partition of `key`, and its place in there: a fraction of the table's length in units of 2^-64.
    #[inline]
    pub fn of(&self, key: u64) -> (usize, u64) {
        let product = u128::from(key ^ self.secrets[0]) * u128::from(self.secrets[1]);
        let hash = (product >> 64) as u64 ^ product as u64;
        (self.partition(key), hash)
    }

    #[inline]
    pub fn partition(&self, key: u64) -> usize {
        // Keys are hashes; the multiplication also spreads those that are not.
        let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        spread.checked_shr(64 - self.bits).unwrap_or(0) as usize
    }
}

struct Slot {
    key: AtomicU64,
    value: AtomicU64,
}

/// Slots of one cache line. A search begins at a line's first slot, and mostly ends in the same line.
#[repr(align(64))]
struct Line([Slot; LINE]);

const LINE: usize = 4;

/// Some slots have never been used, so that every search ends.
pub struct Table {
    lines: Box<[Line]>,
}

/// Where a key is, or where it would go.
#[derive(Clone, Copy)]
pub struct Found {
    index: usize,
    pub value: Value,
}

impl Table {
    pub const SLOT_BYTES: usize = size_of::<Slot>();

    /// Of at least `capacity` slots.
    pub fn new(capacity: usize) -> Self {
        Table {
            lines: empty_lines(capacity.div_ceil(LINE)),
        }
    }

    /// Slots, used or not.
    pub fn capacity(&self) -> usize {
        self.lines.len() * LINE
    }

    /// Starts to fetch what a search from `place` reads first.
    #[inline]
    pub fn prefetch(&self, place: u64) {
        prefetch(&self.lines[self.home(place)]);
    }

    #[inline]
    pub fn find(&self, key: u64, place: u64) -> Found {
        let mut line = self.home(place);
        loop {
            for (at, slot) in self.lines[line].0.iter().enumerate() {
                // Acquire: the key was stored before the value, and so were the members of the value's set.
                let value = Value(slot.value.load(Ordering::Acquire));
                if value == Value::ABSENT || slot.key.load(Ordering::Relaxed) == key {
                    let index = line * LINE + at;
                    return Found { index, value };
                }
            }
            line += 1;
            if line == self.lines.len() {
                line = 0;
            }
        }
    }

    /// Only for the writer. `found` comes from this table, and no key was added since. Not ABSENT.
    #[inline]
    pub fn set(&self, found: Found, key: u64, value: Value) {
        let slot = self.slot(found.index);
        if found.value == Value::ABSENT {
            slot.key.store(key, Ordering::Relaxed);
        }
        slot.value.store(value.0, Ordering::Release);
    }

    /// Every key that somebody holds, in order of place but for those that found no room there.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Found)> + '_ {
        (0..self.capacity()).filter_map(|index| {
            let slot = self.slot(index);
            let value = Value(slot.value.load(Ordering::Acquire));
            (value.set() != 0).then(|| (slot.key.load(Ordering::Relaxed), Found { index, value }))
        })
    }

    /// The line where a search from `place` begins.
    #[inline]
    fn home(&self, place: u64) -> usize {
        ((u128::from(place) * self.lines.len() as u128) >> 64) as usize
    }

    #[inline]
    fn slot(&self, index: usize) -> &Slot {
        &self.lines[index / LINE].0[index % LINE]
    }
}

#[cfg(not(loom))]
fn empty_lines(count: usize) -> Box<[Line]> {
    // Zeroed memory from the system is not touched before its first use.
    let layout = Layout::array::<Line>(count).expect("a table fits into memory");
    // SAFETY: the layout is not empty, since a table has slots; zeros are valid slots, never used.
    unsafe {
        let lines = alloc_zeroed(layout).cast::<Line>();
        if lines.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(lines, count))
    }
}

#[cfg(loom)]
fn empty_lines(count: usize) -> Box<[Line]> {
    let slot = |_| Slot {
        key: AtomicU64::new(0),
        value: AtomicU64::new(0),
    };
    let slots = || Line(std::array::from_fn(slot));
    (0..count).map(|_| slots()).collect()
}

#[inline]
fn prefetch<T>(_target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(_target).cast());
    }
}
