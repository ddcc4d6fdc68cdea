//! What the controller may do: one table, no wildcard. It holds what it grants to the instances.

use k8s_openapi::api::rbac::v1::PolicyRule;
use operator_core::names::{GROUP, LEADER_LEASE};

use crate::k8s::access::INSTANCE_VERBS;

/// Verbs by group and resource, in every namespace.
pub const CLUSTER: &[(&str, &str, &[&str])] = &[
    (GROUP, "postgresclusters", &["get", "list", "watch"]),
    (GROUP, "postgresclusters/status", &["get", "patch"]),
    // Owner references with blockOwnerDeletion need it where that admission plugin is on.
    (GROUP, "postgresclusters/finalizers", &["update"]),
    ("apps", "statefulsets", OWNED),
    ("", "services", OWNED),
    ("", "secrets", OWNED),
    ("", "configmaps", OWNED),
    ("", "serviceaccounts", OWNED),
    ("policy", "poddisruptionbudgets", OWNED),
    ("rbac.authorization.k8s.io", "roles", OWNED),
    ("rbac.authorization.k8s.io", "rolebindings", OWNED),
    // The succession record: made once, then the instances'.
    ("coordination.k8s.io", "leases", &["get", "list", "watch", "create"]),
    ("", "pods", &["get", "list", "watch", "patch", "delete"]),
    ("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]),
    ("events.k8s.io", "events", &["create", "patch"]),
];

/// What the controller needs for an object it keeps as it is.
const OWNED: &[&str] = &["get", "list", "watch", "create", "patch", "update"];

/// Rules of the ClusterRole.
#[must_use]
pub fn cluster_rules() -> Vec<PolicyRule> {
    let mut table: Vec<(&str, &str, Vec<&str>)> =
        CLUSTER.iter().map(|(group, resource, verbs)| (*group, *resource, verbs.to_vec())).collect();
    for (group, resource, granted) in INSTANCE_VERBS {
        match table.iter_mut().find(|(g, r, _)| g == group && r == resource) {
            Some((_, _, verbs)) => {
                let held = verbs.clone();
                verbs.extend(granted.iter().filter(|verb| !held.contains(verb)));
            }
            None => table.push((group, resource, granted.to_vec())),
        }
    }
    table.into_iter().map(|(group, resource, verbs)| rule(group, resource, None, &verbs)).collect()
}

/// Rules of the Role in the operator's own namespace: the Lease of the leader election. Creating can't be limited to a name.
#[must_use]
pub fn own_rules() -> Vec<PolicyRule> {
    vec![
        rule("coordination.k8s.io", "leases", None, &["create"]),
        rule("coordination.k8s.io", "leases", Some(LEADER_LEASE), &["get", "update"]),
    ]
}

fn rule(group: &str, resource: &str, name: Option<&str>, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: name.map(|name| vec![name.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_a_wildcard_and_nothing_is_said_twice() {
        let rules = cluster_rules();
        let mut seen = std::collections::BTreeSet::new();
        for rule in &rules {
            let all = [rule.api_groups.clone(), rule.resources.clone(), Some(rule.verbs.clone())];
            for text in all.into_iter().flatten().flatten() {
                assert!(!text.contains('*'));
            }
            assert!(seen.insert((rule.api_groups.clone(), rule.resources.clone())));
            let verbs: std::collections::BTreeSet<_> = rule.verbs.iter().collect();
            assert_eq!(verbs.len(), rule.verbs.len());
        }
    }

    #[test]
    fn the_operator_holds_what_it_grants() {
        let rules = cluster_rules();
        for (group, resource, verbs) in INSTANCE_VERBS {
            for verb in *verbs {
                assert!(rules.iter().any(|rule| {
                    let has = |list: &Option<Vec<String>>, text: &str| list.iter().flatten().any(|item| item == text);
                    has(&rule.api_groups, group)
                        && has(&rule.resources, resource)
                        && rule.verbs.iter().any(|held| held == verb)
                }));
            }
        }
    }
}
