//! The Python face of the crate: thin wrappers, one file per type, that check arguments and release the GIL.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod buffer;
mod channel;
mod generations;
mod heat;
mod index;
mod keys;
mod locator;
mod pool;
mod ranking;
mod slots;
mod splice;

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    channel::register(module)?;
    generations::register(module)?;
    heat::register(module)?;
    index::register(module)?;
    keys::register(module)?;
    locator::register(module)?;
    pool::register(module)?;
    ranking::register(module)?;
    slots::register(module)?;
    splice::register(module)?;
    Ok(())
}

/// A wait, that must have an end.
fn seconds(value: f64, name: &str) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(PyValueError::new_err(format!(
            "{name} is {value}: a number of seconds above 0"
        ))),
    }
}
