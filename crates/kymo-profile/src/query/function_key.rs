//! How questions name a function exactly.
use crate::export::Function;
use std::sync::Arc;

/// A function as tables show it, exactly: those of the same name in several modules stay apart. It
/// is the same function in every [`Dataset`](super::Dataset).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionKey(pub(super) KeyOf);

/// How a key names its function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum KeyOf {
    /// By all that tables show of it.
    Function(Arc<Function>),
    /// By its number in one dataset.
    Number(u32),
}

impl Default for KeyOf {
    fn default() -> KeyOf {
        KeyOf::Function(Arc::default())
    }
}

impl FunctionKey {
    pub(super) fn of(function: &Arc<Function>) -> FunctionKey {
        FunctionKey(KeyOf::Function(Arc::clone(function)))
    }

    /// A key as an answer of the same dataset had it as a number. One that no function has is on no
    /// stack.
    pub fn of_number(number: u32) -> FunctionKey {
        FunctionKey(KeyOf::Number(number))
    }
}
