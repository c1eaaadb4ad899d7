//! Certificates of an institution's authority.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// An authority that signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = named(name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = pem("CERTIFICATE", parameters.self_signed(&key).unwrap().der());
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    /// Writes a certificate with its chain, and its key.
    pub fn sign(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        self.sign_with(folder, name, |_| {})
    }

    /// Writes a certificate of X.509 version 1, and its key.
    pub fn sign_old(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        self.sign_with(folder, name, |der| {
            let version = [0xa0, 3, 2, 1, 2];
            let at = der.windows(version.len()).position(|bytes| bytes == version).unwrap();
            der[at + version.len() - 1] = 0;
        })
    }

    fn sign_with(
        &self,
        folder: &Path,
        name: &str,
        change: impl Fn(&mut [u8]),
    ) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut der = named(name).signed_by(&key, &self.issuer).unwrap().der().to_vec();
        change(&mut der);
        let paths = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        let chain = pem("CERTIFICATE", &der) + &self.pem;
        std::fs::write(&paths.0, chain).unwrap();
        std::fs::write(&paths.1, pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        paths
    }
}

fn named(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

/// The text form of keys and certificates: base64 between two lines.
fn pem(label: &str, der: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in der.chunks(48) {
        for three in line.chunks(3) {
            let word = three.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
            let word = word << (8 * (3 - three.len()));
            let letter = |at: usize| {
                let letter = LETTERS[(word >> (18 - 6 * at)) as usize & 63];
                if at <= three.len() { char::from(letter) } else { '=' }
            };
            text.extend((0..4).map(letter));
        }
        text.push('\n');
    }
    writeln!(text, "-----END {label}-----").unwrap();
    text
}
