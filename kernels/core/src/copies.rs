//! What a request is not charged for computing again what another node holds: the part of that work which is for the
//! requests to come. The formula is that of `router/scheduler/cost.py`, which says why.

use crate::offers::Prices;

/// A leading part of the prompt: how far it reaches, and how often requests came for it in `memory_s`.
pub struct Asked {
    pub tokens: u32,
    pub uses: f64,
}

/// For one prompt, a line that falls from piece to piece of it: by how much a node has, what it is not charged.
pub struct Copies<'a> {
    prices: &'a Prices,
    pieces: Vec<Piece>,
}

struct Piece {
    /// In tokens of the prompt, exclusive.
    end: u32,
    /// Of the work from here to its end.
    share: f64,
    /// Of all pieces after it, in seconds.
    beyond: f64,
}

impl<'a> Copies<'a> {
    /// `held`: tokens of the prompt by node, in any order. `asked` ascends in tokens.
    pub fn new(
        held: impl Iterator<Item = u32> + Clone,
        tokens: u32,
        asked: impl Iterator<Item = Asked>,
        memory_s: f64,
        prices: &'a Prices,
    ) -> Self {
        let longest = held.clone().max().unwrap_or(0).min(tokens);
        let own_s = prices.seconds((tokens - longest).max(1), longest);
        let (mut pieces, mut start): (Vec<Piece>, u32) = (Vec::new(), 0);
        for Asked { tokens, uses } in asked {
            let end = tokens.min(longest);
            if end <= start {
                continue;
            }
            let holders = held.clone().filter(|&tokens| tokens >= end).count() as f64;
            let busy = (uses / memory_s * own_s / holders).min(1.0);
            let others = busy * uses / (holders + 1.0);
            let share = others / (1.0 + others);
            pieces.push(Piece {
                end,
                share,
                beyond: 0.0,
            });
            start = end;
        }
        for at in (1..pieces.len()).rev() {
            let Piece { end, share, beyond } = pieces[at];
            let start = pieces[at - 1].end;
            pieces[at - 1].beyond = beyond + share * prices.seconds(end - start, start);
        }
        Copies { prices, pieces }
    }

    /// Seconds that a node is not charged which has so many tokens of the prompt.
    pub fn spared(&self, has: u32) -> f64 {
        let at = self.pieces.partition_point(|piece| piece.end <= has);
        let Some(piece) = self.pieces.get(at) else {
            return 0.0;
        };
        piece.share * self.prices.seconds(piece.end - has, has) + piece.beyond
    }
}
