//! Key chains.

/// Tokens per page.
pub const PAGE_TOKENS: usize = 16;
