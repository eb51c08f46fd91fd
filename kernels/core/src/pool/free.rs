//! The set of free pages, as a bitmap: handing out the lowest first gives runs of neighbouring pages.

/// Neighbouring pages that make a group: one word of the bitmap.
pub const GROUP: usize = 64;

/// Pages that nobody holds and no running step can see.
pub struct FreeSet {
    /// Bit `page % 64` of word `page / 64` is set while the page is free.
    words: Vec<u64>,
    len: usize,
    /// No word before this one has a free page.
    first: usize,
}

impl FreeSet {
    /// All of `0..pages` are free.
    pub fn full(pages: usize) -> Self {
        let mut words = vec![u64::MAX; pages.div_ceil(64)];
        if let (Some(last), tail @ 1..) = (words.last_mut(), pages % 64) {
            *last = (1 << tail) - 1;
        }
        FreeSet {
            words,
            len: pages,
            first: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, page: u32) -> bool {
        self.words[page as usize / 64] >> (page % 64) & 1 == 1
    }

    pub fn insert(&mut self, page: u32) {
        let word = page as usize / 64;
        self.words[word] |= 1 << (page % 64);
        self.len += 1;
        self.first = self.first.min(word);
    }

    /// `count` pages: those of these groups first, one group after the other, then the lowest; in each ascending. `None`
    /// if there are not so many.
    pub fn take(&mut self, groups: &[usize], count: usize) -> Option<Vec<u32>> {
        if count > self.len {
            return None;
        }
        let mut pages = Vec::with_capacity(count);
        for &group in groups {
            self.take_in(group, count, &mut pages);
        }
        while pages.len() < count {
            self.take_in(self.first, count, &mut pages);
            self.first += usize::from(pages.len() < count);
        }
        self.len -= count;
        Some(pages)
    }

    /// Fills `pages` up with those of a group, as far as it has some.
    fn take_in(&mut self, group: usize, count: usize, pages: &mut Vec<u32>) {
        let Some(word) = self.words.get_mut(group) else {
            return;
        };
        while *word != 0 && pages.len() < count {
            pages.push((group * GROUP) as u32 + word.trailing_zeros());
            *word &= *word - 1;
        }
    }

    /// Free pages of each group.
    pub fn in_groups(&self) -> Vec<u8> {
        self.words
            .iter()
            .map(|word| word.count_ones() as u8)
            .collect()
    }

    /// Pages in the longest run of neighbours.
    pub fn longest_run(&self) -> usize {
        let (mut longest, mut run) = (0, 0);
        for &word in &self.words[self.first.min(self.words.len())..] {
            if word == u64::MAX {
                run += 64;
                continue;
            }
            longest = longest.max(run + word.trailing_ones() as usize);
            // Each turn shortens every run within the word by one.
            let (mut within, mut left) = (0, word);
            while left != 0 {
                left &= left << 1;
                within += 1;
            }
            longest = longest.max(within);
            run = word.leading_ones() as usize;
        }
        longest.max(run)
    }

    /// Number of set bits, counted anew.
    pub fn count(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }
}
