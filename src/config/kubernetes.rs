//! What is published in Kubernetes: flags that need to know the pod.

use axum::http::Uri;

use crate::cli::KubernetesArgs;
use crate::config::value::Why;
use crate::config::{Faults, Pod};
use crate::kubernetes::{PodName, Settings, is_object_name};

/// What the flags ask for; `None`: nothing, or faults.
pub(super) fn settings(args: &KubernetesArgs, pod: &Pod, faults: &mut Faults) -> Option<Settings> {
    let mut switch = |flag, text: &str| faults.keep(flag, parse_switch(text)).unwrap_or(false);
    let label = switch("--kube-label", &args.kube_label);
    let condition = switch("--kube-condition", &args.kube_condition);
    let events = switch("--kube-events", &args.kube_events);
    let deletion_cost = switch("--kube-deletion-cost", &args.kube_deletion_cost);
    // As with the switches, an empty value is what a manifest without a value leaves behind.
    let lease = args.kube_lease.as_deref().filter(|name| !name.is_empty());
    let lease = lease.and_then(|name| faults.keep("--kube-lease", parse_object_name(name)));
    let proxy = args.kube_proxy.as_deref().filter(|url| !url.is_empty());
    let proxy = proxy.and_then(|url| faults.keep("--kube-proxy", parse_proxy(url)));
    let wanted = [
        (label, "--kube-label"),
        (condition, "--kube-condition"),
        (events, "--kube-events"),
        (deletion_cost, "--kube-deletion-cost"),
        (lease.is_some(), "--kube-lease"),
    ];
    // A proxy alone is nothing to go through it.
    let (_, flag) = wanted.into_iter().find(|(is_on, _)| *is_on)?;
    let mut need = |value: &Option<String>, of: &'static str| {
        if value.is_none() {
            faults.note(flag, Why::Needs(of));
        }
        value.clone()
    };
    let name = need(&pod.name, "--pod-name, or POD_NAME in the environment (fieldRef metadata.name)");
    let namespace =
        need(&pod.namespace, "--pod-namespace, or POD_NAMESPACE in the environment (fieldRef metadata.namespace)");
    let uid = need(&pod.uid, "--pod-uid, or POD_UID in the environment (fieldRef metadata.uid)");
    let pod = PodName { name: name?, namespace: namespace?, uid: uid? };
    Some(Settings { pod, label, condition, events, deletion_cost, lease, proxy })
}

fn parse_switch(text: &str) -> Result<bool, Why> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" | "" => Ok(false),
        _ => Err(Why::OneOf("on, off, true, false")),
    }
}

fn parse_object_name(name: &str) -> Result<String, Why> {
    is_object_name(name).then(|| name.to_owned()).ok_or(Why::NoObjectName)
}

fn parse_proxy(url: &str) -> Result<Uri, Why> {
    let uri: Uri = url.parse().map_err(|_| Why::NoProxy)?;
    let is_proxy = uri.scheme_str() == Some("http")
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && matches!(uri.path(), "" | "/")
        && uri.query().is_none();
    if is_proxy { Ok(uri) } else { Err(Why::NoProxy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_plain_http_url_without_secrets() {
        for (url, is_ok) in [
            ("http://proxy:3128", true),
            ("http://10.0.0.1:3128/", true),
            ("http://[::1]:3128", true),
            ("https://proxy:3128", false),
            ("socks5://proxy", false),
            ("http://user:S3cr3t@proxy:3128", false),
            ("http://proxy/path", false),
            ("http://proxy/?q", false),
            ("proxy:3128", false),
            ("http://", false),
            ("", false),
        ] {
            assert_eq!(parse_proxy(url).is_ok(), is_ok, "{url}");
        }
    }

    #[test]
    fn a_lease_has_a_name_that_kubernetes_takes() {
        for (name, is_ok) in [
            ("web", true),
            ("web.leader-1", true),
            ("Web", false),
            ("-web", false),
            ("web.", false),
            ("a/b", false),
            ("..", false),
            (&"x".repeat(253), true),
            (&"x".repeat(254), false),
        ] {
            assert_eq!(parse_object_name(name).is_ok(), is_ok, "{name}");
        }
    }
}
