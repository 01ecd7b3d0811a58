use super::*;
use core::time::Duration;

const LEAST: u32 = 200_000;
const MAX: Duration = Duration::from_secs(120);

fn timeout(trip: &RoundTrip) -> Duration {
    Duration::from_micros(trip.timeout(MAX.as_micros() as u32))
}

#[test]
fn the_timeout_follows_rfc_6298() {
    let mut trip = RoundTrip::default();
    assert_eq!(timeout(&trip), Duration::from_secs(1));
    trip.sample(400_000, (0, 0), LEAST);
    // SRTT = R, RTTVAR = R/2, RTO = R + 4 * R/2.
    assert_eq!(timeout(&trip), Duration::from_millis(1200));
    for rtt_seq in 1..100 {
        trip.sample(400_000, (rtt_seq, rtt_seq), LEAST);
    }
    let converged = timeout(&trip).as_millis();
    assert!((600..610).contains(&converged), "{converged}");
    trip.backoff = 3;
    assert!(timeout(&trip) >= Duration::from_millis(4800));
    trip.backoff = 255;
    assert_eq!(timeout(&trip), MAX);
    trip.sample(400_000, (0, 0), LEAST);
    assert!(timeout(&trip) < Duration::from_millis(610), "valid again");
}

#[test]
fn the_slack_rises_at_once_and_falls_once_a_round_trip() {
    let mut trip = RoundTrip::default();
    for rtt_seq in 0..50 {
        trip.sample(100_000, (rtt_seq, rtt_seq), LEAST);
    }
    assert_eq!(trip.rto_margin, LEAST);
    // One sample is a second too long: three quarters of its error count.
    trip.sample(1_100_000, (50, 60), LEAST);
    assert!(trip.rto_margin >= 1_000_000, "{}", trip.rto_margin);
    let high = trip.rto_margin;
    for _ in 0..20 {
        trip.sample(225_000, (55, 60), LEAST);
    }
    assert_eq!(trip.rto_margin, high, "within the round trip");
    for rtt_seq in [61, 71, 81] {
        trip.sample(225_000, (rtt_seq, rtt_seq + 9), LEAST);
    }
    assert!(trip.rto_margin < high && trip.rto_margin > high / 2);
}

#[test]
fn a_round_trip_that_falls_hardly_raises_the_timeout() {
    let mut trip = RoundTrip::default();
    trip.sample(1_000_000, (0, 0), LEAST);
    for rtt_seq in 1..60 {
        trip.sample(1_000_000, (rtt_seq, rtt_seq), LEAST);
    }
    let before = timeout(&trip);
    trip.sample(1000, (60, 60), LEAST);
    assert!(timeout(&trip) < before + Duration::from_millis(60));
}

#[test]
fn the_least_round_trip_is_forgotten_in_time() {
    let mut trip = RoundTrip::default();
    trip.update_min(0, Duration::from_secs(10));
    assert_eq!(trip.min, 1);
    trip.update_min(500, Duration::from_secs(300));
    assert_eq!(trip.min, 1);
    trip.update_min(500, Duration::from_secs(311));
    assert_eq!(trip.min, 500);
    trip.update_min(400, Duration::from_secs(312));
    assert_eq!(trip.min, 400);
}
