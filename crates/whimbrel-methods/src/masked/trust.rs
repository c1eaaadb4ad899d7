//! The trust between clients: the identity of a client, and the user's view of rosters.

use super::state::Link;
use std::fmt;
use whimbrel_core::{ClientId, Error, Result};
use whimbrel_privacy::masks::{Hash, Roster};

/// The part of a process in the trust between clients.
#[derive(Clone, Copy, Default)]
pub struct Trust {
    /// The secret of the client's identity; it is that of its masks if `None`.
    pub identity: Option<Hash>,
    pub watch: Option<&'static dyn Watch>,
    /// Whether a client answers only for sums over its whole roster: sums with and without a client
    /// differ by its own vector.
    pub whole: bool,
}

/// The reaction of a program to rosters and reports, on either side.
pub trait Watch: Send + Sync {
    /// Takes the roster before words leave under it, or are asked for. An error prevents that.
    fn roster(&self, roster: &Roster) -> Result<()>;
    /// A box from a client that did not open for another one, or for this client.
    fn unopened(&self, from: ClientId, to: Option<ClientId>);
}

impl Trust {
    pub(super) fn check(&self, roster: &Roster) -> Result<()> {
        self.watch.map_or(Ok(()), |watch| watch.roster(roster))
    }

    /// Refuses a cohort or survivors that leave clients of the roster out.
    pub(super) fn check_sum(&self, of: &[ClientId], roster: Option<&Roster>) -> Result<()> {
        let all = roster.map_or(0, |roster| roster.members().len());
        if !self.whole || of.len() == all {
            return Ok(());
        }
        let what = format!("a sum of {} clients of a roster of {all}", of.len());
        Err(Error::peer(format!("{what}: the sums with and without a client reveal its upload"))
            .hint("--partial-rounds takes part in such sums"))
    }

    /// Refuses a question after a sum that this client's state does not hold: the difference from its
    /// memory would be read off the sum. A client that was left out may return to partial sums.
    pub(super) fn check_history(&self, held: Option<Link>, last: Option<Link>) -> Result<()> {
        let exchange = |link: Option<Link>| link.map(|(exchange, _)| exchange);
        if held == last {
            return Ok(());
        }
        if exchange(held) >= exchange(last) {
            return Err(Error::peer(
                "the last sum belongs to another task than the one that this client answered",
            ));
        }
        if !self.whole {
            return Ok(());
        }
        let what =
            "the last sum lacks this client: after missed rounds it can be read off the next";
        Err(Error::peer(what).hint("--partial-rounds takes part in such sums"))
    }

    pub(super) fn report(&self, unopened: impl Iterator<Item = (ClientId, Option<ClientId>)>) {
        if let Some(watch) = self.watch {
            unopened.for_each(|(from, to)| watch.unopened(from, to));
        }
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Self) -> bool {
        let place = |trust: &Self| trust.watch.map(|watch| std::ptr::from_ref(watch).cast::<()>());
        let settings = |trust: &Self| (trust.identity, trust.whole);
        settings(self) == settings(other) && place(self) == place(other)
    }
}

/// The secret is not shown.
impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}
