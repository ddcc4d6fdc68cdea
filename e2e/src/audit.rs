//! The API server's audit log: who asked for what, and what was answered.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use serde::Deserialize;
use testcontainers::core::logs::LogFrame;

/// The policy: each request once, when it is answered, without bodies.
pub const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
";

/// One request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// `get`, `list`, `create`, `patch` and so on.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// Who asked.
    pub user: User,
    /// What was answered; absent while a panic is handled.
    #[serde(default)]
    pub response_status: Option<Status>,
    /// What it was about; absent for paths that are no resources.
    #[serde(default)]
    pub object_ref: Option<Target>,
    /// The client program.
    #[serde(default)]
    pub user_agent: String,
}

/// Who asked.
#[derive(Clone, Debug, Deserialize)]
pub struct User {
    /// Name of the user.
    pub username: String,
    /// More about the credentials.
    #[serde(default)]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What was answered.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// HTTP status.
    #[serde(default)]
    pub code: u16,
}

/// What a request was about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Target {
    /// Plural of the kind.
    pub resource: String,
    /// Empty for cluster-wide objects and lists over all namespaces.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    /// `status`, `scale` and so on.
    pub subresource: String,
}

impl Entry {
    /// The request changes something.
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// HTTP status, 0 if there was none.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }

    /// Identifies the token that was used: two processes of one ServiceAccount have one each.
    #[must_use]
    pub fn credential(&self) -> &str {
        let ids = self.user.extra.get("authentication.kubernetes.io/credential-id");
        ids.and_then(|ids| ids.first()).map_or("", String::as_str)
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{} {} -> {}", self.verb, self.uri, self.code())
    }
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    partial: String,
    /// Everything else the server printed; shown when it doesn't come up.
    other: Vec<String>,
}

/// Collects the log while the server runs.
#[derive(Default)]
pub struct Audit(Mutex<State>);

impl Audit {
    /// Takes one piece of output.
    pub fn accept(&self, frame: &LogFrame) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match frame {
            LogFrame::StdErr(bytes) => {
                state.other.push(String::from_utf8_lossy(bytes).trim_end().to_owned());
            }
            LogFrame::StdOut(bytes) => {
                state.partial.push_str(&String::from_utf8_lossy(bytes));
                while let Some(end) = state.partial.find('\n') {
                    let line: String = state.partial.drain(..=end).collect();
                    match serde_json::from_str(&line) {
                        Ok(entry) => state.entries.push(entry),
                        Err(_) => state.other.push(line.trim_end().to_owned()),
                    }
                }
            }
        }
    }

    /// A mark: entries from here on are `since` it.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entries.len()
    }

    /// Entries of one user since a mark.
    #[must_use]
    pub fn since(&self, mark: usize, user: &str) -> Vec<Entry> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.iter().skip(mark).filter(|entry| entry.user.username == user).cloned().collect()
    }

    /// The last lines that are no audit entries.
    #[must_use]
    pub fn tail(&self, lines: usize) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = state.other.len().saturating_sub(lines);
        state.other.iter().skip(skip).map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
