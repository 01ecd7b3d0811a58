use super::*;

fn v4(spec: &FlowSpec) -> (&[u8], &[u8]) {
    (&spec.header[..16], &spec.header_mask[..16])
}

#[test]
fn udp_over_ipv4_to_port_53_goes_to_queue_1() {
    let spec = encode(Protocol::Udp, Ipv4Addr::UNSPECIFIED.into(), 53, 1);
    let mut rule = request(INSERT_RULE);
    rule.spec = spec;
    rule.spec.location = 7;
    // As `ethtool -N IF flow-type udp4 dst-port 53 action 1 loc 7` sends it.
    let mut expected = [0u8; 192];
    expected[..4].copy_from_slice(&0x32u32.to_ne_bytes());
    expected[16..20].copy_from_slice(&2u32.to_ne_bytes());
    expected[30..32].copy_from_slice(&[0, 53]);
    expected[102..104].copy_from_slice(&[0xff, 0xff]);
    expected[168..176].copy_from_slice(&1u64.to_ne_bytes());
    expected[176..180].copy_from_slice(&7u32.to_ne_bytes());
    assert_eq!(rule.as_bytes(), expected);
}

#[test]
fn a_local_address_is_part_of_the_rule() {
    let spec = encode(Protocol::Tcp, Ipv4Addr::new(192, 0, 2, 1).into(), 0x1f90, 3);
    assert_eq!(spec.flow_type, FLOW_TCP4);
    let (header, mask) = v4(&spec);
    assert_eq!(
        header,
        [0, 0, 0, 0, 192, 0, 2, 1, 0, 0, 0x1f, 0x90, 0, 0, 0, 0]
    );
    assert_eq!(
        mask,
        [0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 255, 255, 0, 0, 0, 0]
    );
    assert_eq!(
        (spec.header[16..].iter().max(), spec.ring_cookie),
        (Some(&0), 3)
    );

    let address: Ipv6Addr = "2001:db8::5".parse().unwrap();
    let spec = encode(Protocol::Udp, address.into(), 53, 2);
    assert_eq!(spec.flow_type, FLOW_UDP6);
    let mut header = [0u8; 52];
    header[16..32].copy_from_slice(&address.octets());
    header[35] = 53;
    let mut mask = [0u8; 52];
    mask[16..32].fill(0xff);
    mask[34..36].fill(0xff);
    assert_eq!((spec.header, spec.header_mask), (header, mask));

    let spec = encode(Protocol::Tcp, Ipv6Addr::UNSPECIFIED.into(), 53, 2);
    assert_eq!(spec.flow_type, FLOW_TCP6);
    mask[16..32].fill(0);
    assert_eq!(spec.header_mask, mask);
}

#[test]
fn no_address_means_both_families() {
    let both = families(None);
    assert_eq!(both.len(), 2);
    assert!(both[0].is_ipv4() && both[1].is_ipv6());
    assert!(both.iter().all(IpAddr::is_unspecified));
    let mapped = Some("::ffff:192.0.2.1".parse().unwrap());
    assert_eq!(families(mapped), [IpAddr::from([192, 0, 2, 1])]);
}

#[test]
fn the_lowest_free_place_is_found() {
    assert_eq!(lowest_free(&[], 8), Some(0));
    assert_eq!(lowest_free(&[0, 1, 2], 8), Some(3));
    assert_eq!(lowest_free(&[0, 2, 3], 8), Some(1));
    assert_eq!(lowest_free(&[1, 7], 8), Some(0));
    // A driver that lists a location twice.
    assert_eq!(lowest_free(&[0, 0, 1, 1], 8), Some(2));
    assert_eq!(lowest_free(&[0, 1, 2], 3), None);
    assert_eq!(lowest_free(&[], 0), None);
    assert_eq!(lowest_free(&[u32::MAX], u32::MAX), Some(0));
}

/// A device's rule table, answering as the kernel does.
struct Table {
    size: u32,
    used: Vec<u32>,
    driver_chooses: bool,
    /// Rules that other processes insert between a count and the next list.
    late: Vec<u32>,
    calls: u32,
}

impl Table {
    fn new(size: u32, used: &[u32]) -> Table {
        Table {
            size,
            used: used.to_vec(),
            driver_chooses: false,
            late: Vec::new(),
            calls: 0,
        }
    }

    fn answer(&mut self, request: &mut [u8]) -> io::Result<()> {
        self.calls += 1;
        let fail = |code| Err(io::Error::from_raw_os_error(code));
        let (mut rules, _) = Rules::read_from_prefix(request).unwrap();
        match rules.command {
            GET_RULE_COUNT => {
                rules.rule_count = self.used.len() as u32;
                if self.driver_chooses {
                    rules.data = u64::from(self.size | LOCATION_SPECIAL);
                }
            }
            GET_ALL_RULES => {
                self.used.extend(self.late.pop());
                if (rules.rule_count as usize) < self.used.len() {
                    return fail(libc::EMSGSIZE);
                }
                rules.rule_count = self.used.len() as u32;
                rules.data = u64::from(self.size);
            }
            INSERT_RULE => {
                if rules.spec.location == LOCATION_ANY {
                    assert!(self.driver_chooses);
                    rules.spec.location = 42;
                } else if rules.spec.location >= self.size {
                    return fail(libc::EINVAL);
                }
                self.used.push(rules.spec.location);
            }
            DELETE_RULE => {
                let place = self.used.iter().position(|&at| at == rules.spec.location);
                let Some(place) = place else {
                    return fail(libc::ENOENT);
                };
                self.used.remove(place);
            }
            other => panic!("unknown command {other:#x}"),
        }
        request[..RULES_BYTES].copy_from_slice(rules.as_bytes());
        if rules.command == GET_ALL_RULES {
            for (index, location) in self.used.iter().enumerate() {
                let at = LOCATIONS_AT + 4 * index;
                request[at..at + 4].copy_from_slice(&location.to_ne_bytes());
            }
        }
        Ok(())
    }

    fn add(&mut self) -> io::Result<u32> {
        let mut call = |request: &mut [u8]| self.answer(request);
        let location = free_location(&mut call)?;
        let spec = encode(Protocol::Udp, Ipv4Addr::UNSPECIFIED.into(), 53, 1);
        insert(&mut call, &spec, location)
    }
}

#[test]
fn rules_fill_the_gaps_of_a_table_until_it_is_full() {
    // Drivers list newest first, or as they please.
    let mut table = Table::new(5, &[3, 1]);
    assert_eq!(table.add().unwrap(), 0);
    assert_eq!(table.add().unwrap(), 2);
    assert_eq!(table.add().unwrap(), 4);
    assert_eq!(table.add().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    delete(&mut |request| table.answer(request), 1).unwrap();
    assert_eq!(table.add().unwrap(), 1);
    let error = delete(&mut |request| table.answer(request), 9).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn a_driver_that_chooses_is_asked_to_and_believed() {
    let mut table = Table::new(64, &[0]);
    table.driver_chooses = true;
    assert_eq!(table.add().unwrap(), 42);
    // Count and insertion: the list was not needed.
    assert_eq!(table.calls, 2);
}

#[test]
fn a_table_that_grows_meanwhile_is_read_again_but_not_for_ever() {
    let mut table = Table::new(64, &[0]);
    table.late = vec![1];
    assert_eq!(table.add().unwrap(), 2);
    table.late = (10..30).collect();
    let error = table.add().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    assert_eq!(table.late.len(), 20 - ATTEMPTS as usize);
}
