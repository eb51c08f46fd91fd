//! Who is ranked together.

/// Nodes that share a chain, by their rows on the board, and where each one is among them.
pub struct Members {
    /// On the board.
    pub numbers: Vec<u32>,
    /// (row, position), by row.
    places: Vec<(u32, u32)>,
}

impl Members {
    pub fn new(rows: Vec<u32>) -> Self {
        let mut places: Vec<(u32, u32)> = rows.iter().copied().zip(0..).collect();
        places.sort_unstable();
        Members {
            numbers: rows,
            places,
        }
    }

    /// The board must have so many.
    pub fn rows(&self) -> usize {
        self.places.last().map_or(0, |&(row, _)| row as usize + 1)
    }

    pub fn position(&self, row: u32) -> Option<u32> {
        let at = self.places.binary_search_by_key(&row, |&(row, _)| row);
        at.ok().map(|at| self.places[at].1)
    }
}
