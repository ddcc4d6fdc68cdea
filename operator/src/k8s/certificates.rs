//! The certificate authority of a cluster and the certificates it issues: made, judged, never stored here.
//!
//! An authority lasts ten years and signs nothing but this cluster's certificates; the ones it issues last 90 days and are
//! replaced when two thirds of that are over.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use operator_core::names::USER_REPLICATION;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::Cluster;

const DAY: u64 = 24 * 60 * 60;
/// How long an authority is valid, in seconds.
const AUTHORITY_SECONDS: u64 = 3650 * DAY;
/// How long an issued certificate is valid, in seconds.
const LEAF_SECONDS: u64 = 90 * DAY;
/// Certificates begin a little in the past: clocks of nodes differ.
const BACKDATE_SECONDS: u64 = 300;

/// A certificate and its key, both as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key, PKCS #8.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    /// Without the key: it would end up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The instances' server certificate: PostgreSQL and the instance manager.
    Server,
    /// The client certificate by which instances and the controller are known.
    Replication,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The library refused.
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// Why an existing certificate can't go on being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Not a certificate, or not a key.
    #[error("it can't be read")]
    Unreadable,
    /// Certificate and key are not a pair.
    #[error("certificate and key don't belong together")]
    OtherKey,
    /// Another authority signed it, or none.
    #[error("the cluster's authority did not sign it")]
    OtherAuthority,
    /// Names are missing.
    #[error("it lacks a name that the cluster needs")]
    OtherNames,
    /// Two thirds of its time are over, or it isn't valid yet.
    #[error("it is due for renewal")]
    Due,
    /// It isn't a certificate authority.
    #[error("it is no certificate authority")]
    NoAuthority,
}

/// Makes the authority of a cluster.
///
/// # Errors
/// The library has no randomness or refuses a name.
pub fn authority(cluster: &Cluster, now: Timestamp) -> Result<Pair, CertificateError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(cluster, &format!("{} authority", cluster.name));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, AUTHORITY_SECONDS);
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Issues a certificate.
///
/// # Errors
/// The authority can't be read; [`judge_authority`] accepts none like that.
pub fn issue(cluster: &Cluster, authority: &Pair, purpose: Purpose, now: Timestamp) -> Result<Pair, CertificateError> {
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
    let mut params = CertificateParams::new(names(cluster, purpose))?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let (common_name, usage) = match purpose {
        Purpose::Server => (cluster.name.to_string(), ExtendedKeyUsagePurpose::ServerAuth),
        Purpose::Replication => (USER_REPLICATION.to_owned(), ExtendedKeyUsagePurpose::ClientAuth),
    };
    params.distinguished_name = subject(cluster, &common_name);
    params.extended_key_usages = vec![usage];
    set_validity(&mut params, now, LEAF_SECONDS);
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn subject(cluster: &Cluster, common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, cluster.namespace.clone());
    name.push(DnType::CommonName, common_name);
    name
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, seconds: u64) {
    let now = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(Duration::from_secs(BACKDATE_SECONDS));
    params.not_after = epoch + now + Duration::from_secs(seconds);
}

/// DNS names in a certificate. A client certificate has none: it is known by its common name.
#[must_use]
pub fn names(cluster: &Cluster, purpose: Purpose) -> Vec<String> {
    if purpose == Purpose::Replication {
        return Vec::new();
    }
    let namespace = &cluster.namespace;
    // The first one is what peers verify, see `ClusterName::tls_name`.
    let mut names = vec![cluster.name.tls_name(namespace)];
    for service in [cluster.name.rw_service(), cluster.name.ro_service(), cluster.name.r_service()] {
        for suffix in ["", &format!(".{namespace}"), &format!(".{namespace}.svc"), &cluster_domain(namespace)] {
            names.push(format!("{service}{suffix}"));
        }
    }
    let pods = cluster.name.pods_service();
    names.push(format!("*.{pods}.{namespace}.svc"));
    names.push(format!("*.{pods}{}", cluster_domain(namespace)));
    names.push("localhost".to_owned());
    names.dedup();
    names
}

/// The usual domain. A cluster with another one uses the short names, which are in the certificate as well.
fn cluster_domain(namespace: &str) -> String {
    format!(".{namespace}.svc.cluster.local")
}

/// Whether an authority can go on signing.
///
/// # Errors
/// Why not.
pub fn judge_authority(pair: &Pair, now: Timestamp) -> Result<(), Unfit> {
    let der = der(&pair.certificate)?;
    let certificate = parse(&der)?;
    same_key(&certificate, &pair.key)?;
    if !certificate.is_ca() {
        return Err(Unfit::NoAuthority);
    }
    certificate.verify_signature(None).map_err(|_| Unfit::OtherAuthority)?;
    // Replacing an authority early would only make every client distrust the cluster earlier.
    let validity = certificate.validity();
    let valid = (validity.not_before.timestamp()..validity.not_after.timestamp()).contains(&now.as_second());
    if valid { Ok(()) } else { Err(Unfit::Due) }
}

/// Whether a certificate can go on being used.
///
/// # Errors
/// Why not.
pub fn judge(cluster: &Cluster, authority: &Pair, purpose: Purpose, pair: &Pair, now: Timestamp) -> Result<(), Unfit> {
    let (authority, der) = (self::der(&authority.certificate)?, der(&pair.certificate)?);
    let (authority, certificate) = (parse(&authority)?, parse(&der)?);
    same_key(&certificate, &pair.key)?;
    certificate.verify_signature(Some(authority.public_key())).map_err(|_| Unfit::OtherAuthority)?;
    let present = dns_names(&certificate)?;
    if !names(cluster, purpose).iter().all(|name| present.contains(name)) {
        return Err(Unfit::OtherNames);
    }
    fresh(&certificate, now)
}

fn der(pem: &str) -> Result<Vec<u8>, Unfit> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| Unfit::Unreadable)?;
    Ok(pem.contents)
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, Unfit> {
    X509Certificate::from_der(der).map(|(_, certificate)| certificate).map_err(|_| Unfit::Unreadable)
}

fn same_key(certificate: &X509Certificate<'_>, key: &str) -> Result<(), Unfit> {
    let key = KeyPair::from_pem(key).map_err(|_| Unfit::Unreadable)?;
    if certificate.public_key().subject_public_key.data.as_ref() == key.public_key_raw() {
        Ok(())
    } else {
        Err(Unfit::OtherKey)
    }
}

fn dns_names(certificate: &X509Certificate<'_>) -> Result<Vec<String>, Unfit> {
    let extension = certificate.subject_alternative_name().map_err(|_| Unfit::Unreadable)?;
    let names = extension.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    Ok(names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect())
}

fn fresh(certificate: &X509Certificate<'_>, now: Timestamp) -> Result<(), Unfit> {
    let begin = certificate.validity().not_before.timestamp();
    let end = certificate.validity().not_after.timestamp();
    let now = now.as_second();
    // Two thirds of its time, without a fraction to round.
    if now < begin || 3 * (now - begin) >= 2 * (end - begin) { Err(Unfit::Due) } else { Ok(()) }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
