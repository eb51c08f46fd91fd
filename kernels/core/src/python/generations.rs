//! `Generations`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::buffer::View;
use super::index::node_number;
use crate::generations::{self, Given, Known};
use crate::keys::KEY_BYTES;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Generations>()
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
pub struct Generations(pub generations::Generations);

#[pymethods]
impl Generations {
    #[new]
    fn new(max_keys: usize, memory_s: f64) -> PyResult<Self> {
        if max_keys == 0 {
            return Err(PyValueError::new_err("max_keys is 0: at least 1"));
        }
        if memory_s.is_nan() || memory_s <= 0.0 {
            return Err(PyValueError::new_err(format!(
                "memory_s is {memory_s}: above 0"
            )));
        }
        Ok(Generations(generations::Generations::new(
            max_keys, memory_s,
        )))
    }

    #[allow(clippy::type_complexity)]
    fn given<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        now: f64,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<u32>, Vec<f64>)> {
        let keys = View::packed(keys, KEY_BYTES, "keys")?;
        let Known {
            given,
            counts,
            uses,
        } = self.0.given(keys.bytes(), now);
        let row = |&(node, count): &Given| {
            let place = counts.partition_point(|&other| other < count);
            [u32::from(node), place as u32]
        };
        let packed: Vec<u8> = given
            .iter()
            .flat_map(row)
            .flat_map(u32::to_ne_bytes)
            .collect();
        Ok((PyBytes::new(py, &packed), counts, uses))
    }

    fn give(
        &self,
        node: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        limit: usize,
        now: f64,
    ) -> PyResult<usize> {
        let node = node_number(node)?;
        let keys = View::packed(keys, KEY_BYTES, "keys")?;
        Ok(self.0.give(node, keys.bytes(), limit, now))
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
