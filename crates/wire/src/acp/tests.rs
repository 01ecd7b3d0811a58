use super::*;
use crate::pieces::Behind;
use proptest::prelude::*;

fn frames() -> impl Strategy<Value = Vec<Result<Vec<u8>, u16>>> {
    let data = prop::collection::vec(any::<u8>(), 0..200).prop_map(Ok);
    let null = (0u16..200).prop_map(Err);
    prop::collection::vec(prop_oneof![data, null], 0..8)
}

fn build(frames: &[Result<Vec<u8>, u16>], buffer: &mut [u8]) -> usize {
    let mut builder = Builder::new(buffer);
    for frame in frames {
        match frame {
            Ok(payload) => builder.data(payload).unwrap(),
            Err(length) => builder.null(*length).unwrap(),
        }
    }
    builder.len()
}

struct Rest<'a>(&'a [&'a [u8]]);

impl Behind for Rest<'_> {
    fn piece(&self, number: usize) -> Option<&[u8]> {
        self.0.get(number).copied()
    }
}

#[test]
fn the_header_is_four_bytes_with_a_big_endian_length() {
    assert_eq!(Header::data(0x0102).unwrap().bytes(), [0xac, 0, 1, 2]);
    assert_eq!(Header::null(4).unwrap().bytes(), [0xac, 1, 0, 0]);
    assert_eq!(Header::null(3), None);
    assert_eq!(Header::null(HEADER_LEN + PAYLOAD_MAX + 1), None);
    assert_eq!(Header::data(PAYLOAD_MAX + 1), None);
}

#[test]
fn bytes_that_are_no_frames_say_why() {
    let errors = |bytes: &[u8]| {
        let mut frames = Frames::new(bytes);
        let error = frames.by_ref().find_map(Result::err);
        assert_eq!(frames.next(), None);
        error
    };
    assert_eq!(errors(&[]), None);
    assert_eq!(errors(&[0xac, 0, 0]), Some(Error::Truncated));
    assert_eq!(errors(b"GET /"), Some(Error::Magic(b'G')));
    assert_eq!(errors(&[0xac, 2, 0, 0]), Some(Error::Type(2)));
    // A whole frame, and one that ends in the next segment.
    assert_eq!(
        errors(&[0xac, 0, 0, 1, 7, 0xac, 0, 0, 3, 1, 2]),
        Some(Error::Length {
            length: 3,
            available: 2
        })
    );
    // A header within a payload is payload.
    assert_eq!(errors(&[0xac, 0, 0, 4, 0xac, 9, 9, 9]), None);
}

#[test]
fn a_frame_that_does_not_fit_leaves_the_builder_as_it_was() {
    let mut buffer = [0; 10];
    let mut builder = Builder::new(&mut buffer);
    builder.data(&[1, 2]).unwrap();
    let error = EmitError::BufferTooSmall {
        needed: 11,
        available: 10,
    };
    assert_eq!(builder.null(1), Err(error));
    assert_eq!(builder.len(), 6);
    builder.null(0).unwrap();
    assert_eq!(buffer, [0xac, 0, 0, 2, 1, 2, 0xac, 1, 0, 0]);
    let long = vec![0; PAYLOAD_MAX + 1];
    let refused = Builder::new(&mut [0; 8]).data(&long);
    assert!(matches!(refused, Err(EmitError::PayloadTooLong { .. })));
}

proptest! {
    #[test]
    fn what_is_built_is_read(frames in frames()) {
        let mut buffer = [0xff; 2000];
        let length = build(&frames, &mut buffer);
        let mut end = 0;
        let mut read = Frames::new(&buffer[..length]);
        for sent in frames {
            let frame = read.next().unwrap().unwrap();
            prop_assert_eq!(frame.offset, end);
            end += frame.size();
            match sent {
                Ok(payload) => {
                    prop_assert_eq!(frame.kind, Kind::Data);
                    prop_assert_eq!(frame.payload, payload);
                }
                Err(length) => {
                    prop_assert_eq!(frame.kind, Kind::Null);
                    prop_assert_eq!(frame.payload, vec![0; length.into()]);
                }
            }
        }
        prop_assert_eq!(read.next(), None);
        prop_assert_eq!(end, length);
    }

    /// The bytes of frames, some of them changed, are cut anywhere.
    #[test]
    fn frames_in_pieces_are_those_of_whole_bytes(
        frames in frames(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        changed: Option<(prop::sample::Index, u8)>,
    ) {
        let mut buffer = [0; 2000];
        let length = build(&frames, &mut buffer);
        if let Some((place, byte)) = changed {
            buffer[place.index(2000)] = byte;
        }
        let bytes = &buffer[..length];
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(length + 1)).collect();
        cuts.sort_unstable();
        cuts.push(length);
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        let rest = Rest(&pieces);
        let cut = Pieces::new(&bytes[..cuts[0]], &rest, length).unwrap();
        let whole = Frames::new(bytes).map(|read| {
            read.map(|frame| (frame.offset, frame.kind, frame.size(), frame.payload.to_vec()))
        });
        let read = FramesInPieces::new(cut).map(|read| {
            read.map(|frame| {
                let mut payload = Vec::new();
                cut.get(frame.payload()).unwrap().append_to(&mut payload);
                (frame.offset, frame.header.kind, frame.size(), payload)
            })
        });
        prop_assert_eq!(read.collect::<Vec<_>>(), whole.collect::<Vec<_>>());
    }

    /// A segment that was cut within a frame is never mistaken for a whole one.
    #[test]
    fn a_cut_is_found(frames in frames(), cut: prop::sample::Index) {
        let mut buffer = [0; 2000];
        let length = build(&frames, &mut buffer);
        let ends: Vec<_> = Frames::new(&buffer[..length])
            .map(|frame| frame.map(|frame| frame.offset + frame.size()).unwrap())
            .collect();
        let cut = cut.index(length + 1);
        let whole = cut == 0 || ends.contains(&cut);
        prop_assert_eq!(Frames::new(&buffer[..cut]).all(|frame| frame.is_ok()), whole);
    }
}
