//! How often something is asked for: a count that fades, by key, and for how long there was one. Two generations, as in
//! `generations`, whose keys they are about, so they bound it.

use std::collections::HashMap;

pub struct Demand {
    memory_s: f64,
    young: HashMap<u64, Count>,
    old: HashMap<u64, Count>,
}

/// Of the memory: how long a burst lasts, which is no rate yet.
const BURST: f64 = 0.05;

/// As of `at`, in seconds; the first one was at `since`.
#[derive(Clone, Copy)]
struct Count {
    uses: f64,
    at: f64,
    since: f64,
}

impl Demand {
    /// A use counts 1/e after so long.
    pub fn new(memory_s: f64) -> Self {
        Demand {
            memory_s,
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    pub fn add(&mut self, key: u64, now: f64) {
        let count = match self.count(key) {
            Some(count) => Count {
                uses: self.faded(count, now) + 1.0,
                at: now,
                ..count
            },
            None => Count {
                uses: 1.0,
                at: now,
                since: now,
            },
        };
        self.young.insert(key, count);
    }

    /// In `memory_s`, if it goes on like that: a count that began lately has seen only a part of it. One that has just
    /// begun may be a burst, and all there is.
    pub fn uses(&self, key: u64, now: f64) -> f64 {
        self.count(key).map_or(0.0, |count| {
            let age = (now - count.since) / self.memory_s;
            let unseen = (-age).exp();
            self.faded(count, now) / (1.0 - unseen + unseen * (-age / BURST).exp())
        })
    }

    fn count(&self, key: u64) -> Option<Count> {
        let found = self.young.get(&key).or_else(|| self.old.get(&key));
        found.copied()
    }

    fn faded(&self, count: Count, now: f64) -> f64 {
        count.uses * ((count.at - now) / self.memory_s).exp()
    }

    /// What is young becomes old; `forget`: nothing is old.
    pub fn turn(&mut self, forget: bool) {
        let young = std::mem::take(&mut self.young);
        self.old = if forget { HashMap::new() } else { young };
    }
}
