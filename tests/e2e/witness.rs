//! Who led by the replicas' own logs, to the millisecond of the boot clock, which all nodes of this cluster share. A
//! caller of the Service sees what requests see; two leaders between two of its calls are found here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::repeated::Repeated;
use crate::support::{Judge, Line, LogLine, Report, Track, terms};

/// Between two looks for new logs: shorter than any container runs before it can lead.
const BETWEEN: Duration = Duration::from_millis(50);

/// Holds the logs of a namespace's containers from their first line on, also of those that are gone by the end.
pub struct Witness {
    logs: Repeated<BTreeMap<PathBuf, File>>,
    /// Pods whose redleader was killed, and when it was certainly dead, in milliseconds of the boot clock.
    killed: Vec<(String, u64)>,
}

impl Witness {
    /// Of the containers of this name in this namespace. To be called before the first of them starts.
    pub fn start(cluster: &Cluster, namespace: &str, container: &str) -> Self {
        let places = ["node1", "node2"].map(|node| cluster.root().join(node).join("pods"));
        let (of, container) = (format!("{namespace}_"), container.to_owned());
        let look = move |logs: &mut BTreeMap<PathBuf, File>| {
            places.iter().for_each(|place| open_new(logs, place, &of, &container));
        };
        Self { logs: Repeated::start(BETWEEN, look), killed: Vec::new() }
    }

    /// A pod's redleader is dead by now, and could not say so.
    pub fn killed(&mut self, pod: &str, by: u64) {
        self.killed.push((pod.to_owned(), by));
    }

    /// Ends it: who led when.
    pub fn finish(self) -> Report {
        let logs = self.logs.finish();
        let tracks: Vec<Track> = logs.into_iter().map(|(path, file)| self_told(&path, file, &self.killed)).collect();
        Judge::check(&tracks)
    }
}

/// Opens what is there: NAMESPACE_POD_UID/CONTAINER/N.log. An open file can be read when its pod is long gone.
fn open_new(logs: &mut BTreeMap<PathBuf, File>, place: &Path, of: &str, container: &str) {
    let Ok(pods) = std::fs::read_dir(place) else { return };
    for pod in pods.flatten().filter(|pod| pod.file_name().to_string_lossy().starts_with(of)) {
        let Ok(files) = std::fs::read_dir(pod.path().join(container)) else { continue };
        for path in files.flatten().map(|file| file.path()) {
            if !logs.contains_key(&path)
                && let Ok(file) = File::open(&path)
            {
                logs.insert(path, file);
            }
        }
    }
}

/// The leaderships of one run of a container. The runtime puts a time, a stream and a flag before each line.
fn self_told(path: &Path, mut file: File, killed: &[(String, u64)]) -> Track {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let pod = path.ancestors().nth(2).and_then(|pod| pod.file_name()).expect("a log is in a pod's directory");
    let pod = pod.to_string_lossy().split('_').nth(1).unwrap_or_default().to_owned();
    let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    let log: Vec<LogLine> = lines.map(|line| LogLine::parse(&Line { boot_ms: 0, text: line.to_owned() })).collect();
    let mut terms = terms(&pod, &log, None);
    for term in terms.iter_mut().filter(|term| term.end.is_none()) {
        term.end = killed.iter().filter(|(of, by)| *of == pod && *by >= term.start).map(|(_, by)| *by).min();
    }
    Track { who: pod, terms }
}
