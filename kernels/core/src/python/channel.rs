//! `Tls` and `PageStream`: what pages come and go over.

use std::io::{self, ErrorKind};
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::seconds;
use crate::tls::Identity;
use crate::wire::{Channel, Wire};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tls>()?;
    module.add_class::<PageStream>()
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct Tls {
    identity: Identity,
}

#[pymethods]
impl Tls {
    #[new]
    fn new(certificate: &[u8], key: &[u8], authority: &[u8]) -> PyResult<Self> {
        let identity = Identity::new(certificate, key, authority).map_err(PyValueError::new_err)?;
        Ok(Tls { identity })
    }
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
pub struct PageStream {
    /// Used by one thread at a time; the lock only says so.
    channel: Mutex<Box<dyn Channel>>,
}

#[pymethods]
impl PageStream {
    #[new]
    #[pyo3(signature = (fd, timeout_s, tls=None, *, asked=false))]
    fn new(
        py: Python<'_>,
        fd: i32,
        timeout_s: f64,
        tls: Option<&Tls>,
        asked: bool,
    ) -> PyResult<Self> {
        let timeout = seconds(timeout_s, "timeout_s")?;
        let identity = tls.map(|tls| &tls.identity);
        let opened = py.detach(|| -> io::Result<Box<dyn Channel>> {
            let mut wire = Wire::new(fd)?;
            wire.wait(timeout, timeout)?;
            wire.end_in(timeout);
            match identity {
                None => Ok(Box::new(wire)),
                Some(identity) if asked => identity.accept(wire),
                Some(identity) => identity.connect(wire),
            }
        });
        Ok(PageStream {
            channel: Mutex::new(opened?),
        })
    }

    fn sendall(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let sent = self.with(py, |channel| {
            channel.write_all(data)?;
            channel.flush()
        });
        sent.map_err(PyErr::from)
    }

    fn recv<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let mut data = vec![0; size];
        let received = self.with(py, |channel| match channel.read(&mut data) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        });
        Ok(PyBytes::new(py, &data[..received?]))
    }
}

impl PageStream {
    /// Without the interpreter's lock.
    pub fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut dyn Channel) -> T,
    ) -> T {
        py.detach(|| work(&mut **self.channel.lock().expect("no section panics")))
    }
}
