//! Closes what the kernel is slow to release.

use std::thread;

/// Drops something in a separate thread. Examples are the last descriptor of a bound
/// AF_XDP socket, whose release waits for RCU, and frame memory, which has many pages. If
/// no thread can be started it is dropped here.
pub(super) fn close_elsewhere<T: Send + 'static>(what: T) {
    // A closure that was refused is dropped with its captures.
    let _ = thread::Builder::new()
        .name("tw-close".to_owned())
        .spawn(move || drop(what));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{ThreadId, current};

    use super::*;

    struct Dropped(Sender<ThreadId>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.send(current().id()).unwrap();
        }
    }

    #[test]
    fn nobody_waits_for_what_is_closed() {
        let (sender, receiver) = channel();
        close_elsewhere(Dropped(sender));
        assert_ne!(receiver.recv().unwrap(), current().id());
    }
}
