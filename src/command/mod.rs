//! What is run by a person or a script beside the election: each command says something and ends.

pub mod ask;
pub mod completions;
pub mod control;
pub mod demo;
pub mod doctor;
pub mod install;
pub mod observe;
pub mod status;
pub mod tied;
pub mod wait;

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All well.
    Well,
    /// It works, and not all is well.
    NotWell,
    /// It must not be used as it is, and what was asked for says why.
    Unfit,
    /// Usage, configuration, or refused.
    Refused,
    /// A part of this process failed.
    Failed,
}

impl Exit {
    /// The exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::NotWell => 1,
            Self::Unfit | Self::Refused => 64,
            Self::Failed => 70,
        }
    }
}

/// What a command has to say, and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// For stdout; for stderr if nothing was done.
    pub text: String,
    /// How it ends.
    pub exit: Exit,
}
