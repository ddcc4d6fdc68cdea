//! What is kept of a test that failed.

use std::path::Path;

use crate::{kind::kubectl, manifests::NAMESPACE};

const KINDS: &str = "postgresclusters,statefulsets,pods,services,endpointslices,persistentvolumeclaims,leases,configmaps,\
                     poddisruptionbudgets,events";

/// Prints the short of it and writes the long of it to `folder`. Never fails: there is a failure to report already.
pub async fn report(namespace: &str, folder: &Path) {
    let _ = std::fs::create_dir_all(folder);
    let operator =
        ["--namespace", NAMESPACE, "logs", "--selector=app.kubernetes.io/name=postgres-operator", "--tail=-1"];
    keep(folder, "operator.log", &operator).await;
    keep(folder, "objects.yaml", &["--namespace", namespace, "get", KINDS, "--output=yaml"]).await;
    keep(folder, "describe.txt", &["--namespace", namespace, "describe", "postgresclusters,pods"]).await;
    let pods = ["--namespace", namespace, "get", "pods", "--output=name"];
    for pod in kubectl(&pods).await.unwrap_or_default().lines() {
        let name = pod.trim_start_matches("pod/");
        let logs = ["--namespace", namespace, "logs", pod, "--all-containers", "--prefix", "--tail=-1"];
        keep(folder, &format!("{name}.log"), &logs).await;
        let previous = [logs.as_slice(), &["--previous"]].concat();
        keep(folder, &format!("{name}-previous.log"), &previous).await;
        println!("--- {name}, its last words:\n{}", tail(&folder.join(format!("{name}.log")), 8));
    }
    println!("--- operator, its last words:\n{}", tail(&folder.join("operator.log"), 8));
    let conditions = "jsonpath={range .items[*]}{.metadata.name}{range .status.conditions[*]}\n  \
                      {.type}={.status} {.reason}: {.message}{end}\n{end}";
    for arguments in [
        ["get", "postgresclusters", "--output", conditions].as_slice(),
        &["get", "pods,persistentvolumeclaims", "--output=wide"],
    ] {
        let arguments = [["--namespace", namespace].as_slice(), arguments].concat();
        println!("{}", kubectl(&arguments).await.unwrap_or_else(|error| format!("{error:#}")));
    }
    let events = "custom-columns=LAST:.lastTimestamp,REASON:.reason,OBJECT:.involvedObject.name,MESSAGE:.message";
    let events = ["--namespace", namespace, "get", "events", "--sort-by=.lastTimestamp", "--output", events];
    keep(folder, "events.txt", &events).await;
    println!("{}\nkept: {}", tail(&folder.join("events.txt"), 12), folder.display());
}

async fn keep(folder: &Path, file: &str, arguments: &[&str]) {
    let text = kubectl(arguments).await.unwrap_or_else(|error| format!("{error:#}\n"));
    let _ = std::fs::write(folder.join(file), text);
}

fn tail(file: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let skip = text.lines().count().saturating_sub(lines);
    text.lines().skip(skip).collect::<Vec<_>>().join("\n")
}
