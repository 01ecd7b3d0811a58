//! Items of other sizes than those in stock. A thread makes them for the next join that
//! asks for them, so that no other client waits.

use std::io;
use std::time::{Duration, Instant};

use super::closing::close_elsewhere;
use crate::domains::stock::Stock;

/// How long an item is kept for the application that requested it.
const KEPT: Duration = Duration::from_secs(2);

/// At most one such stock, of items of one size.
#[derive(Debug)]
pub(super) struct Order<S, T: Send + 'static>(Option<(S, Instant, Stock<T>)>);

impl<S: PartialEq, T: Send + 'static> Order<S, T> {
    pub(super) const NONE: Self = Order(None);

    /// Takes this many items of a size, once they are made. `start` begins a stock of
    /// that size, which exists until [`Order::clear`].
    ///
    /// # Errors
    /// EBUSY while they, or another size, are being made; as `start`.
    pub(super) fn take(
        &mut self,
        size: S,
        count: usize,
        what: &str,
        start: impl FnOnce() -> io::Result<Stock<T>>,
    ) -> io::Result<Vec<T>> {
        match &self.0 {
            Some((of, ..)) if *of == size => {}
            Some((_, since, _)) if since.elapsed() < KEPT => {
                let text = format!("{what} of another size are being made: try again");
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            _ => {
                self.clear();
                self.0 = Some((size, Instant::now(), start()?));
            }
        }
        let Some((_, _, stock)) = &self.0 else {
            return Err(io::ErrorKind::ResourceBusy.into());
        };
        let ready = stock.take_several(count);
        ready.ok_or_else(|| stock.not_ready(what))
    }

    /// Returns an unused item.
    pub(super) fn put_back(&self, item: T) {
        match &self.0 {
            Some((_, _, stock)) => stock.put_back(item),
            None => close_elsewhere(item),
        }
    }

    /// Ends the stock, with the remaining items.
    pub(super) fn clear(&mut self) {
        if let Some((_, _, stock)) = self.0.take() {
            close_elsewhere(stock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::domains::stock::Maker;

    struct Numbers(u32);

    static GO: AtomicBool = AtomicBool::new(false);

    impl Maker for Numbers {
        type Item = u32;

        fn make(&mut self) -> io::Result<u32> {
            while !GO.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(self.0)
        }

        fn rest(&mut self, used: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
            (used, Vec::new())
        }

        fn take_away(&mut self, _: &[u32]) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_size_at_a_time_is_made_for_who_asks() {
        let mut order = Order::NONE;
        let mut take =
            |size: u32| order.take(size, 2, "numbers", || Stock::start(2, Numbers(size)));
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        assert!(take(7).is_err_and(|error| is_busy(&error)));
        assert!(take(8).is_err_and(|error| is_busy(&error)));
        GO.store(true, Ordering::Relaxed);
        let taken = loop {
            match take(7) {
                Err(error) if is_busy(&error) => std::thread::yield_now(),
                result => break result.unwrap(),
            }
        };
        assert_eq!(taken, [7, 7]);
        order.clear();
        let other = || Stock::start(2, Numbers(8));
        while order.take(8, 2, "numbers", other).is_err() {}
    }
}
