//! The hot, concurrent mechanism of Trunkline: key chains, prefix index, what nodes were given lately and how
//! often it was asked for, ranking of nodes, page pool, heat of pages, page locator, pages that other nodes read, streams
//! passed on from socket to socket.
//!
//! Everything with policy in it is Python. The modules here know nothing of Python either; `python/`
//! alone does, so that `cargo test`, loom and the sanitizers run without an interpreter.

mod copies;
mod demand;
pub mod generations;
pub mod heat;
pub mod index;
pub mod keys;
pub mod locator;
pub mod members;
pub mod offers;
pub mod pacer;
pub mod pool;
pub mod prompt;
pub mod pulls;
mod rank;
pub mod ranking;
pub mod slots;
#[cfg(not(loom))]
pub mod splice;
pub mod stream;
mod sync;
pub mod tls;
pub mod wire;

#[cfg(feature = "python")]
mod python;
