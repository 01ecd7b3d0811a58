//! Two engines deliver exactly the bytes sent, or report an error, and never
//! hang.

use std::time::Duration;

use proptest::prelude::*;
use tidewall_protocol::tcp::{Config, State};

use crate::link::{End, FAIR, Link, Weather, pattern};

const HOUR: Duration = Duration::from_secs(3600);

fn ends(config: Config, lengths: [usize; 2]) -> [End; 2] {
    [0, 1].map(|end| End::new(config, pattern(lengths[end], end as u8)))
}

#[test]
fn both_ends_get_what_the_other_sent() {
    for lengths in [[0, 0], [1, 0], [100, 20_000], [500_000, 3_000_000]] {
        let mut link = Link::new(ends(Config::default(), lengths), FAIR, 1);
        link.run(HOUR);
        link.assert_delivered();
        for end in &mut link.ends {
            assert_eq!(end.error, None);
            let info = end.connection().info();
            assert_eq!(info.retransmissions, 0, "{info:?}");
            assert_eq!(info.segments_refused, 0, "{info:?}");
        }
        link.run_for(Duration::from_secs(100));
        for end in &mut link.ends {
            assert_eq!(end.connection().state(), State::Closed);
        }
    }
}
