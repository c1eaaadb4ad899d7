//! From the server to the clients.
//!
//! One rule so far: exact, the state itself at native width. The signatures already carry what
//! compressed downlinks need (a record per client, replicas, missed messages), so that a method
//! written today runs over them unchanged.

use crate::Packet;
use whimbrel_core::{ClientId, Error, Key, Result, vector, wire};

/// How the server's state travels down.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Downlink {}

/// What the server keeps once.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownServer {}

/// What the server keeps per client.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownPeer {}

/// What the client keeps.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownClient {}

/// One message: a whole state (first contact, catch-up, exact channels), then the packets that
/// follow it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownMessage {
    /// The state, where it is sent whole.
    pub whole: Option<Vec<f64>>,
    /// Compressed messages from there on.
    pub steps: Vec<Packet>,
}

wire!(DownServer {});
wire!(DownPeer {});
wire!(DownClient {});
wire!(DownMessage { whole, steps });

impl Downlink {
    /// The state itself, at native width.
    pub fn exact() -> Self {
        Self {}
    }

    /// The server's end, for a first state.
    pub fn server(&self, _state: &[f64]) -> DownServer {
        DownServer {}
    }

    /// The server's record of one client.
    pub fn peer(&self, _id: ClientId) -> DownPeer {
        DownPeer {}
    }

    /// The client's end.
    pub fn client(&self) -> DownClient {
        DownClient {}
    }

    /// Called once per server step with the state the method wants; returns the state the server
    /// must hold from now on.
    pub fn publish(&self, _end: &mut DownServer, state: Vec<f64>, _key: Key) -> Result<Vec<f64>> {
        Ok(state)
    }

    /// One recipient's message, and the record kept of it once its upload is accepted.
    pub fn send(
        &self,
        _end: &DownServer,
        peer: &DownPeer,
        state: &[f64],
        _key: Key,
    ) -> Result<(DownPeer, DownMessage)> {
        Ok((peer.clone(), DownMessage { whole: Some(state.to_vec()), steps: Vec::new() }))
    }

    /// What the client computes at, and its end once its upload is accepted.
    pub fn receive<'a>(
        &self,
        end: &DownClient,
        message: &'a DownMessage,
    ) -> Result<(DownClient, std::borrow::Cow<'a, [f64]>)> {
        let (Some(state), []) = (&message.whole, &message.steps[..]) else {
            return Err(Error::peer("an exact downlink carries one whole state and nothing else"));
        };
        if !vector::all_finite(state) {
            return Err(Error::peer("the server's state holds a value that is not finite"));
        }
        Ok((end.clone(), state.into()))
    }
}
