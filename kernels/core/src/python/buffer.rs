//! Packed integers out of whatever has a buffer: bytes, bytearray, memoryview, array, numpy.

use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

/// A view of a Python object's bytes.
pub enum View<'a> {
    Bytes(&'a [u8]),
    Array(&'a Bound<'a, PyByteArray>),
    Buffer(PyUntypedBuffer),
}

impl<'a> View<'a> {
    /// The bytes of any C-contiguous buffer.
    pub fn raw(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        // Most are one of these, which need no buffer request.
        if let Ok(bytes) = object.cast_exact::<PyBytes>() {
            return Ok(View::Bytes(bytes.as_bytes()));
        }
        if let Ok(array) = object.cast_exact::<PyByteArray>() {
            return Ok(View::Array(array));
        }
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer is not C-contiguous"));
        }
        Ok(View::Buffer(buffer))
    }

    /// Packed integers of `size` bytes each: a buffer of such integers, or of bytes.
    pub fn packed(object: &'a Bound<'_, PyAny>, size: usize, name: &str) -> PyResult<Self> {
        let view = View::raw(object)?;
        if let View::Buffer(buffer) = &view {
            let format = buffer.format();
            let native = !matches!(format.to_bytes(), [b'>' | b'!', ..]);
            let fits = match ElementType::from_format(format) {
                ElementType::SignedInteger { bytes } | ElementType::UnsignedInteger { bytes } => {
                    bytes == 1 || (bytes == size && native)
                }
                _ => false,
            };
            if !fits {
                return Err(PyValueError::new_err(format!(
                    "{name}: items of format {format:?} are not integers of {size} bytes in little-endian order"
                )));
            }
        }
        let length = view.bytes().len();
        if length % size != 0 {
            return Err(PyValueError::new_err(format!(
                "{name}: {length} bytes are not a multiple of the {size} bytes of an item"
            )));
        }
        Ok(view)
    }

    /// Valid while the object is attached to and nobody writes to it, so only while the GIL is held, or for `bytes`.
    pub fn bytes(&self) -> &[u8] {
        match self {
            View::Bytes(bytes) => bytes,
            // SAFETY: nobody can write to it or resize it while the GIL is held, see above.
            View::Array(array) => unsafe { array.as_bytes() },
            View::Buffer(buffer) if buffer.len_bytes() == 0 => &[],
            // SAFETY: the buffer is contiguous, has this length, and is held by `self`.
            View::Buffer(buffer) => unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes())
            },
        }
    }

    /// Runs `work` on the bytes; without the GIL if there are at least `long` and nobody else can write to them.
    pub fn work<R: Send>(
        &self,
        py: Python<'_>,
        long: usize,
        work: impl FnOnce(&[u8]) -> R + Send,
    ) -> R {
        match self {
            View::Bytes(bytes) if bytes.len() >= long => py.detach(|| work(bytes)),
            _ => work(self.bytes()),
        }
    }
}
