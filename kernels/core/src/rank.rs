//! Offers of nodes in the order of their costs. The rule is that of `router/scheduler/cost.py`, which says why; what is
//! policy in it comes in as numbers.

use crate::offers::Offer;

/// How offers compare; see `router/scheduler/cost.py`.
#[derive(Clone, Copy, Default)]
pub struct Rule {
    pub weight: f64,
    pub limit: f64,
    /// Added to the cost of what is above the limit.
    pub full_s: f64,
    pub tie: f64,
    pub negligible_s: f64,
}

impl Rule {
    fn cost(&self, [work, wait, drag, load, ..]: &Offer) -> f64 {
        let full = if *load > self.limit { self.full_s } else { 0.0 };
        work + self.weight * (wait + drag) + full
    }
}

/// The position of the best offer. `draw`, from 0 to below 1, decides among those that are nearly the same.
pub fn best(offers: &[Offer], rule: &Rule, draw: f64) -> Option<u32> {
    let costs = || offers.iter().map(|offer| rule.cost(offer)).zip(0..);
    let (least, first) = costs().reduce(|best, next| {
        let cheaper = next.0.total_cmp(&best.0).is_lt();
        if cheaper {
            next
        } else {
            best
        }
    })?;
    let full = if least >= rule.full_s {
        rule.full_s
    } else {
        0.0
    };
    let bound = full + (least - full) * (1.0 + rule.tie) + rule.negligible_s;
    let near = costs().filter(|&(cost, at)| at == first || cost <= bound);
    let near: Vec<u32> = near.map(|(_, at)| at).collect();
    Some(choose(offers, &near, draw))
}

/// Positions of the `best` offer, and of those that cost least, at most `most` together.
pub fn order(offers: &[Offer], rule: &Rule, best: u32, most: usize) -> Vec<u32> {
    let costs: Vec<f64> = offers.iter().map(|offer| rule.cost(offer)).collect();
    let cheaper = |one: &u32, other: &u32| {
        let costs = costs[*one as usize].total_cmp(&costs[*other as usize]);
        costs.then(one.cmp(other))
    };
    let mut order: Vec<u32> = (0..offers.len() as u32).filter(|&at| at != best).collect();
    let others = most - 1;
    if others < order.len() {
        order.select_nth_unstable_by(others, cheaper);
        order.truncate(others);
    }
    order.sort_unstable_by(cheaper);
    order.insert(0, best);
    order
}

/// Whom of `near` the choice falls on: anybody, unless another is better in work or wait and worse in neither. Then any
/// of those that are as good as that one: were it the first of them, the first nodes would work more than others.
fn choose(offers: &[Offer], near: &[u32], draw: f64) -> u32 {
    let (drawn, draw) = pick(near, draw);
    let terms = |at: u32| {
        let [work, wait, drag, ..] = offers[at as usize];
        (work, wait + drag)
    };
    let (mut work, mut wait) = terms(drawn);
    for &at in near {
        let (other_work, other_wait) = terms(at);
        if other_work <= work && other_wait <= wait {
            (work, wait) = (other_work, other_wait);
        }
    }
    let best = |at: &u32| terms(*at) == (work, wait);
    if best(&drawn) {
        return drawn;
    }
    let best: Vec<u32> = near.iter().copied().filter(best).collect();
    if best.is_empty() {
        return drawn; // whose cost is no number
    }
    pick(&best, draw).0
}

/// Any, by a number from 0 to below 1, and what is left of it to draw with.
fn pick(from: &[u32], draw: f64) -> (u32, f64) {
    let place = draw * from.len() as f64;
    (from[(place as usize).min(from.len() - 1)], place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        weight: 0.5,
        limit: 0.9,
        full_s: 1e9,
        tie: 0.05,
        negligible_s: 0.001,
    };

    fn rank(offers: &[Offer], draw: f64, most: usize) -> Vec<u32> {
        order(offers, &RULE, best(offers, &RULE, draw).unwrap(), most)
    }

    fn offers(terms: &[[f64; 3]]) -> Vec<Offer> {
        let whole = |&[work, wait, load]: &[f64; 3]| [work, wait, 0.0, load, 0.0, 0.0];
        terms.iter().map(whole).collect()
    }

    #[test]
    fn the_cheapest_is_first_and_the_full_are_last() {
        let offers = offers(&[
            [2.0, 0.0, 0.0],
            [0.1, 0.0, 1.0],
            [1.0, 0.0, 0.0],
            [1.0, 4.0, 0.0],
        ]);
        assert_eq!(rank(&offers, 0.0, 9), [2, 0, 3, 1]);
        assert_eq!(rank(&offers, 0.0, 2), [2, 0]);
        assert_eq!(best(&[], &RULE, 0.0), None);
    }

    #[test]
    fn what_costs_no_number_is_last() {
        let mut offers = offers(&[[1.0, 0.0, 0.0]; 100]);
        offers.iter_mut().step_by(3).for_each(|it| it[0] = f64::NAN);
        let order = rank(&offers, 0.5, 100);
        assert!(order[..66].iter().all(|at| at % 3 != 0));
        let nothing_else = [[f64::NAN; 6]; 2];
        assert_eq!(rank(&nothing_else, 0.5, 9), [0, 1]);
    }

    #[test]
    fn chance_decides_among_equals_but_not_for_what_is_worse() {
        let equal = offers(&[[1.0, 0.0, 0.0]; 3]);
        assert_eq!(rank(&equal, 0.99, 9), [2, 0, 1]);
        assert_eq!(rank(&equal, 0.99, 2), [2, 0]);
        let worse = offers(&[[1.0, 0.0, 0.0], [1.0, 0.01, 0.0]]);
        assert_eq!(rank(&worse, 0.99, 9), [0, 1]);
        let best = offers(&[[1.0, 0.01, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]);
        assert_eq!(rank(&best, 0.1, 1), [1]);
        assert_eq!(rank(&best, 0.3, 1), [2]);
    }
}
