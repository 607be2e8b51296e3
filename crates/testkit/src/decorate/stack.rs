//! Stacks: decorators around a plugin, innermost first, from code or from text.

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use campanile_core::{TransportPlugin, suggest};

use super::layer::DecoratedPlugin;
use super::options::Options;
use super::{Check, Decorator, Fault, Lean, Plain, StackError, Stats, Throttle, Trace};

/// Makes a decorator of its options.
type Make = fn(&Options<'_>) -> Result<Arc<dyn Decorator>, StackError>;

/// Every decorator: its name, its options, and how it is made of them.
const DECORATORS: [(&str, &[&str], Make); 7] = [
    (super::plain::NAME, &[], |_| Ok(Arc::new(Plain))),
    (super::stats::NAME, &[], |_| Ok(Arc::new(Stats::new()))),
    (super::trace::NAME, Trace::OPTIONS, |options| Ok(Arc::new(Trace::from_options(options)?))),
    (super::check::NAME, &[], |_| Ok(Arc::new(Check))),
    (super::throttle::NAME, Throttle::OPTIONS, |options| Ok(Arc::new(Throttle::from_options(options)?))),
    (super::fault::NAME, Fault::OPTIONS, |options| Ok(Arc::new(Fault::from_options(options)?))),
    (super::lean::NAME, Lean::OPTIONS, |options| Ok(Arc::new(Lean::from_options(options)?))),
];

/// Decorators, innermost first.
///
/// As text: names joined by `+`, each with its options in parentheses; what is printed is what is read.
///
/// ```
/// use campanile_testkit::decorate::{Stack, Stats};
///
/// let stack: Stack = "check + throttle(bandwidth=100MB/s) + stats".parse()?;
/// assert_eq!(stack.to_string(), "check+throttle(bandwidth=100MB/s)+stats");
/// assert!(stack.get::<Stats>().is_some());
///
/// let error = "throtle(latency=5us)".parse::<Stack>().unwrap_err();
/// assert!(error.to_string().contains("did you mean throttle?"));
/// # Ok::<(), campanile_testkit::decorate::StackError>(())
/// ```
#[derive(Clone, Default)]
pub struct Stack {
    decorators: Vec<Arc<dyn Decorator>>,
}

impl Stack {
    /// No decorator.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more around those that are there.
    #[must_use]
    pub fn with(mut self, decorator: impl Decorator) -> Self {
        self.decorators.push(Arc::new(decorator));
        self
    }

    /// With those of another stack around those that are there.
    #[must_use]
    pub fn with_all(mut self, stack: &Self) -> Self {
        self.decorators.extend_from_slice(&stack.decorators);
        self
    }

    /// The stack that `text` says, as `CAMPANILE_DECORATE` has it; no decorator if it is empty.
    ///
    /// # Errors
    /// [`StackError`] says what was given, what is allowed, and the nearest known names.
    pub fn parse(text: &str) -> Result<Self, StackError> {
        if text.trim().is_empty() {
            return Ok(Self::new());
        }
        let mut depth = 0;
        let between = |letter| {
            match letter {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            letter == '+' && depth == 0
        };
        let decorators = text.split(between).map(|part| decorator(part.trim())).collect::<Result<_, _>>()?;
        Ok(Self { decorators })
    }

    /// Every decorator that a text can name, with its options.
    pub fn known() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
        DECORATORS.iter().map(|&(name, options, _)| (name, options))
    }

    /// `plugin` with the decorators around what it opens.
    pub fn apply(&self, plugin: Arc<dyn TransportPlugin>) -> Arc<dyn TransportPlugin> {
        self.decorators.iter().cloned().fold(plugin, |inner, decorator| Arc::new(DecoratedPlugin { inner, decorator }))
    }

    /// The innermost decorator of that type, to read what it recorded.
    pub fn get<D: Decorator>(&self) -> Option<&D> {
        self.decorators.iter().find_map(|decorator| (&**decorator as &dyn Any).downcast_ref())
    }
}

fn decorator(text: &str) -> Result<Arc<dyn Decorator>, StackError> {
    let syntax = |reason| StackError::Syntax { given: text.to_owned(), reason };
    let (name, options) = match text.split_once('(') {
        None => (text, ""),
        Some((name, rest)) => {
            (name.trim(), rest.strip_suffix(')').ok_or_else(|| syntax("a parenthesis that is not closed"))?)
        }
    };
    if name.is_empty() {
        return Err(syntax("a decorator without a name"));
    }
    let Some((name, known, make)) = DECORATORS.iter().find(|(known, _, _)| *known == name) else {
        let nearest = suggest(name, DECORATORS.iter().map(|(known, _, _)| (*known).to_owned()));
        return Err(StackError::Decorator { given: name.to_owned(), nearest });
    };
    make(&Options::parse(name, options, known)?)
}

impl FromStr for Stack {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        Self::parse(text)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.decorators.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("+"))
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({self})")
    }
}
