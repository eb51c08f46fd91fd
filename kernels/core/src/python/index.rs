//! `PrefixIndex`.
//!
//! The GIL stays held through what takes microseconds: giving it up can cost milliseconds of waiting to get it back.
//! No writer waits for the GIL while it has a partition's token, so waiting for the token with the GIL is safe.

use std::cell::RefCell;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::buffer::View;
use crate::index::{self, Entry, Op, Scratch, MAX_NODES, MAX_PARTITIONS, MAX_TIERS};
use crate::keys::{key_at, KEY_BYTES};

const DEPTH_BYTES: usize = size_of::<u32>();

/// Keys from which a call lets other threads run: about 100 us.
const LONG: usize = 4096;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PrefixIndex>()
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
pub struct PrefixIndex(pub index::PrefixIndex);

#[pymethods]
impl PrefixIndex {
    #[new]
    #[pyo3(signature = (partitions = 16, max_keys = 1 << 22))]
    fn new(partitions: i64, max_keys: i64) -> PyResult<Self> {
        let refuse = |text: String| Err(PyValueError::new_err(text));
        match (usize::try_from(partitions), usize::try_from(max_keys)) {
            (Ok(count @ 1..=MAX_PARTITIONS), Ok(max_keys @ 1..)) if count.is_power_of_two() => {
                Ok(PrefixIndex(index::PrefixIndex::new(count, max_keys)))
            }
            (Ok(_), Ok(0) | Err(_)) => refuse(format!("max_keys is {max_keys}: at least 1")),
            _ => refuse(format!(
                "partitions is {partitions}: a power of two up to {MAX_PARTITIONS}"
            )),
        }
    }

    fn store(
        &self,
        py: Python<'_>,
        node: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        depths: &Bound<'_, PyAny>,
        tier: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (keys, depths) = keys_and_depths(keys, depths)?;
        let (keys, depths, tier) = (keys.bytes(), depths.bytes(), tier_number(tier)?);
        let entry = |at| Entry {
            key: key_at(keys, at),
            depth: depth_at(depths, at),
            tier,
        };
        self.apply(py, Op::Store, node, keys.len() / KEY_BYTES, entry)
    }

    fn store_mixed(
        &self,
        py: Python<'_>,
        node: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        depths: &Bound<'_, PyAny>,
        tiers: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (keys, depths) = keys_and_depths(keys, depths)?;
        let tiers = View::packed(tiers, 1, "tiers")?;
        let (keys, depths, tiers) = (keys.bytes(), depths.bytes(), tiers.bytes());
        let count = keys.len() / KEY_BYTES;
        if tiers.len() != count {
            let tiers = tiers.len();
            return Err(PyValueError::new_err(format!(
                "{count} keys, but {tiers} tiers"
            )));
        }
        if let Some(tier) = tiers.iter().find(|&&tier| usize::from(tier) >= MAX_TIERS) {
            return Err(out_of_range("tier", tier, MAX_TIERS));
        }
        let entry = |at: usize| Entry {
            key: key_at(keys, at),
            depth: depth_at(depths, at),
            tier: tiers[at],
        };
        self.apply(py, Op::Store, node, count, entry)
    }

    fn r#move(
        &self,
        py: Python<'_>,
        node: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        tier: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = View::packed(keys, KEY_BYTES, "keys")?;
        let (keys, tier) = (keys.bytes(), tier_number(tier)?);
        let entry = |at| Entry {
            key: key_at(keys, at),
            depth: 0,
            tier,
        };
        self.apply(py, Op::Move, node, keys.len() / KEY_BYTES, entry)?;
        Ok(())
    }

    fn remove(
        &self,
        py: Python<'_>,
        node: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = View::packed(keys, KEY_BYTES, "keys")?;
        let keys = keys.bytes();
        let entry = |at| Entry {
            key: key_at(keys, at),
            ..Entry::default()
        };
        self.apply(py, Op::Remove, node, keys.len() / KEY_BYTES, entry)?;
        Ok(())
    }

    fn clear(&self, py: Python<'_>, node: &Bound<'_, PyAny>) -> PyResult<()> {
        let node = node_number(node)?;
        py.detach(|| self.0.clear(node));
        Ok(())
    }

    fn r#match<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let keys = View::packed(keys, KEY_BYTES, "keys")?;
        SCRATCH.with_borrow_mut(|scratch| {
            let rows = keys.work(py, LONG * KEY_BYTES, |keys| self.0.matches(keys, scratch));
            let words = rows.as_flattened();
            PyBytes::new_with(py, size_of_val(words), |bytes| {
                for (packed, word) in bytes.chunks_exact_mut(size_of::<u32>()).zip(words) {
                    packed.copy_from_slice(&word.to_le_bytes());
                }
                Ok(())
            })
        })
    }

    fn digest(&self, node: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
        Ok(self.0.digest(node_number(node)?))
    }

    fn digests<'py>(
        &self,
        py: Python<'py>,
        node: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let digests = self.0.digests(node_number(node)?);
        let packed: Vec<u8> = digests
            .flat_map(|(count, xor)| [count.to_le_bytes(), xor.to_le_bytes()].concat())
            .collect();
        Ok(PyBytes::new(py, &packed))
    }

    fn traffic(&self) -> Vec<(u64, u64)> {
        self.0.traffic().collect()
    }

    #[allow(clippy::type_complexity)]
    #[pyo3(signature = (node, partition = None))]
    fn dump<'py>(
        &self,
        py: Python<'py>,
        node: &Bound<'py, PyAny>,
        partition: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
    )> {
        let node = node_number(node)?;
        let count = self.0.partitions();
        let partitions = match partition {
            None => 0..count,
            Some(partition) => {
                let number = below(partition, count, "partition")?;
                number..number + 1
            }
        };
        let (keys, depths, tiers) = py.detach(|| {
            let entries = self.0.dump(node, partitions);
            let keys: Vec<u8> = entries.iter().flat_map(|it| it.key.to_le_bytes()).collect();
            let depths: Vec<u8> = entries
                .iter()
                .flat_map(|it| it.depth.to_le_bytes())
                .collect();
            let tiers: Vec<u8> = entries.iter().map(|it| it.tier).collect();
            (keys, depths, tiers)
        });
        Ok((
            PyBytes::new(py, &keys),
            PyBytes::new(py, &depths),
            PyBytes::new(py, &tiers),
        ))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.stats();
        let dict = PyDict::new(py);
        dict.set_item("keys", stats.keys)?;
        dict.set_item("holdings", stats.holdings)?;
        dict.set_item("bytes", stats.bytes)?;
        dict.set_item("dropped", stats.dropped)?;
        dict.set_item("sets", stats.sets)?;
        Ok(dict)
    }
}

impl PrefixIndex {
    /// Applies `count` entries; returns how many found no room.
    fn apply(
        &self,
        py: Python<'_>,
        op: Op,
        node: &Bound<'_, PyAny>,
        count: usize,
        entry: impl Fn(usize) -> Entry,
    ) -> PyResult<usize> {
        let node = node_number(node)?;
        let batch = self.0.batch(op, node, (0..count).map(&entry));
        Ok(if count < LONG {
            self.0.apply(batch)
        } else {
            py.detach(|| self.0.apply(batch))
        })
    }
}

fn keys_and_depths<'a>(
    keys: &'a Bound<'_, PyAny>,
    depths: &'a Bound<'_, PyAny>,
) -> PyResult<(View<'a>, View<'a>)> {
    let keys = View::packed(keys, KEY_BYTES, "keys")?;
    let depths = View::packed(depths, DEPTH_BYTES, "depths")?;
    let counts = (
        keys.bytes().len() / KEY_BYTES,
        depths.bytes().len() / DEPTH_BYTES,
    );
    if counts.0 != counts.1 {
        return Err(PyValueError::new_err(format!(
            "{} keys, but {} depths",
            counts.0, counts.1
        )));
    }
    Ok((keys, depths))
}

fn depth_at(depths: &[u8], index: usize) -> u32 {
    let at = index * DEPTH_BYTES;
    u32::from_le_bytes(
        depths[at..at + DEPTH_BYTES]
            .try_into()
            .expect("the slice is as long as a depth"),
    )
}

pub fn node_number(object: &Bound<'_, PyAny>) -> PyResult<u16> {
    Ok(below(object, MAX_NODES, "node")? as u16)
}

fn tier_number(object: &Bound<'_, PyAny>) -> PyResult<u8> {
    Ok(below(object, MAX_TIERS, "tier")? as u8)
}

fn below(object: &Bound<'_, PyAny>, end: usize, name: &str) -> PyResult<usize> {
    let number = match object.extract::<i64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => -1,
        number => number?,
    };
    match usize::try_from(number) {
        Ok(number) if number < end => Ok(number),
        _ => Err(out_of_range(name, object, end)),
    }
}

fn out_of_range(name: &str, value: impl std::fmt::Display, end: usize) -> PyErr {
    PyValueError::new_err(format!("{name} is {value}: 0 to {}", end - 1))
}
