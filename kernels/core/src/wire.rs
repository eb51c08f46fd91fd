//! A socket whose waits have an end, and say which one it was.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::FromRawFd;
use std::time::{Duration, Instant};

/// Bytes both ways, over a socket whose waits can be bounded.
pub trait Channel: Read + Write + Send {
    fn wire(&mut self) -> &mut Wire;
}

/// The socket stays its owner's, who keeps it open meanwhile. It blocks.
pub struct Wire {
    socket: ManuallyDrop<TcpStream>,
    reads: Duration,
    writes: Duration,
    whole: Option<Whole>,
}

#[derive(Clone, Copy)]
struct Whole {
    lasts: Duration,
    ends: Instant,
}

impl Wire {
    pub fn new(fd: i32) -> io::Result<Self> {
        if fd < 0 {
            return Err(invalid_input("the socket is closed"));
        }
        // SAFETY: not closed here, and open, or the calls say that it is not.
        let socket = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
        Ok(Wire {
            socket,
            reads: Duration::MAX,
            writes: Duration::MAX,
            whole: None,
        })
    }

    /// How long it is waited for the next byte to come and to go, none of them zero; for more bytes again and again.
    pub fn wait(&mut self, reads: Duration, writes: Duration) -> io::Result<()> {
        (self.reads, self.writes, self.whole) = (reads, writes, None);
        self.socket.set_read_timeout(Some(reads))?;
        self.socket.set_write_timeout(Some(writes))
    }

    /// Of all that is waited for until `wait` is called again.
    pub fn end_in(&mut self, lasts: Duration) {
        let ends = Instant::now() + lasts;
        self.whole = Some(Whole { lasts, ends });
    }

    fn in_time(&self) -> io::Result<()> {
        match self.whole {
            Some(whole) if Instant::now() >= whole.ends => Err(late(format!(
                "not everything came within {} s",
                whole.lasts.as_secs_f64()
            ))),
            _ => Ok(()),
        }
    }
}

impl Channel for Wire {
    fn wire(&mut self) -> &mut Wire {
        self
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(into)])
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.in_time()?;
        let read = self.socket.read_vectored(into);
        read.map_err(|error| named(error, "nothing came for", self.reads))
    }
}

impl Write for Wire {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let wrote = self.socket.write_vectored(from);
        wrote.map_err(|error| named(error, "nothing was taken for", self.writes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket's own word for a wait that is over is that it would have to wait.
fn named(error: io::Error, what: &str, waited: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => late(format!("{what} {} s", waited.as_secs_f64())),
        _ => error,
    }
}

fn late(why: String) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, why)
}

fn invalid_input(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}
