//! Rules on one thread, then the same pool on several: loom tries every order of a small case (`--cfg loom`),
//! and a stress run does many random ones.

use super::*;

#[cfg(not(loom))]
mod rules {
    use super::*;

    fn counts(pool: &PagePool) -> (usize, usize, usize) {
        pool.check().unwrap();
        let counts = pool.counts();
        (counts.free, counts.resident, counts.in_flight)
    }

    #[test]
    fn hands_out_neighbours_and_all_or_nothing() {
        let pool = PagePool::new(130);
        assert_eq!(pool.allocate(65), Some((0..65).collect()));
        assert_eq!(pool.allocate(66), None);
        assert_eq!(counts(&pool), (65, 65, 0));
        pool.release(&[3, 64, 4]).unwrap();
        assert_eq!(pool.allocate(5), Some(vec![3, 4, 64, 65, 66]));
        assert_eq!(pool.allocate(63), Some((67..130).collect()));
        assert_eq!(counts(&pool), (0, 130, 0));
        assert_eq!(pool.allocate(0), Some(vec![]));
    }

    #[test]
    fn a_bad_page_in_a_batch_changes_nothing() {
        let pool = PagePool::new(4);
        pool.allocate(2).unwrap();
        assert_eq!(pool.share(&[0, 0, 2]), Err(PoolError::NotHeld { page: 2 }));
        assert_eq!(
            pool.release(&[0, 1, 0]),
            Err(PoolError::NotHeld { page: 0 })
        );
        assert_eq!(
            pool.release(&[1, 4]),
            Err(PoolError::NoSuchPage { page: 4, total: 4 })
        );
        assert_eq!((pool.references(0), pool.references(1)), (Ok(1), Ok(1)));
        assert_eq!(counts(&pool), (2, 2, 0));
    }

    #[test]
    fn a_full_counter_refuses_another_reference() {
        let pool = PagePool::new(1);
        pool.allocate(1).unwrap();
        pool.lock().references[0] = u32::MAX;
        assert_eq!(
            pool.share(&[0]),
            Err(PoolError::TooManyReferences { page: 0 })
        );
        assert_eq!(pool.references(0), Ok(u32::MAX));
    }

    #[test]
    fn a_freed_page_waits_for_the_steps_that_could_see_it() {
        let pool = PagePool::new(3);
        pool.allocate(3).unwrap();
        let (first, second) = (pool.step_begin(), pool.step_begin());
        pool.release(&[0]).unwrap();
        let later = pool.step_begin();
        pool.release(&[1]).unwrap();
        pool.step_end(second).unwrap();
        assert_eq!(counts(&pool), (0, 1, 2));
        pool.step_end(first).unwrap();
        assert_eq!(counts(&pool), (1, 1, 1));
        assert_eq!(
            pool.step_end(first),
            Err(PoolError::NoSuchStep { ticket: first })
        );
        pool.step_end(later).unwrap();
        assert_eq!(counts(&pool), (2, 1, 0));
        pool.release(&[2]).unwrap();
        assert_eq!(counts(&pool), (3, 0, 0));
    }

    #[test]
    fn check_names_what_does_not_add_up() {
        let pool = PagePool::new(2);
        pool.allocate(1).unwrap();
        pool.lock().references[1] = 1;
        assert!(pool
            .check()
            .unwrap_err()
            .starts_with("page 1: 1 references"));
    }
}

/// Threads allocate, share, release and step at random; a page's owner count, kept beside the pool, shows whether a
/// page is ever handed out while somebody holds it or a running step has seen it.
#[cfg(not(loom))]
#[test]
fn stress() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    const PAGES: u32 = 96;
    let pool = PagePool::new(PAGES);
    let users: Vec<AtomicU32> = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, users) = (&pool, &users);
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(thread + 1);
                let mut next = |bound: u64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random % bound
                };
                for _ in 0..5_000 {
                    let ticket = pool.step_begin();
                    if let Some(pages) = pool.allocate(1 + next(40) as usize) {
                        for &page in &pages {
                            assert_eq!(
                                users[page as usize].fetch_add(1, SeqCst),
                                0,
                                "page {page} has two owners"
                            );
                        }
                        pool.share(&pages).unwrap();
                        assert!(pool.release(&pages).unwrap().is_empty());
                        assert_eq!(pool.release(&pages).unwrap(), pages);
                        // The step that began before the free still uses them.
                        std::thread::yield_now();
                        for &page in &pages {
                            users[page as usize].fetch_sub(1, SeqCst);
                        }
                    }
                    pool.step_end(ticket).unwrap();
                    if next(64) == 0 {
                        pool.check().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(
        pool.counts(),
        Counts {
            free: PAGES as usize,
            resident: 0,
            in_flight: 0,
            total: PAGES as usize
        }
    );
    pool.check().unwrap();
}

#[cfg(loom)]
mod exhaustive {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use loom::sync::Arc;
    use loom::thread;

    /// A page's memory: loom fails the test if a read and a write of it are not ordered.
    struct Memory(UnsafeCell<u32>);
    unsafe impl Sync for Memory {}

    /// A step reads a page that it found in a block table, while the page is freed and handed out again.
    #[test]
    fn nobody_writes_a_page_that_a_running_step_reads() {
        loom::model(|| {
            let pool = Arc::new(PagePool::new(1));
            let memory = Arc::new(Memory(UnsafeCell::new(0)));
            let in_table = Arc::new(AtomicBool::new(true));
            let page = pool.allocate(1).unwrap();

            let reader = {
                let (pool, memory, in_table) = (pool.clone(), memory.clone(), in_table.clone());
                thread::spawn(move || {
                    let ticket = pool.step_begin();
                    if in_table.load(SeqCst) {
                        memory.0.with(|value| unsafe { value.read() });
                    }
                    pool.step_end(ticket).unwrap();
                })
            };
            in_table.store(false, SeqCst);
            pool.release(&page).unwrap();
            if let Some(again) = pool.allocate(1) {
                memory.0.with_mut(|value| unsafe { value.write(1) });
                pool.release(&again).unwrap();
            }
            reader.join().unwrap();
            pool.check().unwrap();
            assert_eq!(pool.counts().free, 1);
        });
    }

    /// Of two holders that let go at once exactly one frees the page, and a third cannot share what is gone.
    #[test]
    fn the_last_of_two_releases_frees() {
        loom::model(|| {
            let pool = Arc::new(PagePool::new(1));
            pool.allocate(1).unwrap();
            pool.share(&[0]).unwrap();
            let other = {
                let pool = pool.clone();
                thread::spawn(move || pool.release(&[0]).unwrap().len())
            };
            let shared = pool.share(&[0]).is_ok();
            let mut freed = pool.release(&[0]).unwrap().len();
            if shared {
                freed += pool.release(&[0]).unwrap().len();
            }
            freed += other.join().unwrap();
            assert_eq!(freed, 1);
            assert_eq!(pool.share(&[0]), Err(PoolError::NotHeld { page: 0 }));
            pool.check().unwrap();
        });
    }
}
