//! The page pool: who holds which page, and when a freed page may be handed out again.
//!
//! A page is *free*, *resident* (references > 0) or *in flight*: nobody holds it any more, but a step that was
//! running when it was freed may still read or write it. It is reclaimed when all those steps have ended:
//!
//! ```text
//! step 7   |-----------|
//! step 8        |-----------------|
//! free of p         x                       p waits for tickets < 9: for 7 and 8
//! step 9              |-----------------|   began after the free, cannot see p
//! p free again                    ^
//! ```

mod free;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use crate::sync::{Mutex, MutexGuard};
use free::FreeSet;

/// Why a call was refused. Nothing has changed then.
#[derive(Debug, PartialEq, Eq)]
pub enum PoolError {
    /// A page number the pool does not have.
    NoSuchPage { page: i64, total: usize },
    /// Sharing or releasing a page that nobody holds.
    NotHeld { page: u32 },
    /// More references than the counter can hold.
    TooManyReferences { page: u32 },
    /// Ending a step that never began or has ended already.
    NoSuchStep { ticket: u64 },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::NoSuchPage { page, total } => {
                write!(f, "page {page} is not one of the pool's {total}")
            }
            PoolError::NotHeld { page } => write!(
                f,
                "page {page} is held by nobody: it cannot be shared or released"
            ),
            PoolError::TooManyReferences { page } => {
                write!(f, "page {page} has all the references it can have")
            }
            PoolError::NoSuchStep { ticket } => write!(f, "step {ticket} is not running"),
        }
    }
}

impl std::error::Error for PoolError {}

/// A consistent count of the pages in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub free: usize,
    pub resident: usize,
    pub in_flight: usize,
    pub total: usize,
}

/// Safe to use from any number of threads.
///
/// One lock instead of atomics per page: a batch is all or nothing, and a free must see the running steps as they
/// are, so the counts, the free set and the steps change together. A section is a few nanoseconds per page, calls
/// nothing that waits, and its only frequent user is the engine thread.
pub struct PagePool {
    state: Mutex<State>,
}

struct State {
    /// References of each page; 0: free or in flight.
    references: Vec<u32>,
    resident: usize,
    free: FreeSet,
    /// Freed pages with the first ticket that could not see them, oldest first, so tickets ascend.
    in_flight: VecDeque<(u64, u32)>,
    running: BTreeSet<u64>,
    next_ticket: u64,
}

impl PagePool {
    /// A pool of `pages` free pages, numbered from 0.
    pub fn new(pages: u32) -> Self {
        PagePool {
            state: Mutex::new(State {
                references: vec![0; pages as usize],
                resident: 0,
                free: FreeSet::full(pages as usize),
                in_flight: VecDeque::new(),
                running: BTreeSet::new(),
                next_ticket: 0,
            }),
        }
    }

    /// Takes `count` pages with one reference each, lowest numbers first, or none at all.
    pub fn allocate(&self, count: usize) -> Option<Vec<u32>> {
        self.allocate_in(&[], count)
    }

    /// The same, but of these groups first, one after the other. A group that the pool does not have has no free page.
    pub fn allocate_in(&self, groups: &[usize], count: usize) -> Option<Vec<u32>> {
        let mut state = self.lock();
        let pages = state.free.take(groups, count)?;
        for &page in &pages {
            state.references[page as usize] = 1;
        }
        state.resident += count;
        Some(pages)
    }

    /// Free pages in each group of `free::GROUP` neighbours.
    pub fn free_in_groups(&self) -> Vec<u8> {
        self.lock().free.in_groups()
    }

    /// One more reference to each of `pages`; a page may occur more than once.
    pub fn share(&self, pages: &[u32]) -> Result<(), PoolError> {
        self.lock()
            .adjust(pages, |page, references| match references {
                0 => Err(PoolError::NotHeld { page }),
                held => held
                    .checked_add(1)
                    .ok_or(PoolError::TooManyReferences { page }),
            })
    }

    /// One reference less to each of `pages`; returns those that nobody holds any more, in order.
    pub fn release(&self, pages: &[u32]) -> Result<Vec<u32>, PoolError> {
        let mut state = self.lock();
        let mut freed = Vec::new();
        state.adjust(pages, |page, references| {
            let left = references
                .checked_sub(1)
                .ok_or(PoolError::NotHeld { page })?;
            if left == 0 {
                freed.push(page);
            }
            Ok(left)
        })?;
        state.resident -= freed.len();
        let ticket = state.next_ticket;
        state
            .in_flight
            .extend(freed.iter().map(|&page| (ticket, page)));
        state.reclaim();
        Ok(freed)
    }

    /// References of a page; 0: free or in flight.
    pub fn references(&self, page: u32) -> Result<u32, PoolError> {
        let state = self.lock();
        let total = state.references.len();
        state
            .references
            .get(page as usize)
            .copied()
            .ok_or(PoolError::NoSuchPage {
                page: page.into(),
                total,
            })
    }

    /// A step begins. Pages freed from now on wait until it ends with this ticket.
    pub fn step_begin(&self) -> u64 {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.running.insert(ticket);
        ticket
    }

    /// The step has ended: it reads and writes no page any more.
    pub fn step_end(&self, ticket: u64) -> Result<(), PoolError> {
        let mut state = self.lock();
        if !state.running.remove(&ticket) {
            return Err(PoolError::NoSuchStep { ticket });
        }
        state.reclaim();
        Ok(())
    }

    pub fn counts(&self) -> Counts {
        let state = self.lock();
        Counts {
            free: state.free.len(),
            resident: state.resident,
            in_flight: state.in_flight.len(),
            total: state.references.len(),
        }
    }

    /// Free pages in the longest run of neighbours.
    pub fn longest_free(&self) -> usize {
        self.lock().free.longest_run()
    }

    /// Counts everything anew: each page in one state, `free + resident + in flight == total`, nothing waits in vain.
    pub fn check(&self) -> Result<(), String> {
        self.lock().check()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under this lock is a bug in this file; going on with half a batch applied would hide it.
        self.state
            .lock()
            .expect("the page pool panicked while it was locked")
    }
}

impl State {
    /// Sets each page's references to `change(page, references)`; undoes all of it at the first error.
    fn adjust(
        &mut self,
        pages: &[u32],
        mut change: impl FnMut(u32, u32) -> Result<u32, PoolError>,
    ) -> Result<(), PoolError> {
        let total = self.references.len();
        let mut before = Vec::with_capacity(pages.len());
        for &page in pages {
            let changed = match self.references.get(page as usize) {
                Some(&references) => change(page, references).map(|after| (references, after)),
                None => Err(PoolError::NoSuchPage {
                    page: page.into(),
                    total,
                }),
            };
            match changed {
                Ok((references, after)) => {
                    before.push(references);
                    self.references[page as usize] = after;
                }
                Err(error) => {
                    for (&page, &references) in pages.iter().zip(&before).rev() {
                        self.references[page as usize] = references;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Moves to the free set what no running step can see.
    fn reclaim(&mut self) {
        let oldest = self.running.first().copied().unwrap_or(self.next_ticket);
        while let Some(&(ticket, page)) = self.in_flight.front() {
            if ticket > oldest {
                break;
            }
            self.in_flight.pop_front();
            self.free.insert(page);
        }
    }

    fn check(&self) -> Result<(), String> {
        let total = self.references.len();
        let mut waiting = vec![false; total];
        for &(ticket, page) in &self.in_flight {
            if std::mem::replace(&mut waiting[page as usize], true) {
                return Err(format!("page {page} is in flight twice"));
            }
            if self.running.first().is_none_or(|&oldest| oldest >= ticket) {
                return Err(format!(
                    "page {page} is in flight, but no step that could see it is running"
                ));
            }
        }
        let mut resident = 0;
        for (page, (&references, &waiting)) in self.references.iter().zip(&waiting).enumerate() {
            let free = self.free.contains(page as u32);
            if u8::from(references > 0) + u8::from(waiting) + u8::from(free) != 1 {
                return Err(format!(
                    "page {page}: {references} references, in flight: {waiting}, free: {free}"
                ));
            }
            resident += usize::from(references > 0);
        }
        if resident != self.resident || self.free.count() != self.free.len() {
            return Err(format!(
                "counted {} free and {resident} resident pages, kept {} and {}",
                self.free.count(),
                self.free.len(),
                self.resident,
            ));
        }
        let in_flight = self.in_flight.len();
        if self.free.len() + resident + in_flight != total {
            return Err(format!(
                "{} free + {resident} resident + {in_flight} in flight != {total}",
                self.free.len()
            ));
        }
        Ok(())
    }
}
