//! Everything that is left to chance is drawn from the seed, by these.

pub use holdfast_storage::fault::Random;

/// What is drawn.
pub trait Draw {
    /// True in so many of a hundred cases.
    fn chance(&mut self, percent: u64) -> bool;
    /// A number from `low` to `high`, both included.
    fn between(&mut self, low: u64, high: u64) -> u64;
    /// One of several.
    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T;
    /// A source of its own, so that two that draw do not disturb each other.
    fn fork(&mut self) -> Random;
}

impl Draw for Random {
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    fn fork(&mut self) -> Random {
        Random(self.next_number())
    }
}
