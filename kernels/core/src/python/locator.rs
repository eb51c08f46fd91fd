//! `encode_locate`, `decode_locate`, `encode_located`, `decode_located`: the page locator's request and answer.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::buffer::View;
use crate::locator::{self, Head, LocatorError, Request, DIGEST_BYTES, MAX_PAGES, MAX_RUNGS};

/// Bytes from which it is worth letting other threads run.
const LONG: usize = 1 << 18;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MAX_CHAIN_PAGES", MAX_PAGES)?;
    module.add("MAX_RUNGS", MAX_RUNGS)?;
    module.add("NOT_LENT", locator::NOT_LENT)?;
    module.add_function(wrap_pyfunction!(encode_locate, module)?)?;
    module.add_function(wrap_pyfunction!(decode_locate, module)?)?;
    module.add_function(wrap_pyfunction!(encode_located, module)?)?;
    module.add_function(wrap_pyfunction!(decode_located, module)?)
}

impl From<LocatorError> for PyErr {
    fn from(error: LocatorError) -> Self {
        PyValueError::new_err(error.to_string())
    }
}

#[pyfunction]
fn encode_locate<'py>(
    py: Python<'py>,
    namespace: [u8; DIGEST_BYTES],
    first: u32,
    count: u32,
    wait_ms: u32,
    lease_ms: u32,
    rungs: Vec<(u32, u64)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let request = Request {
        namespace,
        first,
        count,
        wait_ms,
        lease_ms,
        rungs,
    };
    Ok(PyBytes::new(py, &request.encode()?))
}

type Decoded<'py> = (Bound<'py, PyBytes>, u32, u32, u32, u32, Vec<(u32, u64)>);

#[pyfunction]
fn decode_locate<'py>(py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Decoded<'py>> {
    let request = Request::decode(View::raw(message)?.bytes())?;
    Ok((
        PyBytes::new(py, &request.namespace),
        request.first,
        request.count,
        request.wait_ms,
        request.lease_ms,
        request.rungs,
    ))
}

#[pyfunction]
fn encode_located<'py>(
    py: Python<'py>,
    epoch: u64,
    first: u32,
    held: u32,
    lease_ms: u32,
    descriptors: &Bound<'py, PyBytes>,
) -> PyResult<Bound<'py, PyBytes>> {
    let head = Head {
        epoch,
        first,
        held,
        lease_ms,
    };
    let descriptors = descriptors.as_bytes();
    let work = || locator::encode_answer(head, descriptors);
    let message = if descriptors.len() >= LONG {
        py.detach(work)
    } else {
        work()
    };
    Ok(PyBytes::new(py, &message?))
}

type Located<'py> = (u64, u32, u32, u32, u32, Bound<'py, PyBytes>);

#[pyfunction]
fn decode_located<'py>(
    py: Python<'py>,
    message: &Bound<'py, PyBytes>,
    tokens: &Bound<'py, PyBytes>,
) -> PyResult<Located<'py>> {
    let (message, tokens) = (message.as_bytes(), tokens.as_bytes());
    let work = || locator::decode_answer(message, tokens);
    let answer = if message.len() >= LONG {
        py.detach(work)
    } else {
        work()
    }?;
    let Head {
        epoch,
        first,
        held,
        lease_ms,
    } = answer.head;
    let descriptors = PyBytes::new(py, &answer.descriptors);
    Ok((epoch, first, held, lease_ms, answer.described, descriptors))
}
