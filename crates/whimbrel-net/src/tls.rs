//! Certificates and the two ends of TLS 1.3.
//!
//! No certificate authority is needed. Coordinator and clients generate their certificates;
//! invitations contain the coordinator's fingerprint, and enrolment binds an invitation to the
//! client's. TLS proves possession of the key, and the fingerprint identifies the peer. An
//! institution with its own authority can supply the coordinator's certificate and require client
//! certificates of that authority.

use crate::invitation::Fingerprint;
use crate::status::Refusal;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    OtherError, RootCertStore, ServerConfig, SignatureScheme, version::TLS13,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use whimbrel_core::{Error, Result};
use whimbrel_engine::versioned;

/// A certificate with its chain, and its private key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// File name of a stored identity.
const KEPT: &str = "identity";
/// File name of the identity that replaces it.
const NEXT: &str = "identity-next";
/// The parser's name, without a public type, of the error for certificates of X.509 version 1 or 2.
const OLD_VERSION: &str = "UnsupportedCertVersion";

impl Identity {
    /// A new key with a self-signed certificate.
    pub fn make(name: &str) -> Result<Self> {
        let fault =
            |e: rcgen::Error| Error::internal(format!("no certificate could be generated: {e}"));
        let key = rcgen::KeyPair::generate().map_err(fault)?;
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).map_err(fault)?;
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = parameters.self_signed(&key).map_err(fault)?;
        Ok(Self {
            chain: vec![certificate.der().clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }

    /// The identity stored in a folder; generated on first use, readable only by its owner.
    pub fn keep(folder: &Path, name: &str) -> Result<Self> {
        Self::keep_in(folder, KEPT, name)
    }

    /// The identity that will replace the one stored in a folder; generated on first use.
    pub fn keep_next(folder: &Path, name: &str) -> Result<Self> {
        Self::keep_in(folder, NEXT, name)
    }

    /// Whether a folder holds an identity that will replace its present one.
    pub fn has_next(folder: &Path) -> bool {
        folder.join(NEXT).exists()
    }

    /// Replaces the identity of a folder by its next one.
    pub fn adopt_next(folder: &Path) -> Result<()> {
        let next = folder.join(NEXT);
        fs::rename(&next, Self::path(folder)).map_err(|e| Error::storage(next.display(), e))
    }

    fn keep_in(folder: &Path, file: &str, name: &str) -> Result<Self> {
        let path = folder.join(file);
        if let Some(kept) = Self::read(&path)? {
            return Ok(kept);
        }
        let made = Self::make(name)?;
        fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
        restrict_to_owner(folder, 0o700)?;
        let certificate = &made.chain[0];
        let length = (certificate.len() as u32).to_le_bytes();
        let bytes = [&length[..], certificate, made.key.secret_der()].concat();
        versioned::write(&path, &bytes)?;
        Ok(made)
    }

    /// The file of an identity in a folder.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(KEPT)
    }

    /// The identity stored in a folder, if there is one.
    pub fn kept(folder: &Path) -> Result<Option<Self>> {
        Self::read(&Self::path(folder))
    }

    fn read(path: &Path) -> Result<Option<Self>> {
        let Some(bytes) = versioned::read(path)? else { return Ok(None) };
        let damaged = || Error::storage(path.display(), "this is not an identity");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (certificate, key) = rest.split_at_checked(length).ok_or_else(damaged)?;
        Ok(Some(Self {
            chain: vec![certificate.to_vec().into()],
            key: PrivatePkcs8KeyDer::from(key.to_vec()).into(),
        }))
    }

    /// Reads an identity from PEM files: a chain that begins with its own certificate, and the key.
    /// Refused if TLS cannot use them.
    pub fn bring(chain: &Path, key: &Path) -> Result<Self> {
        let fault = |path: &Path, e| Error::storage(path.display(), format!("{e}"));
        let certificates = certificates(chain)?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| fault(key, e))?;
        let brought = Self { chain: certificates, key: secret };
        let (certificates, secret) = brought.parts();
        match CertifiedKey::from_der(certificates, secret, &provider()) {
            Ok(_) => Ok(brought),
            Err(error) => Err(unusable(&error, chain, key)),
        }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.chain[0])
    }

    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain.clone(), self.key.clone_key())
    }
}

/// The error about a certificate and key that TLS cannot use.
fn unusable(error: &rustls::Error, chain: &Path, key: &Path) -> Error {
    use rustls::{Error as Tls, InconsistentKeys};
    let (chain, key) = (chain.display(), key.display());
    match error {
        Tls::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            Error::config(format!("the key in {key} does not belong to the certificate in {chain}"))
                .hint("the file begins with your own certificate, followed by those of authorities")
        }
        Tls::InvalidCertificate(found) if format!("{found:?}").contains(OLD_VERSION) => {
            let what = format!("the certificate in {chain} is X.509 of version 1 or 2");
            Error::config(what).hint("version 3 is required: have it issued with extensions")
        }
        Tls::InvalidCertificate(_) => {
            Error::config(format!("the certificate in {chain} cannot be used: {error}"))
        }
        _ => Error::config(format!("the key in {key} cannot be used: {error}")),
    }
}

/// The fingerprint of the first certificate in a PEM file.
pub fn fingerprint_of_file(path: &Path) -> Result<Fingerprint> {
    Ok(fingerprint(&certificates(path)?[0]))
}

/// The SHA-256 of a certificate.
pub fn fingerprint(certificate: &[u8]) -> Fingerprint {
    sha256(certificate)
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Random bytes for tokens and identifiers of runs; never for anything that reaches a model.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| Error::internal("the system provides no random numbers"))?;
    Ok(bytes)
}

/// The coordinator's configuration. Clients need a certificate: any, or one of the given authority.
pub fn server_config(identity: &Identity, client_ca: Option<&Path>) -> Result<Arc<ServerConfig>> {
    let provider = provider();
    let verifier: Arc<dyn ClientCertVerifier> = match client_ca {
        None => Arc::new(AnyClient(provider.clone())),
        Some(path) => WebPkiClientVerifier::builder_with_provider(roots(path)?, provider.clone())
            .build()
            .map_err(|e| Error::storage(path.display(), e))?,
    };
    let (chain, key) = identity.parts();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .and_then(|b| b.with_client_cert_verifier(verifier).with_single_cert(chain, key))
        .map_err(|e| Error::config(format!("this certificate and key cannot be used: {e}")))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // No resumption: a revoked client must not return with a ticket.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The reason of a failed handshake.
pub fn refusal(error: &std::io::Error) -> Refusal {
    use rustls::Error as Tls;
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<Tls>());
    match inner {
        Some(Tls::NoCertificatesPresented) => Refusal::NoCertificate,
        Some(Tls::InvalidCertificate(CertificateError::UnknownIssuer)) => Refusal::UnknownAuthority,
        Some(Tls::InvalidCertificate(_)) => Refusal::BadCertificate,
        _ => Refusal::Handshake,
    }
}

/// The meaning of an alert about the client's certificate, which another attempt would repeat.
pub fn certificate_refused(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            "a certificate is required, and none was sent"
        }
        AlertDescription::UnknownCA => "the coordinator does not know its authority",
        AlertDescription::CertificateExpired => "it is not valid today",
        AlertDescription::CertificateRevoked => "its authority has revoked it",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => "the coordinator does not accept it",
        _ => return None,
    })
}

/// A client's configuration: the server must have a pinned certificate.
pub fn client_config(identity: &Identity, pins: &[Fingerprint]) -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let verifier = Arc::new(Pinned { pins: pins.to_vec(), provider: provider.clone() });
    let (chain, key) = identity.parts();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .and_then(|b| {
            b.dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_client_auth_cert(chain, key)
        })
        .map_err(|e| Error::config(format!("this certificate and key cannot be used: {e}")))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let fault = |e| Error::storage(path.display(), format!("{e}"));
    let found = CertificateDer::pem_file_iter(path).map_err(fault)?;
    let found = found.collect::<std::result::Result<Vec<_>, _>>().map_err(fault)?;
    if found.is_empty() {
        return Err(Error::storage(path.display(), "this file contains no certificate"));
    }
    Ok(found)
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|e| Error::storage(path.display(), e))?;
    }
    Ok(Arc::new(store))
}

pub(crate) fn restrict_to_owner(path: &Path, mode: u32) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|e| Error::storage(path.display(), e))?;
    }
    let _ = (path, mode);
    Ok(())
}

/// The signature checks of both verifiers, by the provider in this field: TLS 1.3 alone.
macro_rules! tls13_signatures {
    ($provider:tt) => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.$provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.$provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Accepts every well-formed certificate whose key the client holds; its fingerprint is checked later.
#[derive(Debug)]
struct AnyClient(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    tls13_signatures!(0);
}

/// Accepts the certificate of the invitation, or one that the server has announced since.
#[derive(Debug)]
struct Pinned {
    pins: Vec<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let shown = fingerprint(certificate);
        if self.pins.iter().any(|pin| shown.ct_eq(pin).into()) {
            return Ok(ServerCertVerified::assertion());
        }
        let what: Box<dyn std::error::Error + Send + Sync> =
            "the certificate of the server differs from the invitation's".into();
        Err(CertificateError::Other(OtherError(what.into())).into())
    }

    tls13_signatures!(provider);
}
