//! An HTTP proxy between a client and the coordinator.
//!
//! The client asks the proxy for a tunnel (`CONNECT`, RFC 9110, 9.3.6) and speaks TLS through it, so the
//! proxy sees address, sizes and times, and neither messages nor certificates of clients.

use crate::invitation::is_address;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::io;
use std::net::IpAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use whimbrel_core::text::printable;
use whimbrel_core::{Error, Result};

/// Longest answer of a proxy.
const ANSWER_BYTES_MAX: usize = 16 << 10;
const PORT: u16 = 8080;
/// Schemes of proxies that are not spoken.
const SCHEMES: [&str; 6] = ["https", "socks", "socks4", "socks4a", "socks5", "socks5h"];

/// A proxy, and the hosts that are reached without it.
#[derive(Clone)]
pub struct Proxy {
    /// `host:port`.
    address: String,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
    direct: Vec<String>,
}

/// The reason why a proxy opened no tunnel.
pub enum TunnelError {
    /// Another attempt may succeed.
    Transient(String),
    /// No further attempt will succeed.
    Permanent(Error),
}

impl fmt::Debug for Proxy {
    /// The address alone.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.address)
    }
}

impl Proxy {
    /// The proxy of `HTTPS_PROXY` and `NO_PROXY`, in upper or lower case; `None` without one.
    pub fn of_environment() -> Result<Option<Self>> {
        let read = |name: &str| {
            let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
            value(&name.to_lowercase()).or_else(|| value(name))
        };
        match read("HTTPS_PROXY") {
            None => Ok(None),
            Some(url) => Self::parse(&url, &read("NO_PROXY").unwrap_or_default()).map(Some),
        }
    }

    /// Reads `http://[user:password@]host[:port]` and a list of hosts.
    pub fn parse(url: &str, direct: &str) -> Result<Self> {
        // Messages do not repeat the value, which may hold a password.
        let wrong = |what: &str| {
            Error::config(format!("HTTPS_PROXY: {what}"))
                .hint("write http://host:port or http://user:password@host:port")
        };
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) if SCHEMES.contains(&scheme) => {
                return Err(wrong(&format!("a proxy of scheme `{scheme}`")));
            }
            // The scheme may be a part of a password.
            Some(_) => return Err(wrong("not a proxy of scheme `http`")),
            None => url,
        };
        let rest = rest.trim_end_matches('/');
        let (user, host) = match rest.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, rest),
        };
        let has_port = host.rsplit_once(':').is_some_and(|(before, port)| {
            port.parse::<u16>().is_ok() && (!before.contains(':') || before.ends_with(']'))
        });
        let address = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
        if !is_address(&address) {
            return Err(wrong("not a host and a port"));
        }
        let authorization = match user {
            None => None,
            Some(user) => {
                let plain = unescape(user).ok_or_else(|| wrong("an invalid % in the user"))?;
                Some(format!("Basic {}", STANDARD.encode(plain)))
            }
        };
        let direct = direct.split(',').map(|host| host.trim().to_lowercase());
        Ok(Self { address, authorization, direct: direct.filter(|h| !h.is_empty()).collect() })
    }

    /// Whether a coordinator at `host:port` is reached through the proxy.
    pub fn covers(&self, address: &str) -> bool {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host.trim_matches(['[', ']']).to_lowercase();
        !self.direct.iter().any(|rule| matches(rule, &host, port))
    }

    /// A tunnel to `host:port`.
    pub async fn tunnel(&self, to: &str) -> Result<TcpStream, TunnelError> {
        let lost = |e: io::Error| TunnelError::Transient(format!("proxy {}: {e}", self.address));
        if !is_address(to) {
            let what = format!("{:?} is not a host and a port", printable(to));
            return Err(TunnelError::Permanent(Error::config(what)));
        }
        let mut stream = TcpStream::connect(&self.address).await.map_err(lost)?;
        let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some(authorization) = &self.authorization {
            request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.map_err(lost)?;
        let answer = head(&mut stream).await.map_err(lost)?;
        let line = answer.lines().next().unwrap_or_default();
        let status = line.split(' ').nth(1).filter(|_| line.starts_with("HTTP/1."));
        match status {
            Some(status) if status.starts_with('2') => Ok(stream),
            // Some proxies answer wrong credentials with 401.
            Some("401" | "407") => {
                let what = format!("proxy {} asks for a user and a password", self.address);
                let what = if self.authorization.is_none() { what } else { what + ", not these" };
                let hint = "set HTTPS_PROXY=http://user:password@host:port";
                Err(TunnelError::Permanent(Error::peer(what).hint(hint)))
            }
            _ => Err(TunnelError::Transient(format!(
                "proxy {} opens no tunnel to {to}: {}",
                self.address,
                printable(line)
            ))),
        }
    }
}

/// The head of an answer; a TLS server does not speak first, so nothing but a refusal's body follows it.
async fn head(stream: &mut TcpStream) -> io::Result<String> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let (mut bytes, mut part) = (Vec::new(), [0; 1024]);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let got = stream.read(&mut part).await?;
        bytes.extend_from_slice(&part[..got]);
        if got == 0 {
            return Err(wrong("the connection was closed before an answer"));
        }
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(wrong("the answer is too long"));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a rule of `NO_PROXY` names the host: `*`, a host or a domain, with or without a port, or a
/// range of addresses such as `10.0.0.0/8`.
fn matches(rule: &str, host: &str, port: &str) -> bool {
    if rule == "*" {
        return true;
    }
    if let Some((network, bits)) = rule.split_once('/') {
        let (Ok(network), Ok(bits), Ok(host)) = (network.parse(), bits.parse(), host.parse())
        else {
            return false;
        };
        return in_range(network, bits, host);
    }
    let rule = match rule.rsplit_once(':') {
        Some((name, of)) if !name.contains(':') || name.ends_with(']') => {
            if of != port {
                return false;
            }
            name
        }
        _ => rule,
    };
    let rule = rule.trim_matches(['[', ']']).trim_start_matches("*.").trim_start_matches('.');
    host == rule || host.strip_suffix(rule).is_some_and(|sub| sub.ends_with('.'))
}

fn in_range(network: IpAddr, bits: u32, host: IpAddr) -> bool {
    let shifted = |address: u128, width: u32| address.checked_shr(width.saturating_sub(bits));
    match (network, host) {
        (IpAddr::V4(network), IpAddr::V4(host)) => {
            let of = |address: std::net::Ipv4Addr| shifted(address.to_bits().into(), 32);
            of(network) == of(host)
        }
        (IpAddr::V6(network), IpAddr::V6(host)) => {
            shifted(network.to_bits(), 128) == shifted(host.to_bits(), 128)
        }
        _ => false,
    }
}

/// A user's part of a URL without its `%` escapes.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(bytes.next()?)? * 16 + digit(bytes.next()?)?) as u8
            }
            byte => byte,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_users_are_read() {
        for (url, address, user) in [
            ("http://proxy.example:3128", "proxy.example:3128", None),
            ("proxy.example", "proxy.example:8080", None),
            ("http://a:b%40c@[::1]:8888/", "[::1]:8888", Some("a:b@c")),
            ("http://[::1]", "[::1]:8080", None),
        ] {
            let proxy = Proxy::parse(url, "").unwrap();
            assert_eq!(proxy.address, address);
            let user = user.map(|user| format!("Basic {}", STANDARD.encode(user)));
            assert_eq!(proxy.authorization, user, "{url}");
        }
        for wrong in
            ["https://secret@proxy:1", "http://", "http://a:secret%4@p:1", "http://p/secret"]
        {
            let error = Proxy::parse(wrong, "").unwrap_err().to_string();
            assert!(error.contains("HTTPS_PROXY") && !error.contains("secret"), "{error}");
        }
        let shown = format!("{:?}", Proxy::parse("http://a:secret@p:1", "").unwrap());
        assert_eq!(shown, "p:1");
    }

    #[test]
    fn exceptions_name_hosts_domains_ports_and_ranges() {
        let direct = "localhost, .example.org,one.test:7443,10.0.0.0/8,fd00::/8, *.lab";
        let proxy = Proxy::parse("http://p:1", direct).unwrap();
        for (address, covered) in [
            ("localhost:7443", false),
            ("example.org:1", false),
            ("a.Example.org:1", false),
            ("notexample.org:1", true),
            ("one.test:7443", false),
            ("one.test:7444", true),
            ("10.200.3.4:7443", false),
            ("11.0.0.1:7443", true),
            ("[fd12::1]:7443", false),
            ("[fe80::1]:7443", true),
            ("x.lab:1", false),
        ] {
            assert_eq!(proxy.covers(address), covered, "{address}");
        }
        assert!(!Proxy::parse("http://p:1", "*").unwrap().covers("anything:1"));
    }
}
