//! Programs to be run: looked up before anybody campaigns, so that one that cannot run never costs a leadership.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use thiserror::Error;

/// Where programs are if the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A program that was found, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
}

/// Why a program cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// There is no such file.
    #[error("{what} {}: not found", .program.display())]
    NotFound {
        /// CMD, or the flag that names it.
        what: &'static str,
        /// Its name as given.
        program: OsString,
    },
    /// The file may not be executed.
    #[error("{what} {}: is no program that may be executed", .program.display())]
    NotExecutable {
        /// CMD, or the flag that names it.
        what: &'static str,
        /// Its name as given.
        program: OsString,
    },
}

impl CommandError {
    /// The code that a shell gives: 127 if there is no such program, 126 if it cannot be executed.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
        }
    }
}

impl Program {
    /// Looks a program up as a shell does: a name with a slash is a path, any other is looked for in `search`.
    ///
    /// # Errors
    /// When no file is found, or only such as may not be executed.
    pub fn find(what: &'static str, words: &[OsString], search: Option<&OsStr>) -> Result<Self, CommandError> {
        let (name, args) =
            words.split_first().map_or((OsStr::new(""), &[][..]), |(name, rest)| (name.as_os_str(), rest));
        let program = || name.to_owned();
        let mut is_found = false;
        for path in candidates(name, search) {
            if is_executable(&path) {
                return Ok(Self { path, args: args.to_vec() });
            }
            is_found |= path.exists();
        }
        Err(if is_found {
            CommandError::NotExecutable { what, program: program() }
        } else {
            CommandError::NotFound { what, program: program() }
        })
    }
}

fn candidates(name: &OsStr, search: Option<&OsStr>) -> Vec<PathBuf> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(name)];
    }
    let search = search.unwrap_or(OsStr::new(DEFAULT_PATH));
    // An empty part is the working directory, as for a shell. With the dot the path has a slash and is taken as one.
    let directory =
        |part: &[u8]| if part.is_empty() { PathBuf::from(".") } else { PathBuf::from(OsStr::from_bytes(part)) };
    search.as_bytes().split(|byte| *byte == b':').map(|part| directory(part).join(name)).collect()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file()) && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(words: &[&str], search: Option<&str>) -> Result<Program, u8> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Program::find("CMD", &words, search.map(OsStr::new)).map_err(|error| error.code())
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        let sh = find(&["sh", "-c", "true"], Some("/nowhere:/bin")).unwrap();
        assert_eq!(sh.path, Path::new("/bin/sh"));
        assert_eq!(sh.args, ["-c", "true"]);
        assert_eq!(find(&["sh"], None).map(|program| program.path.ends_with("sh")), Ok(true));
        assert_eq!(find(&["/bin/sh"], Some("")).unwrap().path, Path::new("/bin/sh"));
    }

    #[test]
    fn one_that_cannot_run_has_the_code_of_a_shell() {
        for (words, search, code) in [
            (&["no-such-program"][..], Some("/bin"), 127),
            (&["/bin/no-such-program"], None, 127),
            (&["/bin"], None, 126),
            (&["/proc/self/environ"], None, 126),
            (&["self"], Some("/bin:/proc"), 126),
            (&[""], None, 127),
            (&[], None, 127),
        ] {
            assert_eq!(find(words, search), Err(code), "{words:?}");
        }
    }
}
