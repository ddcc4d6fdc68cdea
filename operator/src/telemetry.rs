//! Logs: JSON for machines, text for people, to standard output.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Form of the log lines.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// One readable line per event.
    Text,
}

/// Starts logging. `filter` is in the syntax of `RUST_LOG`; what can't be parsed in it is ignored.
pub fn init(format: LogFormat, filter: &str) {
    let builder = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_target(false);
    match format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).init(),
        LogFormat::Text => builder.with_ansi(false).init(),
    }
}
