//! Requests as bytes: see the table in [`store`](super).

/// What a connection begins with (`validationMagicNumber`).
pub(super) const MAGIC: u32 = 0x3C85_F7CE;

/// Longest key in bytes (`MAX_STRING_LEN` of torch's server).
pub const MAX_KEY: usize = 8 << 10;

/// Longest value in bytes (`MAX_PAYLOAD_LEN` of torch's server).
pub const MAX_VALUE: usize = 8 << 20;

/// Longest list of keys (`MAX_KEY_COUNT` of torch's server).
const MAX_KEYS: usize = 128 << 10;

/// Longest request in bytes: bounds what the server keeps for a connection. The largest `COMPARE_SET` fits.
const MAX_REQUEST: usize = 3 * MAX_VALUE;

/// Longest answer to a `MULTI_GET` in bytes: a key may be asked for many times over in one request, and the server keeps an
/// answer until it is read.
pub const MAX_ANSWER: usize = 32 * MAX_VALUE;

/// `WAIT` is answered with it (`WaitResponseType`).
pub(super) const STOP_WAITING: u8 = 0;
/// `CANCEL_WAIT` is answered with it.
pub(super) const WAIT_CANCELED: u8 = 1;
/// `CHECK` is answered with it (`CheckResponseType`).
pub(super) const READY: u8 = 0;
/// `CHECK` is answered with it.
pub(super) const NOT_READY: u8 = 1;

/// Opcodes (`QueryType`).
mod opcode {
    pub(super) const VALIDATE: u8 = 0;
    pub(super) const SET: u8 = 1;
    pub(super) const COMPARE_SET: u8 = 2;
    pub(super) const GET: u8 = 3;
    pub(super) const ADD: u8 = 4;
    pub(super) const CHECK: u8 = 5;
    pub(super) const WAIT: u8 = 6;
    pub(super) const NUM_KEYS: u8 = 7;
    pub(super) const DELETE_KEY: u8 = 8;
    pub(super) const APPEND: u8 = 9;
    pub(super) const MULTI_GET: u8 = 10;
    pub(super) const MULTI_SET: u8 = 11;
    pub(super) const CANCEL_WAIT: u8 = 12;
    pub(super) const PING: u8 = 13;
    pub(super) const QUEUE_PUSH: u8 = 14;
    pub(super) const QUEUE_POP: u8 = 15;
    pub(super) const QUEUE_LEN: u8 = 16;
    pub(super) const LIST_KEYS: u8 = 17;
    pub(super) const BARRIER: u8 = 18;
}

/// A key and a value.
pub(super) type Pair<'a> = (&'a [u8], &'a [u8]);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Validate { magic: u32 },
    Set { key: &'a [u8], value: &'a [u8] },
    CompareSet { key: &'a [u8], expected: &'a [u8], desired: &'a [u8] },
    Get { key: &'a [u8] },
    Add { key: &'a [u8], delta: i64 },
    Check { keys: Vec<&'a [u8]> },
    Wait { keys: Vec<&'a [u8]> },
    NumKeys,
    DeleteKey { key: &'a [u8] },
    Append { key: &'a [u8], value: &'a [u8] },
    MultiGet { keys: Vec<&'a [u8]> },
    MultiSet { pairs: Vec<Pair<'a>> },
    CancelWait,
    Ping { nonce: u32 },
    QueuePush { key: &'a [u8], value: &'a [u8] },
    QueuePop { key: &'a [u8] },
    QueueLen { key: &'a [u8] },
    ListKeys,
    Barrier { key: &'a [u8], ranks: i64 },
}

/// Bytes that are no request, and never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("opcode {0}, which this store does not know")]
    Opcode(u8),
    #[error("{what} of {given} bytes or entries, more than {limit}")]
    TooLong { what: &'static str, given: u64, limit: usize },
}

impl Request<'_> {
    /// Appends the request to `bytes`.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        fn string(bytes: &mut Vec<u8>, text: &[u8]) {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text);
        }
        fn strings(bytes: &mut Vec<u8>, opcode: u8, texts: &[&[u8]]) {
            bytes.push(opcode);
            texts.iter().for_each(|text| string(bytes, text));
        }
        fn list(bytes: &mut Vec<u8>, opcode: u8, keys: &[&[u8]]) {
            bytes.push(opcode);
            bytes.extend((keys.len() as u64).to_le_bytes());
            keys.iter().for_each(|key| string(bytes, key));
        }
        match self {
            Self::Validate { magic } => {
                bytes.push(opcode::VALIDATE);
                bytes.extend(magic.to_le_bytes());
            }
            Self::Set { key, value } => strings(bytes, opcode::SET, &[key, value]),
            Self::CompareSet { key, expected, desired } => {
                strings(bytes, opcode::COMPARE_SET, &[key, expected, desired]);
            }
            Self::Get { key } => strings(bytes, opcode::GET, &[key]),
            Self::Add { key, delta } => {
                strings(bytes, opcode::ADD, &[key]);
                bytes.extend(delta.to_le_bytes());
            }
            Self::Check { keys } => list(bytes, opcode::CHECK, keys),
            Self::Wait { keys } => list(bytes, opcode::WAIT, keys),
            Self::NumKeys => bytes.push(opcode::NUM_KEYS),
            Self::DeleteKey { key } => strings(bytes, opcode::DELETE_KEY, &[key]),
            Self::Append { key, value } => strings(bytes, opcode::APPEND, &[key, value]),
            Self::MultiGet { keys } => list(bytes, opcode::MULTI_GET, keys),
            Self::MultiSet { pairs } => {
                bytes.push(opcode::MULTI_SET);
                bytes.extend((pairs.len() as u64).to_le_bytes());
                for (key, value) in pairs {
                    string(bytes, key);
                    string(bytes, value);
                }
            }
            Self::CancelWait => bytes.push(opcode::CANCEL_WAIT),
            Self::Ping { nonce } => {
                bytes.push(opcode::PING);
                bytes.extend(nonce.to_le_bytes());
            }
            Self::QueuePush { key, value } => strings(bytes, opcode::QUEUE_PUSH, &[key, value]),
            Self::QueuePop { key } => strings(bytes, opcode::QUEUE_POP, &[key]),
            Self::QueueLen { key } => strings(bytes, opcode::QUEUE_LEN, &[key]),
            Self::ListKeys => bytes.push(opcode::LIST_KEYS),
            Self::Barrier { key, ranks } => {
                strings(bytes, opcode::BARRIER, &[key]);
                bytes.extend(ranks.to_le_bytes());
            }
        }
    }
}

/// The first request of `bytes` and its length, or `None` if more bytes are needed to tell.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Request<'_>, usize)>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.request() {
        Ok(request) => Ok(Some((request, reader.at))),
        Err(Stop::Malformed(malformed)) => Err(malformed),
        Err(Stop::Incomplete) if bytes.len() > MAX_REQUEST => {
            Err(Malformed::TooLong { what: "a request", given: bytes.len() as u64, limit: MAX_REQUEST })
        }
        Err(Stop::Incomplete) => Ok(None),
    }
}

/// Why reading stopped.
enum Stop {
    Incomplete,
    Malformed(Malformed),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<Request<'a>, Stop> {
        let [opcode] = self.array()?;
        Ok(match opcode {
            opcode::VALIDATE => Request::Validate { magic: u32::from_le_bytes(self.array()?) },
            opcode::SET => Request::Set { key: self.key()?, value: self.value()? },
            opcode::COMPARE_SET => {
                Request::CompareSet { key: self.key()?, expected: self.value()?, desired: self.value()? }
            }
            opcode::GET => Request::Get { key: self.key()? },
            opcode::ADD => Request::Add { key: self.key()?, delta: i64::from_le_bytes(self.array()?) },
            opcode::CHECK => Request::Check { keys: self.keys()? },
            opcode::WAIT => Request::Wait { keys: self.keys()? },
            opcode::NUM_KEYS => Request::NumKeys,
            opcode::DELETE_KEY => Request::DeleteKey { key: self.key()? },
            opcode::APPEND => Request::Append { key: self.key()?, value: self.value()? },
            opcode::MULTI_GET => Request::MultiGet { keys: self.keys()? },
            opcode::MULTI_SET => Request::MultiSet { pairs: self.pairs()? },
            opcode::CANCEL_WAIT => Request::CancelWait,
            opcode::PING => Request::Ping { nonce: u32::from_le_bytes(self.array()?) },
            opcode::QUEUE_PUSH => Request::QueuePush { key: self.key()?, value: self.value()? },
            opcode::QUEUE_POP => Request::QueuePop { key: self.key()? },
            opcode::QUEUE_LEN => Request::QueueLen { key: self.key()? },
            opcode::LIST_KEYS => Request::ListKeys,
            opcode::BARRIER => Request::Barrier { key: self.key()?, ranks: i64::from_le_bytes(self.array()?) },
            unknown => return Err(Stop::Malformed(Malformed::Opcode(unknown))),
        })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let taken = self.bytes[self.at..].get(..length).ok_or(Stop::Incomplete)?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        Ok(self.take(N)?.try_into().expect("exactly N bytes were taken"))
    }

    /// A length or count, at most `limit`.
    fn length(&mut self, what: &'static str, limit: usize) -> Result<usize, Stop> {
        let given = u64::from_le_bytes(self.array()?);
        match usize::try_from(given) {
            Ok(length) if length <= limit => Ok(length),
            _ => Err(Stop::Malformed(Malformed::TooLong { what, given, limit })),
        }
    }

    fn string(&mut self, what: &'static str, limit: usize) -> Result<&'a [u8], Stop> {
        let length = self.length(what, limit)?;
        self.take(length)
    }

    fn key(&mut self) -> Result<&'a [u8], Stop> {
        self.string("a key", MAX_KEY)
    }

    fn value(&mut self) -> Result<&'a [u8], Stop> {
        self.string("a value", MAX_VALUE)
    }

    fn pairs(&mut self) -> Result<Vec<Pair<'a>>, Stop> {
        let count = self.length("a list of pairs", MAX_KEYS)?;
        (0..count).map(|_| Ok((self.key()?, self.value()?))).collect()
    }

    fn keys(&mut self) -> Result<Vec<&'a [u8]>, Stop> {
        let count = self.length("a list of keys", MAX_KEYS)?;
        (0..count).map(|_| self.key()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(request: &Request<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.write(&mut bytes);
        bytes
    }

    /// What torch's client sends: opcode, then each argument as in `SendBuffer`.
    #[test]
    fn the_bytes_are_those_of_torch() {
        assert_eq!(bytes(&Request::Validate { magic: MAGIC }), [0, 0xce, 0xf7, 0x85, 0x3c]);
        assert_eq!(
            bytes(&Request::Set { key: b"ab", value: b"c" }),
            [&[1, 2, 0, 0, 0, 0, 0, 0, 0][..], b"ab", &[1, 0, 0, 0, 0, 0, 0, 0], b"c"].concat()
        );
        assert_eq!(bytes(&Request::Get { key: b"k" }), [3, 1, 0, 0, 0, 0, 0, 0, 0, b'k']);
        assert_eq!(
            bytes(&Request::Add { key: b"k", delta: -1 }),
            [&[4, 1, 0, 0, 0, 0, 0, 0, 0, b'k'][..], &[0xff; 8]].concat()
        );
        assert_eq!(
            bytes(&Request::Wait { keys: vec![b"k"] }),
            [6, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k']
        );
        assert_eq!(bytes(&Request::Check { keys: vec![] }), [5, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(&Request::CancelWait), [12]);
        assert_eq!(bytes(&Request::NumKeys), [7]);
        assert_eq!(bytes(&Request::MultiGet { keys: vec![] }), [10, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            bytes(&Request::MultiSet { pairs: vec![(b"k", b"v")] }),
            [&[11, 1, 0, 0, 0, 0, 0, 0, 0][..], &[1, 0, 0, 0, 0, 0, 0, 0, b'k', 1, 0, 0, 0, 0, 0, 0, 0, b'v']].concat()
        );
        // Recorded from torch 2.15: queue_push("q", "v") and queue_len("q"); it puts a / before keys.
        assert_eq!(
            [bytes(&Request::QueuePush { key: b"/q", value: b"v" }), bytes(&Request::QueueLen { key: b"/q" })].concat(),
            b"\x0e\x02\0\0\0\0\0\0\0/q\x01\0\0\0\0\0\0\0v\x10\x02\0\0\0\0\0\0\0/q"
        );
        assert_eq!(bytes(&Request::Ping { nonce: 7 }), [13, 7, 0, 0, 0]);
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_received() {
        let mut set = vec![opcode::SET];
        set.extend((MAX_KEY as u64 + 1).to_le_bytes());
        assert_eq!(parse(&set), Err(Malformed::TooLong { what: "a key", given: MAX_KEY as u64 + 1, limit: MAX_KEY }));
        let mut wait = vec![opcode::WAIT];
        wait.extend(u64::MAX.to_le_bytes());
        assert!(matches!(parse(&wait), Err(Malformed::TooLong { what: "a list of keys", .. })));
        // A list whose keys are each allowed, but too many bytes together.
        let mut wait = vec![opcode::WAIT];
        wait.extend((MAX_KEYS as u64).to_le_bytes());
        while wait.len() <= MAX_REQUEST {
            wait.extend((MAX_KEY as u64).to_le_bytes());
            wait.extend([0; MAX_KEY]);
        }
        assert!(matches!(parse(&wait), Err(Malformed::TooLong { what: "a request", .. })));
        assert_eq!(parse(&[99]), Err(Malformed::Opcode(99)));
    }

    fn texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 2..5)
    }

    proptest! {
        /// Any request survives bytes, and no shorter piece of it is taken for a request.
        #[test]
        fn requests_survive_bytes(which in 0_u8..18, texts in texts(), number in any::<u32>(), delta in any::<i64>()) {
            let keys: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
            let request = match which {
                0 => Request::Validate { magic: number },
                1 => Request::Set { key: keys[0], value: keys[1] },
                2 => Request::Get { key: keys[0] },
                3 => Request::Add { key: keys[0], delta },
                4 => Request::Check { keys },
                5 => Request::Wait { keys },
                6 => Request::CancelWait,
                7 => Request::CompareSet { key: keys[0], expected: keys[1], desired: keys[0] },
                8 => Request::NumKeys,
                9 => Request::DeleteKey { key: keys[0] },
                10 => Request::Append { key: keys[0], value: keys[1] },
                11 => Request::MultiGet { keys },
                12 => Request::MultiSet { pairs: keys.iter().map(|key| (*key, keys[0])).collect() },
                13 => Request::QueuePush { key: keys[0], value: keys[1] },
                14 => Request::QueuePop { key: keys[0] },
                15 => Request::QueueLen { key: keys[0] },
                16 => Request::Barrier { key: keys[0], ranks: delta },
                _ => Request::Ping { nonce: number },
            };
            let mut bytes = bytes(&request);
            let length = bytes.len();
            for cut in 0..length {
                prop_assert_eq!(parse(&bytes[..cut]), Ok(None));
            }
            bytes.extend([1, 2, 3]);
            prop_assert_eq!(parse(&bytes), Ok(Some((request, length))));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, length))) = parse(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
