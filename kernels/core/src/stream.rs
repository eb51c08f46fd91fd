//! Pages over a socket, straight between it and their slots. `docs/develop/transfer.md` specifies the frames.
//!
//! ```text
//! reader -> holder   request     magic u32, count u32, count descriptors of 9 bytes
//! holder -> reader   per page    head: status u8, 3 bytes of 0, position u32, xxh3_64 of the page u64
//!                                page, if the status is 0
//!                                tail: status u8, 3 bytes of 0 (1: the slot was let go while the page was sent)
//! ```
//!
//! A page's tail and the next one's head travel together, so that a page costs one call of the system on either side.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::keys::hash64;
use crate::slots::{Descriptor, Slots, Status};

pub const MAGIC: u32 = 0x5150_4B54; // "TKPQ"
/// Pages of one request.
pub const MAX_BATCH: usize = 1 << 16;
const REQUEST_BYTES: usize = 8;
const TAIL_BYTES: usize = 4;
const HEAD_BYTES: usize = 16;

/// How fast all readers together are served.
pub struct Pacer {
    /// Bytes per second; 0: as fast as it goes.
    rate: AtomicU64,
    /// When what was taken so far has had its time.
    free_at: Mutex<Instant>,
}

/// Bytes may come in bursts of so long.
const BURST: Duration = Duration::from_millis(2);

impl Pacer {
    pub fn new() -> Self {
        Pacer {
            rate: AtomicU64::new(0),
            free_at: Mutex::new(Instant::now()),
        }
    }

    pub fn set_rate(&self, bytes_per_s: u64) {
        self.rate.store(bytes_per_s, Ordering::Relaxed);
    }

    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Waits until so many bytes may go.
    fn take(&self, bytes: usize) {
        let rate = self.rate();
        if rate == 0 {
            return;
        }
        let lasts = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let now = Instant::now();
        let wait = {
            let mut free_at = self.free_at.lock().expect("no section panics");
            let begins = (*free_at).max(now.checked_sub(BURST).unwrap_or(now));
            *free_at = begins + lasts;
            begins.saturating_duration_since(now)
        };
        if !wait.is_zero() {
            thread::sleep(wait);
        }
    }
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer::new()
    }
}

/// What was lent, ever.
#[derive(Default)]
pub struct Lent {
    pub pages: AtomicU64,
    pub bytes: AtomicU64,
    /// Pages that were not there any more.
    pub refused: AtomicU64,
}

/// Answers requests until the reader goes, or asks for nothing for longer than the socket's own timeout.
///
/// `regions`: slots by tier. Err says why it ended, if the reader did not simply close.
pub fn serve(
    socket: &TcpStream,
    regions: &[(u8, Slots)],
    pacer: &Pacer,
    lent: &Lent,
) -> io::Result<()> {
    let mut socket = socket;
    let mut wanted = Vec::new();
    loop {
        let mut request = [0; REQUEST_BYTES];
        match socket.read(&mut request)? {
            0 => return Ok(()),
            read => socket.read_exact(&mut request[read..])?,
        }
        let count = number(&request, 4) as usize;
        if number(&request, 0) != MAGIC || count > MAX_BATCH {
            return Err(invalid("not a request, or one of too many pages"));
        }
        wanted.resize(count * Descriptor::BYTES, 0);
        socket.read_exact(&mut wanted)?;
        answer(socket, regions, &wanted, pacer, lent)?;
    }
}

fn answer(
    socket: &TcpStream,
    regions: &[(u8, Slots)],
    wanted: &[u8],
    pacer: &Pacer,
    lent: &Lent,
) -> io::Result<()> {
    // The tail of the last page, and the head of the next one behind it.
    let mut between = Vec::with_capacity(TAIL_BYTES + HEAD_BYTES);
    for (position, from) in Descriptor::unpack_all(wanted).enumerate() {
        let slot = from.slot as usize;
        let slots = regions
            .iter()
            .find(|(tier, slots)| *tier == from.tier && slot < slots.count())
            .map(|(_, slots)| slots);
        let status = match slots {
            None => Status::Absent,
            Some(slots) if slots.generation(slot) != from.generation => Status::Changed,
            Some(_) => Status::Ok,
        };
        between.extend([status as u8, 0, 0, 0]);
        between.extend((position as u32).to_le_bytes());
        let Some(slots) = slots.filter(|_| status == Status::Ok) else {
            lent.refused.fetch_add(1, Ordering::Relaxed);
            between.extend(0u64.to_le_bytes());
            write_both(socket, &between, &[])?;
            between.clear();
            between.extend([0; TAIL_BYTES]);
            continue;
        };
        pacer.take(slots.page_bytes());
        // SAFETY: inside the slots' memory. If it is written meanwhile, the tail says so, and the reader drops it.
        let page = unsafe { slice::from_raw_parts(slots.page(slot), slots.page_bytes()) };
        between.extend(hash64(page, 0).to_le_bytes());
        write_both(socket, &between, page)?;
        between.clear();
        let still = slots.is_still(slot, from.generation);
        let status = if still { Status::Ok } else { Status::Changed };
        between.extend([status as u8, 0, 0, 0]);
        lent.pages.fetch_add(1, Ordering::Relaxed);
        lent.bytes
            .fetch_add(slots.page_bytes() as u64, Ordering::Relaxed);
    }
    write_both(socket, &between, &[])
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
/// which nothing more can be read from this socket.
pub fn fetch(
    socket: &TcpStream,
    wanted: &[u8],
    target: &Slots,
    to: &[u32],
    patience: Patience,
) -> (Vec<Status>, Option<io::Error>) {
    let mut statuses = vec![Status::Lost; to.len()];
    let error = receive(socket, wanted, target, to, patience, &mut statuses).err();
    (statuses, error)
}

fn receive(
    socket: &TcpStream,
    wanted: &[u8],
    target: &Slots,
    to: &[u32],
    patience: Patience,
    statuses: &mut [Status],
) -> io::Result<()> {
    let ends = Instant::now() + patience.whole;
    let stall = patience
        .stall
        .min(patience.whole)
        .max(Duration::from_millis(1));
    socket.set_read_timeout(Some(stall))?;
    socket.set_write_timeout(Some(stall))?;
    let mut request = Vec::with_capacity(REQUEST_BYTES + wanted.len());
    request.extend(MAGIC.to_le_bytes());
    request.extend((to.len() as u32).to_le_bytes());
    request.extend(wanted);
    let mut writer = socket;
    writer.write_all(&request)?;
    // As the holder's: the tail of the last page in front of a head.
    let mut between = [0; TAIL_BYTES + HEAD_BYTES];
    if !to.is_empty() {
        read_both(socket, &mut [], &mut between[TAIL_BYTES..], ends)?;
    }
    for (position, &slot) in to.iter().enumerate() {
        let head = &between[TAIL_BYTES..];
        if number(head, 4) as usize != position {
            return Err(invalid("the answer is of another page"));
        }
        let refused = match head[0] {
            0 => None,
            1 => Some(Status::Changed),
            3 => Some(Status::Absent),
            _ => return Err(invalid("an unknown status")),
        };
        let checksum = u64::from_le_bytes(head[8..16].try_into().expect("eight bytes"));
        let follows = if position + 1 < to.len() {
            &mut between[..]
        } else {
            &mut between[..TAIL_BYTES]
        };
        if let Some(status) = refused {
            read_both(socket, &mut [], follows, ends)?;
            statuses[position] = status;
            continue;
        }
        // SAFETY: inside the target's memory, and the caller says that nobody else uses the slot.
        let page =
            unsafe { slice::from_raw_parts_mut(target.page(slot as usize), target.page_bytes()) };
        read_both(socket, page, follows, ends)?;
        statuses[position] = match between[0] {
            0 if hash64(page, 0) == checksum => Status::Ok,
            0 => Status::Damaged,
            1 => Status::Changed,
            _ => return Err(invalid("an unknown status")),
        };
    }
    Ok(())
}

fn write_both(mut socket: &TcpStream, mut first: &[u8], mut second: &[u8]) -> io::Result<()> {
    while !first.is_empty() {
        let parts = [IoSlice::new(first), IoSlice::new(second)];
        let wrote = match socket.write_vectored(&parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(wrote) => wrote,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let of_first = wrote.min(first.len());
        first = &first[of_first..];
        second = &second[wrote - of_first..];
    }
    socket.write_all(second)
}

fn read_both(
    mut socket: &TcpStream,
    mut first: &mut [u8],
    mut second: &mut [u8],
    ends: Instant,
) -> io::Result<()> {
    while !(first.is_empty() && second.is_empty()) {
        if Instant::now() >= ends {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let read = match socket.read_vectored(&mut parts) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let of_first = read.min(first.len());
        first = &mut first[of_first..];
        second = &mut second[read - of_first..];
    }
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
