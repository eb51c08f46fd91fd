//! How many keys each node holds, and digests of them, by partition.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Nodes are numbered below this.
pub const MAX_NODES: usize = 4096;

/// (keys held, XOR of the mixes of each with its tier).
pub type Digest = (u64, u64);

pub struct Nodes {
    partitions: usize,
    /// A node's holdings by partition, from its first change on.
    holdings: Box<[OnceLock<Box<[Holding]>>]>,
}

#[derive(Default)]
struct Holding {
    count: AtomicU64,
    xor: AtomicU64,
}

impl Nodes {
    pub fn new(partitions: usize) -> Self {
        Nodes {
            partitions,
            holdings: (0..MAX_NODES).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Of each partition. Of one moment only if nobody changes the node meanwhile.
    pub fn digests(&self, node: u16) -> impl Iterator<Item = Digest> + '_ {
        let holdings = self.holdings[usize::from(node)].get();
        (0..self.partitions).map(move |partition| {
            holdings.map_or((0, 0), |holdings| {
                let Holding { count, xor } = &holdings[partition];
                (count.load(Ordering::Acquire), xor.load(Ordering::Acquire))
            })
        })
    }

    pub fn change(&self, node: u16, partition: usize, delta: Delta) {
        let holdings = self.holdings[usize::from(node)]
            .get_or_init(|| (0..self.partitions).map(|_| Holding::default()).collect());
        let holding = &holdings[partition];
        holding.count.fetch_add(delta.count, Ordering::Release);
        holding.xor.fetch_xor(delta.xor, Ordering::Release);
    }

    /// Keys held, summed over the nodes.
    pub fn holdings(&self) -> u64 {
        let known = self.holdings.iter().filter_map(OnceLock::get);
        known
            .flat_map(|holdings| holdings.iter())
            .map(|holding| holding.count.load(Ordering::Relaxed))
            .sum()
    }

    pub fn bytes(&self) -> usize {
        let known = self.holdings.iter().filter_map(OnceLock::get).count();
        self.holdings.len() * size_of::<OnceLock<Box<[Holding]>>>()
            + known * self.partitions * size_of::<Holding>()
    }
}

/// A change of a node's holding. Counts wrap: minus one is `u64::MAX`.
#[derive(Clone, Copy, Default)]
pub struct Delta {
    count: u64,
    xor: u64,
}

impl Delta {
    pub fn join(&mut self, key: u64, tier: u8) {
        self.count = self.count.wrapping_add(1);
        self.xor ^= mix_held(key, tier);
    }

    pub fn leave(&mut self, key: u64, tier: u8) {
        self.count = self.count.wrapping_sub(1);
        self.xor ^= mix_held(key, tier);
    }

    pub fn is_nothing(&self) -> bool {
        self.count == 0 && self.xor == 0
    }
}

/// A key in another tier is another thing to hold.
fn mix_held(key: u64, tier: u8) -> u64 {
    mix(key ^ u64::from(tier) << 62)
}

/// The output function of splitmix64: without it, a chain's keys could cancel out in an XOR.
pub fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
