//! Rosters that users compare: short hashes to read aloud, and the check against an accepted roster.

use super::keys::{Hash, hash, identity, public_identity};
use super::roster::Roster;
use std::fmt;
use std::str::FromStr;
use whimbrel_core::text::printable;
use whimbrel_core::{Error, Result, wire::hex};

/// 128 bits of a hash, as eight groups of four hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ShortHash([u8; 16]);

impl ShortHash {
    pub(super) fn of(hash: Hash) -> Self {
        Self(hash[..16].try_into().expect("16 bytes"))
    }

    /// The short hash of the identity with this secret.
    pub fn of_secret(secret: &Hash) -> Self {
        Self::of_identity(&public_identity(&identity(secret)))
    }

    /// The short hash of a public identity.
    pub fn of_identity(identity: &[u8; 32]) -> Self {
        Self::of(hash("mask identity", identity))
    }
}

impl fmt::Display for ShortHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.0.chunks(2).map(hex).collect();
        f.write_str(&groups.join("-"))
    }
}

impl FromStr for ShortHash {
    type Err = Error;

    /// Reads 32 hexadecimal digits in groups of any length.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::config(format!("`{}` is not a fingerprint", printable(text)))
                .hint("a fingerprint has eight groups of four hexadecimal digits: 0123-4567-...")
        };
        let digits = text.chars().filter(|c| !"- ".contains(*c));
        let digits = digits.map(|c| c.to_digit(16).map(|digit| digit as u8));
        let digits = digits.collect::<Option<Vec<u8>>>().ok_or_else(wrong)?;
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair.iter().fold(0, join)).collect();
        bytes.try_into().ok().filter(|_| digits.len() == 32).map(Self).ok_or_else(wrong)
    }
}

fn join(high: u8, low: &u8) -> u8 {
    high << 4 | low
}

/// The rosters that a user accepts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// One roster, by [`Roster::fingerprint`].
    Roster(ShortHash),
    /// All rosters of these clients, by name and identity.
    Clients(Vec<(String, ShortHash)>),
}

impl Accepted {
    /// Reads a fingerprint of a roster, or lines of names and fingerprints of identities.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim);
        let lines: Vec<&str> =
            lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        if let [line] = lines[..] {
            return Ok(Self::Roster(line.parse()?));
        }
        let mut clients: Vec<(String, ShortHash)> = Vec::new();
        for line in lines {
            let Some((name, identity)) = line.rsplit_once(char::is_whitespace) else {
                return Err(Error::config(format!("the roster's line `{}`", printable(line)))
                    .hint("each line has a client's name and the fingerprint of its identity"));
            };
            let (name, identity) = (name.trim().to_owned(), identity.parse()?);
            if let Some((other, _)) = clients.iter().find(|(_, known)| *known == identity) {
                let (a, b) = (printable(other), printable(&name));
                return Err(Error::config(format!("`{a}` and `{b}` have the same identity")));
            }
            clients.push((name, identity));
        }
        match clients.len() {
            0 => Err(Error::config("the roster is empty")),
            _ => Ok(Self::Clients(clients)),
        }
    }

    /// The name of an identity, if this list has it.
    pub fn name(&self, identity: ShortHash) -> Option<&str> {
        let Self::Clients(clients) = self else { return None };
        clients.iter().find(|(_, known)| *known == identity).map(|(name, _)| &name[..])
    }

    /// Refuses a roster without some of these clients, or with others.
    pub fn check_same(&self, roster: &Roster) -> Result<()> {
        let Self::Clients(clients) = self else { return Ok(()) };
        let members = roster.members().iter();
        let members: Vec<_> =
            members.map(|(id, member)| (id, ShortHash::of_identity(&member.identity))).collect();
        let is_member = |identity| members.iter().any(|(_, known)| known == identity);
        let left = clients.iter().find(|(_, identity)| !is_member(identity));
        let new = members.iter().find(|(_, identity)| self.name(*identity).is_none());
        let change = match (left, new) {
            (Some((name, _)), _) => format!("`{}` is missing from the roster", printable(name)),
            (None, Some((id, _))) => format!("client {id} is new in the roster"),
            (None, None) => return Ok(()),
        };
        let why = "sums with and without a client reveal its upload, and fewer clients hide each of them less";
        Err(Error::peer(format!("{change}: {why}"))
            .hint("--partial-rounds takes part in such sums"))
    }

    /// Refuses a roster that was not accepted.
    pub fn check(&self, roster: &Roster) -> Result<()> {
        match self {
            Self::Roster(accepted) if roster.fingerprint() == *accepted => Ok(()),
            Self::Roster(accepted) => Err(Error::peer(format!(
                "the coordinator's roster of {} clients has the fingerprint {}, and {accepted} was \
                 accepted: nothing was sent under it",
                roster.members().len(),
                roster.fingerprint()
            ))
            .hint("compare it with the other clients over another channel before you accept it")),
            Self::Clients(_) => {
                let identities = roster
                    .members()
                    .iter()
                    .map(|(id, member)| (id, ShortHash::of_identity(&member.identity)));
                match identities.into_iter().find(|(_, identity)| self.name(*identity).is_none()) {
                    None => Ok(()),
                    Some((id, identity)) => Err(Error::peer(format!(
                        "client {id} with the identity {identity} is not on the accepted roster: \
                         nothing was sent under the new one"
                    ))
                    .hint(
                        "compare it with that client over another channel before you add its line",
                    )),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_shown_and_spoken() {
        let print = ShortHash::of_secret(&[5; 32]);
        let shown = print.to_string();
        assert_eq!((shown.len(), shown.matches('-').count()), (39, 7));
        let spoken =
            [shown.clone(), shown.replace('-', " "), shown.replace('-', "").to_uppercase()];
        for text in spoken {
            assert_eq!(text.parse::<ShortHash>().unwrap(), print);
        }
        for wrong in ["", "12", &shown[..38], &format!("{shown}0"), &shown.replace('-', ":")] {
            assert!(wrong.parse::<ShortHash>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn accepted_rosters_are_fingerprints_or_lists() {
        let [a, b] = [1, 2].map(|seed| ShortHash::of_secret(&[seed; 32]));
        assert_eq!(Accepted::parse(&format!(" {a}\n")).unwrap(), Accepted::Roster(a));
        let list = Accepted::parse(&format!("# wards\nnorth ward  {a}\nsouth\t{b}\n\n")).unwrap();
        assert_eq!((list.name(a), list.name(b)), (Some("north ward"), Some("south")));
        for (text, why) in [
            ("", "is empty"),
            ("north", "`north` is not a fingerprint"),
            (&format!("north {a}\nsouth\n"), "the roster's line `south`"),
            (&format!("north {a}\nsouth {a}\n"), "`north` and `south` have the same identity"),
        ] {
            let said = Accepted::parse(text).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
