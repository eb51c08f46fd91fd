//! Offers of nodes in the order of their costs. The rule is that of `router/scheduler/cost.py`, which says why; what is
//! policy in it comes in as numbers.

use crate::offers::Offer;

/// How offers compare; see `router/scheduler/cost.py`.
pub struct Rule {
    pub weight: f64,
    pub limit: f64,
    /// Added to the cost of what is above the limit.
    pub full_s: f64,
    pub tie: f64,
    pub negligible_s: f64,
}

/// Positions of the best offers, at most `most`, best first. `draw`, from 0 to below 1, decides among those that are
/// nearly the same.
pub fn rank(offers: &[Offer], rule: &Rule, draw: f64, most: usize) -> Vec<u32> {
    let cost = |[work, wait, load, ..]: &Offer| {
        let full = if *load > rule.limit { rule.full_s } else { 0.0 };
        work + rule.weight * wait + full
    };
    let costs: Vec<f64> = offers.iter().map(cost).collect();
    let cheaper = |one: &u32, other: &u32| {
        let costs = costs[*one as usize].total_cmp(&costs[*other as usize]);
        costs.then(one.cmp(other))
    };
    let mut order: Vec<u32> = (0..offers.len() as u32).collect();
    if most < order.len() {
        order.select_nth_unstable_by(most, cheaper);
        order.truncate(most);
    }
    order.sort_unstable_by(cheaper);
    let Some(&first) = order.first() else {
        return order;
    };
    let best = costs[first as usize];
    let full = if best >= rule.full_s {
        rule.full_s
    } else {
        0.0
    };
    let bound = full + (best - full) * (1.0 + rule.tie) + rule.negligible_s;
    let near = |at: &u32| *at == first || costs[*at as usize] <= bound;
    let near: Vec<u32> = (0..offers.len() as u32).filter(near).collect();
    if near.len() > 1 {
        let chosen = choose(offers, &near, draw);
        match order.iter().position(|&at| at == chosen) {
            Some(place) => order[..=place].rotate_right(1),
            None => {
                order.pop();
                order.insert(0, chosen);
            }
        }
    }
    order
}

/// Whom of `near` the choice falls on: anybody, unless another is better in work or wait and worse in neither. Then any
/// of those that are as good as that one: were it the first of them, the first nodes would work more than others.
fn choose(offers: &[Offer], near: &[u32], draw: f64) -> u32 {
    let (drawn, draw) = pick(near, draw);
    let [mut work, mut wait, ..] = offers[drawn as usize];
    for &at in near {
        let [other_work, other_wait, ..] = offers[at as usize];
        if other_work <= work && other_wait <= wait {
            (work, wait) = (other_work, other_wait);
        }
    }
    let best = |at: &u32| offers[*at as usize][..2] == [work, wait];
    if best(&drawn) {
        return drawn;
    }
    let best: Vec<u32> = near.iter().copied().filter(best).collect();
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

    fn offers(terms: &[[f64; 3]]) -> Vec<Offer> {
        let whole = |&[work, wait, load]: &[f64; 3]| [work, wait, load, 0.0, 0.0];
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
        assert_eq!(rank(&offers, &RULE, 0.0, 9), [2, 0, 3, 1]);
        assert_eq!(rank(&offers, &RULE, 0.0, 2), [2, 0]);
        assert!(rank(&[], &RULE, 0.0, 9).is_empty());
    }

    #[test]
    fn what_costs_no_number_is_last() {
        let mut offers = offers(&[[1.0, 0.0, 0.0]; 100]);
        offers.iter_mut().step_by(3).for_each(|it| it[0] = f64::NAN);
        let order = rank(&offers, &RULE, 0.5, 100);
        assert!(order[..66].iter().all(|at| at % 3 != 0));
    }

    #[test]
    fn chance_decides_among_equals_but_not_for_what_is_worse() {
        let equal = offers(&[[1.0, 0.0, 0.0]; 3]);
        assert_eq!(rank(&equal, &RULE, 0.99, 9), [2, 0, 1]);
        assert_eq!(rank(&equal, &RULE, 0.99, 2), [2, 0]);
        let worse = offers(&[[1.0, 0.0, 0.0], [1.0, 0.01, 0.0]]);
        assert_eq!(rank(&worse, &RULE, 0.99, 9), [0, 1]);
        let best = offers(&[[1.0, 0.01, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]);
        assert_eq!(rank(&best, &RULE, 0.1, 1), [1]);
        assert_eq!(rank(&best, &RULE, 0.3, 1), [2]);
    }
}
