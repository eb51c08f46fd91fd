//! The pages of a tier that could go.
//!
//! What is offered is only noted; where it belongs is looked up when somebody asks for the next to go. So a page that is
//! used again and again costs no order.

use std::collections::BTreeSet;

/// Orders like its value: weights are positive.
pub type Weight = u32;

#[derive(Clone, Copy)]
pub struct Place {
    /// Kind and class of age, in one number.
    pub class: usize,
    pub weight: Weight,
    pub visit: u64,
}

#[derive(Clone, Copy, Default)]
struct Page {
    /// The visit it is offered with.
    offered: Option<u64>,
    /// Where it is in the sets.
    place: Option<Place>,
    /// Whether it is among those that wait for their place.
    waits: bool,
}

/// By worth within a class, and by age.
pub struct Tier {
    /// Classes of age.
    ages: usize,
    pages: Vec<Page>,
    waiting: Vec<u32>,
    by_weight: Vec<BTreeSet<(Weight, u64, u32)>>,
    /// The least weight of each class; infinite if it has no page.
    least: Vec<f32>,
    by_visit: Vec<BTreeSet<(u64, u32)>>,
}

impl Tier {
    pub fn new(ages: usize, classes: usize) -> Self {
        Tier {
            ages,
            pages: Vec::new(),
            waiting: Vec::new(),
            by_weight: vec![BTreeSet::new(); classes],
            least: vec![f32::INFINITY; classes],
            by_visit: vec![BTreeSet::new(); ages],
        }
    }

    pub fn clear(&mut self) {
        self.pages.clear();
        self.waiting.clear();
        self.by_weight.iter_mut().for_each(BTreeSet::clear);
        self.least.fill(f32::INFINITY);
        self.by_visit.iter_mut().for_each(BTreeSet::clear);
    }

    pub fn offer(&mut self, number: u32, visit: u64) {
        if self.pages.len() <= number as usize {
            self.pages.resize(number as usize + 1, Page::default());
        }
        let page = &mut self.pages[number as usize];
        page.offered = Some(visit);
        if !page.waits {
            page.waits = true;
            self.waiting.push(number);
        }
    }

    /// The visit of an offered page.
    pub fn offered(&self, number: u32) -> Option<u64> {
        self.pages.get(number as usize)?.offered
    }

    /// Pages that wait for their place, with their visits; they do not wait any more.
    pub fn waiting(&mut self) -> Vec<(u32, u64)> {
        let pages = &mut self.pages;
        let numbers = self.waiting.drain(..).filter_map(|number| {
            let page = &mut pages[number as usize];
            page.waits = false;
            Some((number, page.offered?))
        });
        numbers.collect()
    }

    pub fn place(&mut self, number: u32, place: Place) {
        self.remove(number);
        self.pages[number as usize].place = Some(place);
        self.by_weight[place.class].insert((place.weight, place.visit, number));
        self.least[place.class] = self.least[place.class].min(f32::from_bits(place.weight));
        self.by_visit[place.class % self.ages].insert((place.visit, number));
    }

    /// The page is offered no longer.
    pub fn withdraw(&mut self, number: u32) {
        self.pages[number as usize].offered = None;
        self.remove(number);
    }

    /// Of the pages that have their places the one whose weight times the value of its class is least; of equal ones
    /// that of the earliest visit.
    pub fn worth_least(&self, values: &[f64]) -> Option<u32> {
        let worth = |class: usize| f64::from(self.least[class]) * values[class];
        let least = (0..values.len()).map(worth).fold(f64::INFINITY, f64::min);
        let classes = (0..values.len()).filter(|&class| worth(class) == least);
        let firsts = classes.filter_map(|class| self.by_weight[class].first());
        firsts
            .map(|&(_, visit, page)| (visit, page))
            .min()
            .map(|(_, page)| page)
    }

    /// The visit that is longest ago, and a page of it; of those that have their places.
    pub fn oldest(&self) -> Option<(u64, u32)> {
        let sets = self.by_visit.iter().rev();
        sets.filter_map(BTreeSet::first).next().copied()
    }

    /// A page in the class of age, with a visit up to this one.
    pub fn older(&self, age: usize, visit: u64) -> Option<(u64, u32)> {
        let &first = self.by_visit[age].first()?;
        (first.0 <= visit).then_some(first)
    }

    fn remove(&mut self, number: u32) {
        if let Some(place) = self.pages[number as usize].place.take() {
            let set = &mut self.by_weight[place.class];
            set.remove(&(place.weight, place.visit, number));
            self.least[place.class] = set
                .first()
                .map_or(f32::INFINITY, |&(weight, _, _)| f32::from_bits(weight));
            self.by_visit[place.class % self.ages].remove(&(place.visit, number));
        }
    }
}
