//! `hash64`, `page_chain`, `sample`, `spanned`, `text_chain`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::buffer::View;
use crate::keys::{self, TextChain, KEY_BYTES, PAGE_TOKENS, SEGMENT_END};
use crate::prompt::Sampling;

/// Bytes from which it is worth letting other threads run: about 50 us of hashing.
const LONG: usize = 1 << 18;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PAGE_TOKENS", PAGE_TOKENS)?;
    module.add("SEGMENT_END", SEGMENT_END)?;
    module.add_function(wrap_pyfunction!(hash64, module)?)?;
    module.add_function(wrap_pyfunction!(page_chain, module)?)?;
    module.add_function(wrap_pyfunction!(sample, module)?)?;
    module.add_function(wrap_pyfunction!(spanned, module)?)?;
    module.add_function(wrap_pyfunction!(text_chain, module)?)
}

#[pyfunction]
#[pyo3(signature = (data, seed = 0))]
fn hash64(py: Python<'_>, data: &Bound<'_, PyAny>, seed: u64) -> PyResult<u64> {
    let data = View::raw(data)?;
    Ok(data.work(py, LONG, |data| keys::hash64(data, seed)))
}

#[pyfunction]
fn page_chain<'py>(
    py: Python<'py>,
    seed: u64,
    tokens: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let tokens = View::packed(tokens, size_of::<i32>(), "tokens")?;
    let keys = tokens.work(py, LONG, |tokens| keys::page_chain(seed, tokens));
    Ok(PyBytes::new(py, &keys))
}

#[pyfunction]
fn sample<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    dense: usize,
    stride: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let sampling = sampling(dense, stride)?;
    let keys = View::packed(keys, KEY_BYTES, "keys")?;
    Ok(PyBytes::new(py, &sampling.sample(keys.bytes())))
}

#[pyfunction]
fn spanned(count: usize, dense: usize, stride: usize) -> PyResult<usize> {
    Ok(sampling(dense, stride)?.spanned(count))
}

fn sampling(dense: usize, stride: usize) -> PyResult<Sampling> {
    if stride == 0 {
        return Err(PyValueError::new_err("stride is 0: at least 1"));
    }
    Ok(Sampling { dense, stride })
}

#[pyfunction]
fn text_chain<'py>(
    py: Python<'py>,
    seed: u64,
    frames: Vec<Bound<'py, PyBytes>>,
    texts: Vec<Bound<'py, PyAny>>,
    chunk: usize,
    closed: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    if chunk == 0 {
        return Err(PyValueError::new_err("chunk is 0 bytes: at least 1"));
    }
    if frames.len() != texts.len() {
        let counts = (frames.len(), texts.len());
        return Err(PyValueError::new_err(format!(
            "{} frames, but {} texts",
            counts.0, counts.1
        )));
    }
    let texts = texts.iter().map(utf8).collect::<PyResult<Vec<&[u8]>>>()?;
    let frames = frames.iter().map(|frame| frame.as_bytes());
    let segments: Vec<(&[u8], &[u8])> = frames.zip(texts).collect();
    let work = || {
        let mut chain = TextChain::new(seed, chunk, closed);
        for (frame, text) in &segments {
            chain.segment(frame, text);
        }
        chain.into_keys()
    };
    let long = segments.iter().map(|(_, text)| text.len()).sum::<usize>() >= LONG;
    let keys = if long { py.detach(work) } else { work() };
    Ok(PyBytes::new(py, &keys))
}

/// The bytes of `bytes`, or of `str` in UTF-8: those of ASCII where they lie, others encoded once and kept by the object.
pub fn utf8<'a>(text: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    match text.cast_exact::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes()),
        Err(_) => Ok(text.cast::<PyString>()?.to_str()?.as_bytes()),
    }
}
