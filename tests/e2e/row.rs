//! What a row is, and how rows are run: stage by stage, the rows of a stage beside each other.

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;

use redleader::clock;

use crate::cluster::Cluster;
use crate::figures::setting;
use crate::support::{Scale, scale};

/// One thing that is shown.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name, which words on the command line select by.
    pub name: &'static str,
    /// What it shows.
    pub shows: &'static str,
    /// Rows of one stage run beside each other.
    pub stage: Stage,
    /// Does it, and panics if it is not so.
    pub run: fn(&Cluster),
}

/// Which rows may run beside each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Takes nothing from anyone else.
    Together,
    /// Takes the API server away.
    Api,
    /// Takes every processor for many minutes.
    Build,
    /// Takes a node of the cluster, which does not come back.
    Node,
    /// Leaves rules for the packets of all pods behind, which end with the cluster's network.
    Network,
}

/// Ends a row that cannot be run, or not at this scale: how it can.
pub fn not_run(how: &str) -> ! {
    panic::resume_unwind(Box::new(NotRun(how.to_owned())))
}

struct NotRun(String);

/// How a row ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    NotRun,
}

/// How many rows run at a time: most of the time of each is waiting for kubelets.
const AT_A_TIME: usize = 4;

/// Starts the cluster, runs the rows that are selected, ends the cluster, and says what ran.
pub fn run(rows: Vec<Row>, words: &[String]) -> ExitCode {
    let is_named = |row: &Row| words.iter().any(|word| row.name.contains(word));
    // It compiles everything twice.
    let is_in_time = |row: &Row| row.stage != Stage::Build || scale() == Scale::Soak;
    let (selected, left_out): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| if words.is_empty() { is_in_time(row) } else { is_named(row) });
    for row in left_out.iter().filter(|_| words.is_empty()) {
        println!("not run: {} (at SCALE=soak, or by its name: tests/run e2e {})", row.name, row.name);
    }
    if selected.is_empty() {
        eprintln!("no row is named like that; --list names them");
        return ExitCode::from(64);
    }
    let cluster = Cluster::up();
    let mut ends = Vec::new();
    for stage in [Stage::Together, Stage::Api, Stage::Build, Stage::Node, Stage::Network] {
        let queue = Mutex::new(selected.iter().filter(|row| row.stage == stage).rev().collect::<Vec<_>>());
        let results = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    while let Some(row) = pop(&queue) {
                        let end = run_one(row, &cluster);
                        results.lock().unwrap_or_else(PoisonError::into_inner).push(end);
                    }
                });
            }
        });
        ends.extend(results.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    if setting("KEEP").is_none() {
        cluster.down();
    }
    let count = |wanted| ends.iter().filter(|end| **end == wanted).count();
    let (passed, failed, ignored) = (count(End::Passed), count(End::Failed), count(End::NotRun));
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; {ignored} ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn pop<'a>(queue: &Mutex<Vec<&'a Row>>) -> Option<&'a Row> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn run_one(row: &Row, cluster: &Cluster) -> End {
    let began = clock::now();
    let done = panic::catch_unwind(AssertUnwindSafe(|| (row.run)(cluster)));
    let took = clock::now().since(began).as_secs();
    let end = match &done {
        Ok(()) => End::Passed,
        Err(why) => match why.downcast_ref::<NotRun>() {
            Some(NotRun(how)) => {
                println!("not run: {} ({how})", row.name);
                End::NotRun
            }
            None => End::Failed,
        },
    };
    let word = match end {
        End::Passed => "ok",
        End::Failed => "FAILED",
        End::NotRun => "ignored",
    };
    println!("test {} ... {word} ({took} s)", row.name);
    end
}
