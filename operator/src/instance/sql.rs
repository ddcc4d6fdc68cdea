//! Questions to the own server, over its Unix socket, as superuser by peer authentication.

use std::{future::Future, path::PathBuf, time::Duration};

use operator_core::{
    lsn::{Lsn, Timeline},
    names::USER_SUPERUSER,
    status::Role,
};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls, Row};

/// How long one question may take, connection included.
const DEADLINE: Duration = Duration::from_secs(3);

/// The server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// It refused the connection or the statement.
    #[error("{}", describe(.0))]
    Server(#[from] tokio_postgres::Error),
    /// It said nothing.
    #[error("no answer from the server within 3 s")]
    Late,
    /// It said something unexpected.
    #[error("unexpected answer from the server: {0}")]
    Answer(String),
}

/// The client's own text hides what the server said.
fn describe(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(server), _) => server.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// What a running server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerView {
    /// In recovery or not.
    pub role: Role,
    /// Primary: end of the log written. Standby: end of the log received or replayed, whichever is further.
    pub lsn: Option<Lsn>,
    /// Standby: end of the log replayed.
    pub replay_lsn: Option<Lsn>,
    /// Timeline of that log; `None` on a standby that has not streamed yet.
    pub timeline: Option<Timeline>,
    /// Standby: it streams.
    pub streaming: bool,
}

const VIEW: &str = "SELECT pg_is_in_recovery(), \
    CASE WHEN pg_is_in_recovery() THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) \
         ELSE pg_current_wal_lsn() END::text, \
    pg_last_wal_replay_lsn()::text, \
    CASE WHEN pg_is_in_recovery() THEN (SELECT received_tli FROM pg_stat_wal_receiver) END, \
    CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, \
    coalesce((SELECT status = 'streaming' FROM pg_stat_wal_receiver), false)";

/// A connection that is opened when it is needed and again when it was lost.
pub struct Sql {
    socket_dir: PathBuf,
    client: Option<Client>,
}

impl Sql {
    /// The server whose socket is in this directory.
    #[must_use]
    pub fn new(socket_dir: impl Into<PathBuf>) -> Self {
        Self { socket_dir: socket_dir.into(), client: None }
    }

    /// Asks the server how it is.
    ///
    /// # Errors
    /// It doesn't accept connections, or not in time.
    pub async fn view(&mut self) -> Result<ServerView, SqlError> {
        let row = self.ask(|client| async move { client.query_one(VIEW, &[]).await.map(|row| (client, row)) }).await?;
        read_view(&row)
    }

    /// Asks for one column of text.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub async fn texts(&mut self, statement: &str) -> Result<Vec<String>, SqlError> {
        let rows =
            self.ask(|client| async move { client.query(statement, &[]).await.map(|rows| (client, rows)) }).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Runs statements.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub async fn execute(&mut self, statements: &str) -> Result<(), SqlError> {
        self.ask(|client| async move { client.batch_execute(statements).await.map(|()| (client, ())) }).await
    }

    /// Lends the connection to a question. One that failed or hung costs the connection: its state is unknown.
    async fn ask<T, F>(&mut self, question: impl FnOnce(Client) -> F) -> Result<T, SqlError>
    where
        F: Future<Output = Result<(Client, T), tokio_postgres::Error>>,
    {
        let work = async {
            let client = match self.client.take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => connect(&self.socket_dir).await?,
            };
            Ok(question(client).await?)
        };
        match timeout(DEADLINE, work).await {
            Ok(Ok((client, answer))) => {
                self.client = Some(client);
                Ok(answer)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(SqlError::Late),
        }
    }
}

async fn connect(socket_dir: &std::path::Path) -> Result<Client, SqlError> {
    let (client, connection) = tokio_postgres::Config::new()
        .host_path(socket_dir)
        .user(USER_SUPERUSER)
        .dbname("postgres")
        .application_name("postgres-operator")
        // Whatever a user sets for everybody: the manager's questions are short, it waits for no standby, and it knows
        // the server's complaints in English.
        .options("-c lc_messages=C -c statement_timeout=2500 -c synchronous_commit=local -c log_statement=none -c log_min_duration_statement=-1")
        .connect(NoTls)
        .await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("the connection to the server ended: {error}");
        }
    });
    Ok(client)
}

fn read_view(row: &Row) -> Result<ServerView, SqlError> {
    let lsn = |column: usize| -> Result<Option<Lsn>, SqlError> {
        let text: Option<String> = row.try_get(column)?;
        text.map(|text| text.parse().map_err(|_| SqlError::Answer(text))).transpose()
    };
    let recovering: bool = row.try_get(0)?;
    let received: Option<i32> = row.try_get(3)?;
    let written: Option<String> = row.try_get(4)?;
    let timeline = match written {
        Some(hex) => Some(Timeline::from_str_radix(&hex, 16).map_err(|_| SqlError::Answer(hex))?),
        None => received.and_then(|timeline| Timeline::try_from(timeline).ok()),
    };
    Ok(ServerView {
        role: if recovering { Role::Standby } else { Role::Primary },
        lsn: lsn(1)?,
        replay_lsn: lsn(2)?,
        timeline,
        streaming: row.try_get(5)?,
    })
}

/// A text as SQL.
#[must_use]
pub fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') { format!("E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// A name as SQL.
#[must_use]
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_inside_its_quotes() {
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"a\'"), r"E'a\\'''");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_an_error() {
        assert!(Sql::new("/nowhere").view().await.is_err());
    }
}
