//! Which page of a tier is worth least: how likely somebody comes back for it, learned from who came back so far.
//!
//! A visit is one use of a run of pages. It returns when its last page is used again; the clock counts visits. The rate
//! of return is a rate by age times one factor for each level (turn, length, ...) that the visit has; what the levels
//! mean is the caller's business. Factors are observed over expected returns, each with the others taken into account.
//! A page is worth the factors of its visit times the best ratio of returns to waiting over all horizons ahead.

use std::collections::VecDeque;

use tier::{Place, Tier, Weight};

mod tier;

/// Visits between two looks at the rates by age.
const REFRESH: u64 = 64;
/// The first visit; lower numbers are of before the start.
const FIRST: u64 = 1 << 32;
pub const MAX_LEVELS: usize = 6;

pub struct Settings {
    /// Ages at which a new class of age begins; the first is 0, they ascend.
    pub ages: Vec<u64>,
    /// Kinds of visits, each with its own rates by age.
    pub kinds: usize,
    /// How many levels there are.
    pub levels: usize,
    /// Returns that each factor is believed to have been seen with, at 1, and each kind, at the rate of all, before any
    /// was.
    pub prior: f64,
    /// Share of what was learned that is forgotten every REFRESH visits.
    pub decay: f64,
    /// Visits that are remembered.
    pub visits: usize,
    pub tiers: usize,
}

struct Visit {
    levels: [u8; MAX_LEVELS],
    count: u8,
    /// Whether it may still return.
    open: bool,
    age: u8,
    kind: u8,
    weight: f32,
}

pub struct Heat {
    settings: Settings,
    /// The number of the first visit that is remembered.
    first: u64,
    visits: VecDeque<Visit>,
    /// For each class of age the first visit that is not older.
    due: Vec<u64>,
    seen: Vec<f64>,
    expected: Vec<f64>,
    returns: Vec<f64>,
    exposure: Vec<f64>,
    rates: Vec<f64>,
    values: Vec<f64>,
    tiers: Vec<Tier>,
}

impl Heat {
    pub fn new(settings: Settings) -> Self {
        let ages = settings.ages.len();
        let rates: Vec<f64> = settings
            .ages
            .iter()
            .map(|&age| 1.0 / (8.0 + age as f64))
            .collect();
        let rates = rates.repeat(settings.kinds);
        let classes = rates.len();
        Heat {
            first: FIRST,
            visits: VecDeque::new(),
            due: vec![FIRST; ages],
            seen: vec![0.0; settings.levels],
            expected: vec![0.0; settings.levels],
            returns: vec![0.0; classes],
            exposure: vec![0.0; classes],
            values: rates.clone(),
            rates,
            tiers: (0..settings.tiers)
                .map(|_| Tier::new(ages, classes))
                .collect(),
            settings,
        }
    }

    /// The number of the next visit.
    pub fn now(&self) -> u64 {
        self.first + self.visits.len() as u64
    }

    /// A visit begins; its number. One without levels teaches nothing.
    pub fn visit(&mut self, given: &[u8], kind: u8) -> u64 {
        let mut levels = [0; MAX_LEVELS];
        levels[..given.len()].copy_from_slice(given);
        let number = self.now();
        let mut visit = Visit {
            levels,
            count: given.len() as u8,
            open: !given.is_empty(),
            age: 0,
            kind,
            weight: 1.0,
        };
        visit.weight = self.weight(&visit) as f32;
        self.visits.push_back(visit);
        self.grow_older();
        if number.is_multiple_of(REFRESH) {
            self.refresh();
        }
        if self.visits.len() > self.settings.visits {
            self.visits.pop_front();
            self.first += 1;
        }
        number
    }

    /// Somebody came back for it. Nothing happens if it was forgotten.
    pub fn returned(&mut self, number: u64) {
        let age = self.now() - number;
        if let Some(visit) = self.find(number) {
            let class = visit.age as usize;
            let waited = age.saturating_sub(self.settings.ages[class]).max(1);
            self.observe(number, class, waited, 1.0);
            let at = (number - self.first) as usize;
            self.visits[at].open = false;
        }
    }

    /// The page could go, and was last used by this visit.
    pub fn offer(&mut self, tier: usize, page: u32, visit: u64) {
        self.tiers[tier].offer(page, visit);
    }

    /// The page that is worth least of those that are offered, which it is no longer.
    pub fn take(&mut self, tier: usize) -> Option<u32> {
        self.settle(tier);
        let page = self.tiers[tier].worth_least(&self.values)?;
        self.tiers[tier].withdraw(page);
        Some(page)
    }

    /// The page whose visit is longest ago, which is offered no longer.
    pub fn take_oldest(&mut self, tier: usize) -> Option<u32> {
        self.settle(tier);
        let (_, page) = self.tiers[tier].oldest()?;
        self.tiers[tier].withdraw(page);
        Some(page)
    }

    /// The visit of an offered page.
    pub fn offered(&self, tier: usize, page: u32) -> Option<u64> {
        self.tiers[tier].offered(page)
    }

    /// What a page is worth that was last used by this visit: returns per visit that passes.
    pub fn worth(&self, visit: u64) -> f64 {
        f64::from(f32::from_bits(self.weight_of(visit))) * self.values[self.class_of(visit)]
    }

    /// No page of the tier is offered.
    pub fn clear(&mut self, tier: usize) {
        self.tiers[tier].clear();
    }

    /// For each kind and class of age: rate of return per visit, and value.
    pub fn rates(&self) -> (&[f64], &[f64]) {
        (&self.rates, &self.values)
    }

    /// For each level: the factor.
    pub fn factors(&self) -> Vec<f64> {
        (0..self.seen.len())
            .map(|level| self.factor(level as u8))
            .collect()
    }

    /// Pages that were offered since get their places.
    fn settle(&mut self, tier: usize) {
        for (page, visit) in self.tiers[tier].waiting() {
            self.place(tier, page, visit);
        }
    }

    fn place(&mut self, tier: usize, page: u32, visit: u64) {
        let (class, weight) = (self.class_of(visit), self.weight_of(visit));
        let place = Place {
            class,
            weight,
            visit,
        };
        self.tiers[tier].place(page, place);
    }

    fn find(&self, number: u64) -> Option<&Visit> {
        let at = number.checked_sub(self.first)?;
        self.visits.get(at as usize).filter(|visit| visit.open)
    }

    fn factor(&self, level: u8) -> f64 {
        let (level, prior) = (level as usize, self.settings.prior);
        (self.seen[level] + prior) / (self.expected[level] + prior)
    }

    fn weight(&self, visit: &Visit) -> f64 {
        let levels = &visit.levels[..visit.count as usize];
        levels.iter().map(|&level| self.factor(level)).product()
    }

    fn weight_of(&self, number: u64) -> Weight {
        let at = number.checked_sub(self.first);
        let visit = at.and_then(|at| self.visits.get(at as usize));
        visit.map_or(1.0, |visit| visit.weight).to_bits()
    }

    /// A visit that is forgotten is of the first kind.
    fn class_of(&self, number: u64) -> usize {
        let age = self.now().saturating_sub(number);
        let ages = &self.settings.ages;
        let at = number.checked_sub(self.first);
        let visit = at.and_then(|at| self.visits.get(at as usize));
        let kind = visit.map_or(0, |visit| visit.kind as usize);
        kind * ages.len() + ages.partition_point(|&begin| begin <= age) - 1
    }

    /// So long in this class of age, with or without a return at the end.
    fn observe(&mut self, number: u64, class: usize, waited: u64, returns: f64) {
        let visit = &self.visits[(number - self.first) as usize];
        let (levels, count, waited) = (visit.levels, visit.count as usize, waited as f64);
        let class = visit.kind as usize * self.settings.ages.len() + class;
        let chance = waited * self.rates[class] * self.weight(visit);
        self.returns[class] += returns;
        self.exposure[class] += waited;
        let factors: [f64; MAX_LEVELS] = std::array::from_fn(|at| self.factor(levels[at]));
        for (&level, factor) in levels[..count].iter().zip(factors) {
            self.seen[level as usize] += returns;
            self.expected[level as usize] += chance / factor;
        }
    }

    /// Visits and offered pages that reached the next class of age go there.
    fn grow_older(&mut self) {
        let now = self.now();
        for class in 0..self.due.len() - 1 {
            let (begin, end) = (self.settings.ages[class], self.settings.ages[class + 1]);
            self.due[class] = self.due[class].max(self.first);
            while self.due[class] + end <= now {
                let number = self.due[class];
                self.due[class] += 1;
                if self.find(number).is_some() {
                    self.observe(number, class, end - begin, 0.0);
                }
                let at = (number - self.first) as usize;
                let weight = self.weight(&self.visits[at]) as f32;
                let visit = &mut self.visits[at];
                visit.age = class as u8 + 1;
                visit.weight = weight;
            }
            for tier in 0..self.tiers.len() {
                while let Some((visit, page)) = self.tiers[tier].older(class, now - end) {
                    self.place(tier, page, visit);
                }
            }
        }
    }

    fn refresh(&mut self) {
        let (ages, prior) = (&self.settings.ages, self.settings.prior);
        let sum =
            |counts: &[f64], age: usize| counts[age..].iter().step_by(ages.len()).sum::<f64>();
        let mut likely = 1.0;
        for (class, &age) in ages.iter().enumerate() {
            // Where little was seen, the class before says what to expect: less, the older.
            let trust = age as f64 + 8.0;
            let all = (sum(&self.returns, class) + likely) / (sum(&self.exposure, class) + trust);
            likely = all * trust;
            // And of a kind that is new, all kinds together.
            for at in (class..self.rates.len()).step_by(ages.len()) {
                self.rates[at] = (self.returns[at] + prior) / (self.exposure[at] + prior / all);
            }
        }
        for (rates, values) in self
            .rates
            .chunks(ages.len())
            .zip(self.values.chunks_mut(ages.len()))
        {
            for class in 0..ages.len() {
                values[class] = best_ratio(&rates[class..], &ages[class..]);
            }
        }
        let kept = 1.0 - self.settings.decay;
        for counts in [
            &mut self.seen,
            &mut self.expected,
            &mut self.returns,
            &mut self.exposure,
        ] {
            counts.iter_mut().for_each(|count| *count *= kept);
        }
    }
}

/// Chance of a return over the expected wait for it, at the horizon where that is best. From the first class on.
fn best_ratio(rates: &[f64], ages: &[u64]) -> f64 {
    let (mut best, mut left, mut chance, mut wait) = (0.0_f64, 1.0, 0.0, 0.0);
    for (class, &rate) in rates.iter().enumerate() {
        let width = ages
            .get(class + 1)
            .map_or(ages[class], |&end| end - ages[class])
            .max(1) as f64;
        let stays = (-rate * width).exp();
        chance += left * (1.0 - stays);
        wait += left
            * if rate * width > 1e-9 {
                (1.0 - stays) / rate
            } else {
                width
            };
        left *= stays;
        best = best.max(chance / wait);
    }
    best
}
