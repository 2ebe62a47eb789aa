//! The sub-commands that speak to no node: `install` and `completions`.

use std::process::Command;
use std::time::Duration;

use crate::support::{TempDir, binary, run};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn the_binary_installs_itself_and_speaks_of_itself() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new();
    let redleader = |program: &std::path::Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env_clear();
        run("redleader", command, SOON)
    };
    let target = directory.join("redleader");
    std::fs::write(&target, "an older one").unwrap();
    let said = redleader(&binary(), &["install", directory.path().to_str().unwrap()]);
    assert_eq!((said.code, said.stdout), (0, format!("installed {}\n", target.display())));
    assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    assert!(std::fs::read(&target).unwrap() == std::fs::read(binary()).unwrap(), "a whole copy");
    // The copy runs, and replaces itself while it does.
    let said = redleader(&target, &["install", directory.path().to_str().unwrap()]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let said = redleader(&target, &["--version"]);
    assert_eq!((said.code, said.stdout), (0, format!("redleader {}\n", env!("CARGO_PKG_VERSION"))));
    let said = redleader(&binary(), &["install", "/no/such/directory"]);
    assert_eq!(said.code, 64);
    assert!(said.stderr.contains("cannot install into /no/such/directory"), "{}", said.stderr);
}

#[test]
fn completions_are_scripts_that_a_shell_takes_and_the_manual_names_everything() {
    let print = |what: &str| {
        let mut command = Command::new(binary());
        command.args(["completions", what]);
        run("completions", command, SOON)
    };
    let directory = TempDir::new();
    let script = directory.write("redleader.bash", &print("bash").stdout);
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!(". {} && complete -p redleader", script.display())]);
    let said = run("bash", shell, SOON);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stdout.contains("_redleader"), "{}", said.stdout);
    for (shell, word) in [("zsh", "#compdef redleader"), ("fish", "complete -c redleader")] {
        let said = print(shell);
        assert!(said.code == 0 && said.stdout.contains(word), "{shell}: {}", said.stderr);
    }
    let page = print("man");
    let text = page.stdout.replace('\\', "");
    assert_eq!(page.code, 0);
    for word in ["RUN", "STATUS", "DOCTOR", "WAIT", "RESIGN", "DRAIN", "INSTALL", "COMPLETIONS", "DEMO"] {
        assert!(text.contains(&format!(".SH {word}")), "{word}");
    }
    for word in ["--lock", "--redis", "--ttl", "--next", "--watch", "REDLEADER_LOCK"] {
        assert!(text.contains(word), "{word} in the manual");
    }
    assert_eq!(print("csh").code, 64);
}

/// An image from scratch: the binary, what the loader needs if it is not static, /proc as every container has it, and
/// nothing else; no shell, no cp.
#[test]
fn it_installs_itself_where_there_is_nothing_else_as_root() {
    let root = TempDir::new();
    for directory in ["proc", "out"] {
        std::fs::create_dir(root.join(directory)).unwrap();
    }
    std::fs::copy(binary(), root.join("redleader")).unwrap();
    let mut ldd = Command::new("ldd");
    ldd.arg(binary());
    let libraries = run("ldd", ldd, SOON).stdout;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let target = root.join(library.trim_start_matches('/'));
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(library, target).unwrap();
    }
    let mut inside = Command::new("unshare");
    let script = "mount --bind /proc \"$1/proc\" && chroot \"$1\" /redleader install /out && \
                  exec chroot \"$1\" /out/redleader --version";
    inside.args(["--mount", "sh", "-c", script, "sh"]).arg(root.path());
    let said = run("unshare", inside, SOON);
    let version = format!("installed /out/redleader\nredleader {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((said.code, said.stdout), (0, version), "{}", said.stderr);
}
