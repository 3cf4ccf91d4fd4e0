//! A property that does not hold, and the macros by which checks say so.

/// What a check says.
pub type Check = Result<(), Broken>;

/// A property that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{property}: {what}")]
pub struct Broken {
    /// The name of the file that has the property.
    pub property: &'static str,
    /// What is wrong, with the values that show it.
    pub what: String,
}

impl Broken {
    /// `module` is the path of the module that checks.
    pub fn new(module: &'static str, what: String) -> Self {
        Self { property: module.rsplit("::").next().unwrap_or(module), what }
    }
}

/// Leaves the function with [`Broken`].
macro_rules! broken {
    ($($what:tt)+) => {
        return Err($crate::Broken::new(module_path!(), format!($($what)+)))
    };
}

/// Leaves the function with [`Broken`] unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            $crate::broken::broken!($($what)+);
        }
    };
}

/// Leaves the function with [`Broken`] unless both are equal.
macro_rules! ensure_eq {
    ($is:expr, $right:expr, $($what:tt)+) => {
        match (&$is, &$right) {
            (is, right) if is == right => {}
            (is, right) => $crate::broken::broken!("{}: {is:?}, and {right:?} is right", format!($($what)+)),
        }
    };
}

pub(crate) use {broken, ensure, ensure_eq};
