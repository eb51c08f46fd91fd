//! One stream: what comes out of the source goes into the target, up to the end of its chunked body.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::chunks::Chunks;

/// Reads in a row before others have their turn.
const READS: usize = 4;
/// Of what was passed on last, what a caller may want to see.
const TAIL: usize = 4;

/// How a stream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Open,
    /// Its body was passed on to the end. `clean`: nothing came behind it.
    Ended { clean: bool },
    /// The source ended before it, or what it sent is no chunked body: why.
    Lost(String),
    /// The target takes nothing any more.
    Gone,
}

/// What a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Until the source has something.
    Read,
    /// Until the target has room. The source is left alone.
    Write,
    /// Nothing: it has more to do, but it is others' turn.
    Turn,
    /// Nothing: it is over.
    Nothing,
}

#[derive(Debug)]
pub struct Stream {
    pub source: TcpStream,
    pub target: TcpStream,
    pub state: State,
    /// Bytes taken from the source.
    pub passed: u64,
    /// When it was read from last.
    heard: Instant,
    /// Read, but not yet taken by the target. At most one read.
    pub unsent: Vec<u8>,
    /// What was read last.
    pub tail: Vec<u8>,
    chunks: Chunks,
    /// What it will be once `unsent` is sent.
    ending: Option<State>,
    /// Whether the source and the target are registered.
    watched: (bool, bool),
}

impl Stream {
    pub fn new(source: TcpStream, target: TcpStream) -> Self {
        Stream {
            source,
            target,
            state: State::Open,
            passed: 0,
            heard: Instant::now(),
            unsent: Vec::new(),
            tail: Vec::with_capacity(2 * TAIL),
            chunks: Chunks::default(),
            ending: None,
            watched: (false, false),
        }
    }

    /// What was read before goes first.
    pub fn begin(&mut self, first: &[u8]) -> Want {
        self.remember(first);
        if self.send(first) {
            Want::Read
        } else {
            self.waits()
        }
    }

    /// It was read from just now: how long ago before that.
    pub fn silence(&mut self) -> Duration {
        let before = std::mem::replace(&mut self.heard, Instant::now());
        self.heard - before
    }

    /// Whether what was read so far ends with a whole chunk that is not the last one.
    pub fn between(&self) -> bool {
        self.chunks.between()
    }

    /// Whether the target takes nothing at the moment.
    pub fn blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Passes on what is there. `buffer`: for one read. `drain`: reads until there is nothing. Without it a read that
    /// does not fill the buffer is the last one: what comes later is an event of its own, if this one was not the end.
    pub fn pump(&mut self, buffer: &mut [u8], drain: bool) -> Want {
        for _ in 0..READS {
            let unsent = std::mem::take(&mut self.unsent);
            if !self.send(&unsent) {
                return self.waits();
            }
            if let Some(state) = self.ending.take() {
                self.state = state;
                return Want::Nothing;
            }
            let read = match self.source.read(buffer) {
                Ok(0) => return self.lose("closed by the node"),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Want::Read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.lose(&error.to_string()),
            };
            let Ok(whole) = self.chunks.feed(&buffer[..read]) else {
                return self.lose("its body is not chunked as it should be");
            };
            self.passed += whole as u64;
            self.remember(&buffer[..whole]);
            if self.chunks.over() {
                let clean = whole == read;
                self.ending = Some(State::Ended { clean });
            }
            if !self.send(&buffer[..whole]) {
                return self.waits();
            }
            if read < buffer.len() && self.ending.is_none() && !drain {
                return Want::Read;
            }
        }
        Want::Turn
    }

    pub fn watch_source(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(
            &mut SourceFd(&self.source.as_raw_fd()),
            token,
            Interest::READABLE,
        )?;
        self.watched.0 = true;
        Ok(())
    }

    /// Only while it is waited for: a target nearly always has room.
    pub fn watch_target(
        &mut self,
        registry: &Registry,
        token: Token,
        wanted: bool,
    ) -> io::Result<()> {
        if wanted != self.watched.1 {
            let descriptor = self.target.as_raw_fd();
            let mut target = SourceFd(&descriptor);
            if wanted {
                registry.register(&mut target, token, Interest::WRITABLE)?;
            } else {
                registry.deregister(&mut target)?;
            }
            self.watched.1 = wanted;
        }
        Ok(())
    }

    /// The sockets may live on elsewhere, so closing these descriptors would not end it.
    pub fn leave(&mut self, registry: &Registry) {
        for (watched, socket) in [
            (&mut self.watched.0, &self.source),
            (&mut self.watched.1, &self.target),
        ] {
            if std::mem::take(watched) {
                let _ = registry.deregister(&mut SourceFd(&socket.as_raw_fd()));
            }
        }
    }

    /// False: not all of it was taken.
    fn send(&mut self, mut data: &[u8]) -> bool {
        while !data.is_empty() {
            match self.target.write(data) {
                Ok(sent) => data = &data[sent..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.unsent = data.to_vec();
                    return false;
                }
                Err(_) => {
                    self.state = State::Gone;
                    return false;
                }
            }
        }
        true
    }

    fn waits(&self) -> Want {
        if self.state == State::Gone {
            Want::Nothing
        } else {
            Want::Write
        }
    }

    fn lose(&mut self, why: &str) -> Want {
        self.state = State::Lost(why.to_owned());
        Want::Nothing
    }

    fn remember(&mut self, data: &[u8]) {
        self.tail
            .extend_from_slice(&data[data.len().saturating_sub(TAIL)..]);
        let surplus = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..surplus);
    }
}
