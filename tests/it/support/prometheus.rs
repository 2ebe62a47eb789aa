//! A real Prometheus.

use std::process::Command;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value as Json;

use super::http::HttpConnection;
use super::ports::Port;
use super::process::Process;
use super::temp::TempDir;

/// Prometheus with a configuration of the test's. Killed on drop.
#[derive(Debug)]
pub struct Prometheus {
    _process: Process,
    _directory: TempDir,
    port: Port,
}

/// One series of an answer: its labels, and values with their times in seconds since 1970.
#[derive(Clone, Debug)]
pub struct Series {
    /// Names and values of labels.
    pub labels: Json,
    /// Time and value of each point; NaN too.
    pub points: Vec<(f64, f64)>,
}

impl Prometheus {
    /// Starts it with scrapes every `scrape`, the lines of `configuration` below `scrape_configs:` (a job that is named
    /// there, or `rule_files` after it), and with `files` beside its configuration.
    pub fn start(scrape: Duration, configuration: &str, files: &[(&str, &str)]) -> Self {
        let (directory, port) = (TempDir::new(), Port::claim());
        for (name, content) in files {
            directory.write(name, content);
        }
        let config = directory.write(
            "prometheus.yml",
            &format!(
                "global: {{scrape_interval: {0}ms, scrape_timeout: {0}ms}}\nscrape_configs:\n{configuration}",
                scrape.as_millis()
            ),
        );
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address={}", port.address()));
        let process = Process::start("prometheus", command);
        Self { _process: process, _directory: directory, port }
    }

    /// An answer of its API, or `Null` while it is not up.
    ///
    /// # Panics
    /// When it says that the question is wrong.
    pub fn api(&self, path: &str) -> Json {
        // A query over a whole story takes longer than a probe.
        let connection = HttpConnection::connect(&self.port.address(), Duration::from_secs(20));
        let Ok(response) = connection.and_then(|mut connection| connection.get(path)) else { return Json::Null };
        let json: Json = serde_json::from_str(&response.body).unwrap_or(Json::Null);
        assert_ne!(json["status"], "error", "{path}: {json}");
        json["data"].clone()
    }

    /// An instant query: labels and value of each series. Empty while it is not up.
    pub fn query(&self, expression: &str) -> Vec<(Json, f64)> {
        let encoded = utf8_percent_encode(expression, NON_ALPHANUMERIC);
        let data = self.api(&format!("/api/v1/query?query={encoded}"));
        let series = data["result"].as_array().cloned().unwrap_or_default();
        series
            .into_iter()
            .map(|series| (series["metric"].clone(), series["value"][1].as_str().unwrap().parse().unwrap()))
            .collect()
    }

    /// A query over a span of time, in seconds since 1970.
    pub fn query_range(&self, expression: &str, from: f64, to: f64, step: f64) -> Vec<Series> {
        let encoded = utf8_percent_encode(expression, NON_ALPHANUMERIC);
        let data = self.api(&format!("/api/v1/query_range?query={encoded}&start={from}&end={to}&step={step}"));
        let point = |point: &Json| (point[0].as_f64().unwrap(), point[1].as_str().unwrap().parse().unwrap());
        let series = |series: &Json| Series {
            labels: series["metric"].clone(),
            points: series["values"].as_array().unwrap().iter().map(point).collect(),
        };
        data["result"].as_array().unwrap_or(&Vec::new()).iter().map(series).collect()
    }

    /// The value of the one series that an expression gives.
    pub fn value(&self, expression: &str) -> Option<f64> {
        let found = self.query(expression);
        assert!(found.len() <= 1, "{expression}: {found:?}");
        found.first().map(|(_, value)| *value)
    }
}
