//! `Splicer`.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::splice::{self, Gaps, State};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Splicer>()?;
    module.add_class::<StreamEnd>()
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct Splicer {
    /// None: closed.
    splicer: Mutex<Option<splice::Splicer>>,
}

#[pyclass(frozen, get_all, module = "trunkline.kernels.core")]
struct StreamEnd {
    state: &'static str,
    reason: String,
    between: bool,
    tail: Py<PyBytes>,
    unsent: Py<PyBytes>,
}

#[pymethods]
impl Splicer {
    #[new]
    fn new(bounds: Vec<f64>) -> PyResult<Self> {
        let gaps = Gaps::new(&bounds)
            .ok_or_else(|| PyValueError::new_err(format!("{bounds:?}: not ascending seconds")))?;
        Ok(Splicer {
            splicer: Mutex::new(Some(splice::Splicer::new(gaps)?)),
        })
    }

    fn gaps(&self) -> PyResult<(Vec<u64>, f64)> {
        self.with(|splicer| Ok(splicer.gaps().counted()))
    }

    fn fileno(&self) -> PyResult<RawFd> {
        self.with(|splicer| Ok(splicer.descriptor()))
    }

    fn start(&self, source: RawFd, target: RawFd, first: &[u8]) -> PyResult<usize> {
        if source < 0 || target < 0 {
            return Err(PyValueError::new_err(format!(
                "{source} and {target}: not two descriptors"
            )));
        }
        // SAFETY: they are only duplicated, which fails for one that is not open.
        let (source, target) = unsafe {
            (
                BorrowedFd::borrow_raw(source),
                BorrowedFd::borrow_raw(target),
            )
        };
        self.with(|splicer| Ok(splicer.start(source, target, first)?))
    }

    fn progress(&self, stream: usize) -> PyResult<(u64, bool)> {
        self.with(|splicer| splicer.progress(stream).ok_or_else(|| unknown(stream)))
    }

    fn stop(&self, py: Python<'_>, stream: usize) -> PyResult<StreamEnd> {
        let end = self.with(|splicer| splicer.stop(stream).ok_or_else(|| unknown(stream)))?;
        let (state, reason) = match end.state {
            State::Open => ("open", String::new()),
            State::Ended { clean: true } => ("ended", String::new()),
            State::Ended { clean: false } => {
                ("surplus", "it sent more than its response".to_owned())
            }
            State::Lost(reason) => ("lost", reason),
            State::Gone => ("gone", String::new()),
        };
        Ok(StreamEnd {
            state,
            reason,
            between: end.between,
            tail: PyBytes::new(py, &end.tail).unbind(),
            unsent: PyBytes::new(py, &end.unsent).unbind(),
        })
    }

    fn ended(&self) -> PyResult<Vec<usize>> {
        self.with(|splicer| Ok(splicer.ended()))
    }

    #[getter]
    fn streams(&self) -> PyResult<usize> {
        self.with(|splicer| Ok(splicer.streams()))
    }

    fn close(&self) {
        self.lock().take();
    }
}

impl Splicer {
    fn with<T>(&self, call: impl FnOnce(&splice::Splicer) -> PyResult<T>) -> PyResult<T> {
        let splicer = self.lock();
        call(
            splicer
                .as_ref()
                .ok_or_else(|| PyValueError::new_err("the splicer is closed"))?,
        )
    }

    fn lock(&self) -> MutexGuard<'_, Option<splice::Splicer>> {
        self.splicer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(stream: usize) -> PyErr {
    PyKeyError::new_err(stream)
}
