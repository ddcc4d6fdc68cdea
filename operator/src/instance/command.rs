//! Programs of PostgreSQL that run and end.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
    time::timeout,
};

use super::reaper::Children;

/// Lines of a program's complaints that are kept for the error.
const TAIL: usize = 6;

/// A program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be started or spoken to.
    #[error("running {program}: {source}")]
    Io {
        /// Its name.
        program: String,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// It did not end in time and was killed.
    #[error("{program} did not end within {seconds} s")]
    Late {
        /// Its name.
        program: String,
        /// The deadline.
        seconds: u64,
    },
    /// It ended with an error; the text is the end of what it said.
    #[error("{program} failed ({status}): {said}")]
    Failed {
        /// Its name.
        program: String,
        /// Exit status.
        status: String,
        /// Last lines of its standard error.
        said: String,
    },
}

/// Runs a program to its end and returns its standard output. Its standard error goes to the log, its last lines into
/// the error. Dropping the future kills it.
///
/// # Errors
/// See [`CommandError`].
pub async fn run(
    children: &Children,
    mut command: Command,
    input: &str,
    deadline: Duration,
) -> Result<String, CommandError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let io = |source| CommandError::Io { program: program.clone(), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(io)?;
    let _registered = children.register(child.id());
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            stdin.write_all(input.as_bytes()).await?;
        }
        Ok(())
    };
    let work = async { tokio::join!(feed, read_all(stdout), tail(&program, stderr), child.wait()) };
    let Ok((fed, output, said, status)) = timeout(deadline, work).await else {
        return Err(CommandError::Late { program, seconds: deadline.as_secs() });
    };
    let status = status.map_err(io)?;
    if !status.success() {
        return Err(CommandError::Failed { program, status: status.to_string(), said });
    }
    fed.map_err(io)?;
    output.map_err(io)
}

async fn read_all(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn tail(program: &str, stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut last = std::collections::VecDeque::new();
    let Some(stream) = stream else { return String::new() };
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::info!(program, "{line}");
        if last.len() == TAIL {
            last.pop_front();
        }
        last.push_back(line);
    }
    Vec::from(last).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn passes_input_and_output() {
        let output = run(&Children::default(), sh("cat"), "hello", Duration::from_secs(10)).await.unwrap();
        assert_eq!(output, "hello");
    }

    #[tokio::test]
    async fn a_failure_carries_the_last_words() {
        let script = "for i in 1 2 3 4 5 6 7 8; do echo $i >&2; done; exit 3";
        let error = run(&Children::default(), sh(script), "", Duration::from_secs(10)).await.unwrap_err();
        assert!(matches!(&error, CommandError::Failed { said, .. } if said == "3\n4\n5\n6\n7\n8"), "{error}");
        assert!(error.to_string().contains('3'));
    }

    #[tokio::test]
    async fn a_hanging_program_is_given_up() {
        let error = run(&Children::default(), sh("sleep 60"), "", Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(error, CommandError::Late { .. }));
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let error =
            run(&Children::default(), Command::new("no-such-program"), "", Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains("no-such-program"));
    }
}
