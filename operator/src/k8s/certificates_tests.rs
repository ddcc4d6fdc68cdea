use k8s_openapi::jiff::Timestamp;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::k8s::tests::cluster;

const NOW: i64 = 1_800_000_000;

fn after(seconds: u64) -> Timestamp {
    Timestamp::from_second(NOW + i64::try_from(seconds).unwrap()).unwrap()
}

fn orders() -> Cluster {
    cluster(&json!({}))
}

#[test]
fn what_is_issued_is_accepted() {
    let cluster = orders();
    let authority = authority(&cluster, after(0)).unwrap();
    assert_eq!(judge_authority(&authority, after(0)), Ok(()));
    for purpose in [Purpose::Server, Purpose::Replication] {
        let pair = issue(&cluster, &authority, purpose, after(0)).unwrap();
        assert_eq!(judge(&cluster, &authority, purpose, &pair, after(0)), Ok(()), "{purpose:?}");
    }
}

/// 90 days and the five minutes before them: two thirds are over at the end of day 60.
#[rstest]
#[case::new(0, Ok(()))]
#[case::almost(59 * DAY, Ok(()))]
#[case::two_thirds(60 * DAY, Err(Unfit::Due))]
#[case::over(91 * DAY, Err(Unfit::Due))]
fn renewal_is_due_after_two_thirds(#[case] seconds: u64, #[case] expected: Result<(), Unfit>) {
    let cluster = orders();
    let authority = authority(&cluster, after(0)).unwrap();
    let pair = issue(&cluster, &authority, Purpose::Server, after(0)).unwrap();
    assert_eq!(judge(&cluster, &authority, Purpose::Server, &pair, after(seconds)), expected);
}

#[rstest]
#[case::young(0, Ok(()))]
#[case::old(3649 * DAY, Ok(()))]
#[case::expired(3651 * DAY, Err(Unfit::Due))]
fn an_authority_lasts_ten_years(#[case] seconds: u64, #[case] expected: Result<(), Unfit>) {
    let authority = authority(&orders(), after(0)).unwrap();
    assert_eq!(judge_authority(&authority, after(seconds)), expected);
}

#[test]
fn a_certificate_from_the_future_is_not_used() {
    let cluster = orders();
    let authority = authority(&cluster, after(0)).unwrap();
    let pair = issue(&cluster, &authority, Purpose::Server, after(DAY)).unwrap();
    assert_eq!(judge(&cluster, &authority, Purpose::Server, &pair, after(0)), Err(Unfit::Due));
}

#[test]
fn strangers_are_refused() {
    let cluster = orders();
    let (ours, theirs) = (authority(&cluster, after(0)).unwrap(), authority(&cluster, after(0)).unwrap());
    let pair = issue(&cluster, &ours, Purpose::Server, after(0)).unwrap();
    let judge = |authority: &Pair, pair: &Pair| judge(&cluster, authority, Purpose::Server, pair, after(0));
    assert_eq!(judge(&theirs, &pair), Err(Unfit::OtherAuthority));
    let swapped = Pair { key: theirs.key.clone(), ..pair.clone() };
    assert_eq!(judge(&ours, &swapped), Err(Unfit::OtherKey));
    let unreadable = Pair { certificate: "nonsense".to_owned(), ..pair.clone() };
    assert_eq!(judge(&ours, &unreadable), Err(Unfit::Unreadable));
    let client = issue(&cluster, &ours, Purpose::Replication, after(0)).unwrap();
    assert_eq!(judge(&ours, &client), Err(Unfit::OtherNames), "a client certificate is no server's");
    assert_eq!(judge_authority(&pair, after(0)), Err(Unfit::NoAuthority));
}

#[test]
fn a_server_certificate_has_the_names_clients_use() {
    let names = names(&orders(), Purpose::Server);
    for name in [
        "orders-rw",
        "orders-rw.shop",
        "orders-rw.shop.svc",
        "orders-ro.shop.svc.cluster.local",
        "*.orders-pods.shop.svc",
        "localhost",
    ] {
        assert!(names.contains(&name.to_owned()), "{name} is not among {names:?}");
    }
    assert_eq!(self::names(&orders(), Purpose::Replication), Vec::<String>::new());
}

#[test]
fn a_key_is_not_printed() {
    let pair = authority(&orders(), after(0)).unwrap();
    let text = format!("{pair:?}");
    assert!(text.contains("BEGIN CERTIFICATE") && !text.contains("PRIVATE"), "{text}");
}
