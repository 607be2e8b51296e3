//! What can be wrong with the text of a stack.

/// A text that is no stack of decorators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// There is no such decorator.
    #[error("{given:?} is no decorator; {nearest}")]
    Decorator {
        /// What was given.
        given: String,
        /// The known names that are near, in words.
        nearest: String,
    },
    /// A decorator has no such option.
    #[error("decorator {decorator} has no option {given:?}; {nearest}")]
    Option {
        /// Which decorator.
        decorator: String,
        /// What was given.
        given: String,
        /// The known names that are near, in words.
        nearest: String,
    },
    /// An option does not allow a value.
    #[error("{decorator}({option}={given}) is not allowed; {option} takes {allowed}")]
    Value {
        /// Which decorator.
        decorator: String,
        /// Which option.
        option: String,
        /// What was given.
        given: String,
        /// What is allowed, in words.
        allowed: &'static str,
    },
    /// The text is not put together right.
    #[error("{given:?}: {reason}; write name(option=value, …)+name, as throttle(latency=5us, bandwidth=1GB/s)+stats")]
    Syntax {
        /// The part that is wrong.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}
