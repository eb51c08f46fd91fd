//! The framing of a chunked HTTP/1.1 body (RFC 9112, 7.1), followed without looking at what is in it.

/// Bytes of chunk extensions and trailers together that are put up with.
const MAX_EXTRAS: u32 = 64 * 1024;
/// Hexadecimal digits of a chunk's size.
const MAX_DIGITS: u8 = 15;

/// Where in the body the next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a chunk's size, after so many digits.
    Size(u8),
    /// In what may follow it.
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    /// At the beginning of a line after the last chunk.
    Trailer,
    TrailerLine,
    TrailerLineEnd,
    LastLf,
    /// Behind the body.
    Over,
}

/// What does not follow the framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Follows one body from a boundary between two chunks on.
#[derive(Debug)]
pub struct Chunks {
    at: At,
    /// Of the chunk, bytes still to come.
    left: u64,
    extras: u32,
}

impl Default for Chunks {
    fn default() -> Self {
        Chunks {
            at: At::Size(0),
            left: 0,
            extras: 0,
        }
    }
}

impl Chunks {
    /// Takes what came next, and says how much of it belongs to the body: all, unless the body ends in it.
    pub fn feed(&mut self, data: &[u8]) -> Result<usize, Malformed> {
        let mut next = 0;
        while next < data.len() && self.at != At::Over {
            if self.at == At::Data {
                let here = self.left.min((data.len() - next) as u64);
                self.left -= here;
                next += here as usize;
                if self.left == 0 {
                    self.at = At::DataCr;
                }
            } else {
                self.at = self.step(data[next])?;
                next += 1;
            }
        }
        Ok(next)
    }

    /// Whether the last chunk so far is whole, and not the last one of all.
    pub fn between(&self) -> bool {
        self.at == At::Size(0)
    }

    /// Whether the body is.
    pub fn over(&self) -> bool {
        self.at == At::Over
    }

    fn step(&mut self, byte: u8) -> Result<At, Malformed> {
        Ok(match (self.at, byte) {
            (At::Size(digits), _) if byte.is_ascii_hexdigit() => {
                if digits == MAX_DIGITS {
                    return Err(Malformed);
                }
                if digits == 0 {
                    self.left = 0;
                }
                let value = char::from(byte).to_digit(16).unwrap_or_default();
                self.left = self.left << 4 | u64::from(value);
                At::Size(digits + 1)
            }
            (At::Size(1..), b'\r') | (At::Extension, b'\r') => At::SizeEnd,
            (At::Size(1..), b';' | b' ' | b'\t') => At::Extension,
            (At::Extension, _) if byte != b'\n' => self.extra(At::Extension)?,
            (At::SizeEnd, b'\n') if self.left > 0 => At::Data,
            (At::SizeEnd, b'\n') => At::Trailer,
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size(0),
            (At::Trailer, b'\r') => At::LastLf,
            (At::TrailerLine, b'\r') => At::TrailerLineEnd,
            (At::Trailer | At::TrailerLine, _) if byte != b'\n' => self.extra(At::TrailerLine)?,
            (At::TrailerLineEnd, b'\n') => At::Trailer,
            (At::LastLf, b'\n') => At::Over,
            _ => return Err(Malformed),
        })
    }

    fn extra(&mut self, at: At) -> Result<At, Malformed> {
        self.extras += 1;
        if self.extras > MAX_EXTRAS {
            return Err(Malformed);
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] =
        b"5\r\nhello\r\n1a;x=\"y\"\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nx-a: b\r\n\r\n";

    #[test]
    fn any_cut_comes_to_the_same() {
        for cut in 0..BODY.len() {
            let mut chunks = Chunks::default();
            assert_eq!(chunks.feed(&BODY[..cut]), Ok(cut));
            assert!(!chunks.over());
            assert_eq!(
                chunks.between(),
                cut == 0 || cut == 10 || cut == 10 + 10 + 26 + 2
            );
            assert_eq!(chunks.feed(&BODY[cut..]), Ok(BODY.len() - cut));
            assert!(chunks.over());
        }
    }

    #[test]
    fn what_follows_the_body_is_not_taken() {
        let mut chunks = Chunks::default();
        let surplus = [BODY, b"HTTP/1.1 200"].concat();
        assert_eq!(chunks.feed(&surplus), Ok(BODY.len()));
        assert_eq!(chunks.feed(b"more"), Ok(0));
    }

    #[test]
    fn garbage_is_refused() {
        for body in [
            &b"\r\n"[..],
            b"x\r\n",
            b"5\nhello\r\n",
            b"5\r\nhellox",
            b"5\r\nhello\n",
            b"-5\r\n",
            b"1000000000000000\r\n",
            b"0\r\n\n",
            b"0\r\nx-a: b\n\r\n",
            b"5;a\nhello",
        ] {
            assert_eq!(Chunks::default().feed(body), Err(Malformed), "{body:?}");
        }
    }

    #[test]
    fn extras_are_bounded() {
        let mut chunks = Chunks::default();
        assert_eq!(chunks.feed(b"5;"), Ok(2));
        let long = vec![b'a'; MAX_EXTRAS as usize];
        assert_eq!(chunks.feed(&long), Ok(long.len()));
        assert_eq!(chunks.feed(b"a"), Err(Malformed));
    }
}
