//! Pages over a socket, straight between it and their slots. `docs/develop/transfer.md` specifies the frames.
//!
//! ```text
//! reader -> holder   request     magic u32, count u32, count descriptors of 9 bytes
//! holder -> reader   per page    head: status u8, 3 bytes of 0, position u32, xxh3_64 of the page u64
//!                                page, if the status is 0
//! ```
//!
//! The checksum is made while the slot has the generation that was asked for, and is what proves afterwards that the
//! bytes that came are that page's: a slot that is let go and written while they are sent is a page that is damaged.
//!
//! Many pages go to the kernel in one call: it then wakes the reader once for many, and both sides spend two thirds of the
//! processor time that a call for each page takes.

use std::io::{self, IoSlice, IoSliceMut};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::keys::hash64;
use crate::pacer::{thread_time, Pacer};
use crate::slots::{Descriptor, Slots, Status};
use crate::wire::Channel;

pub const MAGIC: u32 = 0x5150_4B54; // "TKPQ"
/// Pages of one request.
pub const MAX_BATCH: usize = 1 << 16;
const REQUEST_BYTES: usize = 8;
const HEAD_BYTES: usize = 16;
/// Of pages that go to the kernel in one call, and how many pages at most.
const CALL_BYTES: usize = 1 << 20;
const CALL_PAGES: usize = 64;

/// What was lent, ever.
#[derive(Default)]
pub struct Lent {
    pub pages: AtomicU64,
    pub bytes: AtomicU64,
    /// Pages that were not there any more.
    pub refused: AtomicU64,
}

/// Answers requests until the reader goes, asks for nothing for `idle`, or takes nothing for `stall`.
///
/// `regions`: slots by tier. Err says why it ended, if the reader did not simply close.
pub fn serve(
    channel: &mut dyn Channel,
    idle: Duration,
    stall: Duration,
    regions: &[(u8, Slots)],
    pacer: &Pacer,
    lent: &Lent,
) -> io::Result<()> {
    channel.wire().wait(idle, stall)?;
    let mut wanted = Vec::new();
    loop {
        let mut request = [0; REQUEST_BYTES];
        match channel.read(&mut request) {
            Ok(0) => return Ok(()),
            // TLS says so where the other goes without a word, which between two requests is as good.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => channel.read_exact(&mut request[read?..])?,
        }
        let count = number(&request, 4) as usize;
        if number(&request, 0) != MAGIC || count > MAX_BATCH {
            return Err(invalid("not a request, or one of too many pages"));
        }
        wanted.resize(count * Descriptor::BYTES, 0);
        channel.read_exact(&mut wanted)?;
        answer(channel, regions, &wanted, pacer, lent)?;
    }
}

fn answer(
    channel: &mut dyn Channel,
    regions: &[(u8, Slots)],
    wanted: &[u8],
    pacer: &Pacer,
    lent: &Lent,
) -> io::Result<()> {
    let page_bytes = regions.first().map_or(1, |(_, slots)| slots.page_bytes());
    let pages = (pacer.call_bytes(CALL_BYTES) / page_bytes).clamp(1, CALL_PAGES);
    let mut heads = [[0; HEAD_BYTES]; CALL_PAGES];
    for (call, some) in wanted.chunks(pages * Descriptor::BYTES).enumerate() {
        pacer.take(some.len() / Descriptor::BYTES * page_bytes);
        let began = thread_time();
        let mut parts = Vec::with_capacity(2 * pages);
        for (place, (from, head)) in Descriptor::unpack_all(some).zip(&mut heads).enumerate() {
            let found = seal(regions, from);
            let (status, checksum) = match found {
                Ok((_, checksum)) => (Status::Ok, checksum),
                Err(status) => (status, 0),
            };
            head[0] = status as u8;
            head[4..8].copy_from_slice(&((call * pages + place) as u32).to_le_bytes());
            head[8..].copy_from_slice(&checksum.to_le_bytes());
            parts.push(IoSlice::new(head));
            if let Ok((page, _)) = found {
                parts.push(IoSlice::new(page));
                lent.pages.fetch_add(1, Ordering::Relaxed);
                lent.bytes.fetch_add(page.len() as u64, Ordering::Relaxed);
            } else {
                lent.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        let sent = write_all(channel, &mut parts);
        pacer.spend(thread_time() - began);
        sent?;
    }
    Ok(())
}

/// The page that lies there, and its checksum, made while the slot had the generation; or why there is none.
fn seal(regions: &[(u8, Slots)], from: Descriptor) -> Result<(&[u8], u64), Status> {
    let slot = from.slot as usize;
    let (_, slots) = regions
        .iter()
        .find(|(tier, slots)| *tier == from.tier && slot < slots.count())
        .ok_or(Status::Absent)?;
    if slots.generation(slot) != from.generation {
        return Err(Status::Changed);
    }
    // SAFETY: inside the slots' memory. If it is written meanwhile, its checksum is wrong or the generation has changed.
    let page = unsafe { slice::from_raw_parts(slots.page(slot), slots.page_bytes()) };
    let checksum = hash64(page, 0);
    if !slots.is_still(slot, from.generation) {
        return Err(Status::Changed);
    }
    Ok((page, checksum))
}

/// How long a reader waits.
#[derive(Clone, Copy)]
pub struct Patience {
    /// For the next byte.
    pub stall: Duration,
    /// For all of them.
    pub whole: Duration,
}

/// Asks for pages and takes them into slots of the caller's, one for each. What became of each; the first error, after
/// which nothing more can be read from this channel.
pub fn fetch(
    channel: &mut dyn Channel,
    wanted: &[u8],
    target: &Slots,
    to: &[u32],
    patience: Patience,
) -> (Vec<Status>, Option<io::Error>) {
    let mut statuses = vec![Status::Lost; to.len()];
    let error = receive(channel, wanted, target, to, patience, &mut statuses).err();
    (statuses, error)
}

fn receive(
    channel: &mut dyn Channel,
    wanted: &[u8],
    target: &Slots,
    to: &[u32],
    patience: Patience,
    statuses: &mut [Status],
) -> io::Result<()> {
    let stall = patience
        .stall
        .min(patience.whole)
        .max(Duration::from_millis(1));
    channel.wire().wait(stall, stall)?;
    channel.wire().end_in(patience.whole);
    let mut request = Vec::with_capacity(REQUEST_BYTES + wanted.len());
    request.extend(MAGIC.to_le_bytes());
    request.extend((to.len() as u32).to_le_bytes());
    request.extend(wanted);
    channel.write_all(&request)?;
    channel.flush()?;
    let mut head = [0; HEAD_BYTES];
    if !to.is_empty() {
        read_both(channel, &mut [], &mut head)?;
    }
    for (position, &slot) in to.iter().enumerate() {
        if number(&head, 4) as usize != position {
            return Err(invalid("the answer is of another page"));
        }
        let status = head[0];
        let checksum = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
        let last = position + 1 == to.len();
        let following = &mut head[..if last { 0 } else { HEAD_BYTES }];
        statuses[position] = match status {
            0 => {
                // SAFETY: inside the target's memory, and the caller says that nobody else uses the slot.
                let page = unsafe {
                    slice::from_raw_parts_mut(target.page(slot as usize), target.page_bytes())
                };
                read_both(channel, page, following)?;
                if hash64(page, 0) == checksum {
                    Status::Ok
                } else {
                    Status::Damaged
                }
            }
            1 | 3 => {
                read_both(channel, &mut [], following)?;
                if status == 1 {
                    Status::Changed
                } else {
                    Status::Absent
                }
            }
            _ => return Err(invalid("an unknown status")),
        };
    }
    Ok(())
}

fn write_all(channel: &mut dyn Channel, mut parts: &mut [IoSlice]) -> io::Result<()> {
    while !parts.is_empty() {
        match channel.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(wrote) => IoSlice::advance_slices(&mut parts, wrote),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    channel.flush()
}

fn read_both(channel: &mut dyn Channel, first: &mut [u8], second: &mut [u8]) -> io::Result<()> {
    let mut both = [IoSliceMut::new(first), IoSliceMut::new(second)];
    let mut parts = &mut both[..];
    IoSliceMut::advance_slices(&mut parts, 0); // past what is empty
    while !parts.is_empty() {
        match channel.read_vectored(parts) {
            Ok(0) => return Err(closed()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(closed()),
            Ok(read) => IoSliceMut::advance_slices(&mut parts, read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn closed() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection was closed early",
    )
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
