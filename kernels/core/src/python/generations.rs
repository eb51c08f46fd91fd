//! `Generations`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::buffer::View;
use super::index::node_number;
use crate::generations;
use crate::keys::KEY_BYTES;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Generations>()
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct Generations(generations::Generations);

#[pymethods]
impl Generations {
    #[new]
    fn new(max_keys: usize) -> PyResult<Self> {
        if max_keys == 0 {
            return Err(PyValueError::new_err("max_keys is 0: at least 1"));
        }
        Ok(Generations(generations::Generations::new(max_keys)))
    }

    fn given<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let keys = View::packed(keys, KEY_BYTES, "keys")?;
        let given = PyDict::new(py);
        for (node, count) in self.0.given(keys.bytes()) {
            given.set_item(node, count)?;
        }
        Ok(given)
    }

    fn give(
        &self,
        node: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        limit: usize,
    ) -> PyResult<usize> {
        let node = node_number(node)?;
        let keys = View::packed(keys, KEY_BYTES, "keys")?;
        Ok(self.0.give(node, keys.bytes(), limit))
    }

    fn turn(&self, forget: bool) {
        self.0.turn(forget);
    }

    fn clear(&self, node: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.clear(node_number(node)?);
        Ok(())
    }

    fn keys(&self) -> usize {
        self.0.keys()
    }
}
