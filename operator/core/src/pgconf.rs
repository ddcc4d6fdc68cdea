//! The configuration files of PostgreSQL, as text.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    config::InstanceConfig,
    names::{DIR_RUN, DIR_TLS_REPLICATION, DIR_TLS_SERVER, PORT_POSTGRES, USER_REPLICATION, USER_SUPERUSER},
    record::Member,
};

/// What starts a line of the server's log; [`crate::pglog`] reads it back.
pub const LOG_LINE_PREFIX: &str = "%m\t%p\t%b\t%u\t%d\t";

/// Longest time a standby goes without a word from its primary before it connects anew.
const WAL_RECEIVER_TIMEOUT: &str = "5s";

/// What differs between the instances of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Own name in replication.
    pub member: Member,
    /// Own slot on the primary.
    pub slot: String,
    /// Name every server certificate of the cluster carries.
    pub tls_name: String,
    /// Where the primary is; `None` on the primary itself and while it is unknown.
    pub primary: Option<IpAddr>,
}

/// Slot of an ordinal. The primary makes them, standbys of that ordinal use them.
#[must_use]
pub fn slot(ordinal: u32) -> String {
    format!("instance_{ordinal}")
}

/// The connection string by which a standby reaches the primary: by address, verified by name, with a client certificate.
#[must_use]
pub fn primary_conninfo(local: &Local, primary: IpAddr) -> String {
    let Local { member, slot: _, tls_name, primary: _ } = local;
    let key = DIR_TLS_REPLICATION;
    format!(
        "user={USER_REPLICATION} host={tls_name} hostaddr={primary} port={PORT_POSTGRES} application_name={member} \
         sslmode=verify-full sslcert={key}/tls.crt sslkey={key}/tls.key sslrootcert={key}/ca.crt \
         connect_timeout=5 keepalives_idle=5 keepalives_interval=2 keepalives_count=3 tcp_user_timeout=10000"
    )
}

/// `postgresql.conf`: our defaults, then the user's parameters, then what the operator owns. The last of equals wins.
#[must_use]
pub fn postgresql_conf(config: &InstanceConfig, local: &Local) -> String {
    let mut text =
        String::from("# Written by the operator at each start and change; edit spec.postgresql.parameters instead.\n");
    let mut section = |title: &str, values: BTreeMap<String, String>| {
        text.push_str(&format!("\n# {title}\n"));
        for (name, value) in values {
            text.push_str(&format!("{name} = {}\n", quoted(&value)));
        }
    };
    section("Defaults", defaults(config));
    section("spec.postgresql.parameters", config.parameters.clone());
    section("Set by the operator", owned(config, local));
    text
}

/// A value of `postgresql.conf`.
fn quoted(value: &str) -> String {
    // A line break can't be written in that file; the server then refuses the parameter's value, not the file.
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''").replace('\n', "\\n"))
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// What a user may change, but rarely has to.
fn defaults(config: &InstanceConfig) -> BTreeMap<String, String> {
    let mut values = map(&[
        ("dynamic_shared_memory_type", "posix"),
        ("hot_standby_feedback", "on"),
        ("log_line_prefix", LOG_LINE_PREFIX),
        ("log_checkpoints", "on"),
        // The operator reads some complaints of the server, see `pglog`.
        ("lc_messages", "C"),
        ("log_timezone", "UTC"),
        ("max_connections", "100"),
        ("max_replication_slots", "32"),
        ("max_wal_senders", "32"),
        ("max_wal_size", "1GB"),
        ("min_wal_size", "80MB"),
        ("password_encryption", "scram-sha-256"),
        ("shared_buffers", "128MB"),
        ("ssl_min_protocol_version", "TLSv1.2"),
        ("timezone", "UTC"),
        // How soon a standby knocks again at a primary that was away.
        ("wal_retrieve_retry_interval", "500ms"),
        ("wal_receiver_timeout", WAL_RECEIVER_TIMEOUT),
        ("wal_sender_timeout", "10s"),
    ]);
    for name in ["lc_monetary", "lc_numeric", "lc_time"] {
        values.insert(name.to_owned(), config.initdb.locale.clone());
    }
    values.insert("max_slot_wal_keep_size".to_owned(), format!("{}MB", retained_megabytes(config)));
    values
}

/// What the slots of absent standbys may retain: a quarter of the data volume, so that a standby that stays away never
/// fills the primary's disk. At least 256 MB, else a short absence would cost a new copy.
fn retained_megabytes(config: &InstanceConfig) -> u64 {
    (config.storage_bytes / 4 / (1024 * 1024)).max(256)
}

/// What the operator needs for itself; every name is in [`crate::config::OWNED_PARAMETERS`].
fn owned(config: &InstanceConfig, local: &Local) -> BTreeMap<String, String> {
    let server = DIR_TLS_SERVER;
    let mut values = map(&[
        ("hot_standby", "on"),
        ("listen_addresses", "*"),
        ("log_destination", "stderr"),
        ("logging_collector", "off"),
        // A crashed backend is recovered from in place by the server; a crashed server by the instance manager.
        ("restart_after_crash", "on"),
        ("recovery_target_timeline", "latest"),
        ("ssl", "on"),
        ("synchronous_standby_names", ""),
        ("unix_socket_directories", DIR_RUN),
        ("wal_level", "replica"),
        // pg_rewind needs it where checksums are off; with them on it costs nothing.
        ("wal_log_hints", "on"),
    ]);
    let mut set = |name: &str, value: String| values.insert(name.to_owned(), value);
    set("cluster_name", config.cluster.clone());
    set("port", PORT_POSTGRES.to_string());
    set("ssl_cert_file", format!("{server}/tls.crt"));
    set("ssl_key_file", format!("{server}/tls.key"));
    set("ssl_ca_file", format!("{server}/ca.crt"));
    if config.major >= 17 {
        set("allow_alter_system", "off".to_owned());
    }
    if let Some(primary) = local.primary {
        set("primary_conninfo", primary_conninfo(local, primary));
        set("primary_slot_name", local.slot.clone());
    }
    values
}

/// `pg_hba.conf`. The operator's lines come first: the first line that matches a connection decides.
#[must_use]
pub fn pg_hba_conf(config: &InstanceConfig) -> String {
    let mut text = format!(
        "# Written by the operator; edit spec.postgresql.pgHba instead.\n\
         local all {USER_SUPERUSER} peer\n\
         hostssl replication {USER_REPLICATION} all cert\n\
         hostssl postgres {USER_REPLICATION} all cert\n\
         host all,replication {USER_REPLICATION} all reject\n\
         local all,replication {USER_REPLICATION} reject\n"
    );
    for line in &config.pg_hba {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str("hostssl all all all scram-sha-256\n");
    text
}

/// Major version in the output of `postgres --version`, such as `postgres (PostgreSQL) 17.6 (Debian 17.6-1)`, with the full one.
#[must_use]
pub fn parse_version(output: &str) -> Option<(u32, String)> {
    let mut words = output.split_whitespace().skip_while(|word| *word != "(PostgreSQL)");
    words.next()?;
    let full = words.next()?;
    let digits: String = full.chars().take_while(char::is_ascii_digit).collect();
    Some((digits.parse().ok()?, full.to_owned()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::config::{InitdbConfig, is_owned};

    fn config() -> InstanceConfig {
        InstanceConfig {
            cluster: "orders".to_owned(),
            namespace: "shop".to_owned(),
            replicas: 3,
            major: 17,
            parameters: BTreeMap::new(),
            pg_hba: Vec::new(),
            wal_volume: false,
            storage_bytes: 4 << 30,
            initdb: InitdbConfig {
                database: "app".to_owned(),
                owner: "app".to_owned(),
                encoding: "UTF8".to_owned(),
                locale: "C.UTF-8".to_owned(),
            },
        }
    }

    fn local(primary: Option<IpAddr>) -> Local {
        let member = Member { pod: "orders-1".to_owned(), identity: 0xc0ffee };
        Local { member, slot: slot(1), tls_name: "orders-rw.shop.svc".to_owned(), primary }
    }

    #[test]
    fn what_the_operator_sets_is_what_it_refuses_from_users() {
        for name in owned(&config(), &local(Some([10, 0, 0, 1].into()))).keys() {
            assert!(is_owned(name), "{name} could be set by a user");
        }
        for name in defaults(&config()).keys() {
            assert!(!is_owned(name), "{name} could not be set by a user");
        }
    }

    #[test]
    fn a_users_value_comes_after_the_default() {
        let parameters = [("shared_buffers".to_owned(), "1GB".to_owned())].into();
        let text = postgresql_conf(&InstanceConfig { parameters, ..config() }, &local(None));
        let default = text.find("shared_buffers = '128MB'").unwrap();
        assert!(text.find("shared_buffers = '1GB'").unwrap() > default);
    }

    #[rstest]
    #[case("64MB", "'64MB'")]
    #[case("it's", "'it''s'")]
    #[case(r"a\b", r"'a\\b'")]
    #[case("a\nport = 1", r"'a\nport = 1'")]
    fn values_cannot_leave_their_quotes(#[case] value: &str, #[case] expected: &str) {
        assert_eq!(quoted(value), expected);
    }

    #[test]
    fn a_standby_dials_an_address_and_verifies_a_name() {
        let text = postgresql_conf(&config(), &local(Some([10, 0, 0, 1].into())));
        for part in
            ["host=orders-rw.shop.svc hostaddr=10.0.0.1", "sslmode=verify-full", "application_name=orders-1.00c0ffee"]
        {
            assert!(text.contains(part), "{part}");
        }
        assert!(!postgresql_conf(&config(), &local(None)).contains("primary_conninfo"));
    }

    #[test]
    fn older_versions_are_not_given_newer_parameters() {
        let text = |major| postgresql_conf(&InstanceConfig { major, ..config() }, &local(None));
        assert!(text(17).contains("allow_alter_system"));
        assert!(!text(15).contains("allow_alter_system"));
    }

    #[test]
    fn nobody_is_trusted_and_user_lines_stay_between_ours() {
        let text =
            pg_hba_conf(&InstanceConfig { pg_hba: vec!["hostssl all all 10.0.0.0/8 md5".to_owned()], ..config() });
        assert!(!text.contains("trust"));
        let user = text.find("10.0.0.0/8").unwrap();
        assert!(text.find("local all,replication streaming_replica reject").unwrap() < user);
        assert!(text.rfind("hostssl all all all scram-sha-256").unwrap() > user);
    }

    #[rstest]
    #[case(1 << 30, 256)]
    #[case(100 << 30, 25_600)]
    fn slots_retain_a_quarter_of_the_volume(#[case] storage_bytes: u64, #[case] megabytes: u64) {
        assert_eq!(retained_megabytes(&InstanceConfig { storage_bytes, ..config() }), megabytes);
    }

    #[rstest]
    #[case("postgres (PostgreSQL) 17.6 (Debian 17.6-0+deb13u1)\n", Some((17, "17.6")))]
    #[case("postgres (PostgreSQL) 18beta1\n", Some((18, "18beta1")))]
    #[case("mysqld 8.0", None)]
    #[case("", None)]
    fn versions(#[case] output: &str, #[case] expected: Option<(u32, &str)>) {
        assert_eq!(parse_version(output), expected.map(|(major, full)| (major, full.to_owned())));
    }
}
