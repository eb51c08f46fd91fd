//! `weigh`, `rank`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};

use super::buffer::View;
use crate::offers::{self, Board, Offer, Prices, Prompt, Rule};

const OFFER_BYTES: usize = size_of::<Offer>();

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(weigh, module)?)?;
    module.add_function(wrap_pyfunction!(rank, module)?)
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn weigh<'py>(
    py: Python<'py>,
    board: &Bound<'py, PyAny>,
    sizes: usize,
    smallest: u32,
    rows: &Bound<'py, PyAny>,
    tiers: &Bound<'py, PyAny>,
    claimed: &Bound<'py, PyAny>,
    depths: &Bound<'py, PyList>,
    uses: &Bound<'py, PyList>,
    memory_s: f64,
    tokens: u32,
    per_token: f64,
    per_pair: f64,
) -> PyResult<Bound<'py, PyByteArray>> {
    if sizes == 0 || sizes > 64 {
        return Err(PyValueError::new_err(format!(
            "{sizes} sizes: from 1 to 64"
        )));
    }
    let board = View::raw(board)?;
    let rows = View::packed(rows, size_of::<u32>(), "rows")?;
    let tiers = View::raw(tiers)?;
    let claimed = View::raw(claimed)?;
    let board = Board {
        bytes: board.bytes(),
        sizes,
        smallest,
    };
    let rows: Vec<u32> = words(rows.bytes()).map(|[row]| row).collect();
    if let Some(row) = rows.iter().find(|&&row| row as usize >= board.rows()) {
        return Err(PyValueError::new_err(format!(
            "row {row} is not one of the board's {}",
            board.rows()
        )));
    }
    let held = words(tiers.bytes()).map(|[row, device, host, disk]| (row, [device, host, disk]));
    let claimed = words(claimed.bytes()).map(|[row, place]| (row, place));
    let depths = depths.iter().map(|depth| depth.extract::<u32>());
    let uses = uses.iter().map(|count| count.extract::<f64>());
    let prompt = Prompt {
        tokens,
        depths: &depths.collect::<PyResult<Vec<_>>>()?,
        uses: &uses.collect::<PyResult<Vec<_>>>()?,
        memory_s,
    };
    let prices = Prices {
        token: per_token,
        pair: per_pair,
    };
    let offers = offers::weigh(&board, &rows, held, claimed, &prompt, &prices);
    let terms = offers.as_flattened();
    PyByteArray::new_with(py, size_of_val(terms), |bytes| {
        for (packed, term) in bytes.as_chunks_mut().0.iter_mut().zip(terms) {
            *packed = term.to_ne_bytes();
        }
        Ok(())
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn rank(
    offers: &Bound<'_, PyAny>,
    weight: f64,
    limit: f64,
    full_s: f64,
    tie: f64,
    negligible_s: f64,
    draw: f64,
    most: usize,
) -> PyResult<Vec<u32>> {
    let view = View::raw(offers)?;
    let (chunks, rest) = view.bytes().as_chunks::<OFFER_BYTES>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err(format!(
            "{} bytes are no whole number of offers",
            view.bytes().len()
        )));
    }
    // SAFETY: whatever the bytes are, they are f64s.
    let (start, mut offers, _) = unsafe { view.bytes().align_to::<Offer>() };
    let copied: Vec<Offer>;
    if !start.is_empty() {
        copied = chunks.iter().map(offer).collect();
        offers = &copied;
    }
    let rule = Rule {
        weight,
        limit,
        full_s,
        tie,
        negligible_s,
    };
    Ok(offers::rank(offers, &rule, draw, most))
}

fn offer(packed: &[u8; OFFER_BYTES]) -> Offer {
    let (values, _) = packed.as_chunks::<8>();
    std::array::from_fn(|at| f64::from_ne_bytes(values[at]))
}

/// Rows of packed u32s.
fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u32; N]> + '_ {
    let (words, _) = bytes.as_chunks::<4>();
    let (rows, _) = words.as_chunks::<N>();
    rows.iter().map(|row| row.map(u32::from_ne_bytes))
}
