use rstest::{fixture, rstest};

use super::*;

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[fixture]
fn scratch() -> Scratch {
    let dir = std::env::temp_dir().join(format!("disk-{}-{:08x}", std::process::id(), random_u32().unwrap()));
    fs::create_dir_all(&dir).unwrap();
    Scratch(dir)
}

fn control(pgdata: &Path, system_id: u64) {
    fs::create_dir_all(pgdata.join("global")).unwrap();
    fs::write(pgdata.join("global/pg_control"), system_id.to_ne_bytes()).unwrap();
    fs::write(pgdata.join("PG_VERSION"), "17\n").unwrap();
}

#[rstest]
fn an_identity_is_minted_once_and_becomes_that_of_the_directory(scratch: Scratch) {
    let volume = Volume::new(&scratch.0, None);
    let Disk::Empty { member } = volume.observe("orders-0") else { panic!("not empty") };
    assert_eq!(volume.observe("orders-0"), Disk::Empty { member: member.clone() });
    control(&volume.making(), 42);
    assert_eq!(volume.finish(&member, 3).unwrap(), 42);
    let Disk::Data(data) = volume.observe("orders-0") else { panic!("no data") };
    let expected = DataDirectory {
        member: Some(member),
        noted_system: Some(42),
        system_id: Some(42),
        major: Some(17),
        follows: false,
        highest_version: 3,
        outdated: false,
    };
    assert_eq!(data, expected);
}

#[rstest]
fn a_lost_directory_does_not_pass_its_identity_on(scratch: Scratch) {
    let volume = Volume::new(&scratch.0, None);
    let Disk::Empty { member } = volume.observe("orders-0") else { panic!("not empty") };
    control(&volume.making(), 42);
    volume.finish(&member, 3).unwrap();
    fs::remove_dir_all(volume.pgdata()).unwrap();
    let Disk::Empty { member: next } = volume.observe("orders-0") else { panic!("not empty") };
    assert_ne!(member, next);
}

#[rstest]
fn an_outdated_directory_stays_until_its_replacement_is_complete(scratch: Scratch) {
    let wal = scratch.0.join("wal");
    let volume = Volume::new(&scratch.0, Some(&wal));
    let Disk::Empty { member } = volume.observe("orders-1") else { panic!("not empty") };
    fs::create_dir_all(volume.waldir(&member).unwrap()).unwrap();
    control(&volume.making(), 42);
    volume.finish(&member, 3).unwrap();
    volume.give_up().unwrap();
    let next = volume.copy_identity().unwrap();
    assert_ne!(next, member);
    volume.give_up().unwrap();
    assert_eq!(volume.copy_identity().unwrap(), next, "a second call minted another identity");
    assert!(
        matches!(volume.observe("orders-1"), Disk::Data(data) if data.outdated && data.member == Some(member.clone()))
    );

    control(&volume.making(), 42);
    volume.finish(&next, 4).unwrap();
    assert!(matches!(volume.observe("orders-1"), Disk::Data(data) if !data.outdated && data.member == Some(next)));
    assert!(!scratch.0.join("pgdata.old").exists() && !volume.waldir(&member).unwrap().exists());
}

#[rstest]
fn foreign_data_is_seen_as_such(scratch: Scratch) {
    let volume = Volume::new(&scratch.0, None);
    control(&volume.pgdata(), 42);
    let Disk::Data(data) = volume.observe("orders-0") else { panic!("no data") };
    assert_eq!((data.member, data.noted_system, data.system_id), (None, None, Some(42)));
}

#[rstest]
fn what_cannot_be_read_is_unknown(scratch: Scratch) {
    let volume = Volume::new(&scratch.0, None);
    fs::write(scratch.0.join("member.json"), "{").unwrap();
    assert!(matches!(volume.observe("orders-0"), Disk::Unknown(why) if why.contains("member.json")));
}

#[rstest]
fn only_one_process_holds_the_lock(scratch: Scratch) {
    let volume = Volume::new(&scratch.0, None);
    let first = volume.lock().unwrap();
    assert!(first.is_some());
    assert!(volume.lock().unwrap().is_none());
    drop(first);
    assert!(volume.lock().unwrap().is_some());
}

#[rstest]
fn clearing_removes_the_unfinished_and_keeps_the_rest(scratch: Scratch) {
    let wal = scratch.0.join("wal");
    let volume = Volume::new(&scratch.0, Some(&wal));
    let member = Member { pod: "orders-0".to_owned(), identity: 0xa };
    for dir in [volume.making(), volume.pgdata(), wal.join("pg_wal.0000000a"), wal.join("pg_wal.0000000b")] {
        fs::create_dir_all(dir).unwrap();
    }
    volume.clear_making(&member).unwrap();
    assert!(!volume.making().exists() && !wal.join("pg_wal.0000000a").exists());
    assert!(volume.pgdata().exists() && wal.join("pg_wal.0000000b").exists());
}
