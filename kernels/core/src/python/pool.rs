//! `PagePool`.
//!
//! The GIL stays held: a call takes nanoseconds per page, and nothing runs Python under the pool's lock.

use std::borrow::Cow;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::pool::{self, PoolError};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PagePool>()
}

impl From<PoolError> for PyErr {
    fn from(error: PoolError) -> Self {
        PyValueError::new_err(error.to_string())
    }
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct PagePool {
    inner: pool::PagePool,
    total: usize,
}

impl PagePool {
    /// Page numbers as Python gives them; the pool's own are non-negative.
    fn numbers(&self, pages: Vec<i64>) -> Result<Vec<u32>, PoolError> {
        pages.into_iter().map(|page| self.number(page)).collect()
    }

    fn number(&self, page: i64) -> Result<u32, PoolError> {
        u32::try_from(page).map_err(|_| PoolError::NoSuchPage {
            page,
            total: self.total,
        })
    }
}

#[pymethods]
impl PagePool {
    #[new]
    fn new(pages: i64) -> PyResult<Self> {
        // Block tables are int32.
        match i32::try_from(pages) {
            Ok(count @ 1..) => Ok(PagePool {
                inner: pool::PagePool::new(count as u32),
                total: count as usize,
            }),
            _ => Err(PyValueError::new_err(format!(
                "a pool has 1 to {} pages, not {pages}",
                i32::MAX
            ))),
        }
    }

    #[pyo3(signature = (count, groups = Vec::new()))]
    fn allocate(&self, count: i64, groups: Vec<usize>) -> PyResult<Option<Vec<u32>>> {
        let count = usize::try_from(count)
            .map_err(|_| PyValueError::new_err(format!("cannot allocate {count} pages")))?;
        Ok(self.inner.allocate_in(&groups, count))
    }

    fn free_in_groups(&self) -> Cow<'static, [u8]> {
        self.inner.free_in_groups().into()
    }

    fn share(&self, pages: Vec<i64>) -> PyResult<()> {
        Ok(self.inner.share(&self.numbers(pages)?)?)
    }

    fn release(&self, pages: Vec<i64>) -> PyResult<Vec<u32>> {
        Ok(self.inner.release(&self.numbers(pages)?)?)
    }

    fn references(&self, page: i64) -> PyResult<u32> {
        Ok(self.inner.references(self.number(page)?)?)
    }

    fn step_begin(&self) -> u64 {
        self.inner.step_begin()
    }

    fn step_end(&self, ticket: u64) -> PyResult<()> {
        Ok(self.inner.step_end(ticket)?)
    }

    #[getter]
    fn free(&self) -> usize {
        self.inner.counts().free
    }

    #[getter]
    fn resident(&self) -> usize {
        self.inner.counts().resident
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.inner.counts().in_flight
    }

    #[getter]
    fn longest_free(&self) -> usize {
        self.inner.longest_free()
    }

    #[getter]
    fn total(&self) -> usize {
        self.total
    }

    fn check(&self) -> PyResult<()> {
        self.inner.check().map_err(PyRuntimeError::new_err)
    }
}
