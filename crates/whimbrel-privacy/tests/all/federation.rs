//! A federation in memory that carries messages as bytes, loses clients and restarts machines.

use whimbrel_core::{ClientId, Error, Key, Result, Segment, Wire};
use whimbrel_privacy::masks::{MaskClient, MaskServer, MaskTask, Outcome, Roster, Rules, Span};

pub const RUN: [u8; 32] = [9; 32];

/// The step before which a client is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lost {
    BeforeUpload,
    BeforeVouch,
    BeforeShares,
    Never,
}

#[derive(Clone)]
pub struct Federation {
    pub server: MaskServer,
    pub clients: Vec<MaskClient>,
    /// Whether every machine is saved and loaded before each of its steps.
    pub restarts: bool,
    /// All messages, in order.
    pub sent: Vec<Vec<u8>>,
}

/// Clients with every third id.
pub fn id(client: usize) -> ClientId {
    ClientId(3 * client as u32 + 1)
}

pub fn rules() -> Rules {
    Rules { run: RUN, min_cohort: 3 }
}

pub fn clients(n: usize) -> Vec<MaskClient> {
    let secret = |i: usize| {
        let mut secret = [7; 32];
        secret[..8].copy_from_slice(&(i as u64).to_le_bytes());
        secret
    };
    (0..n).map(|i| MaskClient::new(secret(i), RUN)).collect()
}

pub fn roster(clients: &[MaskClient]) -> Roster {
    let members = clients.iter().enumerate().map(|(i, client)| (id(i), client.enrol()));
    Roster::new(rules(), members.collect()).unwrap()
}

/// A body of 16-bit words, odd in number, and lanes of 32 and 64 bits.
pub fn words(client: usize, exchange: u32) -> Vec<Segment> {
    let mut stream = Key::root(u64::from(exchange)).child(client as u64).stream();
    let mut segment =
        |width, count| Segment { width, words: (0..count).map(|_| stream.next_u64()).collect() };
    vec![segment(16, 301), segment(32, 5), segment(64, 3)]
}

pub fn task(n: usize, exchange: u32) -> MaskTask {
    let layout = words(0, 0).iter().map(|segment| Span::of(segment).unwrap()).collect();
    MaskTask { exchange, cohort: (0..n).map(id).collect(), layout, content: [exchange as u8; 32] }
}

/// The sum in the clear.
pub fn plain_sum(exchange: u32, clients: impl Iterator<Item = usize>) -> Vec<Segment> {
    let mut sum = words(0, exchange);
    sum.iter_mut().for_each(|segment| segment.words.fill(0));
    for client in clients {
        for (segment, term) in sum.iter_mut().zip(words(client, exchange)) {
            let mask = u64::MAX >> (64 - segment.width);
            for (word, term) in segment.words.iter_mut().zip(term.words) {
                *word = word.wrapping_add(term) & mask;
            }
        }
    }
    sum
}

/// Asserts that a peer is blamed, in words that contain `word`.
pub fn refused<T>(result: Result<T>, word: &str) {
    match result.err() {
        Some(Error::Peer { what, .. }) => assert!(what.contains(word), "{what}"),
        other => panic!("{word}: {other:?}"),
    }
}

impl Federation {
    pub fn new(n: usize) -> Self {
        let mut clients = clients(n);
        let roster = roster(&clients);
        clients.iter_mut().for_each(|client| client.agree(roster.clone()).unwrap());
        Self { server: MaskServer::new(roster), clients, restarts: false, sent: Vec::new() }
    }

    /// Carries a message: it is encoded, recorded and decoded.
    fn carry<T: Wire>(&mut self, message: &T) -> T {
        let bytes = message.to_bytes();
        let carried = T::from_bytes(&bytes).unwrap();
        self.sent.push(bytes);
        carried
    }

    pub fn server(&mut self) -> &mut MaskServer {
        if self.restarts {
            self.server = MaskServer::from_bytes(&self.server.to_bytes()).unwrap();
        }
        &mut self.server
    }

    pub fn client(&mut self, i: usize) -> &mut MaskClient {
        if self.restarts {
            self.clients[i] = MaskClient::from_bytes(&self.clients[i].to_bytes()).unwrap();
        }
        &mut self.clients[i]
    }

    /// Uploads of all clients but those lost before, and the end of uploads.
    pub fn upload_all(&mut self, exchange: u32, lost: &[Lost]) -> Vec<ClientId> {
        let task = task(lost.len(), exchange);
        self.server().open(task.clone()).unwrap();
        for i in (0..lost.len()).filter(|&i| lost[i] > Lost::BeforeUpload) {
            let upload = self.client(i).upload(&task, &words(i, exchange)).unwrap();
            let upload = self.carry(&upload);
            self.server().absorb(id(i), upload).unwrap();
        }
        self.server().close_uploads().unwrap()
    }

    /// The step of vouches; false if the round is void.
    pub fn vouch_all(&mut self, lost: &[Lost]) -> bool {
        for i in (0..lost.len()).filter(|&i| lost[i] > Lost::BeforeVouch) {
            let message = self.server().survivors(id(i)).unwrap();
            let message = self.carry(&message);
            let vouch = self.client(i).vouch(&message).unwrap();
            let vouch = self.carry(&vouch);
            self.server().absorb_vouch(id(i), &vouch).unwrap();
        }
        self.server().close_vouches().unwrap().is_some()
    }

    pub fn shares_all(&mut self, lost: &[Lost]) {
        for i in (0..lost.len()).filter(|&i| lost[i] == Lost::Never) {
            let vouches = self.server().close_vouches().unwrap().unwrap();
            let vouches = self.carry(&vouches);
            let shares = self.client(i).shares(&vouches).unwrap();
            let shares = self.carry(&shares);
            self.server().absorb_shares(id(i), shares).unwrap();
        }
    }

    /// A whole exchange of an honest server.
    pub fn exchange(&mut self, exchange: u32, lost: &[Lost]) -> Outcome {
        let survivors = self.upload_all(exchange, lost);
        if !survivors.is_empty() && self.vouch_all(lost) {
            self.shares_all(lost);
        }
        self.server().finish().unwrap()
    }
}
