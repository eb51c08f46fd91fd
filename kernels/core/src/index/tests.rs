//! The rules of each part, and the whole from many threads at once: the run that ThreadSanitizer watches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::nodes::mix;
use super::sets::{member, Change, Sets, EMPTY};
use super::table::{Placement, Table, Value};
use super::{Entry, Op, PrefixIndex, Scratch};
use crate::sync::pin;

fn entries(keys: &[u64], tier: u8) -> impl Iterator<Item = Entry> + Clone + '_ {
    keys.iter().zip(1..).map(move |(&key, page)| Entry {
        key,
        depth: page * 16,
        tier,
    })
}

fn apply(index: &PrefixIndex, op: Op, node: u16, keys: &[u64], tier: u8) -> usize {
    index.apply(index.batch(op, node, entries(keys, tier)))
}

fn matches(index: &PrefixIndex, keys: &[u64], scratch: &mut Scratch) -> Vec<[u32; 4]> {
    let packed: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    index.matches(&packed, scratch).to_vec()
}

/// Keys that stand for a chain.
fn chain(seed: u64, length: u64) -> Vec<u64> {
    (0..length).map(|page| mix(seed << 32 | page)).collect()
}

#[test]
fn a_full_table_still_finds_everything() {
    let placement = Placement::new(1);
    let table = Table::new(64);
    let keys: Vec<u64> = (0..63).map(|key| key * key).collect();
    for &key in &keys {
        let found = table.find(key, placement.of(key).1);
        assert_eq!(found.value, Value::ABSENT);
        table.set(found, key, Value::new(key as u32, 1));
    }
    for &key in &keys {
        assert_eq!(
            table.find(key, placement.of(key).1).value.depth(),
            key as u32
        );
    }
    assert_eq!(table.find(2, placement.of(2).1).value, Value::ABSENT);
    assert_eq!(table.iter().count(), 63);
}

#[test]
fn places_keep_within_their_partition() {
    for partitions in [1, 2, 1024] {
        let placement = Placement::new(partitions);
        assert_eq!(placement.partitions(), partitions);
        let mut counts = vec![0; partitions];
        for key in 0..partitions as u64 * 100 {
            counts[placement.of(key).0] += 1;
        }
        assert!(counts
            .iter()
            .all(|&count| (20..400).contains(&count) || partitions == 1));
    }
}

#[test]
fn equal_sets_have_equal_ids_and_ids_are_used_again() {
    let sets = Sets::new(1 << 20);
    let members = [member(1, 0), member(9, 2)];
    let id = sets.intern(&members).unwrap();
    assert_eq!(sets.intern(&members), Some(id));
    assert_eq!(sets.intern(&[]), Some(EMPTY));
    assert_eq!(sets.members(id, &pin()), members);
    let lose = |lost| Change {
        from: id,
        lost,
        to: EMPTY,
        gained: 0,
    };
    sets.settle([lose(1)].into_iter(), &pin());
    assert_eq!(sets.size().0, 1);
    sets.settle([lose(1)].into_iter(), &pin());
    assert_eq!(sets.size(), (0, 0));
    // The id comes back when no reader can have seen it.
    let used_again = (0..10_000u16).any(|node| {
        let other = sets.intern(&[member(node % 4096, 1)]).unwrap();
        let lose = Change {
            from: other,
            lost: 1,
            to: EMPTY,
            gained: 0,
        };
        sets.settle([lose].into_iter(), &pin());
        other == id
    });
    assert!(used_again);
}

#[test]
fn sets_are_bounded() {
    let sets = Sets::new(1000);
    let made = (0..100)
        .filter(|&node| sets.intern(&[member(node, 0)]).is_some())
        .count();
    assert!((5..20).contains(&made));
    assert!(
        sets.intern(&[member(0, 0)]).is_some(),
        "what is there needs no room"
    );
}

#[test]
fn a_chain_with_many_branches_is_matched_key_by_key() {
    let index = PrefixIndex::new(8, 1 << 20);
    let keys = chain(1, 500);
    for node in 0..500u16 {
        apply(
            &index,
            Op::Store,
            node,
            &keys[..=usize::from(node)],
            (node % 3) as u8,
        );
    }
    let rows = matches(&index, &keys, &mut Scratch::default());
    let expected: Vec<[u32; 4]> = (0..500)
        .map(|node| {
            let mut row = [node, 0, 0, 0];
            row[1 + node as usize % 3] = (node + 1) * 16;
            row
        })
        .collect();
    assert_eq!(rows, expected);
}

/// Writers that store, move and remove their own and shared chains, readers that match and dump all the while.
/// What a reader sees of a node that only grows must only grow.
#[test]
fn many_threads_at_once() {
    const ROUNDS: u64 = if cfg!(debug_assertions) { 60 } else { 300 };
    let index = &PrefixIndex::new(4, 1 << 16);
    let shared = &chain(7, 40);
    let running = &AtomicBool::new(true);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3u16)
            .map(|node| {
                scope.spawn(move || {
                    let scratch = &mut Scratch::default();
                    for round in 0..ROUNDS {
                        let own = chain(u64::from(node + 1) << 16 | round, 300);
                        let both: Vec<u64> = shared.iter().chain(&own).copied().collect();
                        assert_eq!(apply(index, Op::Store, node, &both, 0), 0);
                        let row = [u32::from(node), 340 * 16, 0, 0];
                        assert!(matches(index, &both, scratch).contains(&row));
                        apply(index, Op::Move, node, &both[100..], 2);
                        let row = [u32::from(node), 1600, 0, 240 * 16];
                        assert!(matches(index, &both, scratch).contains(&row));
                        assert_eq!(index.digest(node).0, 340);
                        if round % 2 == 0 {
                            index.clear(node);
                        } else {
                            apply(index, Op::Remove, node, &both, 0);
                        }
                        assert_eq!(index.digest(node), (0, 0));
                    }
                })
            })
            .collect();
        // Grows only.
        scope.spawn(move || {
            let keys = chain(99, ROUNDS * 20);
            let all: Vec<u64> = shared.iter().chain(&keys).copied().collect();
            for end in (40..=all.len()).step_by(20) {
                apply(index, Op::Store, 9, &all[..end], 1);
            }
        });
        scope.spawn(move || {
            let all: Vec<u64> = shared
                .iter()
                .copied()
                .chain(chain(99, ROUNDS * 20))
                .collect();
            let scratch = &mut Scratch::default();
            let mut last = 0;
            while running.load(Ordering::Relaxed) {
                for row in matches(index, &all, scratch) {
                    match row[0] {
                        9 => {
                            assert!(row[2] >= last && row[1] == 0 && row[3] == 0);
                            last = row[2];
                        }
                        node => assert!(node < 3 && row[1] <= 640),
                    }
                }
                assert!(index.dump(9, 0..index.partitions()).len() <= all.len());
                assert!(index.stats().keys <= 1 << 16);
            }
        });
        let ends: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        running.store(false, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "a writer panicked");
    });
    let stats = index.stats();
    let keys = 40 + ROUNDS as usize * 20;
    assert_eq!(
        (stats.keys, stats.holdings, stats.sets),
        (keys, keys as u64, 1)
    );
}

#[test]
fn a_dump_is_what_was_stored() {
    let index = PrefixIndex::new(2, 1000);
    let keys = chain(3, 200);
    apply(&index, Op::Store, 5, &keys, 1);
    apply(&index, Op::Store, 6, &keys[..50], 0);
    let dump: BTreeMap<u32, u64> = index
        .dump(5, 0..index.partitions())
        .iter()
        .map(|it| (it.depth, it.key))
        .collect();
    let expected = entries(&keys, 1).map(|it| (it.depth, it.key)).collect();
    assert_eq!(dump, expected);
    assert!(index.dump(7, 0..index.partitions()).is_empty());
}
