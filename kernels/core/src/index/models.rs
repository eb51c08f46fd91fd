//! What loom explores: the queue and the token, the table that is replaced while it is read.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --no-default-features models`

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread;

use super::partition::{Partition, Writer};
use super::table::{Placement, Value};
use super::{Entry, Op, PrefixIndex, Scratch};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::pin;

/// Explores every interleaving with at most this many preemptions.
fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// Sets a key; whoever applies it says so.
struct Job {
    key: u64,
    value: Value,
    done: AtomicBool,
}

struct Fixture {
    placement: Placement,
    partition: Partition<Arc<Job>>,
}

impl Fixture {
    fn new() -> Self {
        let placement = Placement::new(1);
        Fixture {
            placement,
            partition: Partition::new(placement, 0.0),
        }
    }

    /// As `PrefixIndex::apply` does.
    fn submit(&self, key: u64, value: Value) {
        let job = Arc::new(Job {
            key,
            value,
            done: AtomicBool::new(false),
        });
        self.partition.push(Arc::clone(&job));
        let apply = |job: Arc<Job>, writer: &mut Writer<'_>| {
            let found = writer.table().find(job.key, self.placement.of(job.key).1);
            writer.set(found, job.key, job.value);
            job.done.store(true, Ordering::Release);
        };
        self.partition.try_drain(apply);
        if !job.done.load(Ordering::Acquire) {
            self.partition.settle(apply);
        }
        assert!(job.done.load(Ordering::Acquire));
    }

    fn look(&self, key: u64) -> Value {
        let guard = pin();
        let table = self.partition.table(&guard);
        table.find(key, self.placement.of(key).1).value
    }
}

#[test]
fn writers_see_their_own_changes() {
    model(3, || {
        let fixture = Arc::new(Fixture::new());
        let other = {
            let fixture = Arc::clone(&fixture);
            thread::spawn(move || {
                fixture.submit(1, Value::new(10, 1));
                assert_eq!(fixture.look(1), Value::new(10, 1));
            })
        };
        fixture.submit(2, Value::new(20, 2));
        assert_eq!(fixture.look(2), Value::new(20, 2));
        other.join().unwrap();
        assert_eq!(fixture.look(1), Value::new(10, 1));
        assert_eq!(fixture.look(2), Value::new(20, 2));
    });
}

#[test]
fn a_reader_sees_old_or_new_while_the_table_is_replaced() {
    model(3, || {
        let fixture = Arc::new(Fixture::new());
        for key in 1..=3 {
            fixture.submit(key, Value::new(key as u32, 1));
        }
        let reader = {
            let fixture = Arc::clone(&fixture);
            thread::spawn(move || {
                assert_eq!(fixture.look(1), Value::new(1, 1));
                let two = fixture.look(2);
                assert!(two == Value::new(2, 1) || two.set() == 0);
                let four = fixture.look(4);
                assert!(four == Value::ABSENT || four == Value::new(4, 1));
                // What a slot's key is before it has one.
                assert_eq!(fixture.look(0), Value::ABSENT);
            })
        };
        fixture.submit(2, Value::REMOVED);
        fixture.submit(4, Value::new(4, 1));
        reader.join().unwrap();
        assert_eq!(fixture.look(2).set(), 0);
        assert_eq!(fixture.look(4), Value::new(4, 1));
    });
}

#[test]
fn what_a_value_refers_to_is_published_before_it() {
    model(3, || {
        let fixture = Arc::new(Fixture::new());
        let members = Arc::new(UnsafeCell::new(0));
        let reader = {
            let (fixture, members) = (Arc::clone(&fixture), Arc::clone(&members));
            thread::spawn(move || {
                if fixture.look(5).set() == 7 {
                    // SAFETY: loom checks that the write below happens before.
                    assert_eq!(members.with(|it| unsafe { *it }), 42);
                }
            })
        };
        // SAFETY: nobody has seen the id yet.
        members.with_mut(|it| unsafe { *it = 42 });
        fixture.submit(5, Value::new(16, 7));
        reader.join().unwrap();
    });
}

fn entry(key: u64, depth: u32) -> Entry {
    Entry {
        key,
        depth,
        tier: 0,
    }
}

fn matches(index: &PrefixIndex, keys: &[u64]) -> Vec<[u32; 4]> {
    let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    index.matches(&keys, &mut Scratch::default()).to_vec()
}

#[test]
fn nodes_that_store_the_same_chain_all_have_it() {
    model(2, || {
        let index = Arc::new(PrefixIndex::new(2, 8));
        let chain = [1, u64::MAX];
        let store = move |index: &PrefixIndex, node: u16| {
            let entries = chain
                .iter()
                .zip([16, 32])
                .map(|(&key, depth)| entry(key, depth));
            assert_eq!(index.apply(index.batch(Op::Store, node, entries)), 0);
            assert!(matches(index, &chain).contains(&[u32::from(node), 32, 0, 0]));
        };
        let other = {
            let index = Arc::clone(&index);
            thread::spawn(move || store(&index, 1))
        };
        store(&index, 2);
        other.join().unwrap();
        assert_eq!(matches(&index, &chain), [[1, 32, 0, 0], [2, 32, 0, 0]]);
        assert_eq!(index.stats().sets, 1);
    });
}
