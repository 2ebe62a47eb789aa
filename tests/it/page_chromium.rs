//! The status page in a real browser: live without a reload, readable without scripts, in dark, in light and on a
//! phone, and nothing that the console or a checker of accessibility complains of.
//!
//! With `REDLEADER_PICTURES=DIR` the screenshots are written to DIR, for docs/observability.md.

use std::path::Path;
use std::time::Duration;

use crate::support::{Browser, Judge, Replica, ReplicaOptions, Servers, View, boot_ms, eventually, figure, setting};

const SOON: Duration = Duration::from_secs(30);
const LIGHT: View = View { size: (800, 900), dark: false, scripts: true };

fn replicas(servers: &Servers) -> [Replica; 3] {
    // A busy machine must not end a leadership whose page is looked at.
    let args = ["--ttl", "6s", "--quarantine", "6600ms", "--node-timeout", "1s"];
    ["app-0", "app-1", "app-2"]
        .map(|identity| ReplicaOptions::new("orders", identity, &servers.urls()).args(args).start())
}

fn leader(replicas: &[Replica; 3]) -> &Replica {
    eventually("one leads", SOON, || replicas.iter().find(|replica| replica.leads()))
}

fn url(replica: &Replica) -> String {
    format!("http://{}/", replica.address())
}

fn keep(name: &str, picture: &[u8]) {
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 5000, "{name} is an empty picture");
    if let Some(directory) = setting("REDLEADER_PICTURES") {
        std::fs::write(Path::new(&directory).join(name), picture).unwrap();
    }
}

#[test]
fn a_hand_over_is_seen_on_the_page_without_a_reload() {
    let servers = Servers::start(3);
    let replicas = replicas(&servers);
    let first = leader(&replicas);
    let watched = replicas.iter().find(|replica| replica.pid() != first.pid()).unwrap();
    let browser = Browser::start();
    let page = browser.page(LIGHT);
    page.go(&url(watched));
    eventually("it is live", SOON, || (page.text("#live") == "Live").then_some(()));
    eventually("the page names the leader", SOON, || (page.text(".who strong") == first.identity()).then_some(()));
    page.evaluate("window.mark = 1");

    assert_eq!(first.command(&["resign", "--for", "1m"]).code, 0);
    let new = eventually("the page names another", SOON, || {
        let who = page.text(".who strong");
        (who != first.identity() && who != "nobody" && !who.is_empty()).then_some(who)
    });
    let seen = boot_ms();
    let second = replicas.iter().find(|replica| replica.identity() == new).unwrap();
    let elected = second.wait_elected(1, SOON).number("boot_ms").unwrap();
    figure(
        "O4, from a win to the page that shows it",
        &format!("{} ms, on the page of a replica that stood by", seen - elected),
    );
    assert_eq!(page.evaluate("window.mark"), 1, "the page was loaded again");
    let past = page.text("#status tbody:last-of-type");
    assert!(page.text("#status").contains(&format!("{new} ")), "{past}");
    let said = page.text("#said");
    assert!(said.contains(&new) || said.contains("nobody"), "nothing is read aloud: {said}");

    // The lease of a leader runs down between two extends, and is full again after one.
    let page = browser.page(LIGHT);
    page.go(&url(second));
    let left = || page.evaluate("document.getElementById('lease')?.value ?? -1").as_f64().unwrap();
    eventually("there is a lease", SOON, || (left() > 0.0).then_some(()));
    let (mut last, mut fell, mut rose) = (left(), false, false);
    eventually("the bar runs down, and is filled again", SOON, || {
        let present = left();
        fell |= present < last;
        rose |= present > last;
        last = present;
        (fell && rose).then_some(())
    });
    keep("status-light.png", &page.screenshot());
    assert_eq!(page.complaints(), Vec::<String>::new());

    // Its replica goes away: the page says so, and does not go on to show a leader as if it were so now.
    second.kill9();
    eventually("the page tells that it hears nothing", SOON, || {
        page.text("#live").starts_with("Not connected").then_some(())
    });
    eventually("the bar is empty", SOON, || (left() == 0.0).then_some(()));
    Judge::check_replicas(&replicas).assert_clean("O4, three replicas whose page is watched");
}

#[test]
fn the_page_is_readable_by_everyone() {
    let servers = Servers::start(3);
    let replicas = replicas(&servers);
    let leader = leader(&replicas);
    let browser = Browser::start();
    let views = [
        ("status-dark.png", View { dark: true, ..LIGHT }),
        ("status-narrow.png", View { size: (360, 780), ..LIGHT }),
        ("status-narrow-dark.png", View { size: (360, 780), dark: true, scripts: true }),
        ("status-light-first.png", LIGHT),
    ];
    let mut colours = Vec::new();
    for (name, view) in views {
        let page = browser.page(view);
        page.go(&url(leader));
        eventually("it is live", SOON, || (page.text("#live") == "Live").then_some(()));
        assert_eq!(page.text(".who strong"), leader.identity());
        let wide = page.evaluate("document.documentElement.scrollWidth").as_u64().unwrap();
        assert!(wide <= u64::from(view.size.0), "{name}: {wide} pixels wide, it must be scrolled");
        assert_eq!(page.inaccessible(), Vec::<String>::new(), "{name}");
        assert_eq!(page.complaints(), Vec::<String>::new(), "{name}");
        colours.push((view.dark, page.evaluate("getComputedStyle(document.body).backgroundColor")));
        keep(name, &page.screenshot());
    }
    colours.sort_by_key(|(dark, _)| *dark);
    assert_eq!(colours[0].1, colours[1].1);
    assert_ne!(colours[0].1, colours[2].1, "dark is not dark");

    // Without scripts everything is there, and the browser asks again by itself.
    let page = browser.page(View { scripts: false, ..LIGHT });
    page.go(&url(leader));
    assert_eq!(page.text(".who strong"), leader.identity());
    assert_eq!(page.text("#live"), "Renewed every 5 seconds");
    let drawn = page.text("#status .faint time");
    eventually("the browser asks again", SOON, || {
        let again = page.text("#status .faint time");
        (!again.is_empty() && again != drawn).then_some(())
    });
    for words in ["Fencing token", "Lease", "granted", "Last changes", "was elected", "of 3 answer"] {
        assert!(page.text("#status").contains(words), "{words}: {}", page.text("#status"));
    }
    for address in servers.addresses() {
        assert!(page.text("#status").contains(&address), "{address}");
    }
    figure("O4, views checked by axe-core and a console without a word", &views.len().to_string());
}
