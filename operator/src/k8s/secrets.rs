//! The Secrets of a cluster. Everything that can't be computed is in one of them, `<name>-ca`; the others follow from it.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use operator_core::names::{PORT_POSTGRES, USER_SUPERUSER};

use super::{
    Cluster,
    certificates::{Pair, Purpose},
    meta,
};

/// Type of a Secret in the shape of the service binding specification.
pub const TYPE_BINDING: &str = "servicebinding.io/postgresql";
/// Type of the other Secrets.
pub const TYPE_OPAQUE: &str = "Opaque";

const KEY_CERTIFICATE: &str = "tls.crt";
const KEY_KEY: &str = "tls.key";
const KEY_AUTHORITY: &str = "ca.crt";
const KEY_AUTHORITY_KEY: &str = "ca.key";
const KEY_APP_PASSWORD: &str = "app-password";
const KEY_SUPERUSER_PASSWORD: &str = "superuser-password";
const KEY_PASSWORD: &str = "password";

/// Number of characters of a password: 32 of 62 are 190 bits.
const PASSWORD_LENGTH: usize = 32;

/// What a cluster knows and nobody can compute.
#[derive(Clone, PartialEq, Eq)]
pub struct Root {
    /// The certificate authority.
    pub authority: Pair,
    /// Password of the application's user.
    pub app_password: String,
    /// Password of the superuser.
    pub superuser_password: String,
}

/// All secrets of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// What the others follow from.
    pub root: Root,
    /// The instances' server certificate.
    pub server: Pair,
    /// The client certificate of instances and controller.
    pub replication: Pair,
}

/// There was no randomness.
#[derive(Debug, thiserror::Error)]
#[error("the system gave no random bytes for a password")]
pub struct NoRandomness;

/// A new password: letters and digits, so that it needs no quoting anywhere.
///
/// # Errors
/// The system gives no random bytes.
pub fn password() -> Result<String, NoRandomness> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    let mut password = String::with_capacity(PASSWORD_LENGTH);
    while password.len() < PASSWORD_LENGTH {
        let mut bytes = [0_u8; PASSWORD_LENGTH];
        random.fill(&mut bytes).map_err(|_| NoRandomness)?;
        // A byte beyond the last full round of the alphabet would make its first letters likelier.
        let fair = bytes.iter().filter(|byte| usize::from(**byte) < 256 / ALPHABET.len() * ALPHABET.len());
        let letters = fair.filter_map(|byte| ALPHABET.get(usize::from(*byte) % ALPHABET.len()));
        password.extend(letters.map(|letter| char::from(*letter)).take(PASSWORD_LENGTH - password.len()));
    }
    Ok(password)
}

/// The Secret `<name>-ca`.
#[must_use]
pub fn root_secret(cluster: &Cluster, root: &Root) -> Secret {
    let data = [
        (KEY_AUTHORITY, root.authority.certificate.as_str()),
        (KEY_AUTHORITY_KEY, &root.authority.key),
        (KEY_APP_PASSWORD, &root.app_password),
        (KEY_SUPERUSER_PASSWORD, &root.superuser_password),
    ];
    secret(cluster, cluster.name.ca_secret(), TYPE_OPAQUE, &data)
}

/// Every other Secret.
#[must_use]
pub fn secrets(cluster: &Cluster, material: &Material) -> Vec<Secret> {
    let Material { root, server, replication } = material;
    let database = &cluster.spec.bootstrap.initdb.database;
    let owner = &cluster.spec.bootstrap.initdb.owner;
    vec![
        binding(cluster, cluster.name.app_secret(), owner, database, &root.app_password),
        binding(cluster, cluster.name.superuser_secret(), USER_SUPERUSER, "postgres", &root.superuser_password),
        tls(cluster, cluster.name.server_secret(), server, &root.authority),
        tls(cluster, cluster.name.replication_secret(), replication, &root.authority),
    ]
}

/// How a client connects, in the shape of the service binding specification.
fn binding(cluster: &Cluster, name: String, username: &str, database: &str, password: &str) -> Secret {
    let host = format!("{}.{}.svc", cluster.name.rw_service(), cluster.namespace);
    let uri = format!("postgresql://{username}:{password}@{host}:{PORT_POSTGRES}/{database}?sslmode=require");
    let jdbc = format!(
        "jdbc:postgresql://{host}:{PORT_POSTGRES}/{database}?user={username}&password={password}&sslmode=require"
    );
    let port = PORT_POSTGRES.to_string();
    let data = [
        ("type", "postgresql"),
        ("provider", "postgres-operator"),
        ("host", host.as_str()),
        ("port", &port),
        ("database", database),
        ("username", username),
        (KEY_PASSWORD, password),
        ("uri", &uri),
        ("jdbc-uri", &jdbc),
    ];
    secret(cluster, name, TYPE_BINDING, &data)
}

fn tls(cluster: &Cluster, name: String, pair: &Pair, authority: &Pair) -> Secret {
    let data =
        [(KEY_CERTIFICATE, pair.certificate.as_str()), (KEY_KEY, &pair.key), (KEY_AUTHORITY, &authority.certificate)];
    secret(cluster, name, "kubernetes.io/tls", &data)
}

fn secret(cluster: &Cluster, name: String, kind: &str, data: &[(&str, &str)]) -> Secret {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
    Secret {
        metadata: meta(cluster, name),
        type_: Some(kind.to_owned()),
        data: Some(data.collect()),
        ..Secret::default()
    }
}

fn text(data: &BTreeMap<String, ByteString>, key: &str) -> Option<String> {
    String::from_utf8(data.get(key)?.0.clone()).ok().filter(|text| !text.is_empty())
}

/// Reads `<name>-ca` back; `None` if something is missing in it.
#[must_use]
pub fn read_root(secret: &Secret) -> Option<Root> {
    let data = secret.data.as_ref()?;
    Some(Root {
        authority: Pair { certificate: text(data, KEY_AUTHORITY)?, key: text(data, KEY_AUTHORITY_KEY)? },
        app_password: text(data, KEY_APP_PASSWORD)?,
        superuser_password: text(data, KEY_SUPERUSER_PASSWORD)?,
    })
}

/// The certificate in a Secret; `None` if it is incomplete.
#[must_use]
pub fn read_pair(secret: &Secret) -> Option<Pair> {
    let data = secret.data.as_ref()?;
    Some(Pair { certificate: text(data, KEY_CERTIFICATE)?, key: text(data, KEY_KEY)? })
}

/// The password in a binding Secret.
#[must_use]
pub fn read_password(secret: &Secret) -> Option<String> {
    text(secret.data.as_ref()?, KEY_PASSWORD)
}

/// Which Secret holds the certificate of a purpose.
#[must_use]
pub fn certificate_secret(cluster: &Cluster, purpose: Purpose) -> String {
    match purpose {
        Purpose::Server => cluster.name.server_secret(),
        Purpose::Replication => cluster.name.replication_secret(),
    }
}
