//! Node sets, each once: equal sets have equal ids, so that comparing two keys' holders is comparing two integers.
//!
//! A set is immutable. Readers go from id to members without a lock; writers find and make sets under one. A set goes
//! when no slot refers to it, and its memory and its id are used again when no reader can still see them.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crossbeam_queue::SegQueue;

use crate::sync::Guard;

/// A node and the tier in which it holds a key: `node << 2 | tier`. Sorted by node in a set.
pub type Member = u32;

pub fn member(node: u16, tier: u8) -> Member {
    u32::from(node) << 2 | u32::from(tier)
}

pub fn node_of(member: Member) -> u16 {
    (member >> 2) as u16
}

pub fn tier_of(member: Member) -> u8 {
    (member & 3) as u8
}

/// Where `node` is in a set, or where it would go.
pub fn position(members: &[Member], node: u16) -> Result<usize, usize> {
    members.binary_search_by_key(&node, |&member| node_of(member))
}

/// Bytes of a set beside its members: the shared slice's header, the map's entry, the cell, the count.
const SET_BYTES: usize = 16 + 32 + 16 + 8;

/// The set that nobody is in has no members anywhere, only this id.
pub const EMPTY: u32 = 0;

pub struct Sets {
    arena: Arc<Arena>,
    ledger: Mutex<Ledger>,
    max_bytes: usize,
}

/// What the writers know: which sets there are, and how many slots refer to each.
struct Ledger {
    ids: HashMap<Arc<[Member]>, u32>,
    references: Vec<usize>,
    bytes: usize,
}

/// From id to members, for readers. Chunk `i` has `1 << i` cells and never moves.
struct Arena {
    chunks: [OnceLock<Box<[Cell]>>; 32],
    free: SegQueue<u32>,
}

struct Cell(UnsafeCell<Option<Arc<[Member]>>>);

// SAFETY: a cell is written before its id is published and after every reader of that id is gone (epochs); in between
// it is only read.
unsafe impl Sync for Cell {}
unsafe impl Send for Cell {}

impl Sets {
    /// `max_bytes` bounds what all sets together may take.
    pub fn new(max_bytes: usize) -> Self {
        Sets {
            arena: Arc::new(Arena {
                chunks: [const { OnceLock::new() }; 32],
                free: SegQueue::new(),
            }),
            ledger: Mutex::new(Ledger {
                ids: HashMap::new(),
                references: vec![0],
                bytes: 0,
            }),
            max_bytes,
        }
    }

    /// The members of a set whose id was read from a table under `guard`, or of one that the caller refers to.
    #[inline]
    pub fn members<'g>(&self, id: u32, _guard: &'g Guard) -> &'g [Member] {
        if id == EMPTY {
            return &[];
        }
        // SAFETY: the id was published after the cell was written, and the cell outlives the guard.
        let members = unsafe { &*self.arena.cell(id).0.get() };
        let members: *const [Member] = members.as_deref().unwrap_or(&[]);
        // SAFETY: as above; the members are as long-lived as their cell.
        unsafe { &*members }
    }

    /// The id of the set with these members, with one more reference. None: there is no room for another set.
    pub fn intern(&self, members: &[Member]) -> Option<u32> {
        if members.is_empty() {
            return Some(EMPTY);
        }
        let mut ledger = self.ledger();
        if let Some(&id) = ledger.ids.get(members) {
            ledger.references[id as usize] += 1;
            return Some(id);
        }
        let bytes = SET_BYTES + size_of_val(members);
        if ledger.bytes + bytes > self.max_bytes {
            return None;
        }
        let id = self.arena.free.pop().unwrap_or_else(|| {
            ledger.references.push(0);
            ledger.references.len() as u32 - 1
        });
        let members: Arc<[Member]> = members.into();
        // SAFETY: nobody has this id yet.
        unsafe { *self.arena.cell(id).0.get() = Some(Arc::clone(&members)) };
        ledger.ids.insert(members, id);
        ledger.references[id as usize] = 1;
        ledger.bytes += bytes;
        Some(id)
    }

    /// Adds and then takes references; sets that have none left are retired.
    pub fn settle(&self, changes: impl Iterator<Item = Change> + Clone, guard: &Guard) {
        let mut ledger = self.ledger();
        for Change { to, gained, .. } in changes.clone() {
            if to != EMPTY {
                ledger.references[to as usize] += gained;
            }
        }
        let mut retired = Vec::new();
        for Change { from, lost, .. } in changes {
            if from == EMPTY || lost == 0 {
                continue;
            }
            let references = &mut ledger.references[from as usize];
            *references -= lost;
            if *references == 0 {
                let members = self.members(from, guard);
                ledger.ids.remove(members);
                ledger.bytes -= SET_BYTES + size_of_val(members);
                retired.push(from);
            }
        }
        drop(ledger);
        if !retired.is_empty() {
            let arena = Arc::clone(&self.arena);
            guard.defer(move || arena.reclaim(&retired));
            guard.flush();
        }
    }

    /// How many sets there are, and the bytes they take.
    pub fn size(&self) -> (usize, usize) {
        let ledger = self.ledger();
        (ledger.ids.len(), ledger.bytes)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("a writer panicked")
    }
}

/// In which tier one node is in each set; looks into a set once.
pub struct Membership<'a> {
    sets: &'a Sets,
    guard: &'a Guard,
    node: u16,
    /// By set id: UNKNOWN, NOT_IN, or IN and the tier.
    known: Vec<u8>,
}

const UNKNOWN: u8 = 0;
const NOT_IN: u8 = 1;
const IN: u8 = 2;

impl<'a> Membership<'a> {
    pub fn new(sets: &'a Sets, guard: &'a Guard, node: u16) -> Self {
        Membership {
            sets,
            guard,
            node,
            known: Vec::new(),
        }
    }

    /// None: the node is not in the set.
    #[inline]
    pub fn tier(&mut self, set: u32) -> Option<u8> {
        let place = set as usize;
        if place >= self.known.len() {
            self.known.resize(place + 1, UNKNOWN);
        }
        if self.known[place] == UNKNOWN {
            let members = self.sets.members(set, self.guard);
            self.known[place] = match position(members, self.node) {
                Ok(at) => IN + tier_of(members[at]),
                Err(_) => NOT_IN,
            };
        }
        self.known[place].checked_sub(IN)
    }
}

/// References that slots gained and lost when they went from one set to another.
#[derive(Clone, Copy)]
pub struct Change {
    pub from: u32,
    pub lost: usize,
    pub to: u32,
    pub gained: usize,
}

impl Arena {
    #[inline]
    fn cell(&self, id: u32) -> &Cell {
        let chunk = id.ilog2();
        let cells = self.chunks[chunk as usize].get_or_init(|| {
            let empty = || Cell(UnsafeCell::new(None));
            (0..1usize << chunk).map(|_| empty()).collect()
        });
        &cells[(id - (1 << chunk)) as usize]
    }

    fn reclaim(&self, ids: &[u32]) {
        for &id in ids {
            // SAFETY: no slot refers to the id, and every reader that saw it has unpinned.
            unsafe { *self.cell(id).0.get() = None };
            self.free.push(id);
        }
    }
}
