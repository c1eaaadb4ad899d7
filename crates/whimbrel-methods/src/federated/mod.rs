//! Every star-shaped method is one loop: a client evaluates an *oracle* at what it received, an
//! uplink carries the value up, the server moves its state, a downlink carries the state down.
//!
//! [`Federated`] is that loop, written once for every [`Oracle`]: weights, uplinks of single
//! clients, memories and the exchange that opens them, catch-up of absent clients, sums, counts. A
//! paper is an [`Oracle`]; what its evaluations report is a [`Judge`] beside it.
//!
//! | notation | here | meaning |
//! |---|---|---|
//! | `w_k` | [`Oracle::published`] | what goes down |
//! | `ŵ_i` | [`Received::state`] | what client i makes of it |
//! | `g_i` | [`Oracle::local`] | its oracle value |
//! | `C_up`, `h_i`, `α_up` | uplink codec, memory, `alpha` | |
//! | `C_dwn`, `H_i`, `α_dwn` | downlink codec, memory, `alpha` | |
//! | `n_i`, `N` | `weight`, `total` | a client's weight, everyone's |
//! | `p_i` | `inclusion` | the probability of taking part |

mod evaluate;
mod frames;
pub(crate) mod held_out;
mod method;
mod oracle;
mod simple;
mod state;
mod terms;

pub(crate) use evaluate::{aggregate, mean_loss, optional};
pub use held_out::{PartScores, Score, Split};
pub use oracle::{Context, Framed, FullPasses, Judge, Local, Member, Oracle, Received};
pub use simple::{Plain, Simple};
pub use state::{Answer, Client, Down, Enrolment, ExchangeKind, Fold, Peer, Server, Up};
pub use terms::{FirstMemories, Terms};

use whimbrel_core::method::Bind;
use whimbrel_core::{ClientData, HeldOut, Result};

/// An oracle over channels: a whole method.
pub struct Federated<O> {
    /// What is computed.
    pub oracle: O,
    /// How it travels, who counts how much, and when it ends.
    pub terms: Terms,
}

/// Lays a client's rows out as the method reads them.
pub struct BindRows;

impl<O: Oracle> Bind<Federated<O>> for BindRows {
    fn bind(&self, method: &Federated<O>, data: &ClientData) -> Result<Split<O::Data>> {
        Split::bind(&method.oracle, data)
    }
}

impl<D> Split<D> {
    /// A client's rows, and those it keeps out, in the layout of an oracle.
    pub(crate) fn bind<O: Oracle<Data = D>>(oracle: &O, data: &ClientData) -> Result<Self> {
        Self::bind_by(data, |data| oracle.bind(data))
    }

    /// The same in any layout.
    pub(crate) fn bind_by(
        data: &ClientData,
        bind: impl Fn(&ClientData) -> Result<D>,
    ) -> Result<Self> {
        let part = |rows: Option<Box<ClientData>>| rows.map(|d| bind(&d)).transpose();
        let HeldOut { validation, test, asked } = data.held_out();
        let (validation, test) = (part(validation)?, part(test)?);
        Ok(Self { train: bind(data)?, validation, test, asked })
    }
}
