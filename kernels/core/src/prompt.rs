//! How many tokens of a prompt its leading keys stand for.

use crate::keys::{KEY_BYTES, PAGE_TOKENS};

/// What the keys of a prompt's chain are of.
pub enum Prompt {
    /// Pages of token ids.
    Pages,
    Text(Text),
}

/// Chunks of segments, see `keys::TextChain`. Tokens are estimated from bytes.
pub struct Text {
    /// Bytes of each one's frame, which is no text, and of its text.
    pub segments: Vec<(usize, usize)>,
    pub chunk: usize,
    pub closed: bool,
    pub bytes_per_token: f64,
}

impl Prompt {
    /// Tokens, `most` at most.
    pub fn covered(&self, keys: usize, most: u32) -> u32 {
        match self {
            Prompt::Pages => (keys * PAGE_TOKENS).min(most as usize) as u32,
            Prompt::Text(text) => {
                (text.covered(keys) as f64 / text.bytes_per_token).min(f64::from(most)) as u32
            }
        }
    }
}

impl Text {
    /// Bytes of text.
    fn covered(&self, mut keys: usize) -> usize {
        let mut covered = 0;
        for &(frame, text) in &self.segments {
            let mut whole = (frame + text) / self.chunk;
            if self.closed && whole * self.chunk < frame + text {
                whole += 1; // The last one, which is not whole.
            }
            if keys <= whole {
                return covered + (keys * self.chunk).saturating_sub(frame).min(text);
            }
            covered += if self.closed {
                text
            } else {
                (whole * self.chunk).saturating_sub(frame)
            };
            keys -= whole;
        }
        covered
    }
}

/// Of a chain, which of its keys a sample has: the first `dense`, then every `stride`-th (at least 1), and the last.
#[derive(Clone, Copy)]
pub struct Sampling {
    pub dense: usize,
    pub stride: usize,
}

impl Sampling {
    /// Of packed keys.
    pub fn sample(self, keys: &[u8]) -> Vec<u8> {
        let count = keys.len() / KEY_BYTES;
        let (head, rest) = keys.split_at(self.dense.min(count) * KEY_BYTES);
        let mut sampled = Vec::with_capacity(head.len() + rest.len() / self.stride + KEY_BYTES);
        sampled.extend_from_slice(head);
        for group in rest.chunks(self.stride * KEY_BYTES) {
            sampled.extend_from_slice(&group[group.len() - KEY_BYTES..]);
        }
        sampled
    }

    /// How many keys of a chain that is long enough so many leading ones of its sample stand for.
    pub fn spanned(self, count: usize) -> usize {
        let beyond = count.saturating_sub(self.dense);
        count.min(self.dense) + beyond * self.stride
    }
}
