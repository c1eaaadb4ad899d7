//! The loop of every star-shaped method: a client evaluates an *oracle* at the vector that it
//! received, an uplink carries the value up, the server moves its state, and a downlink carries the
//! state down.
//!
//! [`Federated`] implements that loop once for every [`Oracle`]: weights, uplinks of single clients,
//! memories and the exchange that opens them, catch-up of absent clients, sums and counts. A paper
//! is an [`Oracle`]; its evaluations are a [`Judge`]. A [`Simple`] method is both, in four functions.
//!
//! | notation | here | meaning |
//! |---|---|---|
//! | `w_k` | [`Oracle::published`] | the vector that goes down |
//! | `ŵ_i` | [`Received::state`] | the vector as client i decodes it |
//! | `g_i` | [`Oracle::local`] | the client's oracle value |
//! | `C_up`, `h_i`, `α_up` | uplink codec, memory, `alpha` | |
//! | `C_dwn`, `H_i`, `α_dwn` | downlink codec, memory, `alpha` | |
//! | `n_i`, `N` | `weight`, `total` | a client's weight, the total weight |
//! | `p_i` | `inclusion` | the probability of participation |

mod evaluate;
mod frames;
mod grid;
pub(crate) mod held_out;
mod method;
mod oracle;
mod release;
mod simple;
mod state;
mod terms;

pub(crate) use evaluate::{aggregate, mean_loss, optional};
pub use held_out::{PartScores, Score, Scores, Split};
pub use oracle::{
    Answered, Computed, Context, End, Figures, Framed, Judge, Local, MaybeFrame, Member, Oracle,
    Publish, Received, Told,
};
pub(crate) use release::too_narrow;
pub use release::{Release, Unit};
pub use simple::{Plain, Simple};
pub use state::{Answer, Client, Down, Enrolment, ExchangeKind, Fold, Peer, Server, Up};
pub use terms::{FirstMemories, Terms};

use crate::masked::{BindMasked, Masked};
use std::sync::Arc;
use whimbrel_core::method::Bind;
use whimbrel_core::{ClientData, DynMethod, Erased, Result};

/// A complete method: an oracle over channels.
pub struct Federated<O> {
    pub oracle: O,
    pub terms: Terms,
}

impl<O: Judge> Federated<O> {
    /// The method for the engine, under masks if its terms ask for them.
    pub fn erased(self, bind: impl Bind<Self>) -> Arc<dyn DynMethod> {
        match self.terms.privacy.masks {
            Some(masks) => Arc::new(Erased(Masked::new(self, &masks), BindMasked(bind))),
            None => Arc::new(Erased(self, bind)),
        }
    }
}

/// Lays out a client's rows for the method.
pub struct BindRows;

impl<O: Judge> Bind<Federated<O>> for BindRows {
    fn bind(&self, method: &Federated<O>, data: &ClientData) -> Result<Split<O::Data>> {
        Split::bind(data, |rows| method.oracle.bind(rows))
    }
}
