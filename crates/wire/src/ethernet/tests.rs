use super::*;
use proptest::prelude::*;

#[test]
fn addresses_read_as_they_are_written() {
    let address = MacAddress([0x02, 0, 0x5e, 0x10, 0, 0xff]);
    assert_eq!(address.to_string(), "02:00:5e:10:00:ff");
    assert_eq!("02:00:5E:10:00:ff".parse(), Ok(address));
    for text in [
        "",
        "02:00:5e:10:00",
        "02:00:5e:10:00:ff:01",
        "2:0:5e:10:0:ff",
        "02:00:5e:10:00:+f",
    ] {
        assert_eq!(text.parse::<MacAddress>(), Err(InvalidMacAddress), "{text}");
    }
}

#[test]
fn a_tag_is_recognised() {
    let mut bytes = [0u8; 20];
    bytes[12..18].copy_from_slice(&[0x81, 0x00, 0xb0, 0x2a, 0x08, 0x00]);
    let frame = Frame::new(&bytes).unwrap();
    assert_eq!(frame.vlan(), Some(42));
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    assert_eq!(Frame::new(&bytes).unwrap().vlan(), None);
}

#[test]
fn short_frames_and_short_tags_are_refused() {
    assert_eq!(Frame::new(&[0; 13]).unwrap_err(), Error::Truncated);
    let mut bytes = [0u8; 17];
    bytes[12..14].copy_from_slice(&[0x88, 0xa8]);
    assert_eq!(Frame::new(&bytes).unwrap_err(), Error::Truncated);
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(destination: [u8; 6], source: [u8; 6], ethertype: u16) {
        let header = Header {
            destination: MacAddress(destination),
            source: MacAddress(source),
            ethertype: EtherType(ethertype),
        };
        let mut bytes = [0; HEADER_LEN + TAG_LEN];
        prop_assert_eq!(header.emit(&mut bytes).unwrap().len(), TAG_LEN);
        prop_assert_eq!(Header::of(&Frame::new(&bytes).unwrap()), header);
    }
}
