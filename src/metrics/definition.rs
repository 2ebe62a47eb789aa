//! The list of metrics: name, help text and labels of each, from which the program makes them and README is checked.

/// One metric, as `/metrics` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name, with its prefix.
    pub name: &'static str,
    /// What it says, in one sentence.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
}

/// Defines each metric as a constant, and the list of all of them, so that none can be left out of the list.
macro_rules! definitions {
    ($($constant:ident $name:literal [$($label:literal),*] $help:literal)*) => {
        $(pub(super) const $constant: Definition =
            Definition { name: $name, help: $help, labels: &[$($label),*] };)*

        /// Every metric of redleader's own; the process metrics of the Prometheus client library come on top.
        pub const DEFINITIONS: &[Definition] = &[$($constant),*];
    };
}

definitions! {
    IS_LEADER "redleader_is_leader" ["lock"]
        "Whether this replica leads now."
    STATE "redleader_state" ["lock", "state"]
        "What this replica does now: 1 for its state, 0 for the others."
    HOLDER_INFO "redleader_holder_info" ["lock", "holder"]
        "Who holds the lock as far as this replica knows; foreign for a holder that is not redleader."
    FENCING_TOKEN "redleader_fencing_token" ["lock"]
        "The fencing token of this replica's leadership, or else the holder's where it is known."
    LEASE_EXPIRY "redleader_lease_expiry_timestamp_seconds" ["lock"]
        "When this replica's leadership ends unless it is extended; absent unless it leads."
    LEADER_SINCE "redleader_leader_since_timestamp_seconds" ["lock"]
        "When this replica's leadership began; absent unless it leads."
    LAST_EXTEND "redleader_last_extend_timestamp_seconds" ["lock"]
        "When a quorum last confirmed this replica's leadership; absent unless it leads."
    TRANSITIONS "redleader_transitions_total" ["lock", "event"]
        "Leaderships that this replica began and ended, and changes of holder that it saw."
    STEPDOWNS "redleader_stepdowns_total" ["lock", "reason"]
        "Leaderships of this replica that ended, by reason."
    ACQUIRE_ATTEMPTS "redleader_acquire_attempts_total" ["lock", "outcome"]
        "Attempts to win the lock that ended, by outcome."
    EXTEND_ATTEMPTS "redleader_extend_attempts_total" ["lock", "outcome"]
        "Rounds of extends that ended, by outcome."
    RELEASE_ATTEMPTS "redleader_release_attempts_total" ["lock", "outcome"]
        "Releases that ended, by outcome."
    ACQUIRE_DURATION "redleader_acquire_duration_seconds" ["lock", "outcome"]
        "How long attempts took, from their first request."
    EXTEND_DURATION "redleader_extend_duration_seconds" ["lock", "outcome"]
        "How long rounds of extends took."
    EXTEND_MARGIN "redleader_extend_margin_ratio" ["lock"]
        "How much of the validity was left when a quorum confirmed an extend: 1 is all of it, 0 is too late."
    FAILOVER_GAP "redleader_failover_gap_seconds" ["lock"]
        "From the last time that another was seen to hold the lock validly to this replica's win."
    NODE_COMMAND "redleader_node_command_duration_seconds" ["node", "op"]
        "How long a node's answers took, by operation."
    NODE_UP "redleader_node_up" ["node"]
        "Whether the node answered when last asked."
    NODE_QUARANTINED "redleader_node_quarantined" ["node"]
        "Whether the node has no vote now because it may have forgotten a grant."
    NODE_ERRORS "redleader_node_errors_total" ["node", "kind"]
        "Answers of a node that are no votes, by kind."
    NODE_CLOCK_OFFSET "redleader_node_clock_offset_seconds" ["node"]
        "How far the node's clock is ahead of the median node's; absent until it is known."
    NODE_CLOCK_RATE "redleader_node_clock_rate_ratio" ["node"]
        "How fast the node's clock runs beside this machine's; absent until it has been measured over 30 seconds."
    NODE_EVICTS "redleader_node_eviction_policy_bad" ["node"]
        "Whether the node has a memory limit and may evict the lock's keys."
    QUORUM_REQUIRED "redleader_quorum_required" ["lock"]
        "Nodes whose votes are needed."
    QUORUM_REACHABLE "redleader_quorum_reachable" ["lock"]
        "Nodes that answered when last asked."
    LIST_MISMATCH "redleader_list_mismatch" ["lock"]
        "Whether the holder works with another list of nodes than this replica."
    QUARANTINE "redleader_quarantine_seconds" ["lock"]
        "The quarantine in use: how long a node that may have forgotten a grant has no vote."
    APP_HEALTHY "redleader_app_healthy" ["lock"]
        "Whether the app is healthy; absent unless --app-ready is given."
    LEADERSHIP_FILE_ERRORS "redleader_leadership_file_errors_total" ["lock"]
        "Times that the leadership file could not be written."
    PUBLISH_ERRORS "redleader_publish_errors_total" ["target", "code"]
        "Requests to the Kubernetes API that failed, by what was to be published and how."
    PUBLISH_PENDING "redleader_publish_pending" ["target"]
        "Whether what is published in Kubernetes differs from what is so, or is not known."
    LOOP_LAG "redleader_event_loop_lag_seconds" []
        "The largest delay of the election's loop within the last minute or two."
    LOOP_AGE "redleader_loop_tick_age_seconds" []
        "How long ago the election's loop last turned."
    BUILD_INFO "redleader_build_info" ["version"]
        "The version that runs."
    MASTER_STATUS "leader_election_master_status" ["name"]
        "Whether this replica leads now, under the name that Kubernetes components use; name is the lock."
}
