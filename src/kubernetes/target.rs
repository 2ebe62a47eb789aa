//! What is published, and how an answer of the API server is called: the labels of two metrics.

/// What is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Label and token annotation of the own pod.
    Label,
    /// The own pod's condition.
    Condition,
    /// The Lease mirror.
    Lease,
    /// Events on the own pod.
    Event,
    /// The own pod's deletion cost.
    DeletionCost,
    /// What the displaced leader's pod still says.
    Predecessor,
}

impl Target {
    /// Every target.
    pub const ALL: [Self; 6] =
        [Self::Label, Self::Condition, Self::Lease, Self::Event, Self::DeletionCost, Self::Predecessor];

    /// The label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Condition => "condition",
            Self::Lease => "lease",
            Self::Event => "event",
            Self::DeletionCost => "deletion-cost",
            Self::Predecessor => "predecessor",
        }
    }
}

/// Why something could not be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// 400: the request makes no sense to this server.
    BadRequest,
    /// 401: the token is not, or no longer, good.
    Unauthorized,
    /// 403: a right is missing.
    Forbidden,
    /// 404: the object, or its kind, is not there.
    NotFound,
    /// 409: the object is another than the one that was read.
    Conflict,
    /// 422: a value or a test of the request was refused.
    Unprocessable,
    /// 429: too many requests.
    TooMany,
    /// 500 and above.
    Server,
    /// No answer within the limit.
    Timeout,
    /// No connection, or one that broke.
    Connect,
    /// The server's certificate is not what it should be.
    Tls,
    /// Anything else.
    Other,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 12] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::Conflict,
        Self::Unprocessable,
        Self::TooMany,
        Self::Server,
        Self::Timeout,
        Self::Connect,
        Self::Tls,
        Self::Other,
    ];

    /// The label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "400",
            Self::Unauthorized => "401",
            Self::Forbidden => "403",
            Self::NotFound => "404",
            Self::Conflict => "409",
            Self::Unprocessable => "422",
            Self::TooMany => "429",
            Self::Server => "5xx",
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Other => "other",
        }
    }

    /// Of an HTTP status that is no success.
    #[must_use]
    pub const fn of_status(status: u16) -> Self {
        match status {
            400 => Self::BadRequest,
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            409 => Self::Conflict,
            422 => Self::Unprocessable,
            429 => Self::TooMany,
            500..=599 => Self::Server,
            // Redirects and what no API server says.
            _ => Self::Other,
        }
    }

    /// Whether the server has answered: what was asked for is not done then, and will not be.
    #[must_use]
    pub(super) const fn is_an_answer(self) -> bool {
        match self {
            Self::BadRequest
            | Self::Unauthorized
            | Self::Forbidden
            | Self::NotFound
            | Self::Conflict
            | Self::Unprocessable
            | Self::TooMany => true,
            // A gateway's word is not the server's.
            Self::Server | Self::Timeout | Self::Connect | Self::Tls | Self::Other => false,
        }
    }

    /// Whether trying again soon can only fail again: a person has to act first.
    #[must_use]
    pub(super) const fn needs_a_person(self) -> bool {
        match self {
            Self::BadRequest | Self::Forbidden | Self::NotFound | Self::Unprocessable | Self::Tls | Self::Other => true,
            Self::Unauthorized | Self::Conflict | Self::TooMany | Self::Server | Self::Timeout | Self::Connect => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_code() {
        for (status, code) in [
            (400, "400"),
            (401, "401"),
            (403, "403"),
            (404, "404"),
            (409, "409"),
            (422, "422"),
            (429, "429"),
            (500, "5xx"),
            (503, "5xx"),
            (599, "5xx"),
            (302, "other"),
            (418, "other"),
        ] {
            assert_eq!(Code::of_status(status).as_str(), code, "{status}");
        }
    }
}
