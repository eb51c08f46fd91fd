//! How many keys each node holds, and a digest of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nodes are numbered below this.
pub const MAX_NODES: usize = 4096;

pub struct Nodes(Box<[Holding]>);

#[derive(Default)]
struct Holding {
    count: AtomicU64,
    xor: AtomicU64,
}

impl Nodes {
    pub const BYTES: usize = MAX_NODES * size_of::<Holding>();

    pub fn new() -> Self {
        Nodes((0..MAX_NODES).map(|_| Holding::default()).collect())
    }

    /// (keys held, XOR of their mixes). Of one moment only if nobody changes the node meanwhile.
    pub fn digest(&self, node: u16) -> (u64, u64) {
        let holding = &self.0[usize::from(node)];
        (
            holding.count.load(Ordering::Acquire),
            holding.xor.load(Ordering::Acquire),
        )
    }

    pub fn change(&self, node: u16, delta: Delta) {
        let holding = &self.0[usize::from(node)];
        holding.count.fetch_add(delta.count, Ordering::Release);
        holding.xor.fetch_xor(delta.xor, Ordering::Release);
    }

    /// Keys held, summed over the nodes.
    pub fn holdings(&self) -> u64 {
        let counts = self.0.iter();
        counts
            .map(|holding| holding.count.load(Ordering::Relaxed))
            .sum()
    }
}

/// A change of a node's holding. Counts wrap: minus one is `u64::MAX`.
#[derive(Clone, Copy, Default)]
pub struct Delta {
    count: u64,
    xor: u64,
}

impl Delta {
    pub fn join(&mut self, key: u64) {
        self.count = self.count.wrapping_add(1);
        self.xor ^= mix(key);
    }

    pub fn leave(&mut self, key: u64) {
        self.count = self.count.wrapping_sub(1);
        self.xor ^= mix(key);
    }
}

/// The output function of splitmix64: without it, a chain's keys could cancel out in an XOR.
pub fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
