//! From one node set to the next. The pages of a batch mostly take the same step, which is computed once.

use std::collections::HashMap;

use super::batch::Op;
use super::sets::{member, position, tier_of, Change, Member, Sets, EMPTY};
use crate::sync::Guard;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node holds the key now and did not before.
    Joined,
    /// The node holds the key as before, or does not, as before.
    Kept,
    /// The node holds the key in another tier than before.
    Moved,
    /// The node held the key and does not now.
    Left,
    /// There is no room for the set that would be: nothing changes.
    Refused,
    /// There is no room for what would be left of the set: nobody holds the key any more.
    Forgotten,
}

#[derive(Clone, Copy)]
pub struct Step {
    pub to: u32,
    pub outcome: Outcome,
    /// The tier that the node held the key in before, if it did.
    pub was: u8,
}

/// The steps of one job: one operation, one node. Every step that is taken must be written to a slot, unless refused.
pub struct Steps<'a> {
    sets: &'a Sets,
    guard: &'a Guard,
    op: Op,
    node: u16,
    last: Option<Taken>,
    others: HashMap<(u32, u8), Taken>,
    members: Vec<Member>,
}

/// A step from `from`, with this tier, and how often it was taken.
#[derive(Clone, Copy)]
struct Taken {
    from: u32,
    tier: u8,
    step: Step,
    count: usize,
}

impl<'a> Steps<'a> {
    pub fn new(sets: &'a Sets, guard: &'a Guard, op: Op, node: u16) -> Self {
        Steps {
            sets,
            guard,
            op,
            node,
            last: None,
            others: HashMap::new(),
            members: Vec::new(),
        }
    }

    /// The step from the set `from` that a slot has now; `tier` matters to a store and a move.
    #[inline]
    pub fn take(&mut self, from: u32, tier: u8) -> Step {
        match &mut self.last {
            Some(last) if last.from == from && last.tier == tier => {
                last.count += 1;
                last.step
            }
            _ => self.take_other(from, tier),
        }
    }

    /// Settles with the sets what the slots refer to now.
    pub fn finish(self) {
        let taken = self.others.values().chain(&self.last);
        let changes = taken.filter_map(|taken| {
            let Taken {
                from, step, count, ..
            } = *taken;
            // The set came with one reference.
            (step.to != from).then_some(Change {
                from,
                lost: count,
                to: step.to,
                gained: count - 1,
            })
        });
        if changes.clone().next().is_some() {
            self.sets.settle(changes, self.guard);
        }
    }

    fn take_other(&mut self, from: u32, tier: u8) -> Step {
        if let Some(last) = self.last.take() {
            self.others.insert((last.from, last.tier), last);
        }
        let mut taken = match self.others.remove(&(from, tier)) {
            Some(taken) => taken,
            None => Taken {
                from,
                tier,
                step: self.compute(from, tier),
                count: 0,
            },
        };
        taken.count += 1;
        self.last = Some(taken);
        taken.step
    }

    fn compute(&mut self, from: u32, tier: u8) -> Step {
        let old = self.sets.members(from, self.guard);
        let place = position(old, self.node);
        let was = place.map_or(0, |at| tier_of(old[at]));
        let stay = Step {
            to: from,
            outcome: Outcome::Kept,
            was,
        };
        self.members.clear();
        self.members.extend_from_slice(old);
        let new = member(self.node, tier);
        let (outcome, no_room) = match (place, self.op) {
            (Ok(at), Op::Store | Op::Move) if old[at] == new => return stay,
            (Err(_), Op::Move | Op::Remove | Op::Clear) => return stay,
            (Ok(at), Op::Store | Op::Move) => {
                self.members[at] = new;
                (Outcome::Moved, Outcome::Refused)
            }
            (Err(at), Op::Store) => {
                self.members.insert(at, new);
                (Outcome::Joined, Outcome::Refused)
            }
            (Ok(at), Op::Remove | Op::Clear) => {
                self.members.remove(at);
                (Outcome::Left, Outcome::Forgotten)
            }
        };
        match (self.sets.intern(&self.members), no_room) {
            (Some(to), _) => Step { to, outcome, was },
            (None, Outcome::Refused) => Step {
                to: from,
                outcome: Outcome::Refused,
                was,
            },
            (None, _) => Step {
                to: EMPTY,
                outcome: Outcome::Forgotten,
                was,
            },
        }
    }
}
