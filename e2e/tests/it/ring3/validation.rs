//! What the API server accepts and refuses, from `cases/validation.yaml`.

use anyhow::{Result, ensure};
use e2e::{
    apiserver::{ApiServer, Identity},
    cases::{Case, Cases, rules, schema, without_rules},
    crd,
};
use kube::{Client, api::ApiResource};
use serde_json::Value;

const FILE: &str = "validation.yaml";

async fn wrong<'a>(client: &Client, kind: &ApiResource, cases: &'a Cases) -> Result<Vec<(&'a Case, String)>> {
    let mut wrong = Vec::new();
    for (number, case) in cases.cases.iter().enumerate() {
        let verdict = match case.play(client, kind, number, &cases.base).await {
            Ok(seen) => case.judge(&seen),
            Err(error) => Err(error.context(case.case.clone())),
        };
        if let Err(error) = verdict {
            wrong.push((case, format!("{error:#}")));
        }
    }
    Ok(wrong)
}

#[tokio::test]
async fn cases_are_answered_as_written() -> Result<()> {
    let server = ApiServer::shared().await?;
    let client = server.client(&Identity::Admin).await?;
    let kind = crd::install(&client, &crd::postgres_cluster()).await?;
    let cases = Cases::read(FILE)?;
    let wrong = wrong(&client, &kind, &cases).await?;
    let report: Vec<&str> = wrong.iter().map(|(_, text)| text.as_str()).collect();
    ensure!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.cases.len(), report.join("\n"));
    println!("{} cases answered as written", cases.cases.len());
    Ok(())
}

#[test]
fn each_rule_is_seen_to_refuse_and_to_allow() -> Result<()> {
    let cases = Cases::read(FILE)?;
    let rules = rules(&crd::postgres_cluster())?;
    ensure!(!rules.is_empty(), "no rule found in the CRD: the search for them is broken");
    let mut missing = Vec::new();
    for rule in &rules {
        let path = rule.path.join(".");
        let twins = rules.iter().filter(|other| other.message.ends_with(&rule.message)).count();
        ensure!(twins == 1, "{path}: {twins} rules end with the same message, so a case can't tell them apart");
        if !cases.cases.iter().any(|case| case.refuses(rule)) {
            missing.push(format!("no case is refused by {path}: {}", rule.message));
        }
        if !cases.cases.iter().any(|case| case.allows(rule, &cases.base)) {
            missing.push(format!("no case is allowed by {path}: {}", rule.message));
        }
    }
    ensure!(missing.is_empty(), "{}", missing.join("\n"));
    println!("{} rules, each seen to refuse and to allow", rules.len());
    Ok(())
}

/// Negative control: without the rules, exactly the cases they refuse are answered wrongly.
#[tokio::test]
async fn without_the_rules_the_cases_fail() -> Result<()> {
    let server = ApiServer::shared().await?;
    let client = server.client(&Identity::Admin).await?;
    let crd = crd::postgres_cluster();
    let kind = crd::install(&client, &without_rules(&crd, "control.example.com")?).await?;
    let cases = Cases::read(FILE)?;
    let rules = rules(&crd)?;
    let by_rule = |case: &Case| rules.iter().any(|rule| case.refuses(rule));
    let seen: Vec<&str> = wrong(&client, &kind, &cases).await?.iter().map(|(case, _)| case.case.as_str()).collect();
    let wanted: Vec<&str> = cases.cases.iter().filter(|case| by_rule(case)).map(|case| case.case.as_str()).collect();
    ensure!(seen == wanted, "without the rules these should fail:\n{wanted:#?}\nthese did:\n{seen:#?}");
    ensure!(wanted.len() >= rules.len(), "fewer refused cases than rules");
    println!("without the rules {} cases are answered wrongly, as they must be", seen.len());
    Ok(())
}

#[test]
fn explain_says_something_for_each_field() -> Result<()> {
    let mut silent = Vec::new();
    let fields = walk(&schema(&crd::postgres_cluster())?, "", &mut silent);
    ensure!(silent.is_empty(), "no description: {}", silent.join(", "));
    ensure!(fields > 40, "only {fields} fields found: the search for them is broken");
    Ok(())
}

fn walk(schema: &Value, path: &str, silent: &mut Vec<String>) -> usize {
    let mut fields = 0;
    for (name, child) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.{name}");
        let told = child.get("description").and_then(Value::as_str).is_some_and(|text| text.len() > 10);
        if !told && !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            silent.push(path.clone());
        }
        fields += 1 + walk(child, &path, silent);
        if let Some(items) = child.get("items") {
            fields += walk(items, &format!("{path}[]"), silent);
        }
    }
    fields
}
