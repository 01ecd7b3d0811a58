use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::descriptor_set::DescriptorSet;

/// Descriptors of the model: more than a stride's 2048 bits, so that calls cover whole
/// strides and a remainder.
const NUMBERS: usize = 2300;
/// Descriptors that change, at both ends and at the boundaries of words and strides.
const BUSY: [usize; 12] = [0, 1, 2, 63, 64, 65, 127, 2047, 2048, 2049, 2239, 2299];

#[derive(Debug, PartialEq, Eq)]
struct Closed;

/// Files that hint as the rule requires, and count examinations.
struct Model {
    /// The readiness of each; `None` for a descriptor that is not open.
    files: Vec<Option<Events>>,
    interest: Vec<Classes>,
    hints: BTreeSet<usize>,
    examined: Vec<usize>,
}

impl Model {
    fn new() -> Self {
        Model {
            files: vec![Some(Events::from_bits(0)); NUMBERS],
            interest: vec![Classes::NONE; NUMBERS],
            hints: BTreeSet::new(),
            examined: Vec::new(),
        }
    }

    fn change(&mut self, number: usize, state: Events) {
        let Some(file) = &mut self.files[number] else {
            return;
        };
        let news = state.bits() & !file.bits();
        *file = state;
        let always = Events::ERR.bits() | Events::HUP.bits();
        let interest = self.interest[number];
        if news & (interest.interest().bits() | always) != 0 && !interest.is_none() {
            self.hints.insert(number);
        }
    }

    fn selected(&self, number: usize, asked: Classes) -> Result<Classes, Closed> {
        let state = self.files[number].ok_or(Closed)?;
        Ok(Classes::ready(state).and(asked))
    }
}

impl Files for Model {
    type Error = Closed;

    fn examine(&mut self, number: usize, interest: Classes) -> Result<Events, Closed> {
        assert!(!interest.is_none());
        self.examined.push(number);
        self.interest[number] = interest;
        self.files[number].ok_or(Closed)
    }

    fn narrow(&mut self, number: usize, interest: Classes) {
        self.interest[number] = interest;
    }
}

#[derive(Clone, Debug)]
enum Step {
    Change(usize, u32),
    /// A hint without a change, as a coalesced or late one may be.
    Rumour(usize),
    Close(usize),
    /// Another file at this descriptor, without a `select` in between.
    Reuse(usize, u32),
    Select([Vec<usize>; CLASSES], usize),
    /// Selects everything, read and write, as a server does.
    SelectAll,
    Poll(Vec<(usize, u32)>),
}

fn number() -> impl Strategy<Value = usize> {
    prop::sample::select(&BUSY[..])
}

fn state() -> impl Strategy<Value = u32> {
    let events = [
        Events::IN.bits() | Events::RDNORM.bits(),
        Events::OUT.bits() | Events::WRNORM.bits(),
        Events::PRI.bits(),
        Events::ERR.bits(),
        Events::HUP.bits(),
        Events::RDHUP.bits() | Events::IN.bits(),
    ];
    prop::collection::vec(prop::sample::select(events.to_vec()), 0..3)
        .prop_map(|events| events.iter().fold(0, |all, one| all | one))
}

fn step() -> impl Strategy<Value = Step> {
    let numbers = || prop::collection::vec(number(), 0..6);
    let count = prop::sample::select(vec![0, 1, 64, 65, 2048, 2300, 5000]);
    prop_oneof![
        8 => (number(), state()).prop_map(|(n, state)| Step::Change(n, state)),
        1 => number().prop_map(Step::Rumour),
        1 => number().prop_map(Step::Close),
        1 => (number(), state()).prop_map(|(n, state)| Step::Reuse(n, state)),
        6 => ([numbers(), numbers(), numbers()], count).prop_map(|(sets, n)| Step::Select(sets, n)),
        2 => Just(Step::SelectAll),
        3 => prop::collection::vec((number(), state()), 0..6).prop_map(Step::Poll),
    ]
}

struct World {
    model: Model,
    interest: Interest,
    found: Found,
    /// The classes requested by the calls before this one.
    before: Vec<Classes>,
    /// The classes pending at the last examination.
    pending: Vec<Classes>,
}

impl World {
    fn new() -> Self {
        World {
            model: Model::new(),
            interest: Interest::default(),
            found: Found::default(),
            before: vec![Classes::NONE; NUMBERS],
            pending: vec![Classes::NONE; NUMBERS],
        }
    }

    fn take_hints(&mut self) {
        for number in std::mem::take(&mut self.model.hints) {
            if !self.interest.hint(number) {
                self.model.narrow(number, Classes::NONE);
            }
        }
    }

    /// Carries out a `select` call, and compares it with a scan of all descriptors.
    fn select(&mut self, sets: &[DescriptorSet; CLASSES], count: usize) {
        self.take_hints();
        let hinted: Vec<bool> = (0..NUMBERS).map(|n| self.interest.is_hinted(n)).collect();
        let selecting = Selecting::new(sets.each_ref().map(DescriptorSet::words), count);
        self.model.examined.clear();
        self.found.clear();
        let result = self
            .interest
            .select(&selecting, &mut self.model, &mut self.found);
        let mut wanted = Found::default();
        let scan = selecting.each(|number, asked| {
            wanted.push(number, self.model.selected(number, asked)?);
            Ok(())
        });
        assert_eq!(result, scan);
        for &number in &self.model.examined {
            let asked = selecting.classes(number);
            assert!(!asked.is_none(), "{number} was not asked about");
            let news = asked.without(self.before[number]);
            assert!(
                !news.is_none() || hinted[number] || !self.pending[number].and(asked).is_none(),
                "{number} is neither new, nor hinted, nor was it ready"
            );
        }
        let mut once = self.model.examined.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), self.model.examined.len(), "examined twice");
        self.learn();
        if result.is_err() {
            return;
        }
        let write = |found: &Found| {
            let mut sets = sets.clone();
            let ready = found.write(sets.each_mut().map(|set| Some(set.words_mut())), count);
            (ready, sets)
        };
        let (ready, results) = write(&self.found);
        assert_eq!((ready, results.clone()), write(&wanted));
        let beyond = count.next_multiple_of(BITS) as i32;
        let ones = results
            .iter()
            .flat_map(DescriptorSet::iter)
            .filter(|&number| number < beyond);
        assert_eq!(ready, ones.count());
    }

    fn learn(&mut self) {
        for &number in &self.model.examined {
            let state = self.model.files[number].unwrap_or_default();
            self.before[number] = self.interest.interested(number);
            self.pending[number] = Classes::pending(state).and(self.before[number]);
        }
    }

    fn carry_out(&mut self, step: &Step) {
        match step {
            &Step::Change(number, state) => self.model.change(number, Events::from_bits(state)),
            &Step::Rumour(number) => {
                self.model.hints.insert(number);
            }
            &Step::Close(number) => {
                self.model.files[number] = None;
                self.forget(number);
            }
            &Step::Reuse(number, state) => {
                self.model.files[number] = Some(Events::from_bits(state));
                self.forget(number);
            }
            Step::Select(sets, count) => {
                let sets = sets
                    .each_ref()
                    .map(|set| set.iter().map(|&n| n as i32).collect());
                self.select(&sets, *count);
            }
            Step::SelectAll => {
                let open = |n: &i32| self.model.files[*n as usize].is_some();
                let all: DescriptorSet = (0..NUMBERS as i32).filter(open).collect();
                self.select(&[all.clone(), all, DescriptorSet::new()], NUMBERS);
            }
            Step::Poll(list) => {
                self.take_hints();
                self.model.examined.clear();
                for &(number, asked) in list {
                    let reported = asked | Events::ERR.bits() | Events::HUP.bits();
                    let classes = Classes::polled(Events::from_bits(asked));
                    let looked = self.interest.look(number, classes, &mut self.model);
                    let seen = looked.map(|state| state.map_or(0, |state| state.bits() & reported));
                    let state = self.model.files[number].ok_or(Closed);
                    assert_eq!(seen, state.map(|state| state.bits() & reported), "{number}");
                }
                self.learn();
            }
        }
    }

    fn forget(&mut self, number: usize) {
        self.interest.forget(number);
        self.model.interest[number] = Classes::NONE;
        self.model.hints.remove(&number);
        self.before[number] = Classes::NONE;
        self.pending[number] = Classes::NONE;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn answers_as_a_scan_of_all_does(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in &steps {
            world.carry_out(step);
        }
        // Whatever was recorded, it is still right about everything.
        world.carry_out(&Step::SelectAll);
    }
}

fn all(count: usize) -> DescriptorSet {
    (0..count as i32).collect()
}

fn read(set: &DescriptorSet) -> Selecting<'_> {
    Selecting::new([set.words(), &[], &[]], NUMBERS)
}

#[test]
fn idle_descriptors_are_examined_once() {
    let mut world = World::new();
    let (set, none) = (all(NUMBERS), DescriptorSet::new());
    let sets = [set, none.clone(), none];
    world.select(&sets, NUMBERS);
    assert_eq!(world.model.examined.len(), NUMBERS);
    world.select(&sets, NUMBERS);
    assert!(world.model.examined.is_empty());
    world.model.change(700, Events::IN);
    world.select(&sets, NUMBERS);
    assert_eq!(world.model.examined, [700]);
    // It was left unread, so it is examined until it has nothing.
    world.select(&sets, NUMBERS);
    assert_eq!(
        (world.model.examined.as_slice(), world.found.len()),
        (&[700][..], 1)
    );
    world.model.change(700, Events::from_bits(0));
    world.select(&sets, NUMBERS);
    assert_eq!(
        (world.model.examined.as_slice(), world.found.len()),
        (&[700][..], 0)
    );
    world.select(&sets, NUMBERS);
    assert!(world.model.examined.is_empty());
}

#[test]
fn a_hint_waits_until_its_descriptor_is_selected() {
    let mut world = World::new();
    let none = DescriptorSet::new();
    world.select(&[all(3), none.clone(), none.clone()], 3);
    world.model.change(2, Events::IN);
    world.select(&[all(2), none.clone(), none.clone()], 3);
    assert!(world.model.examined.is_empty());
    world.select(&[all(3), none.clone(), none], 3);
    assert_eq!(
        (world.model.examined.as_slice(), world.found.len()),
        (&[2][..], 1)
    );
}

#[test]
fn what_nobody_asks_about_any_more_stops_hinting() {
    let mut world = World::new();
    let (set, none) = (all(1), DescriptorSet::new());
    world.select(&[set.clone(), set.clone(), none.clone()], 1);
    assert_eq!(world.model.interest[0], Classes::READ.with(Classes::WRITE));
    // It becomes writable while a thread waits to read.
    world.model.change(0, Events::OUT);
    world.select(&[set.clone(), none.clone(), none], 1);
    assert_eq!(world.model.interest[0], Classes::READ);
    world.model.change(0, Events::from_bits(0));
    world.model.change(0, Events::OUT);
    assert!(world.model.hints.is_empty());
    // A second hint that was not examined stops them altogether.
    world.model.change(0, Events::IN);
    world.take_hints();
    world.model.change(0, Events::from_bits(0));
    world.model.change(0, Events::IN);
    world.take_hints();
    assert_eq!(world.model.interest[0], Classes::NONE);
    let found = {
        let selecting = read(&set);
        let World {
            interest,
            model,
            found,
            ..
        } = &mut world;
        found.clear();
        interest
            .select(&selecting, model, found)
            .map(|()| found.len())
    };
    assert_eq!((found, world.model.interest[0]), (Ok(1), Classes::READ));
}

#[test]
fn a_closed_number_is_an_error_every_time() {
    let mut world = World::new();
    let set = all(70);
    let select = |world: &mut World| {
        let World {
            interest,
            model,
            found,
            ..
        } = world;
        found.clear();
        interest.select(&read(&set), model, found)
    };
    assert_eq!(select(&mut world), Ok(()));
    world.model.files[66] = None;
    world.forget(66);
    assert_eq!(select(&mut world), Err(Closed));
    assert_eq!(select(&mut world), Err(Closed));
    world.model.files[66] = Some(Events::IN);
    assert_eq!(select(&mut world), Ok(()));
    assert_eq!(world.found.list, [(66, Classes::READ)]);
}

#[test]
fn results_leave_numbers_beyond_the_last_word_alone() {
    let mut found = Found::default();
    found.push(3, Classes::READ);
    let mut set: DescriptorSet = [3, 4, 60, 64].into_iter().collect();
    found.write([Some(set.words_mut()), None, None], 10);
    assert_eq!(set, [3, 64].into_iter().collect());
}
