use rstest::rstest;

use super::*;

const SYSTEM: u64 = 7;

fn member(pod: &str, identity: u32) -> Member {
    Member { pod: pod.to_owned(), identity }
}

fn me() -> Member {
    member("orders-1", 0xa)
}

fn other() -> Member {
    member("orders-0", 0xb)
}

fn record(holder: Member) -> Record {
    Record {
        version: 5,
        holder,
        epoch: 2,
        incarnation: 99,
        names: [].into(),
        acks: 0,
        timeline: 1,
        system_id: Some(SYSTEM),
    }
}

fn unborn(holder: Member) -> Record {
    Record { timeline: 0, system_id: None, ..record(holder) }
}

fn mine(record: Record) -> Record {
    Record { incarnation: 1, ..record }
}

fn data() -> DataDirectory {
    DataDirectory {
        member: Some(me()),
        noted_system: Some(SYSTEM),
        system_id: Some(SYSTEM),
        major: Some(17),
        follows: true,
        highest_version: 5,
        outdated: false,
    }
}

fn primary_data() -> DataDirectory {
    DataDirectory { follows: false, ..data() }
}

fn seen(disk: Disk, record: RecordView) -> Observed {
    Observed {
        pod: "orders-1".to_owned(),
        ordinal: 1,
        incarnation: 1,
        age_ms: CLAIM_PATIENCE_MS,
        stopping: false,
        wanted_major: 17,
        binaries_major: Some(17),
        disk,
        record,
        primary: Some([10, 0, 0, 1].into()),
        server: Server::Stopped,
        log_gone: false,
    }
}

fn empty(record: RecordView) -> Observed {
    seen(Disk::Empty { member: me() }, record)
}

fn full(data: DataDirectory, record: Record) -> Observed {
    seen(Disk::Data(data), RecordView::Known(record))
}

fn running(role: Role, record: RecordView) -> Observed {
    Observed { server: Server::Up(role), ..seen(Disk::Data(data()), record) }
}

/// The step's name, without its content.
fn step(seen: &Observed) -> String {
    let text = format!("{:?}", decide(seen).step);
    text.split([' ', '(']).next().unwrap_or_default().to_owned()
}

#[rstest]
#[case::nothing_known(RecordView::Unknown, "Wait")]
#[case::no_lease(RecordView::Missing, "Wait")]
#[case::garbage(RecordView::Unreadable("x".to_owned()), "Refuse")]
#[case::nobody_yet(RecordView::Empty, "Write")]
#[case::another_makes_it(RecordView::Known(unborn(other())), "Wait")]
#[case::earlier_life_made_it(RecordView::Known(unborn(me())), "Write")]
#[case::earlier_disk_made_it(RecordView::Known(unborn(member("orders-1", 0xff))), "Write")]
#[case::holding(RecordView::Known(mine(unborn(me()))), "Initialise")]
#[case::follower(RecordView::Known(record(other())), "Clone")]
#[case::own_disk_lost(RecordView::Known(record(member("orders-1", 0xff))), "Refuse")]
#[case::own_directory_lost(RecordView::Known(mine(record(me()))), "Refuse")]
fn without_a_data_directory(#[case] record: RecordView, #[case] expected: &str) {
    assert_eq!(step(&empty(record)), expected);
}

#[rstest]
#[case::follower(data(), record(other()), "Start")]
#[case::named_without_promotion(data(), mine(record(me())), "Refuse")]
#[case::copied_again(DataDirectory { outdated: true, ..data() }, record(other()), "Clone")]
#[case::a_primary_is_never_copied_over(DataDirectory { outdated: true, ..primary_data() }, mine(record(me())), "Start")]
#[case::nor_a_former_one(DataDirectory { outdated: true, ..primary_data() }, record(other()), "Refuse")]
#[case::new_life_of_the_holder(primary_data(), record(me()), "Write")]
#[case::holder(primary_data(), mine(record(me())), "Start")]
#[case::just_made(primary_data(), mine(unborn(me())), "Write")]
#[case::foreign(DataDirectory { member: None, ..data() }, record(other()), "Refuse")]
#[case::exchanged(DataDirectory { system_id: Some(8), ..data() }, record(other()), "Refuse")]
#[case::other_cluster(DataDirectory { system_id: Some(8), noted_system: Some(8), ..data() }, record(other()), "Refuse")]
#[case::other_pods_volume(DataDirectory { member: Some(member("orders-2", 0xa)), ..data() }, record(other()), "Refuse")]
#[case::no_control_file(DataDirectory { system_id: None, ..data() }, record(other()), "Refuse")]
#[case::no_version_file(DataDirectory { major: None, ..data() }, record(other()), "Refuse")]
#[case::other_major(DataDirectory { major: Some(16), ..data() }, record(other()), "Refuse")]
#[case::old_record(DataDirectory { highest_version: 6, ..data() }, record(other()), "Refuse")]
#[case::old_record_of_the_holder(DataDirectory { highest_version: 6, ..data() }, mine(record(me())), "Refuse")]
#[case::former_primary(DataDirectory { follows: false, ..data() }, record(other()), "Refuse")]
#[case::replaced_under_own_name(data(), record(member("orders-1", 0xff)), "Refuse")]
#[case::data_before_the_cluster(data(), unborn(other()), "Refuse")]
fn with_a_data_directory(#[case] data: DataDirectory, #[case] record: Record, #[case] expected: &str) {
    assert_eq!(step(&full(data, record)), expected);
}

#[rstest]
#[case::unknown(RecordView::Unknown, "Wait")]
#[case::missing(RecordView::Missing, "Wait")]
#[case::empty(RecordView::Empty, "Refuse")]
#[case::garbage(RecordView::Unreadable("x".to_owned()), "Refuse")]
fn data_is_never_overwritten_for_want_of_a_record(#[case] record: RecordView, #[case] expected: &str) {
    assert_eq!(step(&seen(Disk::Data(data()), record)), expected);
}

#[rstest]
#[case::primary(Role::Primary, RecordView::Known(mine(record(me()))), "Keep")]
#[case::primary_blind(Role::Primary, RecordView::Unknown, "Keep")]
#[case::primary_without_lease(Role::Primary, RecordView::Missing, "Keep")]
#[case::replaced(Role::Primary, RecordView::Known(record(other())), "Fence")]
#[case::second_life(Role::Primary, RecordView::Known(record(me())), "Fence")]
#[case::standby(Role::Standby, RecordView::Known(record(other())), "Keep")]
#[case::named_primary(Role::Standby, RecordView::Known(record(me())), "Keep")]
fn while_the_server_runs(#[case] role: Role, #[case] record: RecordView, #[case] expected: &str) {
    assert_eq!(step(&running(role, record)), expected);
}

/// A copy is given up only when the primary itself has said that the log is gone, and only while it can be reached.
#[rstest]
#[case::said(Role::Standby, RecordView::Known(record(other())), true, "GiveUpCopy")]
#[case::out_of_reach(Role::Standby, RecordView::Known(record(other())), false, "Keep")]
#[case::record_unknown(Role::Standby, RecordView::Unknown, true, "Keep")]
#[case::named_primary(Role::Standby, RecordView::Known(record(me())), true, "Keep")]
#[case::primary(Role::Primary, RecordView::Known(mine(record(me()))), true, "Keep")]
fn a_copy_is_given_up_only_for_a_better_one(
    #[case] role: Role,
    #[case] record: RecordView,
    #[case] reach: bool,
    #[case] expected: &str,
) {
    let primary = reach.then(|| [10, 0, 0, 1].into());
    assert_eq!(step(&Observed { log_gone: true, primary, ..running(role, record) }), expected);
}

#[test]
fn the_first_instance_does_not_wait_and_the_others_do() {
    let young = Observed { age_ms: CLAIM_PATIENCE_MS - 1, ..empty(RecordView::Empty) };
    assert_eq!(step(&young), "Wait");
    assert_eq!(step(&Observed { ordinal: 0, pod: "orders-0".to_owned(), ..young }), "Write");
}

#[test]
fn a_stop_is_orderly_and_then_the_process_ends() {
    let up = Observed { stopping: true, ..running(Role::Primary, RecordView::Unknown) };
    assert_eq!(decide(&up).step, Step::Stop);
    assert_eq!(decide(&Observed { server: Server::Stopped, ..up }).step, Step::Exit);
}

#[rstest]
#[case(None)]
#[case(Some(16))]
fn a_wrong_image_refuses_and_says_so(#[case] binaries_major: Option<u32>) {
    let plan = decide(&Observed { binaries_major, ..empty(RecordView::Empty) });
    assert_eq!(plan.step, Step::Refuse);
    assert!(plan.reason.contains("image"));
}

#[rstest]
#[case::empty(Disk::Unknown("I/O error".to_owned()))]
#[case::locked(Disk::Locked)]
fn an_unreadable_volume_changes_nothing(#[case] disk: Disk) {
    assert_eq!(step(&seen(disk, RecordView::Empty)), "Wait");
}

#[test]
fn a_copy_waits_for_the_primarys_address() {
    let blind = Observed { primary: None, ..empty(RecordView::Known(record(other()))) };
    assert_eq!(step(&blind), "Wait");
}

/// Every record written is well formed and newer than the one it replaces, and only a new holder begins an epoch.
#[rstest]
#[case::first(empty(RecordView::Empty), 0, 0)]
#[case::same_holder(full(primary_data(), record(me())), 5, 2)]
#[case::complete(full(primary_data(), mine(unborn(me()))), 5, 2)]
#[case::new_disk(empty(RecordView::Known(unborn(member("orders-1", 0xff)))), 5, 2)]
fn writes_are_newer(#[case] seen: Observed, #[case] version: u64, #[case] epoch: u32) {
    let Step::Write(next) = decide(&seen).step else { panic!("no write") };
    next.check().unwrap();
    assert_eq!(next.version, version + 1);
    assert_eq!(next.holder, me());
    assert_eq!(next.incarnation, 1);
    let changed = !matches!(&seen.record, RecordView::Known(old) if old.holder == next.holder);
    assert_eq!(next.epoch, epoch + u32::from(changed));
}

/// Whatever is seen, a server starts as primary only under a record that this very life has written.
#[test]
fn a_primary_starts_only_under_its_own_record() {
    let records = [
        record(me()),
        mine(record(me())),
        record(other()),
        mine(record(other())),
        unborn(me()),
        mine(unborn(me())),
        unborn(other()),
    ];
    let disks = [
        Disk::Data(data()),
        Disk::Data(DataDirectory { follows: false, ..data() }),
        Disk::Empty { member: me() },
        Disk::Locked,
    ];
    let mut started = 0;
    for record in &records {
        for disk in &disks {
            let plan = decide(&seen(disk.clone(), RecordView::Known(record.clone())));
            if plan.step == Step::Start(Role::Primary) {
                assert!(record.holder == me() && record.incarnation == 1 && record.initialised());
                started += 1;
            }
        }
    }
    assert_eq!(started, 1);
}
