//! What a row is, and how rows are run: stage by stage, the rows of a stage beside each other.

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;

use redleader::clock;

use crate::cluster::Cluster;
use crate::figures::setting;

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
    /// Takes it away, and looks at what it says at once afterwards.
    ApiAlone,
    /// Takes a node of the cluster, which does not come back.
    Node,
}

/// How many rows run at a time: most of the time of each is waiting for kubelets.
const AT_A_TIME: usize = 4;

/// Starts the cluster, runs the rows that are selected, ends the cluster, and says what ran.
pub fn run(rows: Vec<Row>, words: &[String]) -> ExitCode {
    let is_long = setting("SCALE").as_deref() == Some("soak");
    // It has to move leaders until one is on the node that is to be lost, which can take longer than all other rows.
    let is_in_time = |row: &Row| is_long || row.stage != Stage::Node;
    let is_named = |row: &Row| words.iter().any(|word| row.name.contains(word));
    let (selected, left_out): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| if words.is_empty() { is_in_time(row) } else { is_named(row) });
    for row in left_out.iter().filter(|_| words.is_empty()) {
        println!("not run at this scale: {} (SCALE=soak, or ROWS={})", row.name, row.name);
    }
    if selected.is_empty() {
        eprintln!("no row is named like that; --list names them");
        return ExitCode::from(64);
    }
    let cluster = Cluster::up();
    let (mut passed, mut failed) = (0, 0);
    for stage in [Stage::Together, Stage::Api, Stage::ApiAlone, Stage::Node] {
        let queue = Mutex::new(selected.iter().filter(|row| row.stage == stage).rev().collect::<Vec<_>>());
        let results = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    while let Some(row) = pop(&queue) {
                        let good = run_one(row, &cluster);
                        results.lock().unwrap_or_else(PoisonError::into_inner).push(good);
                    }
                });
            }
        });
        for good in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
            if good { passed += 1 } else { failed += 1 }
        }
    }
    if setting("KEEP").is_none() {
        cluster.down();
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn pop<'a>(queue: &Mutex<Vec<&'a Row>>) -> Option<&'a Row> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn run_one(row: &Row, cluster: &Cluster) -> bool {
    let began = clock::now();
    let good = panic::catch_unwind(AssertUnwindSafe(|| (row.run)(cluster))).is_ok();
    let took = clock::now().since(began).as_secs();
    println!("test {} ... {} ({took} s)", row.name, if good { "ok" } else { "FAILED" });
    good
}
