//! Every interleaving of a few threads on one table. Run by `make loom`.

use loom::sync::Arc;
use loom::thread;

use super::*;

fn table() -> Arc<Table<u32>> {
    Arc::new(Table::new(8, Allocator::Bitmap))
}

#[test]
fn loom_two_opens_get_two_numbers() {
    loom::model(|| {
        let table = table();
        let theirs = table.clone();
        let other = thread::spawn(move || theirs.open(1, false).unwrap());
        let own = table.open(2, false).unwrap();
        let other = other.join().unwrap();
        assert_eq!([own.min(other), own.max(other)], [0, 1]);
        assert_eq!(table.get(own).unwrap(), 2);
        assert_eq!(table.get(other).unwrap(), 1);
    });
}

#[test]
fn loom_a_number_names_the_old_the_new_or_nothing() {
    loom::model(|| {
        let table = table();
        table.open(1, false).unwrap();
        let theirs = table.clone();
        let reuser = thread::spawn(move || {
            assert_eq!(theirs.close(0).unwrap(), 1);
            assert_eq!(theirs.open(2, false).unwrap(), 0);
        });
        let seen = [table.get(0).ok(), table.get(0).ok()];
        let order = |seen: Option<u32>| match seen {
            Some(1) => 0,
            None => 1,
            Some(2) => 2,
            Some(other) => panic!("nobody opened {other}"),
        };
        assert!(order(seen[0]) <= order(seen[1]), "{seen:?}");
        reuser.join().unwrap();
        assert_eq!(table.get(0).unwrap(), 2);
    });
}

#[test]
fn loom_one_of_two_closes_finds_it_open() {
    loom::model(|| {
        let table = table();
        table.open(1, false).unwrap();
        let theirs = table.clone();
        let other = thread::spawn(move || theirs.close(0).is_ok());
        let own = table.close(0).is_ok();
        assert!(own != other.join().unwrap());
        assert!(table.is_empty());
    });
}

#[test]
fn loom_a_replaced_number_is_never_free() {
    loom::model(|| {
        let table = table();
        table.open(1, false).unwrap();
        table.open(2, false).unwrap();
        let theirs = table.clone();
        let other = thread::spawn(move || theirs.dup2(0, 1).unwrap());
        let value = table.get(1).expect("open all the time");
        assert!(value == 1 || value == 2);
        assert_eq!(table.open(3, false).unwrap(), 2);
        other.join().unwrap();
        assert_eq!(table.get(1).unwrap(), 1);
    });
}

#[test]
fn loom_a_reserved_number_is_its_own() {
    loom::model(|| {
        let table = table();
        let theirs = table.clone();
        let other = thread::spawn(move || {
            let reserved = theirs.reserve(false).unwrap();
            reserved.install(1)
        });
        let own = table.open(2, false).unwrap();
        let fd = other.join().unwrap();
        assert_ne!(own, fd);
        assert_eq!(table.get(fd).unwrap(), 1);
        assert_eq!(table.get(own).unwrap(), 2);
    });
}
