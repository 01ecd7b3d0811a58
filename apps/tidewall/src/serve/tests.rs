use super::counting::LINE;
use super::*;

#[test]
fn rates_are_those_between_two_looks() {
    let last = ServiceCounts {
        received: 100,
        bytes: 1_400,
        replies: 100,
        errors: 0,
        batches: 10,
        ..ServiceCounts::default()
    };
    let now = ServiceCounts {
        received: 2_100,
        bytes: 29_400,
        replies: 2_100,
        errors: 1,
        batches: 110,
        ..ServiceCounts::default()
    };
    assert_eq!(
        rates(&now, &last, Duration::from_secs(2)),
        "received 1,000/s, replied 1,000/s, 0.1 Mbit/s in, 20.0 a batch, 1 errors"
    );
    assert_eq!(
        rates(&last, &last, LINE),
        "received -/s, replied -/s, 0.0 Mbit/s in, 0.0 a batch, 0 errors"
    );
    assert_eq!(
        totals(&now, Duration::from_secs(3)),
        "received 2,100 datagrams (29,400 bytes), replied 2,100, 1 errors in 3.0 s"
    );
}

#[test]
fn names_and_bounds_are_checked() {
    assert_eq!(architecture("soft-lrp"), Ok(Architecture::SoftLrp));
    assert!(architecture("lrp").is_err_and(|text| text.contains("early-demux")));
    assert_eq!(architecture("softirq"), Ok(Architecture::Softirq));
    for kind in PolicyKind::ALL {
        assert_eq!(policy(kind.name()), Ok(kind));
    }
    assert!(policy("busy").is_err_and(|text| text.ends_with("qapolling, rhip, adaptive")));
    assert_eq!(budget("2"), Ok(2));
    assert_eq!(budget("3000"), Ok(3000));
    for text in ["1", "3001", "-2", "", "many", "4294967298"] {
        assert!(
            budget(text).is_err_and(|error| error.contains("2 to 3000")),
            "{text}"
        );
    }
    assert_eq!(interval("0"), Ok(Duration::ZERO));
    assert_eq!(interval("50"), Ok(Duration::from_micros(50)));
    assert_eq!(interval("1ms"), Ok(INTERVAL_MAX));
    assert_eq!(
        interval("1.1ms"),
        Err("an interval between interrupts is 0 to 1 ms".to_owned())
    );
    assert_eq!(spin("20"), Ok(Duration::from_micros(20)));
    assert!(spin("2s").is_err());
}
#[test]
fn classes_are_read_and_named() {
    let of = |ports: &[u16], budget| {
        Ok(TrafficClass {
            ports: ports.to_vec(),
            budget,
        })
    };
    assert_eq!(class("7"), of(&[7], None));
    assert_eq!(class("7,53"), of(&[7, 53], None));
    assert_eq!(class("9,5001:300"), of(&[9, 5001], Some(300)));
    for text in ["", "0", "7,", "7,0", ":64", "65536", "seven", "-7"] {
        assert!(
            class(text).is_err_and(|error| error.contains("1 to 65535")),
            "{text}"
        );
    }
    for text in ["7:", "7:1", "7:3001", "7:64:64"] {
        assert!(
            class(text).is_err_and(|error| error.contains("2 to 3000")),
            "{text}"
        );
    }
    assert!(class("7,7").is_err_and(|error| error.contains("twice")));
    let classes = [class("7").unwrap(), class("9:64").unwrap()];
    assert_eq!(class_of(&classes, 9), ", in class 2 of 2 (queue 1)");
    assert_eq!(class_of(&classes, 5), ", in none of 2 classes (any queue)");
    assert_eq!(class_of(&[], 7), "");
}
