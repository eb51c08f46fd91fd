//! `weigh`, `rank`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use super::buffer::View;
use crate::offers::{self, Board, Offer, Prices, Rule};

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
    let rows: Vec<u32> = words(rows.bytes()).collect();
    if let Some(row) = rows.iter().find(|&&row| row as usize >= board.rows()) {
        return Err(PyValueError::new_err(format!(
            "row {row} is not one of the board's {}",
            board.rows()
        )));
    }
    let tiers = quads(tiers.bytes())
        .map(|[node, device, host, disk]| (node, device.saturating_add(host).saturating_add(disk)));
    let held = tiers.chain(pairs(claimed.bytes()));
    let prices = Prices {
        token: per_token,
        pair: per_pair,
    };
    let offers = offers::weigh(&board, &rows, held, tokens, &prices);
    let packed: Vec<u8> = offers
        .as_flattened()
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    Ok(PyByteArray::new(py, &packed))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn rank<'py>(
    py: Python<'py>,
    offers: &Bound<'py, PyAny>,
    weight: f64,
    limit: f64,
    full_s: f64,
    tie: f64,
    negligible_s: f64,
    draw: f64,
) -> PyResult<Bound<'py, PyBytes>> {
    let view = View::raw(offers)?;
    let (chunks, rest) = view.bytes().as_chunks::<OFFER_BYTES>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err(format!(
            "{} bytes are no whole number of offers",
            view.bytes().len()
        )));
    }
    let offers: Vec<Offer> = chunks
        .iter()
        .map(|chunk| {
            let (values, _) = chunk.as_chunks::<8>();
            [0, 1, 2].map(|at| f64::from_ne_bytes(values[at]))
        })
        .collect();
    let order = offers::rank(
        &offers,
        &Rule {
            weight,
            limit,
            full_s,
            tie,
            negligible_s,
        },
        draw,
    );
    let packed: Vec<u8> = order.iter().flat_map(|at| at.to_ne_bytes()).collect();
    Ok(PyBytes::new(py, &packed))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_ne_bytes(*word))
}

fn quads(bytes: &[u8]) -> impl Iterator<Item = [u32; 4]> + '_ {
    let (chunks, _) = bytes.as_chunks::<16>();
    chunks.iter().map(|chunk| {
        let (words, _) = chunk.as_chunks::<4>();
        [0, 1, 2, 3].map(|at| u32::from_ne_bytes(words[at]))
    })
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let (chunks, _) = bytes.as_chunks::<8>();
    chunks.iter().map(|chunk| {
        let (words, _) = chunk.as_chunks::<4>();
        (u32::from_ne_bytes(words[0]), u32::from_ne_bytes(words[1]))
    })
}
