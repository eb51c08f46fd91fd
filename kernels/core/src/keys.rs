//! Key chains: every key hashes its own page or chunk with the previous key as the seed, so that one key stands for
//! the whole prefix that it ends.

use twox_hash::XxHash3_64;

/// Tokens per page.
pub const PAGE_TOKENS: usize = 16;

/// Bytes of a page's token ids, little-endian u32 each.
const PAGE_BYTES: usize = PAGE_TOKENS * size_of::<u32>();

/// XXH3, with whatever wide instructions this machine has.
#[inline]
pub fn hash64(bytes: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Mixed into the seed of the last chunk of a closed segment, so that where segments end is part of the key.
pub const SEGMENT_END: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bytes of a packed key.
pub const KEY_BYTES: usize = size_of::<u64>();

/// The key at `index` of packed keys.
#[inline]
pub fn key_at(keys: &[u8], index: usize) -> u64 {
    let at = index * KEY_BYTES;
    u64::from_le_bytes(
        keys[at..at + KEY_BYTES]
            .try_into()
            .expect("the slice is as long as a key"),
    )
}

/// Packed keys of `tokens` (packed u32), one for each whole page.
pub fn page_chain(seed: u64, tokens: &[u8]) -> Vec<u8> {
    let pages = tokens.chunks_exact(PAGE_BYTES);
    let mut keys = Vec::with_capacity(pages.len() * KEY_BYTES);
    let mut key = seed;
    for page in pages {
        key = hash64(page, key);
        keys.extend_from_slice(&key.to_le_bytes());
    }
    keys
}

/// A chain over chunks of bytes that never cross a segment's end.
pub struct TextChain {
    key: u64,
    chunk: usize,
    closed: bool,
    keys: Vec<u8>,
}

impl TextChain {
    /// `chunk` is at least 1 byte. In a `closed` segment the last chunk, whole or not, is hashed with
    /// `key ^ SEGMENT_END`; in an open one a partial last chunk has no key.
    pub fn new(seed: u64, chunk: usize, closed: bool) -> Self {
        TextChain {
            key: seed,
            chunk,
            closed,
            keys: Vec::new(),
        }
    }

    /// A segment is its frame, then its text, as if they were one: only the chunk that has both is copied together.
    pub fn segment(&mut self, frame: &[u8], text: &[u8]) {
        let size = frame.len() + text.len();
        self.keys.reserve((size / self.chunk + 1) * KEY_BYTES);
        let to_fill = frame.len().next_multiple_of(self.chunk) - frame.len();
        let (joined, rest) = text.split_at(to_fill.min(text.len()));
        self.chunks(&[frame, joined].concat(), rest.is_empty());
        self.chunks(rest, true);
    }

    /// Of bytes that are a multiple of chunks unless they are the `end` of a segment.
    fn chunks(&mut self, bytes: &[u8], end: bool) {
        let ends_whole = self.closed && end;
        let mut rest = bytes;
        while rest.len() > self.chunk || (!ends_whole && rest.len() == self.chunk) {
            let (chunk, after) = rest.split_at(self.chunk);
            self.push(chunk, self.key);
            rest = after;
        }
        if ends_whole && !rest.is_empty() {
            self.push(rest, self.key ^ SEGMENT_END);
        }
    }

    /// The packed keys of all segments so far.
    pub fn into_keys(self) -> Vec<u8> {
        self.keys
    }

    fn push(&mut self, chunk: &[u8], seed: u64) {
        self.key = hash64(chunk, seed);
        self.keys.extend_from_slice(&self.key.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack(keys: &[u8]) -> Vec<u64> {
        keys.chunks_exact(KEY_BYTES)
            .map(|key| u64::from_le_bytes(key.try_into().unwrap()))
            .collect()
    }

    fn text_chain(seed: u64, segments: &[&[u8]], chunk: usize, closed: bool) -> Vec<u64> {
        let mut chain = TextChain::new(seed, chunk, closed);
        for segment in segments {
            for cut in 0..=segment.len() {
                let mut other = TextChain::new(seed, chunk, closed);
                other.segment(&segment[..cut], &segment[cut..]);
                let mut whole = TextChain::new(seed, chunk, closed);
                whole.segment(b"", segment);
                assert_eq!(other.into_keys(), whole.into_keys());
            }
            chain.segment(b"", segment);
        }
        unpack(&chain.into_keys())
    }

    #[test]
    fn a_page_chain_has_one_key_per_whole_page() {
        let tokens: Vec<u8> = (0..40u32).flat_map(u32::to_le_bytes).collect();
        let first = hash64(&tokens[..64], 7);
        assert_eq!(
            unpack(&page_chain(7, &tokens)),
            [first, hash64(&tokens[64..128], first)]
        );
        assert!(page_chain(7, &tokens[..63]).is_empty());
    }

    #[test]
    fn an_open_segment_has_keys_for_whole_chunks_only() {
        let first = hash64(b"abcd", 1);
        assert_eq!(text_chain(1, &[b"abcdef"], 4, false), [first]);
        assert_eq!(
            text_chain(1, &[b"abcdefgh"], 4, false),
            [first, hash64(b"efgh", first)]
        );
    }

    #[test]
    fn a_closed_segment_marks_its_last_chunk() {
        let first = hash64(b"abcd", 1);
        assert_eq!(
            text_chain(1, &[b"abcdef"], 4, true),
            [first, hash64(b"ef", first ^ SEGMENT_END)]
        );
        assert_eq!(
            text_chain(1, &[b"abcd", b""], 4, true),
            [hash64(b"abcd", 1 ^ SEGMENT_END)]
        );
        assert_ne!(
            text_chain(1, &[b"ab", b"c"], 4, true).last(),
            text_chain(1, &[b"a", b"bc"], 4, true).last()
        );
    }
}
