//! The server's certificate and the authority that signs its peers, from mounted Secrets that change under us.

use std::{fs, io, path::PathBuf, sync::Arc};

use operator_core::names::{DIR_TLS_SERVER, USER_REPLICATION};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// The certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("reading {path}: {source}")]
    Read {
        /// Which.
        path: String,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path}: {source}")]
    Pem {
        /// Which.
        path: String,
        /// What went wrong.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The parts don't fit together.
    #[error("certificate and key of the server: {0}")]
    Config(#[from] rustls::Error),
    /// The authority is no authority.
    #[error("certificate authority: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Follows the files of the server's certificate.
pub struct Certificates {
    dir: PathBuf,
    seen: Vec<u8>,
}

impl Certificates {
    /// The files of the mounted Secret.
    #[must_use]
    pub fn mounted() -> Self {
        Self { dir: DIR_TLS_SERVER.into(), seen: Vec::new() }
    }

    /// A new configuration if the files have changed since the last call, else `None`.
    ///
    /// # Errors
    /// The files can't be read or don't fit together; they are tried again at the next call.
    pub fn changed(&mut self) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let [cert, key, ca] = [self.read("tls.crt")?, self.read("tls.key")?, self.read("ca.crt")?];
        let all = [cert.as_slice(), &key, &ca].concat();
        if all == self.seen {
            return Ok(None);
        }
        let config = self.build(&cert, &key, &ca)?;
        self.seen = all;
        Ok(Some(Arc::new(config)))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TlsError> {
        let path = self.dir.join(name);
        fs::read(&path).map_err(|source| TlsError::Read { path: path.display().to_string(), source })
    }

    fn build(&self, cert: &[u8], key: &[u8], ca: &[u8]) -> Result<ServerConfig, TlsError> {
        let pem = |name: &str| {
            let path = self.dir.join(name).display().to_string();
            move |source| TlsError::Pem { path: path.clone(), source }
        };
        let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>().map_err(pem("tls.crt"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(pem("tls.key"))?;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(ca) {
            roots.add(authority.map_err(pem("ca.crt"))?)?;
        }
        // Probes come without a certificate; who wants the status must show one.
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build()?;
        let mut config = ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// True for a certificate that peers and the controller present. The handshake has verified who signed it.
#[must_use]
pub fn is_peer(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    parsed.subject().iter_common_name().any(|name| name.as_str() == Ok(USER_REPLICATION))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rstest::rstest;

    use super::*;

    fn certificate(common_name: &str) -> (CertificateDer<'static>, String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["orders-rw.shop.svc".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let cert = params.self_signed(&key).unwrap();
        (cert.der().clone(), cert.pem(), key.serialize_pem())
    }

    #[rstest]
    #[case("streaming_replica", true)]
    #[case("orders-rw.shop.svc", false)]
    fn only_the_replication_certificate_is_a_peers(#[case] common_name: &str, #[case] expected: bool) {
        assert_eq!(is_peer(&certificate(common_name).0), expected);
    }

    #[test]
    fn a_change_is_seen_once_and_a_broken_one_is_named() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = std::env::temp_dir().join(format!("tls-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let write = |common_name| {
            let (_, cert, key) = certificate(common_name);
            for (name, text) in [("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &cert)] {
                fs::write(dir.join(name), text).unwrap();
            }
        };
        let mut certificates = Certificates { dir: dir.clone(), seen: Vec::new() };
        write("first");
        assert!(certificates.changed().unwrap().is_some());
        assert!(certificates.changed().unwrap().is_none());
        write("second");
        assert!(certificates.changed().unwrap().is_some());
        fs::write(dir.join("tls.key"), "no key").unwrap();
        assert!(certificates.changed().unwrap_err().to_string().contains("tls.key"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
