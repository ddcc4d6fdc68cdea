//! The nodes of the kind cluster, which are containers: what runs in them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};

/// docker with these arguments: its output.
///
/// # Errors
/// It fails, or takes longer than 30 s.
pub async fn docker(arguments: &[&str]) -> Result<String> {
    let output = tokio::process::Command::new("docker").args(arguments).kill_on_drop(true).output();
    let what = || format!("docker {}", arguments.join(" "));
    let output = tokio::time::timeout(Duration::from_secs(30), output).await.with_context(what)?.with_context(what)?;
    if !output.status.success() {
        bail!("{}: {}", what(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A process of the operator on some node.
#[derive(Clone, Debug)]
pub struct Process {
    /// `controller` or `instance`.
    pub job: String,
    /// Resident memory in KiB, shared pages of the binary included.
    pub resident: u64,
    /// The part of it that is the process's own, in KiB.
    pub own: u64,
}

/// Every process of the operator on every node.
///
/// # Errors
/// There is no node, or one doesn't answer.
pub async fn processes() -> Result<Vec<Process>> {
    // One line per process: job, VmRSS, RssAnon.
    let script = "for p in /proc/[0-9]*; do c=$(tr '\\0' ' ' <$p/cmdline 2>/dev/null); case \"$c\" in \
                  */postgres-operator\\ controller*) j=controller;; */postgres-operator\\ instance*) j=instance;; *) continue;; esac; \
                  awk -v j=$j '/^VmRSS/ { r = $2 } /^RssAnon/ { a = $2 } END { if (r) print j, r, a }' $p/status; done";
    let cluster = std::env::var("CLUSTER").unwrap_or_else(|_| "postgres-operator".to_owned());
    let label = format!("label=io.x-k8s.kind.cluster={cluster}");
    let nodes = docker(&["ps", "--quiet", "--filter", &label]).await?;
    ensure!(!nodes.is_empty(), "no node of the cluster {cluster} runs");
    let mut found = Vec::new();
    for node in nodes.lines() {
        for line in docker(&["exec", node, "bash", "-c", script]).await?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [job, resident, own] = words.as_slice() else { bail!("{node}: {line}") };
            found.push(Process { job: (*job).to_owned(), resident: resident.parse()?, own: own.parse()? });
        }
    }
    Ok(found)
}

/// The largest process of each job.
#[must_use]
pub fn largest(processes: &[Process]) -> BTreeMap<String, Process> {
    let mut largest: BTreeMap<String, Process> = BTreeMap::new();
    for process in processes {
        let entry = largest.entry(process.job.clone()).or_insert_with(|| process.clone());
        if process.resident > entry.resident {
            *entry = process.clone();
        }
    }
    largest
}
