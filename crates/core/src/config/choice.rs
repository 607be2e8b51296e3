//! Choices: variables whose values are a short list of names. A name that is printed is a name that is accepted.

use std::fmt;
use std::str::FromStr;

use super::{ConfigError, Source};
use crate::Path;

/// A short list of named values.
pub(super) trait Choice: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// The name that is printed and accepted.
    fn name(self) -> &'static str;

    /// The value of that name.
    fn named(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|choice| choice.name() == text)
    }

    /// The names, for people.
    fn names() -> String {
        Self::ALL.iter().map(|choice| choice.name()).collect::<Vec<_>>().join(", ")
    }
}

impl Choice for Path {
    const ALL: &'static [Self] = &[Self::Auto, Self::LoadStore, Self::Queue];

    fn name(self) -> &'static str {
        Self::name(self)
    }
}

macro_rules! choices {
    ($(
        $(#[$meta:meta])*
        $choice:ident: $variable:literal { $($(#[$doc:meta])* $value:ident = $name:literal,)+ }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $choice { $($(#[$doc])* $value,)+ }

        impl $choice {
            /// The name that is printed and accepted.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)+ }
            }
        }

        impl Choice for $choice {
            const ALL: &'static [Self] = &[$(Self::$value,)+];

            fn name(self) -> &'static str {
                Self::name(self)
            }
        }

        /// The first that is listed, as in the table of variables.
        impl Default for $choice {
            fn default() -> Self {
                <Self as Choice>::ALL[0]
            }
        }

        impl fmt::Display for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $choice {
            type Err = ConfigError;

            fn from_str(text: &str) -> Result<Self, ConfigError> {
                Self::named(text).ok_or_else(|| ConfigError::Value {
                    name: $variable.to_owned(),
                    given: text.to_owned(),
                    origin: Source::Code,
                    allowed: Self::names(),
                })
            }
        }
    )+};
}

choices! {
    /// What the program tells of itself on standard error.
    LogLevel: "CAMPANILE_LOG" {
        /// Problems that it goes on with, and what was asked for, as the counts of the decorator `stats`.
        Warn = "warn",
        /// Nothing but errors.
        Error = "error",
        /// What an operator may want to know.
        Info = "info",
        /// For whoever looks for a fault.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }

    /// What launched ranks are bound to.
    Bind: "CAMPANILE_BIND" {
        /// Each rank to physical cores of its own.
        Cores = "cores",
        /// Nothing: the scheduler decides.
        None = "none",
    }

    /// Whether huge pages are used for windows.
    HugePages: "CAMPANILE_HUGE_PAGES" {
        /// Where the machine gives them.
        Auto = "auto",
        /// Not at all.
        Never = "never",
    }

    /// Whose devices are used.
    GpuChoice: "CAMPANILE_GPU" {
        /// Those of CUDA and HIP, where their libraries are.
        Auto = "auto",
        /// NVIDIA's.
        Cuda = "cuda",
        /// AMD's.
        Hip = "hip",
        /// Emulated ones.
        Emulator = "emulator",
    }

    /// Schedule of MoE dispatch and combine.
    MoeMode: "CAMPANILE_MOE_MODE" {
        /// By the number of tokens of the call.
        Auto = "auto",
        /// Few large steps.
        Throughput = "throughput",
        /// Many small steps.
        LowLatency = "low-latency",
    }

    /// Who moves the results of MoE combine.
    MoeCombine: "CAMPANILE_MOE_COMBINE" {
        /// By measurement.
        Auto = "auto",
        /// The source reads them from the owners.
        Pull = "pull",
        /// The owners write them to the source.
        Push = "push",
    }
}
