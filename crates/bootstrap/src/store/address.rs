//! Where a store listens.

use std::fmt;
use std::str::FromStr;

/// Where a store listens: `tcp://host:port`, or a name in the abstract namespace of Unix sockets.
///
/// ```
/// use campanile_bootstrap::Address;
///
/// let address: Address = "tcp://[::1]:29500".parse()?;
/// assert_eq!(address, Address::Tcp { host: "::1".to_owned(), port: 29500 });
/// assert_eq!(address.to_string(), "tcp://[::1]:29500");
/// assert_eq!("my-store".parse(), Ok(Address::Abstract("my-store".to_owned())));
/// assert!("tcp://host".parse::<Address>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// A name or a numeric address, IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A name in the abstract namespace of Unix sockets, of 1 to 107 bytes: this machine, and this network namespace.
    Abstract(String),
}

/// What a TCP address begins with.
const TCP: &str = "tcp://";

/// Longest name in the abstract namespace in bytes: `sun_path` without its leading NUL.
pub(crate) const MAX_NAME: usize = 107;

impl FromStr for Address {
    type Err = String;

    /// The error says what is allowed.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(TCP) else {
            return match text.len() {
                1..=MAX_NAME => Ok(Self::Abstract(text.to_owned())),
                length => Err(format!("an address has 1 to {MAX_NAME} bytes, this one has {length}")),
            };
        };
        let wrong = || format!("{text:?} is not an address; give tcp://HOST:PORT, as tcp://node1:29500");
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() { Err(wrong()) } else { Ok(Self::Tcp { host: host.to_owned(), port }) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "{TCP}[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{TCP}{host}:{port}"),
            Self::Abstract(name) => f.write_str(name),
        }
    }
}
