//! An open-addressing table of u64 keys that one writer changes while any number of readers look keys up.
//!
//! What makes that safe without locks: a slot that has a key keeps that key for as long as the table lives, and the
//! value is published after the key. A removed key keeps its slot; the next rebuild leaves it out.

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

/// Says where a key belongs. Its secrets are drawn once per index, so that nobody can choose keys that collide.
#[derive(Clone, Copy)]
pub struct Placement {
    secrets: [u64; 2],
    bits: u32,
}

impl Placement {
    /// `partitions` is a power of two.
    pub fn new(partitions: usize) -> Self {
        let random = RandomState::new();
        Placement {
            secrets: [random.hash_one(0), random.hash_one(1) | 1],
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
        let partition = hash.checked_shr(64 - self.bits).unwrap_or(0);
        (partition as usize, hash << self.bits)
    }
}

struct Slot {
    key: AtomicU64,
    value: AtomicU64,
}

/// Some slots have never been used, so that every search ends.
pub struct Table {
    slots: Box<[Slot]>,
}

/// Where a key is, or where it would go.
#[derive(Clone, Copy)]
pub struct Found {
    index: usize,
    pub value: Value,
}

impl Table {
    pub const SLOT_BYTES: usize = size_of::<Slot>();

    pub fn new(capacity: usize) -> Self {
        Table {
            slots: empty_slots(capacity),
        }
    }

    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Starts to fetch what a search from `place` reads first.
    #[inline]
    pub fn prefetch(&self, place: u64) {
        prefetch(&self.slots[self.home(place)]);
    }

    #[inline]
    pub fn find(&self, key: u64, place: u64) -> Found {
        let mut index = self.home(place);
        loop {
            let slot = &self.slots[index];
            // Acquire: the key was stored before the value, and so were the members of the value's set.
            let value = Value(slot.value.load(Ordering::Acquire));
            if value == Value::ABSENT || slot.key.load(Ordering::Relaxed) == key {
                return Found { index, value };
            }
            index += 1;
            if index == self.slots.len() {
                index = 0;
            }
        }
    }

    /// Only for the writer. `found` comes from this table, and no key was added since. Not ABSENT.
    #[inline]
    pub fn set(&self, found: Found, key: u64, value: Value) {
        let slot = &self.slots[found.index];
        if found.value == Value::ABSENT {
            slot.key.store(key, Ordering::Relaxed);
        }
        slot.value.store(value.0, Ordering::Release);
    }

    /// Every key that somebody holds, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Found)> + '_ {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = Value(slot.value.load(Ordering::Acquire));
            (value.set() != 0).then(|| (slot.key.load(Ordering::Relaxed), Found { index, value }))
        })
    }

    #[inline]
    fn home(&self, place: u64) -> usize {
        ((u128::from(place) * self.slots.len() as u128) >> 64) as usize
    }
}

#[cfg(not(loom))]
fn empty_slots(capacity: usize) -> Box<[Slot]> {
    // Zeroed memory from the system is not touched before its first use.
    let zeroed = Box::into_raw(vec![[0u64; 2]; capacity].into_boxed_slice());
    // SAFETY: a Slot is two u64 in size, alignment and validity.
    unsafe { Box::from_raw(zeroed as *mut [Slot]) }
}

#[cfg(loom)]
fn empty_slots(capacity: usize) -> Box<[Slot]> {
    let empty = || Slot {
        key: AtomicU64::new(0),
        value: AtomicU64::new(0),
    };
    (0..capacity).map(|_| empty()).collect()
}

#[inline]
fn prefetch<T>(_target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch(std::ptr::from_ref(_target).cast(), _MM_HINT_T0);
    }
}
