//! Invitations: one string with the address, the fingerprint of the coordinator's certificate, the
//! client's name and a one-time token.
//!
//! `whimbrel1-` and the base32 (RFC 4648, lower case, no padding) of: version (1 byte), address,
//! fingerprint (32 bytes), name, token (16 bytes), CRC-32 of all that. The checksum detects copying
//! errors, not forgery. Version 2 is that of a client behind relays: address and fingerprint are its
//! relay's, and the names of the relays follow the token.

use whimbrel_core::wire::cut;
use whimbrel_core::{Error, Result, Wire};

const PREFIX: &str = "whimbrel1-";
const VERSION: u8 = 1;
/// Version of an invitation through relays.
const RELAYED: u8 = 2;
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Maximal length of an invitation.
const LENGTH_MAX: usize = 2048;

/// A one-time secret.
pub type Token = [u8; 16];

/// The SHA-256 of a certificate.
pub type Fingerprint = [u8; 32];

/// An invitation of one client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invitation {
    /// Address of the coordinator or relay, `host:port`.
    pub address: String,
    /// Fingerprint of its certificate.
    pub server: Fingerprint,
    pub name: String,
    pub token: Token,
    /// Names of the relays between client and coordinator, the client's first.
    pub relays: Vec<String>,
}

impl Invitation {
    pub fn encode(&self) -> String {
        let mut bytes = vec![if self.relays.is_empty() { VERSION } else { RELAYED }];
        self.address.put(&mut bytes);
        bytes.extend_from_slice(&self.server);
        self.name.put(&mut bytes);
        bytes.extend_from_slice(&self.token);
        if !self.relays.is_empty() {
            self.relays.put(&mut bytes);
        }
        crc32fast::hash(&bytes).put(&mut bytes);
        format!("{PREFIX}{}", base32(&bytes))
    }

    pub fn decode(text: &str) -> Result<Self> {
        let text = text.trim();
        let body = text
            .get(..PREFIX.len())
            .filter(|head| head.eq_ignore_ascii_case(PREFIX))
            .map(|_| &text[PREFIX.len()..])
            .ok_or_else(|| {
                Error::config("this is not an invitation").hint(format!(
                    "an invitation begins with `{PREFIX}`; @FILE reads it from a file"
                ))
            })?;
        let damaged = || {
            Error::config("this invitation is damaged or incomplete")
                .hint("copy the whole string, or ask for a new one")
        };
        if body.len() > LENGTH_MAX {
            return Err(damaged());
        }
        let bytes = unbase32(body).ok_or_else(damaged)?;
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(damaged());
        }
        match body[..] {
            [version @ (VERSION | RELAYED), ref rest @ ..] => {
                Self::parts(rest, version == RELAYED).map_err(|_| damaged())
            }
            [version, ..] => Err(Error::config(format!(
                "this invitation has version {version}, this program reads {VERSION} and {RELAYED}"
            ))),
            [] => Err(damaged()),
        }
    }

    fn parts(mut rest: &[u8], is_relayed: bool) -> Result<Self> {
        let address = String::take(&mut rest)?;
        let server = cut(&mut rest, 32)?.try_into().expect("cut to size");
        let name = String::take(&mut rest)?;
        let token = cut(&mut rest, 16)?.try_into().expect("cut to size");
        let relays = if is_relayed { Vec::take(&mut rest)? } else { Vec::new() };
        if !rest.is_empty() {
            return Err(Error::peer("bytes too many"));
        }
        if !is_address(&address) {
            return Err(Error::peer("no address"));
        }
        Ok(Self { address, server, name, token, relays })
    }
}

/// Whether a text is `host:port`, with a name, an IPv4 address or an IPv6 address in brackets. Other
/// texts could add lines to a request or a log.
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let is_host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_name),
    };
    is_host && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

fn base32(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(5) {
        let mut word = [0; 8];
        word[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(word);
        for i in 0..(chunk.len() * 8).div_ceil(5) {
            text.push(LETTERS[(bits >> (35 - 5 * i)) as usize & 31] as char);
        }
    }
    text
}

fn unbase32(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut word, mut bits) = (0u32, 0);
    for letter in text.bytes() {
        let value = LETTERS.iter().position(|l| *l == letter.to_ascii_lowercase())?;
        word = word << 5 | value as u32;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
            word &= (1 << bits) - 1;
        }
    }
    (word == 0 && bits < 5).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Invitation {
        Invitation {
            address: "hospital.example:7443".into(),
            server: std::array::from_fn(|i| i as u8),
            name: "ward 7".into(),
            token: [0xa5; 16],
            relays: Vec::new(),
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["hospital.example:7443", "10.0.0.7:1", "[2001:db8::1]:65535"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["host", "host:", ":1", "host:70000", "host:+1", "a b:1", "[::1:1", "h/x:1"] {
            assert!(!is_address(bad), "{bad}");
        }
        let address = "proxy:1 HTTP/1.1\r\n\r\nGET http://intranet/:80".into();
        assert!(Invitation::decode(&Invitation { address, ..sample() }.encode()).is_err());
    }

    #[test]
    fn the_string_has_its_golden_form_and_comes_back() {
        let text = sample().encode();
        assert_eq!(
            text,
            "whimbrel1-aekwq33tobuxiylmfzsxqylnobwgkorxgq2dgaabaibqibiga4eascqlbqgq4dyqcejbgfav\
             cylrqgi2dmob2hq7az3wc4teea32ljnfuws2ljnfuws2ljnfuws2kukm6ifq"
        );
        assert_eq!(Invitation::decode(&text).unwrap(), sample());
        assert_eq!(Invitation::decode(&format!(" {}\n", text.to_uppercase())).unwrap(), sample());
        let relayed = Invitation { relays: vec!["site".into(), "region".into()], ..sample() };
        let text = relayed.encode();
        assert!(text.starts_with("whimbrel1-ai"), "{text}");
        assert_eq!(Invitation::decode(&text).unwrap(), relayed);
    }

    #[test]
    fn a_string_that_lost_or_changed_a_letter_is_refused() {
        let text = sample().encode();
        for at in PREFIX.len()..text.len() {
            let mut letters = text.clone().into_bytes();
            letters[at] = if letters[at] == b'a' { b'b' } else { b'a' };
            assert!(Invitation::decode(std::str::from_utf8(&letters).unwrap()).is_err(), "{at}");
            assert!(Invitation::decode(&text[..at]).is_err());
        }
        let error = Invitation::decode("whimbrel run").unwrap_err().to_string();
        assert!(error.starts_with("this is not an invitation\nhint: "), "{error}");
        assert!(Invitation::decode("whimbrel1-é").is_err());
    }

    #[test]
    fn base32_is_that_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            assert_eq!(base32(bytes.as_bytes()), text);
            assert_eq!(unbase32(text).unwrap(), bytes.as_bytes());
        }
    }
}
