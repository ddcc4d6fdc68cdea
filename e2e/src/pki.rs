//! Certificates for an API server that lives as long as a test run.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub certificate: String,
}

/// A certificate with its key, both PEM.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The certificate.
    pub certificate: String,
    /// The key, PKCS#8.
    pub key: String,
}

impl Authority {
    /// A new authority.
    ///
    /// # Errors
    /// No randomness.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// A certificate for a server, valid for these DNS names and IP addresses.
    ///
    /// # Errors
    /// A name that can't be in a certificate.
    pub fn server(&self, name: &str, addresses: &[&str]) -> Result<Leaf> {
        let names: Vec<String> = addresses.iter().map(|&a| a.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = subject(name, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A certificate for a client: user `name`, member of `group`.
    ///
    /// # Errors
    /// A name that can't be in a certificate.
    pub fn client(&self, name: &str, group: Option<&str>) -> Result<Leaf> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(name, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Result<Leaf> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Leaf { certificate, key: key.serialize_pem() })
    }
}

/// A key pair for signing tokens: private and public part, PEM.
///
/// # Errors
/// No randomness.
pub fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn subject(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject
}
