//! The Python face of the crate: thin wrappers, one per type, that check arguments and release the GIL.

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _core(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
