//! How far each node's prefix of a chain reaches, and in which tiers.
//!
//! Holders only get fewer along a chain (a node's keys are prefix-closed), so equal sets at both ends of a span need
//! no look inside. Spans with unequal ends are split in FAN parts at a time, whose slots are fetched from memory
//! together: a match waits for memory a few times, not once per look.

use super::sets::{node_of, tier_of, Member, EMPTY};
use super::table::Value;
use super::PrefixIndex;
use crate::keys::{key_at, KEY_BYTES};
use crate::sync::{pin, Guard};

/// Parts that a span is split into.
const FAN: usize = 6;

/// Tokens of a prefix that a node holds: node, then tokens in device, host and disk.
pub type Row = [u32; 4];

/// Memory that a thread's matches use again and again.
#[derive(Default)]
pub struct Scratch {
    points: Vec<Point>,
    next: Vec<Point>,
    rows: Rows,
}

/// A key of the chain and what the table says of it; None: not looked up yet.
#[derive(Clone, Copy)]
struct Point {
    index: usize,
    value: Option<Value>,
}

impl Point {
    fn new(index: usize) -> Self {
        Point { index, value: None }
    }

    fn value(&self) -> Value {
        self.value.unwrap_or(Value::ABSENT)
    }
}

impl PrefixIndex {
    /// `keys` are packed. One row for every node that holds the first key, by node.
    pub fn matches<'s>(&self, keys: &[u8], scratch: &'s mut Scratch) -> &'s [Row] {
        let count = keys.len() / KEY_BYTES;
        let guard = pin();
        let Scratch { points, next, rows } = scratch;
        next.clear();
        if let Some(end) = count.checked_sub(1) {
            next.push(Point::new(0));
            split(0, end, next);
            if end > 0 {
                next.push(Point::new(end));
            }
        }
        loop {
            self.look_up(keys, next, &guard);
            std::mem::swap(points, next);
            next.clear();
            let mut looked_closely = true;
            for pair in points.windows(2) {
                next.push(pair[0]);
                if pair[0].value().set() != pair[1].value().set() {
                    looked_closely &= !split(pair[0].index, pair[1].index, next);
                }
            }
            if looked_closely {
                break;
            }
            next.extend(points.last());
        }
        self.add_up(points, rows, &guard);
        &rows.rows
    }

    /// Looks up the points that were not, and cuts what comes after the first key that nobody holds.
    fn look_up(&self, keys: &[u8], points: &mut Vec<Point>, guard: &Guard) {
        let locate = |index: usize| {
            let key = key_at(keys, index);
            let (partition, place) = self.placement.of(key);
            (self.partitions[partition].table(guard), key, place)
        };
        for point in points.iter().filter(|point| point.value.is_none()) {
            let (table, _, place) = locate(point.index);
            table.prefetch(place);
        }
        for at in 0..points.len() {
            let point = &mut points[at];
            if point.value.is_none() {
                let (table, key, place) = locate(point.index);
                self.partitions[self.placement.partition(key)]
                    .traffic
                    .looked_up();
                point.value = Some(table.find(key, place).value);
            }
            if point.value().set() == EMPTY {
                points.truncate(at + 1);
                return;
            }
        }
    }

    /// What lies between two neighbouring points has the holders of the second.
    fn add_up(&self, points: &[Point], rows: &mut Rows, guard: &Guard) {
        rows.clear();
        let (mut set, mut tokens, mut depth) = (EMPTY, 0, 0);
        for point in points {
            let value = point.value();
            if value.set() != set {
                rows.add(self.sets.members(set, guard), tokens);
                (set, tokens) = (value.set(), 0);
            }
            tokens += value.depth().saturating_sub(depth);
            depth = depth.max(value.depth());
        }
        rows.add(self.sets.members(set, guard), tokens);
    }
}

/// Adds points between `low` and `high`, exclusive, in even parts. False: there is nothing between.
fn split(low: usize, high: usize, points: &mut Vec<Point>) -> bool {
    let span = high - low;
    let parts = span.min(FAN);
    points.extend((1..parts).map(|part| Point::new(low + span * part / parts)));
    parts > 1
}

/// The rows of a match, by node in ascending order, as sets are.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    /// Per row: how many spans the node was there for.
    spans: Vec<u32>,
    span: u32,
}

impl Rows {
    fn clear(&mut self) {
        self.rows.clear();
        self.spans.clear();
        self.span = 0;
    }

    /// Adds a span's tokens to those of its holders that held every span before.
    fn add(&mut self, holders: &[Member], tokens: u32) {
        if holders.is_empty() {
            return;
        }
        if self.span == 0 {
            self.rows
                .extend(holders.iter().map(|&holder| row(holder, tokens)));
            self.spans.resize(holders.len(), 0);
        } else {
            let mut from = 0;
            for &holder in holders {
                let node = u32::from(node_of(holder));
                from += self.rows[from..].partition_point(|row| row[0] < node);
                match self.rows.get_mut(from) {
                    Some(row) if row[0] == node && self.spans[from] + 1 == self.span => {
                        row[1 + usize::from(tier_of(holder))] += tokens;
                        self.spans[from] = self.span;
                    }
                    _ => {}
                }
            }
        }
        self.span += 1;
    }
}

fn row(holder: Member, tokens: u32) -> Row {
    let in_tier = |tier| if tier_of(holder) == tier { tokens } else { 0 };
    [
        u32::from(node_of(holder)),
        in_tier(0),
        in_tier(1),
        in_tier(2),
    ]
}
