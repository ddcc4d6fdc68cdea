//! The server's log, line by line.

/// One line of the server's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// Process that wrote it; `None` if the line doesn't begin with [`crate::pgconf::LOG_LINE_PREFIX`].
    pub pid: Option<u32>,
    /// Kind of that process, for example `client backend`.
    pub backend: &'a str,
    /// User, empty for the server's own processes.
    pub user: &'a str,
    /// Database, empty for the server's own processes.
    pub database: &'a str,
    /// How grave it is.
    pub level: Level,
    /// The rest.
    pub message: &'a str,
}

/// Gravity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// DEBUG1 to DEBUG5.
    Debug,
    /// LOG, INFO, NOTICE, and what belongs to them.
    Info,
    /// WARNING.
    Warn,
    /// ERROR, FATAL, PANIC.
    Error,
}

/// Reads a line. A continuation, or a line under a prefix of the user's, is all message.
#[must_use]
pub fn parse(line: &str) -> LogLine<'_> {
    prefixed(line).unwrap_or(LogLine {
        pid: None,
        backend: "",
        user: "",
        database: "",
        level: level(line),
        message: line,
    })
}

/// True for the complaint of a standby whose primary no longer holds the log it needs. The text is the server's own, in
/// English; under another `lc_messages` it is not recognised, and a person has to act.
#[must_use]
pub fn says_log_gone(message: &str) -> bool {
    message.contains("requested WAL segment") && message.contains("has already been removed")
}

/// True for what the server says of a parameter or a line of its configuration before it gives up with a FATAL that names
/// neither. English only, as in [`says_log_gone`].
#[must_use]
pub fn complains_of_configuration(message: &str) -> bool {
    message.starts_with("LOG:") && (message.contains("parameter \"") || message.contains(" in file \""))
}

fn prefixed(line: &str) -> Option<LogLine<'_>> {
    let mut fields = line.splitn(6, '\t');
    let _time = fields.next()?;
    let pid = fields.next()?.parse().ok()?;
    let (backend, user, database) = (fields.next()?, fields.next()?, fields.next()?);
    let message = fields.next()?;
    Some(LogLine { pid: Some(pid), backend, user, database, level: level(message), message })
}

fn level(message: &str) -> Level {
    let word = message.split(':').next().unwrap_or_default().trim();
    match word {
        "ERROR" | "FATAL" | "PANIC" => Level::Error,
        "WARNING" => Level::Warn,
        _ if word.starts_with("DEBUG") => Level::Debug,
        _ => Level::Info,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn reads_its_own_prefix() {
        let line = parse(
            "2026-01-02 03:04:05.678 UTC\t42\tclient backend\tapp\torders\tERROR:  relation \"x\" does not exist",
        );
        let expected = LogLine {
            pid: Some(42),
            backend: "client backend",
            user: "app",
            database: "orders",
            level: Level::Error,
            message: "ERROR:  relation \"x\" does not exist",
        };
        assert_eq!(line, expected);
    }

    #[rstest]
    #[case(
        "FATAL:  could not receive data from WAL stream: ERROR:  requested WAL segment 000000010000000000000003 has already been removed",
        true
    )]
    #[case("FATAL:  could not connect to the primary server: Connection refused", false)]
    fn a_lost_log_is_recognised(#[case] message: &str, #[case] expected: bool) {
        assert_eq!(says_log_gone(message), expected);
    }

    #[rstest]
    #[case("LOG:  invalid value for parameter \"shared_buffers\": \"lots\"", true)]
    #[case("LOG:  unrecognized configuration parameter \"x\" in file \"/data/postgresql.conf\" line 3", true)]
    #[case("LOG:  syntax error in file \"/data/postgresql.conf\" line 3, near token \"x\"", true)]
    #[case("FATAL:  configuration file \"/data/postgresql.conf\" contains errors", false)]
    #[case("LOG:  starting PostgreSQL 17.6", false)]
    fn a_complaint_of_the_configuration_is_recognised(#[case] message: &str, #[case] expected: bool) {
        assert_eq!(complains_of_configuration(message), expected);
    }

    #[rstest]
    #[case("\tFROM x", Level::Info)]
    #[case("2026-01-02 [7] LOG:  ready", Level::Info)]
    #[case("FATAL:  no", Level::Error)]
    #[case("WARNING:  mind", Level::Warn)]
    #[case("DEBUG1:  so", Level::Debug)]
    #[case("", Level::Info)]
    fn keeps_what_it_does_not_know(#[case] text: &str, #[case] level: Level) {
        let line = parse(text);
        assert_eq!((line.pid, line.level, line.message), (None, level, text));
    }
}
