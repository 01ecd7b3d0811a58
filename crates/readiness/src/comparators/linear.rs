//! The comparator: descriptors as the paper's unmodified kernel allocated them.
//!
//! Digital UNIX walked the table of pointers to open files from number 0 (F_DUPFD: from
//! the requested number) to the first empty one. So did every kernel that the paper's
//! authors knew, and 4.3BSD, from which the code came. There is no hint where to begin:
//! 4.4BSD's `fd_freefile` came later and only helps until the next low number is freed.
//! The walk touches a pointer for every open descriptor. That made it 18 % of a proxy's
//! time with 750 idle connections (paper, table 1).
//!
//! Read first: Banga and Mogul, USENIX 1998, section 3.2.

use std::io;

use crate::descriptor::error;

/// The numbers in use, found one by one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Linear {
    /// As wide as the kernel's pointers to open files, so that the walk costs
    /// the same memory traffic; 0: free.
    files: Vec<usize>,
}

impl Linear {
    /// Creates an empty table.
    pub(crate) fn new() -> Self {
        Linear::default()
    }

    /// Returns the lowest free number that is not below `lowest`.
    pub(crate) fn first_free(&self, lowest: u32) -> Option<u32> {
        let start = lowest as usize;
        let found = match self.files.get(start..) {
            Some(rest) => {
                start
                    + rest
                        .iter()
                        .position(|&file| file == 0)
                        .unwrap_or(rest.len())
            }
            None => start,
        };
        u32::try_from(found).ok()
    }

    /// Returns true for a number in use.
    pub(crate) fn is_used(&self, number: u32) -> bool {
        self.files
            .get(number as usize)
            .is_some_and(|&file| file != 0)
    }

    /// Marks a number as in use.
    ///
    /// # Errors
    /// ENOMEM; nothing has changed then.
    pub(crate) fn set(&mut self, number: u32) -> io::Result<()> {
        let place = number as usize;
        if self.files.len() <= place {
            self.files
                .try_reserve(place + 1 - self.files.len())
                .map_err(|_| error(libc::ENOMEM))?;
            self.files.resize(place + 1, 0);
        }
        if let Some(file) = self.files.get_mut(place) {
            *file = 1;
        }
        Ok(())
    }

    /// Marks a number as free.
    pub(crate) fn clear(&mut self, number: u32) {
        if let Some(file) = self.files.get_mut(number as usize) {
            *file = 0;
        }
    }

    /// Returns the lowest number in use that is not below `lowest`.
    pub(crate) fn next_used(&self, lowest: u32) -> Option<u32> {
        let start = lowest as usize;
        let rest = self.files.get(start..)?;
        let found = start + rest.iter().position(|&file| file != 0)?;
        u32::try_from(found).ok()
    }

    /// Returns the highest number in use.
    pub(crate) fn highest(&self) -> Option<u32> {
        let found = self.files.iter().rposition(|&file| file != 0)?;
        u32::try_from(found).ok()
    }
}
