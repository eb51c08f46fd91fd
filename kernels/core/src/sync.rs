//! The primitives whose interleavings loom explores, and what stands in for them in its model.

#[cfg(loom)]
pub use loom::sync::{atomic, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::{atomic, Mutex, MutexGuard};

pub use queue::Queue;
pub use rcu::{pin, Guard, Rcu};

#[cfg(not(loom))]
mod queue {
    pub use crossbeam_queue::SegQueue as Queue;
}

/// loom does not see into crossbeam's queue; any linearizable queue explores the same interleavings.
#[cfg(loom)]
mod queue {
    use std::collections::VecDeque;

    use loom::sync::Mutex;

    pub struct Queue<T>(Mutex<VecDeque<T>>);

    impl<T> Queue<T> {
        pub fn new() -> Self {
            Queue(Mutex::new(VecDeque::new()))
        }

        pub fn push(&self, item: T) {
            self.0.lock().unwrap().push_back(item);
        }

        pub fn pop(&self) -> Option<T> {
            self.0.lock().unwrap().pop_front()
        }

        pub fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }
}

mod rcu {
    use super::atomic::{AtomicPtr, Ordering};

    #[cfg(not(loom))]
    pub use crossbeam_epoch::{pin, Guard};

    /// In loom's model nothing is reclaimed: what readers may still see is crossbeam's part, and has its own model.
    #[cfg(loom)]
    pub struct Guard;

    #[cfg(loom)]
    impl Guard {
        pub fn defer<F>(&self, reclaim: F) {
            std::mem::forget(reclaim);
        }

        pub fn flush(&self) {}
    }

    #[cfg(loom)]
    pub fn pin() -> Guard {
        Guard
    }

    /// A value that one writer replaces whole while readers go on with the one they found.
    pub struct Rcu<T> {
        current: AtomicPtr<T>,
    }

    impl<T: Send + 'static> Rcu<T> {
        pub fn new(value: T) -> Self {
            Rcu {
                current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            }
        }

        pub fn load<'g>(&self, _guard: &'g Guard) -> &'g T {
            // SAFETY: the pointer comes from a Box, and what it points to outlives every guard that was there
            // when it was replaced.
            unsafe { &*self.current.load(Ordering::Acquire) }
        }

        /// Readers that come later see `value`; the old one goes when those that may see it have unpinned.
        pub fn replace(&self, value: T, guard: &Guard) {
            let new = Box::into_raw(Box::new(value));
            let old = self.current.swap(new, Ordering::AcqRel);
            // SAFETY: `old` came from a Box, and after the swap nobody can take it here a second time.
            let old = unsafe { Box::from_raw(old) };
            guard.defer(move || drop(old));
        }
    }

    impl<T> Drop for Rcu<T> {
        fn drop(&mut self) {
            // SAFETY: nobody else is left, and the pointer came from a Box.
            drop(unsafe { Box::from_raw(self.current.load(Ordering::Relaxed)) });
        }
    }
}
