//! `completions`: what a shell needs to complete the command line, and the manual page; both out of its definition.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::command::{Exit, Said};
use crate::config::{Completion, CompletionsConfig};

/// The script for a shell, or the manual page.
#[must_use]
pub fn completions(config: &CompletionsConfig) -> Said {
    let shell = match config.what {
        Completion::Bash => Shell::Bash,
        Completion::Zsh => Shell::Zsh,
        Completion::Fish => Shell::Fish,
        Completion::Man => return manual(),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "redleader", &mut script);
    Said { text: String::from_utf8_lossy(&script).into_owned(), exit: Exit::Well }
}

/// One page for all sub-commands: a person reads it in one go, and an image has one file.
fn manual() -> Said {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    let whole = clap_mangen::Man::new(command.clone());
    let mut written = whole.render(&mut page);
    let mut text = String::from_utf8_lossy(&page).into_owned();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let man = clap_mangen::Man::new(sub.clone());
        let mut part = Vec::new();
        written = written
            .and_then(|()| man.render_synopsis_section(&mut part))
            .and_then(|()| man.render_description_section(&mut part))
            .and_then(|()| man.render_options_section(&mut part));
        text.push_str(&format!(".SH {}\n", sub.get_name().to_uppercase()));
        // One level below the sub-command's own heading; what is defined for the page is defined once.
        let lines = String::from_utf8_lossy(&part).into_owned();
        for line in lines.lines().filter(|line| !line.starts_with(".ie ") && !line.starts_with(".el ")) {
            text.push_str(&line.replacen(".SH ", ".SS ", 1));
            text.push('\n');
        }
    }
    match written {
        Ok(()) => Said { text, exit: Exit::Well },
        Err(why) => Said { text: format!("cannot write the manual page: {why}"), exit: Exit::Failed },
    }
}
