//! The pages of a tier that could go.

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

/// By worth within a class, and by age.
pub struct Tier {
    /// Classes of age.
    ages: usize,
    pub places: Vec<Option<Place>>,
    pub by_weight: Vec<BTreeSet<(Weight, u64, u32)>>,
    pub by_visit: Vec<BTreeSet<(u64, u32)>>,
}

impl Tier {
    pub fn new(ages: usize, classes: usize) -> Self {
        Tier {
            ages,
            places: Vec::new(),
            by_weight: vec![BTreeSet::new(); classes],
            by_visit: vec![BTreeSet::new(); ages],
        }
    }

    pub fn clear(&mut self) {
        self.places.clear();
        self.by_weight.iter_mut().for_each(BTreeSet::clear);
        self.by_visit.iter_mut().for_each(BTreeSet::clear);
    }

    pub fn place(&mut self, page: u32, place: Place) {
        if self.places.len() <= page as usize {
            self.places.resize(page as usize + 1, None);
        }
        self.places[page as usize] = Some(place);
        self.by_weight[place.class].insert((place.weight, place.visit, page));
        self.by_visit[place.class % self.ages].insert((place.visit, page));
    }

    /// The visit that is longest ago, and a page of it.
    pub fn oldest(&self) -> Option<(u64, u32)> {
        let sets = self.by_visit.iter().rev();
        sets.filter_map(BTreeSet::first).next().copied()
    }

    pub fn withdraw(&mut self, page: u32) {
        let Some(place) = self.places.get_mut(page as usize).and_then(Option::take) else {
            return;
        };
        self.by_weight[place.class].remove(&(place.weight, place.visit, page));
        self.by_visit[place.class % self.ages].remove(&(place.visit, page));
    }
}
