//! The command `redleader`: parse, configure, run, and end with the right code.

use std::fmt::Display;
use std::io::Write;

use redleader::cli::{self, Command};
use redleader::command::{Exit, Said, completions, control, demo, doctor, install, status, tied, wait};
use redleader::config::{
    CompletionsConfig, Config, ConfigError, DemoConfig, DoctorConfig, DrainConfig, InstallConfig, ResignConfig,
    StatusConfig, WaitConfig,
};
use redleader::exec::guardian;

fn main() {
    let code = match cli::parse() {
        Ok(cli) => dispatch(cli.command),
        Err(stop) if stop.code == 0 => print(std::io::stdout(), stop.text.trim_end(), stop.code),
        Err(stop) => print(std::io::stderr(), stop.text.trim_end(), stop.code),
    };
    // Not by returning: a look-up of a name that hangs in a thread of its own would be waited for.
    std::process::exit(code.into());
}

fn dispatch(command: Command) -> u8 {
    match command {
        Command::Run(args) => match Config::from_args(&args) {
            Ok(config) => candidate(config),
            Err(error) => refuse(error),
        },
        Command::Status(args) => answer(StatusConfig::from_args(&args), status::status),
        Command::Doctor(args) => answer(DoctorConfig::from_args(&args), doctor::doctor),
        Command::Wait(args) => answer(WaitConfig::from_args(&args), wait::wait),
        Command::Resign(args) => answer(ResignConfig::from_args(&args), control::resign),
        Command::Drain(args) => answer(DrainConfig::from_args(&args), control::drain),
        Command::Install(args) => answer_at_once(InstallConfig::from_args(&args), install::install),
        Command::Completions(args) => answer_at_once(CompletionsConfig::from_args(&args), completions::completions),
        Command::Demo(args) => answer(DemoConfig::from_args(&args), demo::demo),
        Command::Guard(args) => print(std::io::stderr(), guardian::guard(&args), Exit::Failed.code()),
        Command::Tied(args) => {
            let error = tied::become_program(&args);
            print(std::io::stderr(), &error, tied::code(&error))
        }
    }
}

/// Runs a candidate until it is asked to stop.
fn candidate(config: Config) -> u8 {
    if let Err(error) = redleader::log::start(config.log) {
        return print(std::io::stderr(), error, Exit::Failed.code());
    }
    match redleader::app::run(config) {
        Ok(code) => code,
        Err(error) => print(std::io::stderr(), format_args!("redleader: {error}"), error.code()),
    }
}

/// Runs a command to its end on this thread.
fn answer<C, F: Future<Output = Said>>(config: Result<C, ConfigError>, run: impl FnOnce(C) -> F) -> u8 {
    let config = match config {
        Ok(config) => config,
        Err(error) => return refuse(error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return print(std::io::stderr(), error, Exit::Failed.code()),
    };
    let said = runtime.block_on(run(config));
    runtime.shutdown_background();
    say(&said)
}

/// As [`answer`], for what needs no runtime.
fn answer_at_once<C>(config: Result<C, ConfigError>, run: impl FnOnce(&C) -> Said) -> u8 {
    match config {
        Ok(config) => say(&run(&config)),
        Err(error) => refuse(error),
    }
}

fn say(Said { text, exit }: &Said) -> u8 {
    match exit {
        Exit::Well | Exit::NotWell | Exit::Unfit => print(std::io::stdout(), text.trim_end(), exit.code()),
        Exit::Refused | Exit::Failed => print(std::io::stderr(), text.trim_end(), exit.code()),
    }
}

fn refuse(why: impl Display) -> u8 {
    print(std::io::stderr(), why, Exit::Refused.code())
}

/// A reader that has gone away is no fault of ours, and there is nobody left to tell.
fn print(mut out: impl Write, text: impl Display, code: u8) -> u8 {
    let _ = writeln!(out, "{text}");
    code
}
