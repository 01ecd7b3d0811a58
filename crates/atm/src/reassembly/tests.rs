use proptest::prelude::*;

use super::*;

const A: Circuit = Circuit { vpi: 0, vci: 32 };
const B: Circuit = Circuit { vpi: 0, vci: 33 };
const NOW: Time = Time::ZERO;

fn pdu(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; aal5::pdu_len(payload.len())];
    aal5::emit(payload, 0, &mut bytes).unwrap();
    bytes
}

fn opened(limits: Limits) -> Reassembly {
    let mut reassembly = Reassembly::new(limits);
    for circuit in [A, B] {
        reassembly.open(circuit, 65_535).unwrap();
    }
    reassembly
}

/// Passes in a PDU's cells; returns the result of the last.
fn put(
    reassembly: &mut Reassembly,
    circuit: Circuit,
    bytes: &[u8],
) -> Result<Option<Vec<u8>>, DropReason> {
    let mut result = Ok(None);
    for (payload_type, cell) in cells(bytes) {
        result = reassembly
            .cell(NOW, circuit, payload_type, cell)
            .map(|pdu| pdu.map(|pdu| pdu.payload().to_vec()));
    }
    result
}

fn first(bytes: &[u8]) -> &[u8; 48] {
    bytes.first_chunk().unwrap()
}

#[test]
fn a_million_pdus_leave_nothing_behind() {
    let mut reassembly = opened(Limits::default());
    let bytes = pdu(&[1; 60]);
    for _ in 0..1_000_000 {
        let result = put(&mut reassembly, A, &bytes);
        assert_eq!(
            result.map(|payload| payload.map_or(0, |payload| payload.len())),
            Ok(60)
        );
    }
    assert_eq!((reassembly.pdus(), reassembly.held()), (1_000_000, 0));
}

#[test]
fn cells_of_no_circuit_and_of_oam_are_counted() {
    let mut reassembly = opened(Limits::default());
    let other = Circuit { vpi: 9, vci: 9 };
    let mut cell = |circuit, payload_type| {
        reassembly
            .cell(NOW, circuit, payload_type, &[0; 48])
            .unwrap_err()
    };
    assert_eq!(cell(other, PayloadType::USER_LAST), DropReason::NoCircuit);
    assert_eq!(cell(A, PayloadType::OAM_END_TO_END), DropReason::NotUser);
    assert_eq!(reassembly.dropped(DropReason::NoCircuit), 1);
    assert_eq!(reassembly.dropped(DropReason::NotUser), 1);
}

#[test]
fn a_damaged_or_given_up_pdu_has_its_cause_and_the_next_is_read() {
    let mut reassembly = opened(Limits::default());
    let good = pdu(&[7; 100]);
    let mut damaged = good.clone();
    damaged[50] ^= 1;
    assert_eq!(put(&mut reassembly, A, &damaged), Err(DropReason::Crc));
    let mut aborted = vec![0; 48];
    let crc = Crc32::new().update(&aborted[..44]).value();
    aborted[44..].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(put(&mut reassembly, A, &aborted), Err(DropReason::Aborted));
    // A lost last cell spoils two PDUs.
    let (_, cut) = good
        .split_last_chunk::<48>()
        .map(|(cut, last)| (last, cut))
        .unwrap();
    for cell in cut.as_chunks::<48>().0 {
        assert_eq!(
            reassembly
                .cell(NOW, A, PayloadType::USER, cell)
                .unwrap()
                .map(drop),
            None
        );
    }
    assert_eq!(put(&mut reassembly, A, &good), Err(DropReason::Crc));
    assert_eq!(put(&mut reassembly, A, &good), Ok(Some(vec![7; 100])));
    assert_eq!(reassembly.dropped(DropReason::Crc), 2);
}

#[test]
fn a_pdu_over_its_circuits_longest_is_given_up_to_its_end() {
    let mut reassembly = Reassembly::new(Limits::default());
    reassembly.open(A, 100).unwrap();
    assert_eq!(
        put(&mut reassembly, A, &pdu(&[1; 300])),
        Err(DropReason::Rest)
    );
    assert_eq!(reassembly.dropped(DropReason::TooLong), 1);
    assert_eq!(reassembly.held(), 0);
    assert!(put(&mut reassembly, A, &pdu(&[1; 100])).unwrap().is_some());
    // Also in a frame of its own.
    let long = pdu(&[1; 300]);
    let error = reassembly.part(NOW, A, &long, true).unwrap_err();
    assert_eq!(error, DropReason::TooLong);
}

#[test]
fn short_memory_refuses_new_pdus_first_and_then_the_one_that_grows() {
    let limits = Limits {
        memory: 8 * 48,
        ..Limits::default()
    };
    let mut reassembly = opened(limits);
    let long = pdu(&[1; 20 * 48]);
    let cell = first(&long);
    for _ in 0..7 {
        reassembly.cell(NOW, A, PayloadType::USER, cell).unwrap();
    }
    let error = reassembly
        .cell(NOW, B, PayloadType::USER, cell)
        .unwrap_err();
    assert_eq!(error, DropReason::EarlyDiscard);
    reassembly.cell(NOW, A, PayloadType::USER, cell).unwrap();
    let error = reassembly
        .cell(NOW, A, PayloadType::USER, cell)
        .unwrap_err();
    assert_eq!(error, DropReason::Memory);
    assert_eq!(reassembly.held(), 0);
    // Both skip the rest, and accept the next.
    for circuit in [A, B] {
        let error = reassembly
            .cell(NOW, circuit, PayloadType::USER_LAST, cell)
            .unwrap_err();
        assert_eq!(error, DropReason::Rest);
        assert!(
            put(&mut reassembly, circuit, &pdu(&[2; 50]))
                .unwrap()
                .is_some()
        );
    }
}

#[test]
fn a_pdu_that_never_ends_holds_memory_for_its_time_only() {
    let mut reassembly = opened(Limits::default());
    let cell = [0; 48];
    reassembly.cell(NOW, A, PayloadType::USER, &cell).unwrap();
    let timeout = Limits::default().timeout;
    assert_eq!(reassembly.poll_timeout(), Some(timeout));
    reassembly.expire(timeout - Duration::from_nanos(1));
    assert_eq!(reassembly.held(), 48);
    reassembly.expire(timeout);
    assert_eq!((reassembly.held(), reassembly.poll_timeout()), (0, None));
    assert_eq!(reassembly.dropped(DropReason::TimedOut), 1);
    assert!(put(&mut reassembly, A, &pdu(b"next")).unwrap().is_some());
}

/// In cells and in frames, after a time-out and after a PDU that was refused.
#[test]
fn a_lost_last_cell_costs_no_later_pdu() {
    let timeout = Limits::default().timeout;
    let next = pdu(b"next");
    let taken = |reassembly: &mut Reassembly, now| {
        let pdu = reassembly.part(now, A, &next, true);
        pdu.map(|pdu| pdu.is_some())
    };
    let mut reassembly = Reassembly::new(Limits::default());
    reassembly.open(A, 100).unwrap();
    reassembly
        .cell(NOW, A, PayloadType::USER, &[0; 48])
        .unwrap();
    assert_eq!(taken(&mut reassembly, NOW + timeout), Ok(true));
    reassembly.part(NOW, A, &[0; 96], false).unwrap();
    assert_eq!(taken(&mut reassembly, NOW + timeout), Ok(true));
    let long = reassembly.part(NOW, A, &[0; 480], false).unwrap_err();
    assert_eq!(long, DropReason::TooLong);
    let early = taken(&mut reassembly, NOW + timeout / 2);
    assert_eq!(early, Err(DropReason::Rest));
    let long = reassembly.part(NOW, A, &[0; 480], false).unwrap_err();
    assert_eq!(long, DropReason::TooLong);
    assert_eq!(taken(&mut reassembly, NOW + timeout), Ok(true));
}

#[test]
fn a_part_without_cells_begins_nothing() {
    let mut reassembly = opened(Limits::default());
    assert!(reassembly.part(NOW, A, &[], false).unwrap().is_none());
    assert_eq!(reassembly.poll_timeout(), None);
}

#[test]
fn circuits_are_opened_once_and_within_the_limit() {
    let limits = Limits {
        circuits: 1,
        ..Limits::default()
    };
    let mut reassembly = Reassembly::new(limits);
    reassembly.open(A, 100).unwrap();
    assert_eq!(reassembly.open(A, 100), Err(OpenError::InUse));
    assert_eq!(reassembly.open(B, 100), Err(OpenError::TooMany));
    reassembly
        .cell(NOW, A, PayloadType::USER, &[0; 48])
        .unwrap();
    assert!(reassembly.close(A) && !reassembly.close(A));
    assert_eq!((reassembly.held(), reassembly.poll_timeout()), (0, None));
}

#[test]
fn a_pdu_in_parts_of_frames() {
    let mut reassembly = opened(Limits::default());
    let bytes = pdu(&[9; 500]);
    let (one, rest) = bytes.split_at(48 * 4);
    let (two, three) = rest.split_at(48 * 3);
    assert!(reassembly.part(NOW, A, one, false).unwrap().is_none());
    assert!(reassembly.part(NOW, A, two, false).unwrap().is_none());
    let whole = reassembly.part(NOW, A, three, true).unwrap().unwrap();
    assert_eq!(whole.payload(), [9; 500]);
    let single = reassembly.part(NOW, A, &bytes, true).unwrap().unwrap();
    assert_eq!(single.payload(), [9; 500]);
}

/// The fate of a cell on its way.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Comes,
    IsLost,
    ComesTwice,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![20 => Just(Fate::Comes), 1 => Just(Fate::IsLost), 1 => Just(Fate::ComesTwice)]
}

proptest! {
    /// Cells may be lost or doubled, and circuits interleave in any way. Every output was
    /// sent. Each PDU that arrived whole after an undamaged last cell comes out, in
    /// order. Memory stays within its limit and returns to nothing.
    #[test]
    fn loss_doubles_and_interleaving(
        lengths in prop::collection::vec((any::<bool>(), 1_usize..400), 1..40),
        fates in prop::collection::vec(fate(), 64),
        order in prop::collection::vec(any::<bool>(), 64),
    ) {
        let limits = Limits { memory: 48 * 20, ..Limits::default() };
        let mut reassembly = opened(limits);
        let mut queues = [Vec::new(), Vec::new()];
        let mut expected = [Vec::new(), Vec::new()];
        let mut clean = [true, true];
        let mut fates = fates.iter().cycle();
        for (number, (side, length)) in lengths.iter().enumerate() {
            let side = usize::from(*side);
            let bytes = pdu(&vec![number as u8; *length]);
            let mut whole = clean[side];
            for (payload_type, cell) in cells(&bytes) {
                let fate = fates.next().copied().unwrap_or(Fate::Comes);
                let last = payload_type.is_last();
                let copies = match fate { Fate::Comes => 1, Fate::IsLost => 0, Fate::ComesTwice => 2 };
                whole &= copies == 1 || (last && copies == 2);
                for _ in 0..copies {
                    queues[side].push((payload_type, *cell));
                }
                if last {
                    clean[side] = copies > 0;
                }
            }
            if whole {
                expected[side].push(*length);
            }
        }
        let mut came = [Vec::new(), Vec::new()];
        let mut order = order.iter().cycle();
        let mut positions = [0, 0];
        let mut refused = false;
        while positions[0] < queues[0].len() || positions[1] < queues[1].len() {
            let mut side = usize::from(*order.next().unwrap_or(&false));
            if positions[side] == queues[side].len() {
                side = 1 - side;
            }
            let (payload_type, cell) = queues[side][positions[side]];
            positions[side] += 1;
            match reassembly.cell(NOW, [A, B][side], payload_type, &cell) {
                Ok(Some(pdu)) => {
                    let first = pdu.payload()[0];
                    prop_assert!(pdu.payload().iter().all(|byte| *byte == first));
                    prop_assert_eq!(lengths[usize::from(first)].1, pdu.payload().len());
                    came[side].push(pdu.payload().len());
                }
                Ok(None) => {}
                Err(reason) => refused |= matches!(reason, DropReason::EarlyDiscard | DropReason::Memory),
            }
            prop_assert!(reassembly.held() <= limits.memory);
        }
        // A doubled last cell of a PDU of one cell is that PDU again.
        for side in 0..2 {
            came[side].dedup();
            expected[side].dedup();
            if !refused {
                let mut rest = came[side].iter();
                for length in &expected[side] {
                    prop_assert!(rest.any(|came| came == length), "{came:?} {expected:?}");
                }
            }
        }
        reassembly.expire(limits.timeout);
        prop_assert_eq!(reassembly.held(), 0);
    }
}
