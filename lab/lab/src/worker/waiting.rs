//! How a connection server waits for events, and how its descriptors are numbered: the
//! subject of the experiments on `select`.

use serde::{Deserialize, Serialize};

/// A way of waiting for connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// The stack's own: Tidewall's selector, edge-triggered epoll on Linux.
    #[default]
    Usual,
    /// The same, under a separate name in results: for a third-party program, that
    /// program's.
    Named,
    /// Epoll on numbered descriptors.
    Epoll,
    /// `select`: on Tidewall the one that examines only what may have changed, over
    /// descriptors numbered by bitmaps.
    Select,
    /// That `select` over descriptors numbered by a linear scan. Tidewall only.
    SelectLinear,
    /// The classical `select`, which examines everything, over descriptors
    /// numbered by a linear scan: the paper's unmodified kernel. Tidewall only.
    ClassicalLinear,
}

impl Waiting {
    /// Returns its name in results; `None` for the default way.
    pub fn name(self, on_linux: bool) -> Option<&'static str> {
        Some(match (self, on_linux) {
            (Waiting::Usual, _) => return None,
            (Waiting::Named, false) => "selector",
            (Waiting::Epoll, false) => "epoll",
            (Waiting::Select, false) => "select",
            (Waiting::SelectLinear, false) => "select+linear-allocator",
            (Waiting::ClassicalLinear, false) => "classical-select+linear-allocator",
            (Waiting::Named | Waiting::Epoll, true) => "linux-epoll",
            (Waiting::Select | Waiting::SelectLinear | Waiting::ClassicalLinear, true) => {
                "linux-select"
            }
        })
    }

    /// Describes it for the reader of a result.
    pub fn describe(self, on_linux: bool) -> &'static str {
        match (self, on_linux) {
            (Waiting::Usual | Waiting::Named, false) => {
                "the stack's own selector: hints from every socket to one set"
            }
            (Waiting::Epoll, false) => {
                "epoll, edge-triggered, over descriptors numbered by a tree of bitmaps"
            }
            (Waiting::Select, false) => {
                "select that examines what is newly selected, hinted or was ready, over \
                 descriptors numbered by a tree of bitmaps"
            }
            (Waiting::SelectLinear, false) => {
                "the same select over descriptors numbered by a linear scan"
            }
            (Waiting::ClassicalLinear, false) => {
                "select that examines every descriptor before and after sleeping, over descriptors \
                 numbered by a linear scan: the paper's unmodified kernel"
            }
            (Waiting::Usual | Waiting::Named | Waiting::Epoll, true) => {
                "kernel sockets, epoll, edge-triggered"
            }
            (Waiting::Select | Waiting::SelectLinear | Waiting::ClassicalLinear, true) => {
                "kernel sockets, the system call select with bitmaps of any width"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_lab() {
        assert_eq!(Waiting::default().name(false), None);
        for (waiting, ours, linux) in [
            (Waiting::Named, "selector", "linux-epoll"),
            (Waiting::Epoll, "epoll", "linux-epoll"),
            (Waiting::Select, "select", "linux-select"),
        ] {
            assert_eq!(waiting.name(false), Some(ours));
            assert_eq!(waiting.name(true), Some(linux));
        }
        for waiting in [Waiting::SelectLinear, Waiting::ClassicalLinear] {
            assert!(
                waiting
                    .name(false)
                    .unwrap()
                    .ends_with("select+linear-allocator")
            );
        }
    }
}
