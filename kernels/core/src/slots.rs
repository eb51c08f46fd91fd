//! The pages of one tier where other nodes read them: fixed slots in one piece of memory, which other processes may map
//! too, and for each slot a generation that its owner changes before the slot is written again, be it by the same thread
//! or by one that it tells to.
//!
//! ```text
//! holder   page lies in slot s, generation g ........ let go: g + 1 .... written anew
//! reader      finds (s, g)      looks: g   copies   looks: g             whole
//!             finds (s, g)           looks: g   copies        looks: g + 1   dropped
//! ```

use std::ptr;
use std::sync::atomic::{fence, AtomicU32, Ordering};

/// What became of one page of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    /// The slot was let go since the page was located.
    Changed = 1,
    /// What arrived is not what was sent.
    Damaged = 2,
    /// The holder lends no such slot.
    Absent = 3,
    /// Nothing arrived, or not all of it.
    Lost = 4,
}

/// Where a page lies at its holder; packed as in `agent/transfer/descriptors.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub tier: u8,
    pub slot: u32,
    pub generation: u32,
}

impl Descriptor {
    pub const BYTES: usize = 9;

    /// Of exactly `BYTES`.
    pub fn unpack(bytes: &[u8]) -> Self {
        let number =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Descriptor {
            tier: bytes[0],
            slot: number(1),
            generation: number(5),
        }
    }

    /// Of packed ones, whole.
    pub fn unpack_all(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self> + '_ {
        bytes.chunks_exact(Self::BYTES).map(Self::unpack)
    }
}

/// Slots in memory that this does not own. Any thread may use it: who writes which slot when is the callers' affair, and
/// a reader that is overtaken notices by the generation.
#[derive(Clone, Copy)]
pub struct Slots {
    generations: *const AtomicU32,
    pages: *mut u8,
    count: usize,
    stride: usize,
    page_bytes: usize,
}

// SAFETY: generations are atomic, and bytes that others may be writing are only copied, never interpreted, before the
// generation has said that nobody was.
unsafe impl Send for Slots {}
unsafe impl Sync for Slots {}

impl Slots {
    /// # Safety
    /// For as long as this is used there are `count` aligned u32 at `generations`, and at `pages` `count` blocks of
    /// `page_bytes`, `stride` apart. The pages are writable where they are targets.
    pub unsafe fn new(
        generations: *mut u32,
        pages: *mut u8,
        count: usize,
        stride: usize,
        page_bytes: usize,
    ) -> Self {
        Slots {
            generations: generations.cast(),
            pages,
            count,
            stride,
            page_bytes,
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn stride(&self) -> usize {
        self.stride
    }

    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Addresses of the first generation and of the first page, for who reads memory by address.
    pub fn addresses(&self) -> (usize, usize) {
        (self.generations.addr(), self.pages.addr())
    }

    /// As of now, before anything of the slot is read.
    pub fn generation(&self, slot: usize) -> u32 {
        self.at(slot).load(Ordering::Acquire)
    }

    /// Whether the slot still has this generation, after what was read of it.
    pub fn is_still(&self, slot: usize, generation: u32) -> bool {
        fence(Ordering::Acquire);
        self.at(slot).load(Ordering::Relaxed) == generation
    }

    /// Where the page begins. Others may be writing there.
    pub fn page(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        // SAFETY: the block is inside the memory that `new` was given.
        unsafe { self.pages.add(slot * self.stride) }
    }

    /// A copy of a located page into a slot that is the caller's, of slots with pages of the same size.
    pub fn copy(&self, from: Descriptor, target: &Slots, to: usize) -> Status {
        assert_eq!(self.page_bytes, target.page_bytes);
        let slot = from.slot as usize;
        if slot >= self.count {
            return Status::Absent;
        }
        if self.generation(slot) != from.generation {
            return Status::Changed;
        }
        // SAFETY: both blocks are inside their memory, and the caller says that nobody else uses the target. If the
        // source is written meanwhile, the copy is dropped.
        unsafe { ptr::copy(self.page(slot), target.page(to), self.page_bytes) };
        if self.is_still(slot, from.generation) {
            Status::Ok
        } else {
            Status::Changed
        }
    }

    fn at(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        // SAFETY: inside the memory that `new` was given, aligned, and only used as atomics.
        unsafe { &*self.generations.add(slot) }
    }
}
