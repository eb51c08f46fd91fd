//! The page locator's messages: a request that names a chain, and the answer that says which of its pages a node can
//! lend and where they lie. `docs/develop/locator.md` specifies every byte.
//!
//! What is decoded comes from another machine: every length is checked against what is there before anything is
//! allocated for it. A checksum guards everything but the token ids, for a flipped bit in a slot would name another page;
//! token ids are compared with the reader's own anyway.

mod bits;
mod segments;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::keys::{hash64, PAGE_TOKENS};

/// Version of both messages.
pub const VERSION: u8 = 1;
/// Pages of a chain that can be asked for: four million tokens.
pub const MAX_PAGES: usize = 1 << 18;
/// Keys of a request.
pub const MAX_RUNGS: usize = 64;
/// Bytes of a namespace's digest.
pub const DIGEST_BYTES: usize = 32;
/// Bytes of a page's token ids.
pub const TOKEN_BYTES: usize = PAGE_TOKENS * size_of::<u32>();
/// Bytes of a descriptor: tier u8, slot u32, generation u32.
pub const DESCRIPTOR_BYTES: usize = 9;
/// Stands in a descriptor's tier for a page that is not lent.
pub const NOT_LENT: u8 = 0xFF;
/// Tiers that pages are lent from are below this: the device and the host.
const LENDING_TIERS: u8 = 2;

const REQUEST_MAGIC: [u8; 4] = [b'T', b'L', b'Q', VERSION];
const ANSWER_MAGIC: [u8; 4] = [b'T', b'L', b'A', VERSION];
const CHECKSUM_BYTES: usize = size_of::<u64>();
const RUNG_BYTES: usize = 12;
const ANSWER_HEAD_BYTES: usize = 36;

/// Why a message was refused.
#[derive(Debug, PartialEq, Eq)]
pub enum LocatorError {
    /// It ends before what it announces.
    Truncated { what: &'static str },
    /// More follows than it announces.
    Trailing { bytes: usize },
    /// It does not begin as such a message of this version does.
    NotOurs { begins: [u8; 4] },
    /// What arrived is not what was sent.
    Checksum,
    /// A field has a value that it cannot have.
    Value { what: &'static str, value: u64 },
}

impl fmt::Display for LocatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocatorError::Truncated { what } => write!(f, "the message ends within its {what}"),
            LocatorError::Trailing { bytes } => {
                write!(f, "{bytes} bytes more than the message announces")
            }
            LocatorError::NotOurs { begins } => write!(
                f,
                "not a message of the page locator, version {VERSION}: begins with {begins:02x?}"
            ),
            LocatorError::Checksum => write!(f, "the checksum disagrees: the message was damaged"),
            LocatorError::Value { what, value } => write!(f, "{what}: {value} cannot be"),
        }
    }
}

impl std::error::Error for LocatorError {}

type Result<T> = std::result::Result<T, LocatorError>;

/// Asks where the pages `first..count` of a chain are.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub namespace: [u8; DIGEST_BYTES],
    pub first: u32,
    pub count: u32,
    /// For so long the answer may wait until page `first` can be lent.
    pub wait_ms: u32,
    /// For so long the pages are wanted.
    pub lease_ms: u32,
    /// (pages up to and including this one, its key), deepest first.
    pub rungs: Vec<(u32, u64)>,
}

impl Request {
    /// Fails for what `decode` would refuse.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check()?;
        let mut out = Vec::with_capacity(64 + self.rungs.len() * RUNG_BYTES);
        out.extend_from_slice(&REQUEST_MAGIC);
        for number in [self.first, self.count, self.wait_ms, self.lease_ms] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&(self.rungs.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.namespace);
        for (depth, key) in &self.rungs {
            out.extend_from_slice(&depth.to_le_bytes());
            out.extend_from_slice(&key.to_le_bytes());
        }
        seal(&mut out);
        Ok(out)
    }

    pub fn decode(message: &[u8]) -> Result<Self> {
        let mut reader = Reader::open(message, REQUEST_MAGIC)?;
        let [first, count, wait_ms, lease_ms, rungs] = reader.words("head")?;
        if rungs as usize > MAX_RUNGS {
            return Err(value("rungs", rungs));
        }
        let namespace = reader.array("namespace")?;
        let packed = reader.take(rungs as usize * RUNG_BYTES, "rungs")?;
        reader.end()?;
        let rungs = packed
            .chunks_exact(RUNG_BYTES)
            .map(|rung| (word(rung), long(&rung[4..])))
            .collect();
        let request = Request {
            namespace,
            first,
            count,
            wait_ms,
            lease_ms,
            rungs,
        };
        request.check()?;
        Ok(request)
    }

    fn check(&self) -> Result<()> {
        if self.count == 0 || self.count as usize > MAX_PAGES {
            return Err(value("count", self.count));
        }
        if self.first >= self.count {
            return Err(value("first", self.first));
        }
        if self.rungs.is_empty() || self.rungs.len() > MAX_RUNGS {
            return Err(value("rungs", self.rungs.len() as u32));
        }
        let mut above = self.count + 1;
        for &(depth, _) in &self.rungs {
            if depth == 0 || depth >= above {
                return Err(value("depth of a rung", depth));
            }
            above = depth;
        }
        Ok(())
    }
}

/// What an answer says beside where pages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub epoch: u64,
    /// The page that is described first.
    pub first: u32,
    /// So many pages of the chain, from its start, are in some tier of the holder, lent or not.
    pub held: u32,
    pub lease_ms: u32,
}

/// An answer as its reader may use it.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub head: Head,
    /// Pages that the holder described.
    pub described: u32,
    /// Packed descriptors of pages `head.first..`, up to the first whose token ids differ from the reader's.
    pub descriptors: Vec<u8>,
}

/// `descriptors`: one for each page described. The token ids of the pages `0..first + described`, packed u32, are to
/// follow as they are: megabytes that nobody needs to copy.
pub fn encode_answer(head: Head, descriptors: &[u8]) -> Result<Vec<u8>> {
    let (rows, rest) = descriptors.as_chunks::<DESCRIPTOR_BYTES>();
    let pages = head.first as usize + rows.len();
    if !rest.is_empty() || pages > MAX_PAGES {
        return Err(value("descriptors", descriptors.len() as u32));
    }
    if (head.held as usize) < pages && !rows.is_empty() {
        return Err(value("held", head.held));
    }
    let mut out = Vec::with_capacity(64 + rows.len());
    out.extend_from_slice(&ANSWER_MAGIC);
    out.extend_from_slice(&head.first.to_le_bytes());
    out.extend_from_slice(&head.epoch.to_le_bytes());
    for number in [rows.len() as u32, head.held, head.lease_ms] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let counts_at = out.len();
    out.extend_from_slice(&[0; 8]); // Segments, and bytes of bitmap and segments.
    for group in rows.chunks(8) {
        let lent = group.iter().enumerate();
        out.push(lent.fold(0, |byte, (at, row)| {
            byte | u8::from(row[0] != NOT_LENT) << at
        }));
    }
    let lent: Vec<segments::Place> = rows
        .iter()
        .filter(|row| row[0] != NOT_LENT)
        .map(segments::Place::unpack)
        .collect();
    if let Some(place) = lent.iter().find(|place| place.tier >= LENDING_TIERS) {
        return Err(value("tier", place.tier.into()));
    }
    let segments = segments::write(&mut out, &lent);
    let size = (out.len() - counts_at - 8) as u32;
    out[counts_at..][..4].copy_from_slice(&segments.to_le_bytes());
    out[counts_at + 4..][..4].copy_from_slice(&size.to_le_bytes());
    seal(&mut out);
    Ok(out)
}

/// `tokens`: the reader's own, packed u32, of at least as many pages as are described. Pages from the first on whose
/// token ids differ are not given out: nothing but a comparison says that a page is the one that was asked for.
pub fn decode_answer(message: &[u8], tokens: &[u8]) -> Result<Answer> {
    let size = match message.get(ANSWER_HEAD_BYTES - 4..ANSWER_HEAD_BYTES) {
        Some(size) => word(size) as usize,
        None => return Err(LocatorError::Truncated { what: "head" }),
    };
    let sealed = ANSWER_HEAD_BYTES + size + CHECKSUM_BYTES;
    let Some((sealed, theirs)) = message.split_at_checked(sealed) else {
        return Err(LocatorError::Truncated { what: "segments" });
    };
    let mut reader = Reader::open(sealed, ANSWER_MAGIC)?;
    let [first] = reader.words("head")?;
    let epoch = long(reader.take(size_of::<u64>(), "head")?);
    let [described, held, lease_ms, segments, _] = reader.words("head")?;
    let pages = first as usize + described as usize;
    if pages > MAX_PAGES {
        return Err(value("pages", pages as u32));
    }
    if described > 0 && (held as usize) < pages {
        return Err(value("held", held));
    }
    let bitmap = reader.take((described as usize).div_ceil(8), "bitmap")?;
    if described % 8 != 0
        && bitmap
            .last()
            .is_some_and(|last| last >> (described % 8) != 0)
    {
        return Err(value("bitmap's last byte", bitmap[bitmap.len() - 1].into()));
    }
    let lent: u32 = bitmap.iter().map(|byte| byte.count_ones()).sum();
    let places = segments::read(&mut reader, segments, lent)?;
    reader.end()?;
    match token_bytes(first, described as usize) {
        size if size > theirs.len() => return Err(LocatorError::Truncated { what: "token ids" }),
        size if size < theirs.len() => {
            let bytes = theirs.len() - size;
            return Err(LocatorError::Trailing { bytes });
        }
        _ => {}
    }
    let Some(ours) = tokens.get(..theirs.len()) else {
        return Err(value("pages", pages as u32));
    };
    let verified = equal_pages(theirs, ours).saturating_sub(first as usize);
    let mut descriptors = Vec::with_capacity(verified * DESCRIPTOR_BYTES);
    let mut places = places.into_iter();
    for page in 0..verified {
        let place = match bitmap[page / 8] >> (page % 8) & 1 {
            1 => places.next(),
            _ => None,
        };
        descriptors.extend_from_slice(&place.map_or(segments::ABSENT, segments::Place::pack));
    }
    Ok(Answer {
        head: Head {
            epoch,
            first,
            held,
            lease_ms,
        },
        described,
        descriptors,
    })
}

/// No tokens come with an answer that describes nothing.
fn token_bytes(first: u32, described: usize) -> usize {
    match described {
        0 => 0,
        _ => (first as usize + described) * TOKEN_BYTES,
    }
}

/// Leading pages whose token ids are equal.
fn equal_pages(one: &[u8], other: &[u8]) -> usize {
    if one == other {
        return one.len() / TOKEN_BYTES;
    }
    let pages = one
        .chunks_exact(TOKEN_BYTES)
        .zip(other.chunks_exact(TOKEN_BYTES));
    pages.take_while(|(one, other)| one == other).count()
}

fn seal(out: &mut Vec<u8>) {
    let checksum = hash64(out, 0);
    out.extend_from_slice(&checksum.to_le_bytes());
}

fn value(what: &'static str, value: u32) -> LocatorError {
    LocatorError::Value {
        what,
        value: value.into(),
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// What is left of a message whose checksum agrees.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(message: &'a [u8], magic: [u8; 4]) -> Result<Self> {
        let mut reader = Reader { rest: message };
        let begins = reader.array("head")?;
        if begins != magic {
            return Err(LocatorError::NotOurs { begins });
        }
        let Some(end) = reader.rest.len().checked_sub(CHECKSUM_BYTES) else {
            return Err(LocatorError::Truncated { what: "head" });
        };
        let (rest, checksum) = reader.rest.split_at(end);
        if hash64(&message[..magic.len() + end], 0) != long(checksum) {
            return Err(LocatorError::Checksum);
        }
        Ok(Reader { rest })
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(LocatorError::Truncated { what })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let bytes = self.take(N, what)?;
        Ok(bytes.try_into().expect("so many were taken"))
    }

    fn words<const N: usize>(&mut self, what: &'static str) -> Result<[u32; N]> {
        let bytes = self.take(N * size_of::<u32>(), what)?;
        Ok(std::array::from_fn(|at| word(&bytes[at * 4..])))
    }

    fn end(&self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(LocatorError::Trailing { bytes }),
        }
    }
}
