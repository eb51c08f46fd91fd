//! How often something was asked for lately: a count that fades, by key. Two generations, as in `generations`, whose keys
//! they are about, so they bound it.

use std::collections::HashMap;

pub struct Demand {
    memory_s: f64,
    young: HashMap<u64, Count>,
    old: HashMap<u64, Count>,
}

/// As of `at`, in seconds.
#[derive(Clone, Copy, Default)]
struct Count {
    uses: f64,
    at: f64,
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
        let uses = self.uses(key, now) + 1.0;
        self.young.insert(key, Count { uses, at: now });
    }

    pub fn uses(&self, key: u64, now: f64) -> f64 {
        let Some(count) = self.young.get(&key).or_else(|| self.old.get(&key)) else {
            return 0.0;
        };
        count.uses * ((count.at - now) / self.memory_s).exp()
    }

    /// What is young becomes old; `forget`: nothing is old.
    pub fn turn(&mut self, forget: bool) {
        let young = std::mem::take(&mut self.young);
        self.old = if forget { HashMap::new() } else { young };
    }
}
