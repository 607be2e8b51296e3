//! Preferences: which transports may be used, in which order.

use std::fmt;

/// All transports, as they cost least; or only the named ones, the first that can run.
///
/// ```
/// use campanile_core::selection::Preference;
/// let preference = Preference::parse("rdma, shm").unwrap();
/// assert_eq!(preference.names(), ["rdma", "shm"]);
/// assert_eq!(preference.to_string(), "rdma,shm");
/// assert_eq!(Preference::parse("auto"), Some(Preference::AUTO));
/// assert_eq!(Preference::parse("shm,auto"), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    names: Vec<String>,
}

impl Preference {
    /// No preference: the model decides.
    pub const AUTO: Self = Self { names: Vec::new() };

    /// What it accepts, in words.
    pub const ALLOWED: &'static str = "auto; or the name of a transport; or several of them in order of preference, \
        separated by commas; a plugin that is not found by its name may be given as the path of its file";

    const AUTO_NAME: &'static str = "auto";

    /// From text: `auto`, a name, or names separated by commas. `None` for an empty name, one that is there twice, and
    /// `auto` beside others.
    pub fn parse(text: &str) -> Option<Self> {
        if text == Self::AUTO_NAME {
            return Some(Self::AUTO);
        }
        Self::of(text.split(',').map(str::trim))
    }

    /// Of these names, in this order; `None` as for [`parse`](Self::parse), and for none.
    pub fn of<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Option<Self> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let bad =
            |name: &String| name.is_empty() || name == Self::AUTO_NAME || name.contains(',') || name.trim() != name;
        let twice = (1..names.len()).any(|at| names[..at].contains(&names[at]));
        (!names.is_empty() && !twice && !names.iter().any(bad)).then_some(Self { names })
    }

    /// The names; none if every transport may be used.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether every transport may be used.
    pub fn is_auto(&self) -> bool {
        self.names.is_empty()
    }

    /// Place of a transport in the order of preference; `None` if it may not be used.
    pub(super) fn order_of(&self, transport: &str) -> Option<usize> {
        if self.is_auto() { Some(0) } else { self.names.iter().position(|name| name == transport) }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_auto() { f.write_str(Self::AUTO_NAME) } else { f.write_str(&self.names.join(",")) }
    }
}
