//! The log: one line for each event, to stderr.

use std::io::IsTerminal as _;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Layer as _, fmt};

/// What is logged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The most talkative level that is written.
    pub level: LevelFilter,
    /// The form of a line.
    pub format: LogFormat,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// JSON unless stderr is a terminal.
    Auto,
    /// For people.
    Text,
    /// One JSON object a line, fields beside `timestamp` (RFC 3339, UTC), `level`, `target` and `message`.
    Json,
}

impl LogSettings {
    /// Whether lines are JSON, as stderr is now.
    #[must_use]
    pub fn is_json(self) -> bool {
        self.format.is_json(std::io::stderr().is_terminal())
    }
}

impl LogFormat {
    const fn is_json(self, is_terminal: bool) -> bool {
        match self {
            Self::Auto => !is_terminal,
            Self::Text => false,
            Self::Json => true,
        }
    }
}

/// Names whose events are written: only our own. The crates below us print headers and passwords at trace level.
const OURS: &str = "redleader";

/// Writes events to stderr from here on. Once in a process.
///
/// # Errors
/// When the process has a subscriber already.
pub fn start(settings: LogSettings) -> Result<(), TryInitError> {
    subscriber(settings, std::io::stderr().is_terminal(), std::io::stderr).try_init()
}

fn subscriber<W>(settings: LogSettings, is_terminal: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    let LogSettings { level, format } = settings;
    let is_json = format.is_json(is_terminal);
    let lines = fmt::layer().with_writer(writer).with_ansi(false);
    let lines = if is_json {
        lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
    } else {
        lines.boxed()
    };
    tracing_subscriber::registry().with(lines.with_filter(Targets::new().with_target(OURS, level)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, is_terminal: bool) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let settings = LogSettings { level: LevelFilter::INFO, format };
        tracing::subscriber::with_default(subscriber(settings, is_terminal, move || writer.clone()), || {
            tracing::info!(target: "redleader::election", lock = "job", token = 7, "elected");
            tracing::debug!(target: "redleader::election", "one round");
            tracing::error!(target: "rustls::conn", "S3cr3t");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_is_one_json_object_with_flat_fields() {
        for (format, is_terminal) in [(LogFormat::Json, true), (LogFormat::Auto, false)] {
            let line: serde_json::Value = serde_json::from_str(&logged(format, is_terminal)).unwrap();
            assert_eq!(
                (&line["message"], &line["lock"], &line["token"]),
                (&"elected".into(), &"job".into(), &7.into())
            );
            assert_eq!((&line["level"], &line["target"]), (&"INFO".into(), &"redleader::election".into()));
            assert!(humantime::parse_rfc3339(line["timestamp"].as_str().unwrap()).is_ok());
        }
    }

    #[test]
    fn a_person_gets_one_plain_line() {
        for (format, is_terminal) in [(LogFormat::Text, false), (LogFormat::Auto, true)] {
            let text = logged(format, is_terminal);
            assert!(text.ends_with("INFO redleader::election: elected lock=\"job\" token=7\n"), "{text}");
            assert_eq!(text.lines().count(), 1);
        }
    }
}
