//! `Heat`.

use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::heat;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Heat>()
}

#[pyclass(frozen, module = "trunkline.kernels.core")]
struct Heat {
    kinds: usize,
    levels: usize,
    tiers: usize,
    /// Used from one thread; here only because Python cannot promise that.
    heat: Mutex<heat::Heat>,
}

#[pymethods]
impl Heat {
    #[new]
    fn new(
        ages: Vec<u64>,
        kinds: usize,
        levels: usize,
        prior: f64,
        decay: f64,
        visits: usize,
        tiers: usize,
    ) -> PyResult<Self> {
        let ascend = ages.windows(2).all(|pair| pair[0] < pair[1]);
        if ages.first() != Some(&0) || !ascend || !(2..=256).contains(&ages.len()) {
            return Err(PyValueError::new_err(
                "ages: 2 to 256 numbers that ascend from 0",
            ));
        }
        if !(1..=16).contains(&kinds)
            || levels > 256
            || visits == 0
            || !(prior > 0.0 && prior.is_finite())
            || !(0.0..1.0).contains(&decay)
        {
            return Err(PyValueError::new_err(format!(
                "kinds {kinds} is not in 1 to 16, levels {levels} above 256, visits {visits} below 1, prior {prior} not positive, or decay {decay} not in [0, 1)"
            )));
        }
        let settings = heat::Settings {
            ages,
            kinds,
            levels,
            prior,
            decay,
            visits,
            tiers,
        };
        Ok(Heat {
            kinds,
            levels,
            tiers,
            heat: Mutex::new(heat::Heat::new(settings)),
        })
    }

    #[getter]
    fn now(&self) -> u64 {
        self.lock().now()
    }

    #[pyo3(signature = (levels, kind = 0))]
    fn visit(&self, levels: Vec<u8>, kind: u8) -> PyResult<u64> {
        if levels.len() > heat::MAX_LEVELS
            || levels.iter().any(|&level| level as usize >= self.levels)
        {
            return Err(PyValueError::new_err(format!(
                "levels {levels:?}: at most {}, each below {}",
                heat::MAX_LEVELS,
                self.levels
            )));
        }
        if kind as usize >= self.kinds {
            return Err(PyValueError::new_err(format!(
                "kind {kind} is not below {}",
                self.kinds
            )));
        }
        Ok(self.lock().visit(&levels, kind))
    }

    fn returned(&self, visit: u64) -> PyResult<()> {
        let mut heat = self.lock();
        check_visit(&heat, visit)?;
        heat.returned(visit);
        Ok(())
    }

    fn offer(&self, tier: usize, page: u32, visit: u64) -> PyResult<()> {
        self.check_tier(tier)?;
        let mut heat = self.lock();
        check_visit(&heat, visit)?;
        heat.offer(tier, page, visit);
        Ok(())
    }

    fn take(&self, tier: usize) -> PyResult<Option<u32>> {
        self.check_tier(tier)?;
        Ok(self.lock().take(tier))
    }

    fn take_oldest(&self, tier: usize) -> PyResult<Option<u32>> {
        self.check_tier(tier)?;
        Ok(self.lock().take_oldest(tier))
    }

    fn worth(&self, visit: u64) -> PyResult<f64> {
        let heat = self.lock();
        check_visit(&heat, visit)?;
        Ok(heat.worth(visit))
    }

    fn offered(&self, tier: usize, page: u32) -> PyResult<Option<u64>> {
        self.check_tier(tier)?;
        Ok(self.lock().offered(tier, page))
    }

    fn clear(&self, tier: usize) -> PyResult<()> {
        self.check_tier(tier)?;
        self.lock().clear(tier);
        Ok(())
    }

    fn rates(&self) -> (Vec<f64>, Vec<f64>) {
        let heat = self.lock();
        let (rates, values) = heat.rates();
        (rates.to_vec(), values.to_vec())
    }

    fn factors(&self) -> Vec<f64> {
        self.lock().factors()
    }
}

impl Heat {
    fn lock(&self) -> MutexGuard<'_, heat::Heat> {
        self.heat.lock().expect("a call panicked")
    }

    fn check_tier(&self, tier: usize) -> PyResult<()> {
        if tier < self.tiers {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "tier {tier} is not below {}",
            self.tiers
        )))
    }
}

fn check_visit(heat: &heat::Heat, visit: u64) -> PyResult<()> {
    if visit < heat.now() {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "visit {visit} has not begun"
    )))
}
