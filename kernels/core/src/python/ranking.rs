//! `Candidates`, `Ranker`, `Ranking`.

use std::cell::RefCell;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList};

use super::buffer::View;
use super::generations::Generations;
use super::index::{node_number, PrefixIndex};
use super::keys::utf8;
use crate::keys::KEY_BYTES;
use crate::members::Members;
use crate::offers::{Board, Offer, Prices};
use crate::prompt::{Prompt, Sampling, Text};
use crate::ranking::{self, Group, Policy, Request, Scratch};

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Candidates>()?;
    module.add_class::<Ranker>()?;
    module.add_class::<Ranking>()
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct Candidates {
    members: Members,
    index: Option<Py<PrefixIndex>>,
    claims: Py<Generations>,
}

#[pymethods]
impl Candidates {
    #[new]
    fn new(
        nodes: Vec<Bound<'_, PyAny>>,
        index: Option<Py<PrefixIndex>>,
        claims: Py<Generations>,
    ) -> PyResult<Self> {
        let numbers = nodes.iter().map(|node| Ok(u32::from(node_number(node)?)));
        Ok(Candidates {
            members: Members::new(numbers.collect::<PyResult<_>>()?),
            index,
            claims,
        })
    }
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct Ranker {
    accounts: Py<PyByteArray>,
    passing: Py<PyByteArray>,
    links: Py<PyByteArray>,
    sizes: usize,
    smallest: u32,
    chunk: usize,
    policy: Policy,
}

#[pymethods]
impl Ranker {
    #[new]
    #[pyo3(signature = (accounts, passing, links, *, sizes, smallest, chunk, dense, stride, memory_s, limit, full_s, tie, negligible_s, most, latency_s, readers))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        accounts: Py<PyByteArray>,
        passing: Py<PyByteArray>,
        links: Py<PyByteArray>,
        sizes: usize,
        smallest: u32,
        chunk: usize,
        dense: usize,
        stride: usize,
        memory_s: f64,
        limit: f64,
        full_s: f64,
        tie: f64,
        negligible_s: f64,
        most: usize,
        latency_s: f64,
        readers: usize,
    ) -> PyResult<Self> {
        for (name, value) in [("sizes", sizes), ("chunk", chunk), ("stride", stride)] {
            if value == 0 {
                return Err(PyValueError::new_err(format!("{name} is 0: at least 1")));
            }
        }
        Ok(Ranker {
            accounts,
            passing,
            links,
            sizes,
            smallest,
            chunk,
            policy: Policy {
                sampling: Sampling { dense, stride },
                memory_s,
                limit,
                full_s,
                tie,
                negligible_s,
                most,
                latency_s,
                readers,
            },
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn rank<'py>(
        &self,
        py: Python<'py>,
        candidates: Vec<Py<Candidates>>,
        chains: Vec<Bound<'py, PyBytes>>,
        text: Option<(Bound<'py, PyList>, Bound<'py, PyList>, bool)>,
        tokens: u32,
        bytes_per_token: f64,
        per_token: f64,
        per_pair: f64,
        found: f64,
        weight: f64,
        draw: f64,
        now: f64,
        relief: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Ranking, Vec<Bound<'py, PyBytes>>)> {
        if candidates.len() != chains.len() {
            let counts = (candidates.len(), chains.len());
            return Err(PyValueError::new_err(format!(
                "{} groups of candidates, but {} chains",
                counts.0, counts.1
            )));
        }
        let request = Request {
            prompt: self.prompt(text, bytes_per_token)?,
            prices: Prices {
                token: per_token,
                pair: per_pair,
            },
            found,
            weight,
            now,
        };
        let sample = |chain: &Bound<'py, PyBytes>| {
            let chain = View::packed(chain, KEY_BYTES, "chain")?;
            Ok(PyBytes::new(
                py,
                &self.policy.sampling.sample(chain.bytes()),
            ))
        };
        let samples = chains.iter().map(sample).collect::<PyResult<Vec<_>>>()?;
        let mut groups = Vec::with_capacity(candidates.len());
        for ((one, chain), sample) in candidates.iter().zip(&chains).zip(&samples) {
            let one = one.get();
            groups.push(Group {
                members: &one.members,
                index: one.index.as_ref().map(|index| &index.get().0),
                claims: &one.claims.get().0,
                chain: chain.as_bytes(),
                sample: sample.as_bytes(),
            });
        }
        let rows = groups.iter().map(|group| group.members.rows()).max();
        let mut ranking = ranking::Ranking::new(tokens);
        SCRATCH.with_borrow_mut(|scratch| {
            let board = self.board(py, rows.unwrap_or(0))?;
            for group in &groups {
                ranking.look_up(group, scratch);
            }
            for (at, group) in groups.iter().enumerate() {
                ranking.weigh(at, group, board, &self.policy, &request, scratch);
            }
            PyResult::Ok(())
        })?;
        for (node, seconds) in relief.into_iter().flatten() {
            let seconds = |work: f64| seconds.call1((work,))?.extract::<f64>();
            ranking.relieve(&groups, u32::from(node_number(&node)?), seconds)?;
        }
        ranking.rank(&self.policy, weight, draw);
        Ok((Ranking(ranking), samples))
    }
}

impl Ranker {
    /// With `rows` at least.
    fn board<'py>(&'py self, py: Python<'py>, rows: usize) -> PyResult<Board<'py>> {
        // SAFETY: nobody writes to them or resizes them while the GIL is held, and the board is gone before it is given up.
        let [accounts, passing, links] = unsafe {
            [&self.accounts, &self.passing, &self.links].map(|bytes| bytes.bind(py).as_bytes())
        };
        let board = Board {
            accounts,
            passing,
            links,
            sizes: self.sizes,
            smallest: self.smallest,
        };
        if board.rows() < rows {
            let (last, rows) = (rows - 1, board.rows());
            return Err(PyValueError::new_err(format!(
                "node {last} is not one of the board's {rows}"
            )));
        }
        Ok(board)
    }

    fn prompt(
        &self,
        text: Option<(Bound<'_, PyList>, Bound<'_, PyList>, bool)>,
        bytes_per_token: f64,
    ) -> PyResult<Prompt> {
        let Some((frames, texts, closed)) = text else {
            return Ok(Prompt::Pages);
        };
        let segment = |(frame, text): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            Ok((
                frame.cast::<PyBytes>()?.as_bytes().len(),
                utf8(&text)?.len(),
            ))
        };
        Ok(Prompt::Text(Text {
            segments: frames
                .iter()
                .zip(&texts)
                .map(segment)
                .collect::<PyResult<_>>()?,
            chunk: self.chunk,
            closed,
            bytes_per_token,
        }))
    }
}

#[pyclass(module = "trunkline.kernels.core")]
struct Ranking(ranking::Ranking);

/// Group, position in it, tokens held, position of the node to pull from, tokens to pull.
type Choice = (usize, u32, u32, Option<u32>, u32);

#[pymethods]
impl Ranking {
    /// Of nodes that were weighed.
    fn __len__(&self) -> usize {
        self.0.offers().len()
    }

    fn __sizeof__(&self) -> usize {
        size_of::<Self>() + self.0.bytes()
    }

    #[getter]
    fn tokens(&self) -> u32 {
        self.0.tokens()
    }

    #[getter]
    fn ranked(&self) -> usize {
        self.0.ranked()
    }

    fn choice(&mut self, rank: usize) -> PyResult<Choice> {
        let choice = self.0.choice(rank);
        let choice = choice.ok_or_else(|| self.missing(rank))?;
        let (source, tokens) = choice.pull.unzip();
        Ok((
            choice.group,
            choice.at,
            choice.matched,
            source,
            tokens.unwrap_or(0),
        ))
    }

    fn prefer(&mut self, rank: usize) -> PyResult<()> {
        let done = self.0.prefer(rank);
        done.ok_or_else(|| self.missing(rank))
    }

    fn offers(&self) -> Vec<(f64, f64, f64, f64, f64, f64)> {
        let tuple =
            |&[work, wait, drag, load, matched, at]: &Offer| (work, wait, drag, load, matched, at);
        self.0.offers().iter().map(tuple).collect()
    }

    fn known(&self, group: usize) -> PyResult<Vec<(u32, u32, u32, u32)>> {
        let tuple = |&[node, device, host, disk]: &[u32; 4]| (node, device, host, disk);
        Ok(self.0.tiers(self.group(group)?).iter().map(tuple).collect())
    }

    fn claimed(&self, group: usize) -> PyResult<Vec<(u32, u32)>> {
        Ok(self.0.claimed(self.group(group)?).to_vec())
    }

    fn pulls(&self, group: usize) -> PyResult<Vec<(u32, u32, u32)>> {
        let pulls = self.0.pulls(self.group(group)?).iter();
        Ok(pulls
            .map(|pull| (pull.at, pull.source, pull.tokens))
            .collect())
    }
}

impl Ranking {
    fn group(&self, group: usize) -> PyResult<usize> {
        let groups = self.0.groups();
        let missing = || PyIndexError::new_err(format!("group {group} of {groups}"));
        (group < groups).then_some(group).ok_or_else(missing)
    }

    fn missing(&self, rank: usize) -> PyErr {
        PyIndexError::new_err(format!("rank {rank} of {}", self.0.ranked()))
    }
}
