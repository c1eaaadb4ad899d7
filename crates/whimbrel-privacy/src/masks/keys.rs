//! Derived keys, sealed boxes and signatures: thin wrappers of `ring` and `x25519-dalek`.
//!
//! Every derivation names its purpose and its full address, so that no two uses share a key.

use super::words::{KeyStream, Sign};
use crate::shamir::Element;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use ring::{digest, hkdf, hmac};
use whimbrel_core::{ClientId, Error, Result, Wire};
use x25519_dalek::{PublicKey, StaticSecret};

pub type Hash = [u8; 32];
pub type Signature = [u8; 64];

/// Bytes of a sealed box beyond its content: the nonce and the tag.
pub(super) const BOX_OVERHEAD: usize = NONCE_LEN + 16;

/// SHA-256 of a value under the name of its purpose.
pub(super) fn hash(purpose: &str, value: &impl Wire) -> Hash {
    hash_bytes(&address(purpose, value))
}

/// SHA-256.
pub fn hash_bytes(bytes: &[u8]) -> Hash {
    digest::digest(&digest::SHA256, bytes).as_ref().try_into().expect("32 bytes")
}

/// HMAC-SHA-256 of a value under the name of its purpose.
pub(super) fn prf(key: &[u8], purpose: &str, value: &impl Wire) -> Hash {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, &address(purpose, value)).as_ref().try_into().expect("32 bytes")
}

fn address(purpose: &str, value: &impl Wire) -> Vec<u8> {
    let mut bytes = purpose.to_owned().to_bytes();
    value.put(&mut bytes);
    bytes
}

/// A seed that is shared: the first 16 bytes of a [`prf`].
pub(super) fn seed(key: &[u8], purpose: &str, value: &impl Wire) -> Element {
    Element::from_uniform(prf(key, purpose, value)[..16].try_into().expect("16 bytes"))
}

/// The address of a mask: the task's hash and the clients it belongs to, twice the same for a
/// client's own mask.
pub(super) type MaskAddress = (Hash, (ClientId, ClientId));

/// The address of the mask between two clients, and the sign with which the first one adds it.
pub(super) fn between(task: Hash, a: ClientId, b: ClientId) -> (MaskAddress, Sign) {
    let sign = if a <= b { Sign::Plus } else { Sign::Minus };
    ((task, (a.min(b), a.max(b))), sign)
}

/// The stream key of a mask. The address makes a search for one of many seeds useless.
pub(super) fn stream_key(seed: Element, at: &MaskAddress) -> [u8; 32] {
    prf(&seed.to_le_bytes(), "mask stream", at)
}

/// A commitment to the seed of a mask, by which the server recognises a wrong share.
pub(super) fn fingerprint(seed: Element, at: &MaskAddress) -> [u8; 16] {
    prf(&seed.to_le_bytes(), "mask fingerprint", at)[..16].try_into().expect("16 bytes")
}

/// The coefficients of polynomials of this many coefficients, one for each seed.
pub(super) fn polynomials(
    seeds: &[Element],
    coefficients: usize,
    coins: Hash,
) -> Vec<Vec<Element>> {
    let mut stream = KeyStream::new(coins);
    let mut bytes = vec![0; 16 * (coefficients - 1)];
    let polynomial = |&seed: &Element| {
        stream.fill(&mut bytes);
        let drawn = bytes.as_chunks().0.iter().map(|bytes| Element::from_uniform(*bytes));
        std::iter::once(seed).chain(drawn).collect()
    };
    seeds.iter().map(polynomial).collect()
}

/// The X25519 key of a client for one run.
pub(super) struct AgreementKey(StaticSecret);

impl AgreementKey {
    pub(super) fn new(secret: &Hash, run: &Hash) -> Self {
        Self(StaticSecret::from(prf(secret, "mask agreement", run)))
    }

    pub(super) fn public(&self) -> [u8; 32] {
        PublicKey::from(&self.0).to_bytes()
    }

    /// The secret shared by the owners of two public keys, the first one's being this: HKDF of the
    /// Diffie-Hellman value, salted with the run.
    pub(super) fn pair(&self, (mine, theirs): (&Hash, &Hash), run: &Hash) -> Result<Hash> {
        let agreed = self.0.diffie_hellman(&PublicKey::from(*theirs));
        if !agreed.was_contributory() {
            return Err(Error::peer("a public key of the roster has low order"));
        }
        let (low, high) = (mine.min(theirs), mine.max(theirs));
        let key = hkdf::Salt::new(hkdf::HKDF_SHA256, run).extract(agreed.as_bytes());
        let mut out = [0; 32];
        key.expand(&[b"mask pair", low, high], hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut out))
            .map_err(|_| Error::internal("HKDF did not give 32 bytes"))?;
        Ok(out)
    }
}

/// Whether a public key can agree on a secret.
pub(super) fn is_sound(key: &[u8; 32]) -> bool {
    StaticSecret::from([1; 32]).diffie_hellman(&PublicKey::from(*key)).was_contributory()
}

/// Seals `content` for the holder of `key`. The nonce travels in front of it; equal nonces under one
/// key are allowed for equal contents only.
pub(super) fn seal(key: &Hash, nonce: [u8; NONCE_LEN], about: &[u8], content: &[u8]) -> Vec<u8> {
    let mut sealed = content.to_vec();
    box_key(key)
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(about),
            &mut sealed,
        )
        .expect("a box is far below the limit of ChaCha20-Poly1305");
    [&nonce[..], &sealed].concat()
}

/// The content of a sealed box.
pub(super) fn open(key: &Hash, about: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
    let wrong = || Error::peer("a sealed box does not open");
    let (nonce, content) = sealed.split_first_chunk().ok_or_else(wrong)?;
    let (nonce, mut content) = (Nonce::assume_unique_for_key(*nonce), content.to_vec());
    let opened = box_key(key).open_in_place(nonce, Aad::from(about), &mut content);
    opened.map(|content| content.to_vec()).map_err(|_| wrong())
}

fn box_key(key: &Hash) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("32 bytes"))
}

/// The Ed25519 key that identifies a client in all runs.
pub(super) fn identity(secret: &Hash) -> Ed25519KeyPair {
    let seed = prf(secret, "mask identity", &());
    Ed25519KeyPair::from_seed_unchecked(&seed).expect("32 bytes")
}

pub(super) fn public_identity(key: &Ed25519KeyPair) -> [u8; 32] {
    key.public_key().as_ref().try_into().expect("an Ed25519 key has 32 bytes")
}

pub(super) fn sign(key: &Ed25519KeyPair, what: &Hash) -> Signature {
    key.sign(what).as_ref().try_into().expect("an Ed25519 signature has 64 bytes")
}

pub(super) fn is_signed(identity: &[u8; 32], what: &Hash, signature: &Signature) -> bool {
    UnparsedPublicKey::new(&ED25519, identity).verify(what, signature).is_ok()
}
