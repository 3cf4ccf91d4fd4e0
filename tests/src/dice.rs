//! Choices that a seed repeats, for runs that draw their faults.

use anyhow::{Context, Result};

/// A small generator (xorshift64*): a story needs repeatable choices, not good ones.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// The choices of a seed.
    pub fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// The next choice, from 0 on.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }
}

/// Kinds of faults that are dealt out in an order of the dice, again and again: a run as long as there are kinds has had
/// every one.
#[derive(Debug)]
pub struct Deck<T> {
    kinds: Vec<T>,
    dealt: usize,
}

impl<T: Copy> Deck<T> {
    /// Of these kinds.
    pub fn of(kinds: &[T]) -> Self {
        Self { kinds: kinds.to_vec(), dealt: 0 }
    }

    /// The kinds.
    pub fn kinds(&self) -> &[T] {
        &self.kinds
    }

    /// The next one.
    pub fn deal(&mut self, dice: &mut Dice) -> T {
        let place = self.dealt % self.kinds.len();
        let drawn = place + dice.roll(self.kinds.len() - place);
        self.kinds.swap(place, drawn);
        self.dealt += 1;
        self.kinds[place]
    }
}

/// The seed of a run and how many faults it has: `HOLDFAST_CHAOS_SEED` and `HOLDFAST_CHAOS_STEPS`, or these.
///
/// # Errors
/// When a variable is no number.
pub fn seed_and_steps(seed: u64, steps: u64) -> Result<(u64, u64)> {
    let run = (from_environment("HOLDFAST_CHAOS_SEED", seed)?, from_environment("HOLDFAST_CHAOS_STEPS", steps)?);
    println!("repeat with HOLDFAST_CHAOS_SEED={} HOLDFAST_CHAOS_STEPS={}", run.0, run.1);
    Ok(run)
}

fn from_environment(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable} is no number")),
        Err(_) => Ok(default),
    }
}
