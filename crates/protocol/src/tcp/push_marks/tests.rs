use super::*;

/// Shortly before sequence numbers wrap.
const BASE: u32 = u32::MAX - 100;

fn at(offset: u32) -> u32 {
    BASE.wrapping_add(offset)
}

#[test]
fn pushes_that_wait_collapse_and_those_in_flight_stay() {
    let mut marks = PushMarks::new(BASE);
    marks.forced_push = at(10_000);
    marks.push(at(100), BASE, BASE);
    marks.push(at(200), BASE, BASE);
    assert!(!marks.pushes(BASE, 100));
    assert!(marks.pushes(at(100), 100));
    // All data was sent.
    marks.push(at(300), BASE, at(200));
    assert!(marks.pushes(at(150), 50));
    assert!(!marks.pushes(at(200), 99));
    assert!(marks.pushes(at(200), 100));
    marks.acknowledge(at(200));
    assert_eq!(marks.earlier, None);
    assert!(marks.pushes(at(200), 100));
}

#[test]
fn a_record_is_never_crossed_and_never_collapses() {
    let mut marks = PushMarks::new(BASE);
    marks.forced_push = at(10_000);
    for end in [100, 250] {
        marks.push(at(end), BASE, BASE);
        marks.end_record(at(end));
    }
    marks.push(at(400), BASE, BASE);
    assert_eq!(marks.cut(BASE, at(400)), at(100));
    assert_eq!(marks.cut(at(100), at(400)), at(250));
    assert_eq!(marks.cut(at(100), at(200)), at(200));
    assert_eq!(marks.cut(at(250), at(400)), at(400));
    assert_eq!(marks.cut_from(at(50), at(400)), at(250));
    assert_eq!(marks.cut_from(at(120), at(250)), at(120));
    assert!(marks.pushes(BASE, 100));
    assert!(marks.pushes(at(90), 30));
    assert!(marks.space() > 0);
    assert!(marks.is_sound(BASE, at(400)));
    assert!(!marks.is_sound(at(100), at(400)));
    marks.acknowledge(at(100));
    assert!(marks.is_sound(at(100), at(400)));
    marks.acknowledge(at(260));
    assert_eq!(marks.space(), 0);
}

#[test]
fn pushes_in_flight_are_bounded() {
    let mut marks = PushMarks::new(BASE);
    marks.forced_push = at(10_000);
    for end in 1..5000 {
        marks.push(at(end), BASE, at(end - 1));
    }
    assert_eq!(marks.earlier().count(), PUSHES_MAX);
    assert!(marks.pushes(at(4998), 1));
    marks.acknowledge(at(4999));
    assert_eq!(marks.earlier, None);
}
