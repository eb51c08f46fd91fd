//! Passes streamed responses on from one socket to another, on a thread of its own: a reply is hundreds of small reads,
//! and each would cost its turn on an event loop and in an interpreter.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::{Events, Poll, Registry, Token, Waker};

pub mod chunks;
mod gaps;
mod stream;

pub use gaps::Gaps;
pub use stream::State;
use stream::{Stream, Want};

const BUFFER: usize = 64 * 1024;
const EVENTS: usize = 256;
const CLOSE: Token = Token(usize::MAX);

/// What became of a stream when it was stopped, or ended by itself.
#[derive(Debug)]
pub struct End {
    pub state: State,
    /// Whether its body is between two chunks, so that another one may follow.
    pub between: bool,
    /// The last bytes read.
    pub tail: Vec<u8>,
    /// What was read and not yet written.
    pub unsent: Vec<u8>,
}

/// Streams by their numbers. A stream's sockets are duplicates, closed when it is stopped.
///
/// A stream is locked while it is pumped, which never blocks, and while it is looked at or stopped: after `stop` has
/// returned nothing more of it is read or written.
#[derive(Debug)]
pub struct Splicer {
    shared: Arc<Shared>,
    registry: Registry,
    waker: Waker,
    /// Readable when streams have ended.
    ended: UnixStream,
    next: AtomicUsize,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    streams: Mutex<HashMap<usize, Arc<Mutex<Stream>>>>,
    gaps: Gaps,
    over: Mutex<Vec<usize>>,
    /// Whoever ends a stream writes a byte here, unless the last one was not read yet.
    signal: UnixStream,
    signalled: AtomicBool,
    closing: AtomicBool,
}

impl Splicer {
    /// `gaps`: where the times between two reads of a stream are counted.
    pub fn new(gaps: Gaps) -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Waker::new(poll.registry(), CLOSE)?;
        let (ended, signal) = UnixStream::pair()?;
        ended.set_nonblocking(true)?;
        signal.set_nonblocking(true)?;
        let shared = Arc::new(Shared::new(gaps, signal));
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("splicer".to_owned())
            .spawn(move || worker.run(poll))?;
        Ok(Splicer {
            shared,
            registry,
            waker,
            ended,
            next: AtomicUsize::new(0),
            thread: Some(thread),
        })
    }

    /// A descriptor that is readable when `ended` has something to say.
    pub fn descriptor(&self) -> RawFd {
        self.ended.as_raw_fd()
    }

    /// From now on everything that the source sends goes to the target, behind `first`. The source is between two
    /// chunks of its body, neither socket blocks, and nobody else reads from the one or writes to the other until the
    /// stream is stopped.
    pub fn start(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        first: &[u8],
    ) -> io::Result<usize> {
        let source = TcpStream::from(source.try_clone_to_owned()?);
        let target = TcpStream::from(target.try_clone_to_owned()?);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Mutex::new(Stream::new(source, target)));
        let mut locked = lock(&stream);
        // Found before it is watched: an event for a stream that is not there yet would be lost, and if all that the
        // source has to say is there already, none follows it.
        lock(&self.shared.streams).insert(number, Arc::clone(&stream));
        if let Err(error) = locked.watch_source(&self.registry, of_source(number)) {
            lock(&self.shared.streams).remove(&number);
            return Err(error);
        }
        let want = locked.begin(first);
        self.shared
            .settle(number, &mut locked, want, &self.registry);
        drop(locked);
        Ok(number)
    }

    /// Bytes passed on, and whether the target takes none at the moment. None: no such stream.
    pub fn progress(&self, number: usize) -> Option<(u64, bool)> {
        let stream = self.shared.stream(number)?;
        let stream = lock(&stream);
        Some((stream.passed, stream.blocked()))
    }

    /// Ends it, or takes away what has ended. None: no such stream.
    pub fn stop(&self, number: usize) -> Option<End> {
        let stream = lock(&self.shared.streams).remove(&number)?;
        let mut stream = lock(&stream);
        stream.leave(&self.registry);
        Some(End {
            between: stream.between(),
            state: std::mem::replace(&mut stream.state, State::Gone),
            tail: std::mem::take(&mut stream.tail),
            unsent: std::mem::take(&mut stream.unsent),
        })
    }

    /// Of all streams, ever.
    pub fn gaps(&self) -> &Gaps {
        &self.shared.gaps
    }

    /// Streams that have ended since the last call. Each still is to be stopped.
    pub fn ended(&self) -> Vec<usize> {
        let mut bytes = [0; 64];
        while matches!((&self.ended).read(&mut bytes), Ok(1..)) {}
        self.shared.signalled.store(false, Ordering::SeqCst);
        std::mem::take(&mut *lock(&self.shared.over))
    }

    /// Streams that are open, or ended and not stopped.
    pub fn streams(&self) -> usize {
        lock(&self.shared.streams).len()
    }
}

impl Drop for Splicer {
    /// Streams that are still open end in the middle.
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        let woken = self.waker.wake().is_ok();
        if let (true, Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(gaps: Gaps, signal: UnixStream) -> Self {
        Shared {
            streams: Mutex::default(),
            gaps,
            over: Mutex::default(),
            signal,
            signalled: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    fn run(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0; BUFFER];
        let mut turns: HashSet<usize> = HashSet::new();
        while !self.closing.load(Ordering::SeqCst) {
            let patience = (!turns.is_empty()).then_some(Duration::ZERO);
            match poll.poll(&mut events, patience) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return,
                _ => {}
            }
            let ready = events
                .iter()
                .filter(|event| event.token() != CLOSE)
                .map(|event| {
                    let Token(token) = event.token();
                    // Room in the target: what came from the source meanwhile was an event that nobody followed.
                    (token / 2, token % 2 == 1 || event.is_read_closed())
                });
            self.round(&mut turns, ready, &mut buffer, poll.registry());
        }
    }

    /// Pumps those that have more to do since the last round, each once however many events it had, or a fast source
    /// would have ever more turns; then those that are ready, with whether each is to be drained.
    fn round(
        &self,
        turns: &mut HashSet<usize>,
        ready: impl Iterator<Item = (usize, bool)>,
        buffer: &mut [u8],
        registry: &Registry,
    ) {
        let again = std::mem::take(turns)
            .into_iter()
            .map(|number| (number, true));
        for (number, drain) in again.chain(ready) {
            if self.pump(number, buffer, drain, registry) == Want::Turn {
                turns.insert(number);
            }
        }
    }

    fn pump(&self, number: usize, buffer: &mut [u8], drain: bool, registry: &Registry) -> Want {
        let Some(stream) = self.stream(number) else {
            return Want::Nothing;
        };
        let mut stream = lock(&stream);
        if stream.state != State::Open {
            return Want::Nothing; // It ended, or was stopped, since it was found.
        }
        let before = stream.passed;
        let want = stream.pump(buffer, drain);
        if stream.passed > before && stream.state == State::Open {
            self.gaps.add(stream.silence()); // The end of a body is no event of its own.
        }
        self.settle(number, &mut stream, want, registry)
    }

    /// Sees to it that a stream gets what it wants.
    fn settle(&self, number: usize, stream: &mut Stream, want: Want, registry: &Registry) -> Want {
        if let Err(error) = stream.watch_target(registry, of_target(number), want == Want::Write) {
            stream.state = State::Lost(error.to_string());
        }
        if stream.state != State::Open {
            stream.leave(registry);
            lock(&self.over).push(number);
            if !self.signalled.swap(true, Ordering::SeqCst) {
                let _ = (&self.signal).write(&[0]);
            }
            return Want::Nothing;
        }
        want
    }

    fn stream(&self, number: usize) -> Option<Arc<Mutex<Stream>>> {
        lock(&self.streams).get(&number).map(Arc::clone)
    }
}

fn of_source(number: usize) -> Token {
    Token(2 * number)
}

fn of_target(number: usize) -> Token {
    Token(2 * number + 1)
}

/// What a panic left behind is whole enough: nothing here is changed in several steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
