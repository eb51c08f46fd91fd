//! The Python face of the crate: thin wrappers, one file per type, that check arguments and release the GIL.

use pyo3::prelude::*;

mod buffer;
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
