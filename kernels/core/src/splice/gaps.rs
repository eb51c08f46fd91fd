//! How long streams are silent: times between two reads, in classes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Written by one thread, read by any, each number as it is then.
#[derive(Debug)]
pub struct Gaps {
    /// Nanoseconds, ascending.
    bounds: Vec<u64>,
    /// Of times up to each bound, and beyond the last.
    counts: Vec<AtomicU64>,
    nanos: AtomicU64,
}

impl Gaps {
    /// `bounds`: seconds. None: they do not ascend from above zero.
    pub fn new(bounds: &[f64]) -> Option<Self> {
        let ascend = bounds.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascend || !bounds.iter().all(|&bound| bound > 0.0 && bound < 1e9) {
            return None;
        }
        Some(Gaps {
            bounds: bounds.iter().map(|bound| (bound * 1e9) as u64).collect(),
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            nanos: AtomicU64::new(0),
        })
    }

    pub fn add(&self, gap: Duration) {
        let nanos = u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX);
        let class = self.bounds.partition_point(|&bound| bound < nanos);
        self.counts[class].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Counts of each class, and the sum in seconds.
    pub fn counted(&self) -> (Vec<u64>, f64) {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        (
            counts.collect(),
            self.nanos.load(Ordering::Relaxed) as f64 / 1e9,
        )
    }
}
