//! `PageSlots`, `Lender` and `fetch_pages`: pages that other nodes read.

use std::sync::atomic::Ordering;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::buffer::View;
use super::channel::PageStream;
use super::seconds;
use crate::pacer::Pacer;
use crate::slots::{Descriptor, Slots, Status};
use crate::stream::{self, Lent, Patience};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MAX_BATCH", stream::MAX_BATCH)?;
    module.add_class::<PageSlots>()?;
    module.add_class::<Lender>()?;
    module.add_function(wrap_pyfunction!(fetch_pages, module)?)
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct PageSlots {
    slots: Slots,
    writable: bool,
    /// What `slots` points into stays while these are held.
    _memory: [PyUntypedBuffer; 2],
}

#[pymethods]
impl PageSlots {
    #[new]
    fn new(
        generations: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
        stride: usize,
        page_bytes: usize,
    ) -> PyResult<Self> {
        let memory = [
            PyUntypedBuffer::get(generations)?,
            PyUntypedBuffer::get(pages)?,
        ];
        if !memory.iter().all(PyUntypedBuffer::is_c_contiguous) {
            return Err(PyValueError::new_err("a buffer is not C-contiguous"));
        }
        let (size, room) = (memory[0].len_bytes(), memory[1].len_bytes());
        let count = size / size_of::<u32>();
        let fits = count > 0
            && size % size_of::<u32>() == 0
            && memory[0].buf_ptr().cast::<u32>().is_aligned()
            && (1..=stride).contains(&page_bytes)
            && stride.checked_mul(count).is_some_and(|all| all <= room);
        if !fits {
            return Err(PyValueError::new_err(format!(
                "{size} bytes of generations and {room} of pages are not those of slots of {page_bytes} bytes, {stride} apart"
            )));
        }
        // SAFETY: both buffers were just found to have this size, and are held for as long as this lives.
        let slots = unsafe {
            Slots::new(
                memory[0].buf_ptr().cast(),
                memory[1].buf_ptr().cast(),
                count,
                stride,
                page_bytes,
            )
        };
        Ok(PageSlots {
            slots,
            writable: !memory[1].readonly(),
            _memory: memory,
        })
    }

    fn copy_from<'py>(
        &self,
        py: Python<'py>,
        source: &PageSlots,
        descriptors: &Bound<'py, PyAny>,
        targets: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (descriptors, targets) = self.batch(descriptors, targets)?;
        let (from, to) = (source.slots, self.slots);
        if from.page_bytes() != to.page_bytes() {
            let sizes = (from.page_bytes(), to.page_bytes());
            return Err(PyValueError::new_err(format!(
                "pages of {} bytes cannot become pages of {}",
                sizes.0, sizes.1
            )));
        }
        let statuses = py.detach(|| {
            let pages = Descriptor::unpack_all(&descriptors).zip(&targets);
            pages
                .map(|(descriptor, &slot)| from.copy(descriptor, &to, slot as usize) as u8)
                .collect::<Vec<u8>>()
        });
        Ok(PyBytes::new(py, &statuses))
    }

    #[getter]
    fn count(&self) -> usize {
        self.slots.count()
    }

    #[getter]
    fn stride(&self) -> usize {
        self.slots.stride()
    }

    #[getter]
    fn page_bytes(&self) -> usize {
        self.slots.page_bytes()
    }

    #[getter]
    fn generations_at(&self) -> usize {
        self.slots.addresses().0
    }

    #[getter]
    fn pages_at(&self) -> usize {
        self.slots.addresses().1
    }
}

impl PageSlots {
    fn has(&self, slot: usize) -> PyResult<()> {
        if slot < self.slots.count() {
            return Ok(());
        }
        let count = self.slots.count();
        Err(PyValueError::new_err(format!(
            "slot {slot} is not one of {count}"
        )))
    }

    fn own(&self) -> PyResult<()> {
        if self.writable {
            return Ok(());
        }
        Err(PyValueError::new_err(
            "these slots are another's: they can only be read",
        ))
    }

    /// Copies, since nothing is to change them once the GIL is gone: descriptors, and a slot of this for each.
    fn batch(
        &self,
        descriptors: &Bound<'_, PyAny>,
        targets: &Bound<'_, PyAny>,
    ) -> PyResult<(Vec<u8>, Vec<u32>)> {
        self.own()?;
        let descriptors = View::raw(descriptors)?.bytes().to_vec();
        let targets: Vec<u32> = View::packed(targets, size_of::<u32>(), "targets")?
            .bytes()
            .chunks_exact(size_of::<u32>())
            .map(|slot| u32::from_le_bytes(slot.try_into().expect("four bytes")))
            .collect();
        if descriptors.len() != targets.len() * Descriptor::BYTES {
            let (bytes, count) = (descriptors.len(), targets.len());
            return Err(PyValueError::new_err(format!(
                "{bytes} bytes of descriptors for {count} targets: {} each",
                Descriptor::BYTES
            )));
        }
        targets
            .iter()
            .try_for_each(|&slot| self.has(slot as usize))?;
        Ok((descriptors, targets))
    }
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct Lender {
    regions: Vec<(u8, Py<PageSlots>)>,
    pacer: Pacer,
    lent: Lent,
}

#[pymethods]
impl Lender {
    #[new]
    fn new(regions: Vec<(u8, Py<PageSlots>)>) -> Self {
        Lender {
            regions,
            pacer: Pacer::new(),
            lent: Lent::default(),
        }
    }

    fn serve(
        &self,
        py: Python<'_>,
        stream: &PageStream,
        idle_s: f64,
        stall_s: f64,
    ) -> PyResult<()> {
        let idle = seconds(idle_s, "idle_s")?;
        let stall = seconds(stall_s, "stall_s")?;
        let regions: Vec<(u8, Slots)> = self
            .regions
            .iter()
            .map(|(tier, slots)| (*tier, slots.get().slots))
            .collect();
        let (pacer, lent) = (&self.pacer, &self.lent);
        let served = stream.with(py, |channel| {
            stream::serve(channel, idle, stall, &regions, pacer, lent)
        });
        served.map_err(PyErr::from)
    }

    #[getter]
    fn rate(&self) -> u64 {
        self.pacer.rate()
    }

    #[setter]
    fn set_rate(&self, bytes_per_s: u64) {
        self.pacer.set_rate(bytes_per_s);
    }

    #[getter]
    fn share(&self) -> f64 {
        self.pacer.share()
    }

    #[setter]
    fn set_share(&self, share: f64) -> PyResult<()> {
        if !(0.0..=1.0).contains(&share) {
            return Err(PyValueError::new_err(format!(
                "share is {share}: from 0 to 1"
            )));
        }
        self.pacer.set_share(share);
        Ok(())
    }

    #[getter]
    fn waited_s(&self) -> f64 {
        self.pacer.waited().as_secs_f64()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        let Lent {
            pages,
            bytes,
            refused,
        } = &self.lent;
        for (name, count) in [("pages", pages), ("bytes", bytes), ("refused", refused)] {
            stats.set_item(name, count.load(Ordering::Relaxed))?;
        }
        Ok(stats)
    }
}

#[pyfunction]
fn fetch_pages<'py>(
    py: Python<'py>,
    stream: &PageStream,
    descriptors: &Bound<'py, PyAny>,
    slots: &PageSlots,
    targets: &Bound<'py, PyAny>,
    stall_s: f64,
    timeout_s: f64,
) -> PyResult<(Bound<'py, PyBytes>, Option<String>)> {
    let (descriptors, targets) = slots.batch(descriptors, targets)?;
    if targets.len() > stream::MAX_BATCH {
        let (count, most) = (targets.len(), stream::MAX_BATCH);
        return Err(PyValueError::new_err(format!(
            "{count} pages in one request: at most {most}"
        )));
    }
    let patience = Patience {
        stall: seconds(stall_s, "stall_s")?,
        whole: seconds(timeout_s, "timeout_s")?,
    };
    let (target, to) = (slots.slots, &targets);
    let (statuses, error) = stream.with(py, |channel| {
        stream::fetch(channel, &descriptors, &target, to, patience)
    });
    let statuses: Vec<u8> = statuses
        .into_iter()
        .map(|status: Status| status as u8)
        .collect();
    Ok((
        PyBytes::new(py, &statuses),
        error.map(|error| error.to_string()),
    ))
}
