//! The numbers in use, without their entries.

use std::io;

use super::bitmap::{Bitmap, next_set};
use super::{Allocator, error};
use crate::comparators::linear::Linear;

/// Numbers below a limit, allocated lowest first, with their close-on-exec flags.
#[derive(Clone)]
pub(super) struct Numbers {
    used: Used,
    /// One bit per number; numbers past the end have the flag clear.
    close_on_exec: Vec<u64>,
    limit: u32,
    count: usize,
}

#[derive(Clone)]
enum Used {
    Bitmap(Bitmap),
    Linear(Linear),
}

/// Makes the same call on either allocator.
macro_rules! either {
    ($of:expr, $used:ident => $call:expr) => {
        match $of {
            Used::Bitmap($used) => $call,
            Used::Linear($used) => $call,
        }
    };
}

impl Numbers {
    /// Creates a set with no number in use, below `limit`, which is at most 2^31 − 1.
    pub(super) fn new(limit: u32, allocator: Allocator) -> Self {
        let limit = limit.min(i32::MAX as u32);
        Numbers {
            used: match allocator {
                Allocator::Bitmap => Used::Bitmap(Bitmap::new(limit)),
                Allocator::Linear => Used::Linear(Linear::new()),
            },
            close_on_exec: Vec::new(),
            limit,
            count: 0,
        }
    }

    /// Returns the lowest free number not below `lowest`.
    ///
    /// # Errors
    /// EMFILE at the limit.
    pub(super) fn first_free(&self, lowest: u32) -> io::Result<u32> {
        either!(&self.used, used => used.first_free(lowest))
            .filter(|&number| number < self.limit)
            .ok_or_else(|| error(libc::EMFILE))
    }

    /// Marks a free number as used.
    ///
    /// # Errors
    /// ENOMEM; nothing has changed then.
    pub(super) fn take(&mut self, number: u32, close_on_exec: bool) -> io::Result<()> {
        self.set_close_on_exec(number, close_on_exec)?;
        either!(&mut self.used, used => used.set(number))?;
        self.count += 1;
        Ok(())
    }

    /// Frees a number.
    pub(super) fn free(&mut self, number: u32) {
        either!(&mut self.used, used => used.clear(number));
        // Only setting it can fail.
        let _ = self.set_close_on_exec(number, false);
        self.count -= 1;
    }

    pub(super) fn is_used(&self, number: u32) -> bool {
        either!(&self.used, used => used.is_used(number))
    }

    /// Returns the lowest number in use not below `lowest`.
    pub(super) fn next_used(&self, lowest: u32) -> Option<u32> {
        either!(&self.used, used => used.next_used(lowest))
    }

    /// Returns the lowest number with close-on-exec not below `lowest`.
    pub(super) fn next_close_on_exec(&self, lowest: u32) -> Option<u32> {
        next_set(&self.close_on_exec, lowest)
    }

    pub(super) fn highest(&self) -> Option<u32> {
        either!(&self.used, used => used.highest())
    }

    /// Returns how many are in use.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the limit, at most 2^31 − 1.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(i32::MAX as u32);
        if let Used::Bitmap(bitmap) = &mut self.used {
            bitmap.deepen(self.limit);
        }
    }

    pub(super) fn is_close_on_exec(&self, number: u32) -> bool {
        let word = self.close_on_exec.get((number / u64::BITS) as usize);
        word.is_some_and(|word| word & (1 << (number % u64::BITS)) != 0)
    }

    /// # Errors
    /// ENOMEM.
    pub(super) fn set_close_on_exec(&mut self, number: u32, closes: bool) -> io::Result<()> {
        let place = (number / u64::BITS) as usize;
        let bit = 1 << (number % u64::BITS);
        if closes && self.close_on_exec.len() <= place {
            let missing = place + 1 - self.close_on_exec.len();
            self.close_on_exec
                .try_reserve(missing)
                .map_err(|_| error(libc::ENOMEM))?;
            self.close_on_exec.resize(place + 1, 0);
        }
        match self.close_on_exec.get_mut(place) {
            Some(word) if closes => *word |= bit,
            Some(word) => *word &= !bit,
            None => {}
        }
        Ok(())
    }
}
