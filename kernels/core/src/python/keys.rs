//! `hash64`, `page_chain`, `text_chain`.

use pyo3::prelude::*;

use crate::keys::PAGE_TOKENS;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PAGE_TOKENS", PAGE_TOKENS)
}
